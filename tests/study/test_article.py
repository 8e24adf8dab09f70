"""The article: its text, links and pictures, and the live figures in Chromium, from disk and offline."""

import re
from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser_helpers import save_small_model, watched_pages
from study_models import make_run

from study import what_if
from study.article import FIGURES, PAGES, PREVIEW, anchor, render, walk_steps
from study.clocks import frequencies
from study.lookback import FAST_PAIRS, sharpness
from study.topic import open_windows
from study.topics import run

pytest.importorskip("markdown_it")
DOCS = Path(__file__).parents[2] / "docs"
REPOSITORY = "https://example.org/code"
TEXT = "The rope is laid in the ropewalk, and the walk is as long as the rope. " * 60


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("article")
    save_small_model(home / "toy", TEXT)
    make_run(home / "toy", TEXT)
    run("article", model=home / "toy", out=home / "site", repository=REPOSITORY, address="https://example.org/walk/")
    return home / "site"


def test_every_link_leads_to_a_page_and_an_anchor_and_every_page_is_complete(site):
    pages = {file.name: file.read_text(encoding="utf-8") for file in site.glob("*.html")}
    assert pages.keys() == {f"{name}.html" for name in PAGES.values()} | {"page.html"}
    for name, text in pages.items():
        body = text.partition("<script")[0]
        for address in re.findall(r'href="([^"]*)"', body):
            file, _, anchor = unescape(address).partition("#")
            if address.startswith(("https:", "data:image/")):
                continue
            assert (file or name) in pages, (name, address)
            if anchor and file != "page.html" and name != "page.html":
                assert f'id="{unquote(anchor)}"' in pages[file or name], (name, address)
        assert not re.search(r'<(?:img|script|link|iframe)[^>]*(?:src|href)="(?!data:)', text), name
        assert "unsafe" not in re.search(r'Content-Security-Policy" content="(.*?)"', text)[1]


def test_a_page_can_be_sent_to_somebody(site):
    """It has a title and a picture, and leads to the code, the other language and its sections."""
    for source, name in PAGES.items():
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        title = (DOCS / source).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert f"<title>{title} · Ropewalk</title>" in text
        assert f'"og:image" content="https://example.org/walk/{PREVIEW}"' in text
        header = re.search(r"<header>(.*?)</header>", text, re.DOTALL)[1]
        other = {"index": "zh", "zh": "index"}.get(name) or name.removesuffix(".zh") + ".zh" * (".zh" not in name)
        assert {f'href="{REPOSITORY}"', f'href="{REPOSITORY}/issues"', f'href="{other}.html"'} <= set(
            re.findall(r'href="[^"]*"', header)
        )
        assert header.count("<li>") == text.count("<h2 ") > 1
    assert (site / PREVIEW).read_bytes() == (DOCS / "images" / PREVIEW).read_bytes()


@pytest.mark.parametrize("source", PAGES)
def test_the_text_code_and_pictures_of_the_markdown_are_on_the_page(source):
    markdown = (DOCS / source).read_text(encoding="utf-8")
    body = render(markdown, "zh" if ".zh." in source else "en")
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        assert f'id="{anchor(heading)}"' in body
    assert body.count('class="anchor"') == len(re.findall(r"^##+ ", prose, re.MULTILINE))
    text = unescape(re.sub(r"<[^>]*>", "", body))
    for code in re.findall(r"^```\w*\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL):
        assert code in text
    pictures = re.findall(r"!\[(.*?)\]\(images/(\w+)", markdown)
    assert re.findall(r'data-picture="(\w+)"', body) == [name for _, name in pictures]
    live = [FIGURES[name] for _, name in pictures if name in FIGURES]
    assert sorted(live) == (sorted(FIGURES.values()) if source.startswith("rope.") else [])
    assert re.findall(r'data-figure="(\w+)"', body) == live


def test_the_views_of_the_microscope_link_to_steps_of_the_article(site):
    shown = {int(step) for step in re.findall(r'data-step="(\d+)"', (site / "page.html").read_text(encoding="utf-8"))}
    for headings in walk_steps().values():
        assert shown <= {int(heading.split(".")[0]) for heading, _ in headings}
        for heading, address in headings:
            file, place = address.split("#")
            assert f'id="{place}">{heading} <' in (site / file).read_text(encoding="utf-8")


def test_links_out_of_the_article_are_refused_and_a_line_break_between_chinese_characters_is_no_space():
    with pytest.raises(ValueError, match=r"links to library\.md"):
        render("[x](library.md#y)", "en")
    text = "旋转，\n平移 q\n和 k\n[链接](#x)\n[第二页](#y)\n**为止**\n"
    links = '<a href="#x">链接</a><a href="#y">第二页</a>'
    assert render(text, "zh") == f"<p>旋转，平移 q\n和 k\n{links}<strong>为止</strong></p>\n"


def test_indices_are_set_as_such_in_text_and_formulas_but_not_in_code():
    text = "With W_q x < 3, mθ_0, γ_i and `W_q`:\n\n    R_(n-m) q_mᵀ\n\n```python\nW_q = x_1\n```\n"
    body = render(text, "en")
    assert "With W<sub>q</sub> x &lt; 3, mθ<sub>0</sub>, γ<sub>i</sub> and <code>W_q</code>:" in body
    assert "R<sub>n-m</sub> q<sub>m</sub>ᵀ" in body
    assert "W_q = x_1" in body
    assert "<sub>" not in render("start_pos, n_heads and 5_000", "en")
    powers = render("θ_i = b^(-2i/D), e^(j(m-n)θ) from 2^11 on, `x^2`", "en")
    assert "b<sup>-2i/D</sup>, e<sup>j(m-n)θ</sup> from 2<sup>11</sup> on, <code>x^2</code>" in powers


def test_several_commands_are_folded_and_one_command_and_outputs_are_not():
    body = render("```console\n$ one\n$ two <x>\nthe output\n$ three\n```\n", "en")
    folded, _, shown = body.partition("</details>")
    assert folded.startswith("<details><summary>")
    assert "$ two &lt;x&gt;" in folded
    assert "the output" in shown
    assert "$ three" in shown
    assert "open" not in folded


@pytest.fixture
def opened(browser, site):
    with watched_pages(browser) as open_page:
        yield lambda name="index", **options: open_page((site / f"{name}.html").as_uri(), **options)


def figure(page, name: str):
    return page.locator(f"figure[data-figure={name}]")


def test_the_first_figure_has_the_scores_of_the_text(opened):
    place = figure(opened(), "problem")

    def columns() -> list[list[str]]:
        cells = place.locator(".ideas td").all_inner_texts()
        return [cells[::2], cells[1::2]]

    def positions() -> list[str]:
        return place.locator("output").all_inner_texts()

    both, query, key = place.locator("input").all()
    assert positions() == ["3", "8", "3"]
    before, here = columns()
    assert before == ["6.1100", "1.4572", "0.7676"]
    assert [one == other for one, other in zip(before, here)] == [False, False, True]
    assert place.locator(".ideas .same").all_inner_texts() == ["0.7676"]
    assert place.locator(".words").inner_text().split()[3::5] == ["dog", "bites", "·", "·"]
    both.fill("0")
    assert columns() == 2 * [["6.1100", "1.4572", "0.7676"]]
    assert "28° between them" in place.locator("canvas").get_attribute("aria-label")
    both.fill("99")
    assert positions() == ["16", "21", "16"]  # the last words
    query.fill("0")
    key.fill("21")
    assert positions() == ["16", "16", "16"]  # a query sees no later key


def test_a_dragged_word_stays_with_the_pointer(opened):
    page = opened()
    place = figure(page, "problem")
    words = place.locator(".words span")

    def drag(*path: int) -> list[str]:
        for p in path:
            words.nth(p).hover()
            page.mouse.down()
        page.mouse.up()
        return place.locator("output").all_inner_texts()[1:]

    place.locator("input").first.fill("0")
    assert drag(0, 3, 9, 2) == ["5", "2"]  # the key waits at the query, and does not take it along
    assert drag(2, 5) == ["5", "5"]
    assert drag(5, 8) == ["8", "5"]  # where both are, the direction decides
    assert drag(8, 0, 7) == ["7", "5"]


def test_how_many_positions_look_the_same_is_told_after_a_guess(opened):
    """The fast hand repeats, the slow one hardly moves, and all eight tell every position."""
    place = figure(opened(), "clocks")
    note = place.locator(".note")
    assert "how many" in note.inner_text()
    assert place.locator("canvas").is_hidden()
    place.get_by_role("button", name="hundreds", exact=True).press("Enter")
    assert note.inner_text().startswith("Not quite. Position 0 looks like 111 other positions")
    place.get_by_role("button", name="the slowest hand").press("Enter")
    assert "how many" in note.inner_text()
    place.get_by_role("button", name="hundreds", exact=True).press("Enter")
    assert note.inner_text().startswith("Right. Position 0 looks like 1000 other positions")
    place.get_by_role("button", name="all eight").press("Enter")
    place.get_by_role("button", name="none").press("Enter")
    assert note.inner_text().startswith("Right. No other position")
    assert place.locator("canvas").is_visible()


def test_the_layouts_have_the_scores_of_the_text(opened):
    walk = (DOCS / "rope.md").read_text(encoding="utf-8")
    rows = re.findall(r"^(neighbours|halves|mixed) .*\) +(\S+) +\S+ +(\S+)$", walk, re.MULTILINE)
    place = figure(opened(), "layouts")
    for name, first, last in rows:
        place.get_by_role("button", name=name, exact=True).click()
        assert f"score {first}. Now move both." in place.locator(".note").inner_text()
        place.locator("input").fill("1000")
        assert f"score {last}. At the start of the text: {first}." in place.locator(".note").inner_text()
        place.locator("input").fill("0")
    assert len(rows) == 3


def test_the_designed_head_has_the_weights_of_the_text(opened):
    rows = sharpness(frequencies(128, 10000.0), 5).rows
    assert len(rows) > 2
    place = figure(opened(), "head")

    def weight(length: float, pairs: int) -> float:
        slider = place.locator("input").nth(1)
        for step in range(int(slider.get_attribute("max")) + 1):
            slider.fill(str(step))
            if float(slider.get_attribute("aria-valuetext")) == length:
                break
        else:
            raise AssertionError(f"the slider has no {length}")
        place.locator("input").nth(2).fill(str(pairs))
        return float(re.search(r"([\d.]+)% of the weight", place.locator(".note").first.inner_text())[1]) / 100

    for pairs, length, _, expected in rows:
        count = FAST_PAIRS if "fastest" in pairs else 64
        assert weight(float(length), count) == pytest.approx(float(expected), abs=0.006)


def test_the_losses_of_the_guesses_equal_pythons(opened, site, monkeypatch):
    place = figure(opened(), "guess")
    monkeypatch.setattr(what_if, "open_windows", partial(open_windows, most=1))  # the text of the figure
    report = what_if.whatif(site.parent / "toy")
    losses = {row[0]: float(row[1]) for row in report.tables[0].rows}
    translated = {"positions × 4": "positions times 4", "base × 100": "base 1e+06"}
    names = ("all positions + 1000", *translated, "no rotation", "layout confused")
    for name in names:
        assert "After the last one" in place.locator(".note").inner_text()
        place.get_by_role("button", name=name, exact=True).press("Enter")
    place.locator(".note", has_text="are at their place").wait_for(timeout=60_000)
    before = re.search(r"Loss as trained: (\S+) nats", place.locator(".note").inner_text())[1]
    assert float(before) == pytest.approx(losses["as trained"], abs=2e-3)
    rows = [
        re.match(r"(.*?): (\S+), .* your place (\d)", row).groups() for row in place.locator("li").all_inner_texts()
    ]
    assert [name for name, _, place in sorted(rows, key=lambda row: row[2])] == [*names]
    assert {name: float(after) for name, after, _ in rows} == pytest.approx(
        {name: losses[translated.get(name, name)] for name in names}, abs=2e-3
    )
    assert [after for _, after, _ in rows] == sorted((after for _, after, _ in rows), reverse=True)
    place.get_by_role("button", name="Again").press("Enter")
    assert place.locator("li").count() == 0


def test_no_page_scrolls_sideways_and_every_control_is_reached_by_keyboard(opened):
    for name in PAGES.values():
        ready = "html[data-ready]" if name in ("index", "zh") else "main"
        page = opened(name, ready=ready)
        for width in (1400, 420, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (name, width)
        assert "undefined" not in page.inner_text("body")
    page = opened("zh")
    for control in page.locator(".live button:enabled, .live input").all():
        control.focus()
        assert control.evaluate("control => document.activeElement === control")


def test_without_javascript_the_text_and_the_pictures_are_there(opened):
    page = opened("index", ready="main", java_script_enabled=False)
    pictures = (DOCS / "rope.md").read_text(encoding="utf-8").count("](images/")
    assert page.locator("figure img").count() == pictures + 1 > len(FIGURES)  # the moving picture at the top
    assert "This is all of RoPE in one line" in page.inner_text("main")
