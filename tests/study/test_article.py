"""The article: its text, links and pictures, and the live figures in Chromium, from disk and offline."""

import re
from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch
from browser_helpers import watched_pages
from study_models import make_run

from model import ModelArgs, Transformer
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer
from model.weights import save_model, save_tokenizer
from study import page as page_topic
from study import what_if
from study.article import FIGURES, PAGES, SCRIPT, render
from study.lookback import FAST_PAIRS, LONG, sharpness
from study.topic import open_windows
from study.topics import run

pytest.importorskip("markdown_it")
DOCS = Path(__file__).parents[2] / "docs"
TEXT = "The rope is laid in the ropewalk, and the walk is as long as the rope. " * 60
RANGE_MAX = "input => { input.value = input.max; input.dispatchEvent(new Event('input')); }"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("article")
    save_tokenizer(SentencePieceTokenizer(train_tokenizer([TEXT], home / "bpe.model", "bpe", 300)), home / "toy")
    torch.manual_seed(1)
    args = ModelArgs(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=300, max_seq_len=96)
    model = Transformer(args)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(std=1.5 / weight.shape[1] ** 0.5)
    save_model(model, home / "toy")
    make_run(home / "toy", TEXT)
    run("article", model=home / "toy", out=home / "site")
    return home / "site"


def test_every_link_leads_to_a_page_and_an_anchor_and_every_page_is_complete(site):
    pages = {file.name: file.read_text(encoding="utf-8") for file in site.glob("*.html")}
    assert pages.keys() == {f"{name}.html" for name in PAGES.values()} | {"page.html"}
    for name, text in pages.items():
        body = text.partition("<script")[0]
        for address in re.findall(r'href="([^"]*)"', body):
            file, _, anchor = unescape(address).partition("#")
            if address.startswith("https:"):
                continue
            assert (file or name) in pages, (name, address)
            if anchor and file != "page.html" and name != "page.html":
                assert f'id="{unquote(anchor)}"' in pages[file or name], (name, address)
        assert not re.search(r'<(?:img|script|link|iframe)[^>]*(?:src|href)="(?!data:)', text), name
        assert "unsafe" not in re.search(r'Content-Security-Policy" content="(.*?)"', text)[1]


@pytest.mark.parametrize("source", PAGES)
def test_the_text_code_and_pictures_of_the_markdown_are_on_the_page(source):
    markdown = (DOCS / source).read_text(encoding="utf-8")
    body = render(markdown)
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        assert f'id="{page_topic.anchor(heading)}"' in body
    text = unescape(re.sub(r"<[^>]*>", "", body))
    for code in re.findall(r"^```\w*\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL):
        assert code in text
    pictures = re.findall(r"!\[(.*?)\]\(images/(\w+)", markdown)
    assert re.findall(r'data-picture="(\w+)"', body) == [name for _, name in pictures]
    live = [FIGURES[name] for _, name in pictures if name in FIGURES]
    assert re.findall(r'data-figure="(\w+)"', body) == live
    assert sorted(live) == (sorted(FIGURES.values()) if source.startswith("rope.") else [])


def test_a_link_out_of_the_article_is_refused():
    with pytest.raises(ValueError, match=r"links to library\.md"):
        render("[x](library.md#y)")


def test_joined_modules_declare_no_name_twice():
    names = re.findall(
        r"^(?:async )?(?:const|let|function|class) (\w+)", page_topic.joined_modules(SCRIPT), re.MULTILINE
    )
    assert len(names) == len(set(names))


@pytest.fixture
def opened(browser, site):
    with watched_pages(browser) as open_page:
        yield lambda name="index", **options: open_page((site / f"{name}.html").as_uri(), **options)


def figure(page, name: str):
    return page.locator(f"figure[data-figure={name}]")


def test_the_first_figure_has_the_scores_of_the_text_and_words_can_be_dragged(opened):
    place = figure(opened(), "problem")
    assert place.locator(".score").all_inner_texts() == ["4.8400", "0.6226", "0.3822"]
    both = place.locator("input").first
    both.focus()
    for _ in range(3):
        both.press("ArrowRight")
    numbers = place.locator(".score").all_inner_texts()
    assert numbers[2] == "0.3822"
    assert numbers[0] != "4.8400"
    place.locator(".word.query").drag_to(place.locator(".word").nth(12))
    assert place.locator("output").nth(1).inner_text() == "12"
    assert place.locator(".score").all_inner_texts()[2] != "0.3822"


def test_one_hand_repeats_and_eight_do_not(opened):
    place = figure(opened(), "clocks")
    assert "looks like 111 other positions" in place.locator(".note").inner_text()
    place.get_by_role("button", name="all eight").press("Enter")
    assert "No other position" in place.locator(".note").inner_text()


def test_the_layouts_have_the_scores_of_the_text(opened):
    walk = (DOCS / "rope.md").read_text(encoding="utf-8")
    rows = re.findall(r"^(neighbours|halves|mixed) .*\) +(\S+) +\S+ +(\S+)$", walk, re.MULTILINE)
    place = figure(opened(), "layouts")
    for name, first, last in rows:
        place.get_by_role("button", name=name, exact=True).click()
        assert f"score {first}." in place.locator(".note").inner_text()
        place.locator("input").evaluate(RANGE_MAX)  # q at 1005, k at 1000
        number = float(re.search(r"score (\S+)\. ", place.locator(".note").inner_text())[1])
        assert number == pytest.approx(float(last), abs=2e-4)
        place.locator("input").evaluate(RANGE_MAX.replace("input.max", "0"))
    assert len(rows) == 3


def test_the_designed_head_has_the_weights_of_the_text_and_a_trained_one_is_drawn(opened):
    weights = {row[0]: float(row[3]) for row in sharpness(page_freqs(), 5).rows}
    place = figure(opened(), "head")

    def weight(length: float, pairs: int) -> float:
        for number, value in ((1, length), (2, pairs)):
            place.locator("input").nth(number).evaluate(RANGE_MAX.replace("input.max", str(value)))
        return float(re.search(r"([\d.]+)% of the weight", place.locator(".note").inner_text())[1]) / 100

    assert weight(11.5, 64) == pytest.approx(0.25, abs=0.01)
    assert weight(LONG, 64) == pytest.approx(0.84, abs=0.006)
    assert weight(11.5, FAST_PAIRS) == pytest.approx(weights[f"the fastest {FAST_PAIRS}"], abs=0.03)
    canvas = place.locator("canvas").nth(1)
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    place.get_by_role("button", name="1.0").press("Enter")
    for _ in range(50):
        if canvas.evaluate("canvas => canvas.toDataURL()") != before:
            return
        place.page.wait_for_timeout(100)
    pytest.fail("the trained head is not drawn")


def page_freqs() -> torch.Tensor:
    from study.clocks import frequencies

    return frequencies(128, 10000.0)


def test_the_losses_of_the_guesses_equal_pythons(opened, site, monkeypatch):
    place = figure(opened(), "guess")
    monkeypatch.setattr(what_if, "open_windows", partial(open_windows, most=1))  # the text of the figure
    report = what_if.whatif(site.parent / "toy")
    losses = {row[0]: float(row[1]) for row in report.tables[0].rows}
    translated = {"positions × 4": "positions times 4", "base × 100": "base 1e+06"}
    for button in ("all positions + 1000", *translated, "no rotation", "halves for neighbours"):
        change = translated.get(button, button)
        place.get_by_role("button", name=button, exact=True).click()
        assert "say what happens" in place.locator(".note").inner_text()
        place.get_by_role("button", name="rises").press("Enter")
        place.locator(".note", has_text="with the change").wait_for(timeout=20_000)
        before, after = re.search(r"Loss (\S+) as trained, (\S+) with", place.locator(".note").inner_text()).groups()
        assert float(before) == pytest.approx(losses["as trained"], abs=2e-3)
        assert float(after) == pytest.approx(losses[change], abs=2e-3)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_scrolls_sideways_and_every_control_is_reached_by_keyboard(opened, theme):
    for name in PAGES.values():
        ready = "html[data-ready]" if name in ("index", "zh") else "main"
        page = opened(name, ready=ready, color_scheme=theme)
        for width in (1400, 420, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (name, width)
        assert "undefined" not in page.inner_text("body")
    page = opened("zh")
    count = page.locator(".live button, .live input").count()
    assert count > 30
    page.locator("#theme").focus()
    reached = 0
    for _ in range(400):
        page.keyboard.press("Tab")
        reached += page.evaluate("() => document.activeElement.matches('.live button, .live input')")
    assert reached >= count


def test_without_javascript_the_text_and_the_pictures_are_there(opened):
    page = opened("index", ready="main", java_script_enabled=False)
    pictures = (DOCS / "rope.md").read_text(encoding="utf-8").count("](images/")
    assert page.locator("figure img").count() == pictures > len(FIGURES)
    assert "This is all of RoPE in one line" in page.inner_text("main")
