"""The page in Chromium, from disk and offline: its numbers, keyboard control, layout, and hostile text."""

import re
from pathlib import Path

import pytest
import torch
from browser_helpers import watched_pages

from model import ModelArgs, Transformer, generate
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_model, load_tokenizer, save_model, save_tokenizer
from study.topics import run

try:
    from playwright.sync_api import Page
except ImportError:
    pytest.skip("playwright is not installed: pip install playwright", allow_module_level=True)

# The tokenizer learns pieces of this text that would be markup.
TEXT = "<img src=x onerror=alert(1)> the rope & the walk </script><script>alert(2)</script> {{facts}} \"'` " * 9
PROMPT = "the rope </script><script>alert(3)</script><img src=x onerror=alert(4)> & walk"
HOSTILE = "<img src=x onerror=alert(5)>"  # the directory's name, which the page shows
VIEWS = ("tokens", "rotation", "score", "maps", "cache")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A model directory with unequal sizes and hostile pieces."""
    home = tmp_path_factory.mktemp("page") / HOSTILE
    save_tokenizer(SentencePieceTokenizer(train_tokenizer([TEXT], home.parent / "bpe.model", "bpe", 330)), home)
    torch.manual_seed(3)
    args = ModelArgs(dim=24, n_layers=2, n_heads=6, n_kv_heads=2, head_dim=8, hidden_dim=40, vocab_size=330,
                     max_seq_len=120)  # fmt: skip
    model = Transformer(args)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(std=1.5 / weight.shape[1] ** 0.5)
    save_model(model, home)
    (home / "config.toml").write_text('start_text = "the walk"\n', encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def address(home) -> str:
    out = home.parent / "page.html"
    run("page", model=home, out=out, prompt=PROMPT)
    return out.as_uri()


@pytest.fixture
def opened(browser, address):
    """``opened("language=zh")`` is the page when ready. Any log entry, request or dialog fails the test at its end."""
    with watched_pages(browser) as open_page:
        yield lambda choices="", **options: open_page(f"{address}#{choices}", **options)


def tokens(page: Page) -> list[int]:
    return page.eval_on_selector_all("#chips button", "chips => chips.map((chip) => Number(chip.dataset.token))")


def scroll_to(page: Page, view: str) -> None:
    page.evaluate("view => document.getElementById(view).scrollIntoView({ behavior: 'instant' })", view)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def text(page: Page, place: str) -> str:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.inner_text(place)


def step(page: Page, button: str = "#step") -> None:
    count = len(tokens(page))
    page.click(button)
    page.wait_for_function("count => document.querySelectorAll('#chips button').length !== count", arg=count)


def test_64_greedy_tokens_equal_those_of_generate_also_after_a_pause(opened, home):
    page = opened("temperature=0&speed=0&prompt=the+rope")
    goes_on = page.evaluate("""async () => {
        const first = play();
        state.playing = false;
        play();
        await first;
        return state.playing; }""")
    assert goes_on, "the first run ends, the second does not"
    page.wait_for_function("() => document.querySelectorAll('#chips button').length > 75", timeout=20_000)
    prompt = load_tokenizer(home).encode("the rope")
    (expected,) = zip(*generate(load_model(home), [prompt], 64))
    assert tokens(page)[: len(prompt) + 64] == [*prompt, *expected]


def test_the_bars_show_the_models_probabilities_and_top_k_cuts_them(opened, home):
    page = opened("temperature=0.5&topP=1&prompt=the+rope")
    with torch.no_grad():
        logits = load_model(home)(torch.tensor([load_tokenizer(home).encode("the rope")]))[0, -1]
    likeliest = (logits / 0.5).softmax(0).topk(12)
    amounts = page.eval_on_selector_all("#bars .amount", "all => all.map((amount) => parseFloat(amount.textContent))")
    assert amounts == pytest.approx((100 * likeliest.values).tolist(), abs=0.051)
    page.fill("#topK", "3")
    assert "cut by top_k" in text(page, "#bars li:nth-child(4)")
    assert "cut" not in text(page, "#bars li:nth-child(3)")
    assert "3 of 330 tokens can be sampled" in text(page, "#rest")
    chosen = page.get_attribute("#bars li:nth-child(5) button", "data-token")
    step(page, "#bars li:nth-child(5) button")
    assert tokens(page)[-1] == int(chosen)


def test_shifting_all_positions_rotates_the_arrows_but_keeps_the_scores(opened):
    page = opened()
    scroll_to(page, "rotation")
    arrows = page.get_attribute("#plane", "aria-label")
    page.fill("#shift", "37")
    moved = text(page, "#shiftScores")
    plain, shifted = re.search(r": (\S+) at start_pos 0, (\S+) at start_pos 37", moved).groups()
    assert plain == shifted
    assert float(re.search(r"by at most (\S+?)\.$", moved)[1].replace("−", "-")) < 1e-5
    assert page.get_attribute("#plane", "aria-label") != arrows
    last = len(tokens(page)) - 1
    assert f"q at position {last + 37} points" in page.get_attribute("#plane", "aria-label")


def test_the_cache_is_not_read_beyond_the_current_text(opened, home):
    page = opened("temperature=1&topP=1&prompt=the+rope")
    for button in ("#step", "#step", "#step"):
        step(page, button)
    scroll_to(page, "cache")
    page.uncheck("#useCache")
    scroll_to(page, "tokens")
    for button in ("#back", "#back", "#bars li:nth-child(7) button", "#bars li:nth-child(9) button"):
        step(page, button)
    scroll_to(page, "cache")
    page.check("#useCache")
    scroll_to(page, "tokens")
    step(page, "#bars li:nth-child(4) button")
    with torch.no_grad():
        expected = load_model(home)(torch.tensor([tokens(page)]))[0, -1]
    logits = page.evaluate("() => [...state.logits]")
    assert torch.allclose(torch.tensor(logits), expected, atol=1e-4, rtol=0)


def test_generation_stops_at_the_context_limit(opened):
    page = opened("speed=0&temperature=1.5&topP=1")
    for _ in range(40):
        page.click("#play")
        page.wait_for_selector("#play[aria-pressed=false]", timeout=20_000)
        if len(tokens(page)) == 120:
            break
        step(page, "#bars li:first-child button")  # the model ended the text: choose another token
    assert len(tokens(page)) == 120
    assert "at most" in text(page, "#notes")
    assert page.is_disabled("#step")


def test_every_control_works_by_keyboard(opened):
    page = opened()
    controls = "button[id], select, input, textarea, canvas[tabindex]"
    expected = set(page.eval_on_selector_all(controls, "all => all.map((each) => each.id)"))
    expected -= {"fold"}  # hidden on a wide screen
    reached: set[str] = set()
    for _ in range(400):  # more than one round, because a control may be disabled while the page computes
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id"))
        if expected <= reached:
            break
    assert expected <= reached

    def press(place: str, key: str) -> None:
        page.focus(place)
        page.keyboard.press(key)

    scroll_to(page, "tokens")
    count = len(tokens(page))
    press("#step", "Enter")
    page.wait_for_function("count => document.querySelectorAll('#chips button').length > count", arg=count)
    press("#chips button[tabindex='0']", "ArrowLeft")
    assert text(page, "#positionText").startswith(f"{count - 1} ")
    scroll_to(page, "maps")
    press("#map", "ArrowUp")
    assert f"Query {count - 2} " in text(page, "#mapText")
    press("#thumbs [data-layer='0'][data-head='4']", "Enter")
    press("#language", "Enter")
    assert page.get_attribute("html", "lang") == "zh-Hans"
    page.wait_for_function("() => location.hash.includes('head=4') && location.hash.includes('language=zh')")


def test_settings_are_stored_in_the_address_and_invalid_ones_are_ignored(opened):
    page = opened("head=3&topK=7&language=zh&shift=x&topP=44&layer=9&seed=2.5&junk=%3Cb%3E")
    for setting, value in (("head", "3"), ("topK", "7"), ("layer", "1"), ("seed", "1"), ("topP", "0.95")):
        assert page.input_value(f"#{setting}") == value
    page.fill("#prompt", "the walk")
    page.select_option("#head", "5")
    assert "head=5" in page.url
    assert "prompt=the+walk" in page.url
    assert "junk" not in page.url
    page.fill("#topK", "-3")
    assert page.get_attribute("#topK", "aria-invalid") == "true"
    assert "topK=7" in page.url


def test_hostile_text_is_shown_as_text(opened):
    page = opened()
    page.fill("#prompt", PROMPT + TEXT[:60])
    page.wait_for_timeout(600)
    for view in VIEWS:
        scroll_to(page, view)
        page.wait_for_timeout(50)
    assert page.locator("img").count() == 0
    assert page.locator("script:not([type])").count() == 1
    assert HOSTILE in text(page, "h1")
    assert "".join(page.eval_on_selector_all("#chips button", "all => all.map((c) => c.textContent)")).startswith(
        "<s>the·rope·</"
    )


def test_no_text_is_missing_and_the_page_does_not_scroll_sideways_at_any_width(opened):
    page = opened()
    for language in ("en", "zh-Hans"):
        assert page.get_attribute("html", "lang") == language
        for width in (1400, 900, 850, 390, 320):
            page.set_viewport_size({"width": width, "height": 844})
            page.evaluate("() => scrollTo(0, 0)")
            assert "undefined" not in text(page, "body")
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (language, width)
        assert "NaN" not in text(page, "body")
        assert page.eval_on_selector_all("[data-t]", "all => all.filter((e) => !e.textContent).length") == 0
        page.click("#language")
    page.select_option("#theme", "dark")
    assert page.get_attribute("html", "data-theme") == "dark"


def test_step_uses_the_typed_prompt_at_once_back_shortens_it_and_an_empty_one_is_the_start_text(opened, home):
    page = opened("temperature=0&prompt=the")
    tokenizer = load_tokenizer(home)
    page.evaluate("""() => {
        const box = document.getElementById("prompt");
        box.value = "the rope & the walk";
        box.dispatchEvent(new Event("input"));
        document.getElementById("step").click(); }""")
    typed = tokenizer.encode("the rope & the walk")
    page.wait_for_function("n => document.querySelectorAll('#chips button').length === n", arg=len(typed) + 1)
    page.wait_for_timeout(300)  # longer than the pause after which a typed prompt is forwarded
    assert tokens(page)[:-1] == typed
    assert text(page, "#wholeText") == tokenizer.decode(tokens(page))
    for _ in range(2):
        step(page, "#back")
    assert tokens(page) == typed[:-1]
    assert page.input_value("#prompt") == tokenizer.decode(typed[:-1])
    page.fill("#prompt", "")
    page.wait_for_function("() => document.getElementById('notes').textContent.includes('start_text')")
    assert tokens(page) == tokenizer.encode("the walk")
