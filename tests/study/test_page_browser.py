"""The page in Chromium, from disk and offline: its numbers, keyboard control, layout, and hostile text."""

import random
import re
from pathlib import Path

import pytest
import torch
from browser_helpers import save_small_model, watched_pages

from model import generate
from model.weights import load_model, load_tokenizer
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
    home = tmp_path_factory.mktemp("page") / HOSTILE
    save_small_model(home, TEXT)
    (home / "tokens.json").write_text('{"start_text": "the walk"}', encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def address(home) -> str:
    out = home.parent / "page.html"
    run("page", model=home, out=out, prompt=PROMPT)
    return out.as_uri()


@pytest.fixture
def opened(browser, address):
    """``opened(topK=3)`` is the page with these settings. Any log entry, request or dialog fails the test."""
    with watched_pages(browser) as open_page:

        def open_with(**settings: object) -> Page:
            page = open_page(address)
            for name, value in settings.items():
                page.fill(f"#{name}", str(value))
            return page

        yield open_with


def tokens(page: Page) -> list[int]:
    return page.evaluate("() => state.tokens")


def logits(page: Page) -> torch.Tensor:
    return torch.tensor(page.evaluate("() => [...state.logits]"))


def scroll_to(page: Page, view: str) -> None:
    page.evaluate("view => document.getElementById(view).scrollIntoView()", view)


def wait_until_drawn(page: Page) -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def text(page: Page, place: str) -> str:
    wait_until_drawn(page)
    return page.inner_text(place)


def press(page: Page, place: str, key: str) -> None:
    page.focus(place)
    page.keyboard.press(key)


def test_greedy_tokens_equal_those_of_generate(opened, home):
    page = opened(prompt="the rope", temperature=0)
    for _ in range(4):
        page.click("#steps")
    prompt = load_tokenizer(home).encode("the rope")
    (expected,) = zip(*generate(load_model(home), [prompt], 64))
    assert tokens(page) == [*prompt, *expected]


def test_logits_equal_those_of_the_network_after_every_change_of_the_text(opened, home):
    """Steps, chosen tokens, typed prompts and a cache that is switched off and on."""
    page = opened(prompt="the rope", temperature=1.5, topP=1)
    network, tokenizer = load_model(home), load_tokenizer(home)
    draw = random.Random(2)

    def click(place: str) -> None:
        """Without scrolling, which would draw views and move the place while it is clicked."""
        page.eval_on_selector(place, "control => control.click()")

    changes = {
        "step": lambda: click("#step"),
        "back": lambda: click("#back"),
        "choose": lambda: click(f"#bars button:nth-child({draw.randint(1, 12)})"),
        "type": lambda: page.fill("#prompt", "the rope & the walk"[: draw.randint(4, 19)]),
        "cache": lambda: click("#useCache"),
    }
    for name in draw.choices(list(changes), k=60):
        wait_until_drawn(page)
        before = tokens(page)
        changes[name]()
        after = tokens(page)
        prompt = tokenizer.encode(page.input_value("#prompt"))
        if name == "type":
            assert after == prompt
        elif name == "back":
            assert after == (before[:-1] if len(before) > len(prompt) else before)
        elif name != "cache":
            assert after[:-1] == before or page.is_disabled("#step")
        with torch.no_grad():
            expected = network(torch.tensor([after]))[0, -1]
        assert torch.allclose(logits(page), expected, atol=1e-4, rtol=0), name


def test_the_bars_show_the_models_probabilities_and_invalid_settings_change_nothing(opened, home):
    page = opened(prompt="the rope", temperature=0.5, topP=1)
    with torch.no_grad():
        logits = load_model(home)(torch.tensor([load_tokenizer(home).encode("the rope")]))[0, -1]
    likeliest = (logits / 0.5).softmax(0).topk(12)
    wait_until_drawn(page)
    amounts = page.eval_on_selector_all("#bars .amount", "all => all.map((amount) => parseFloat(amount.textContent))")
    assert amounts == pytest.approx((100 * likeliest.values).tolist(), abs=0.051)
    for top_k in ("3", "-3", "2.5"):
        page.fill("#topK", top_k)
        assert "cut" in text(page, "#bars button:nth-child(4)")
        assert "cut" not in text(page, "#bars button:nth-child(3)")
        assert "3 of 330 tokens can be sampled" in text(page, "#rest")
    page.click("#bars button:nth-child(5)")
    assert tokens(page)[-1] == int(likeliest.indices[4])


def test_shifting_all_positions_rotates_the_arrows_but_keeps_the_scores(opened):
    page = opened()
    scroll_to(page, "rotation")
    page.fill("#key", "3")
    wait_until_drawn(page)
    arrows = page.get_attribute("#plane", "aria-label")
    page.fill("#shift", "37")
    moved = text(page, "#shiftScores")
    pattern = r"start_pos 37 turns all arrows by 2,120°. .* is (\S+) there, and (\S+) at start_pos 0"
    shifted, plain = re.search(pattern, moved).groups()
    assert plain == shifted
    assert page.get_attribute("#plane", "aria-label") != arrows
    assert f"q at position {len(tokens(page)) + 36} points" in page.get_attribute("#plane", "aria-label")
    scroll_to(page, "score")
    assert f"√D = {plain}" in text(page, "#scoreText")


def test_the_page_begins_with_two_different_positions_and_says_so_if_they_are_equal(opened):
    page = opened()
    scroll_to(page, "rotation")
    assert "start_pos 100 turns all arrows by 5,730°" in text(page, "#shiftScores")
    page.fill("#shift", "0")
    assert "Move the slider" in text(page, "#shiftScores")


def test_the_curves_of_the_cache_go_through_the_measured_passes(opened):
    page = opened(prompt="the rope")
    page.click("#step")
    page.eval_on_selector("#useCache", "control => control.click()")
    page.click("#step")
    passes = page.evaluate("() => state.passes.map((p) => [p.multiplications, multiplicationsOf(p.startPos, p.T)])")
    assert len(passes) >= 3
    assert all(measured == computed for measured, computed in passes)
    assert passes[-1][0] > passes[-2][0]  # the last one is without the cache


def test_generation_never_samples_the_end_of_the_text_and_stops_at_the_context_limit(opened):
    page = opened(temperature=1.5, topP=1)
    end_of_text = page.evaluate("() => facts.tokenizer.eosIds[0]")
    count = len(tokens(page))
    page.evaluate("token => { state.logits[token] = 100; sample(1); append(token); changed(); }", end_of_text)
    sampled, chosen = tokens(page)[count:]
    assert sampled != end_of_text == chosen  # a reader may choose it
    page.evaluate("() => { sample(200); changed(); }")
    assert len(tokens(page)) == 120
    assert tokens(page).count(end_of_text) == 1
    assert "at most 120" in text(page, "#notes")
    assert page.is_disabled("#step")
    page.fill("#prompt", TEXT)
    assert len(tokens(page)) == 120


def test_every_control_works_by_keyboard_and_by_mouse(opened):
    page = opened()
    controls = "button[id], select, input, textarea"
    expected = set(page.eval_on_selector_all(controls, "all => all.map((each) => each.id)"))
    expected.remove("back")  # disabled until a token is sampled
    reached: set[str] = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id"))
    assert expected <= reached
    count = len(tokens(page))
    press(page, "#step", "Enter")
    assert len(tokens(page)) == count + 1
    wait_until_drawn(page)
    press(page, "#position", "ArrowLeft")
    assert text(page, "#positionText").startswith(f"{count - 1} ")
    page.click("#chips span:nth-child(3)")
    assert text(page, "#positionText").startswith("2 ")
    scroll_to(page, "maps")
    press(page, "#key", "Home")
    assert "Query 2 " in text(page, "#mapText")
    assert "key 0 " in text(page, "#mapText")
    press(page, "#language", "Enter")
    assert page.get_attribute("html", "lang") == "zh-Hans"


def test_hostile_text_is_shown_as_text(opened):
    page = opened(prompt=PROMPT + TEXT[:60])
    for view in VIEWS:
        scroll_to(page, view)
        wait_until_drawn(page)
    assert page.locator("img").count() == 0
    assert page.locator("script:not([type])").count() == 1
    assert HOSTILE in text(page, "h1")
    assert "".join(page.eval_on_selector_all("#chips span", "all => all.map((c) => c.textContent)")).startswith(
        "<s>the·rope·</"
    )


def test_no_text_is_missing_and_the_page_does_not_scroll_sideways_at_any_width(opened):
    page = opened()
    for language in ("en", "zh-Hans"):
        assert page.get_attribute("html", "lang") == language
        for width in (1400, 900, 850, 390, 320):
            page.set_viewport_size({"width": width, "height": 844})
            assert "undefined" not in text(page, "body")
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (language, width)
        assert "NaN" not in text(page, "body")
        assert page.eval_on_selector_all("[data-t]", "all => all.filter((e) => !e.textContent).length") == 0
        page.click("#language")


def test_an_empty_prompt_is_the_start_text(opened, home):
    page = opened(prompt="")
    assert tokens(page) == load_tokenizer(home).encode("the walk")
    assert text(page, "#wholeText") == "the walk"
    assert page.get_attribute("#prompt", "placeholder") == "the walk"
