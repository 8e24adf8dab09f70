"""The page of `python -m study` in a browser: seconds to open, tokens/s, and frames/s of each view while it plays.

Needs playwright and Chromium. The models have random weights, which take as much work as trained ones.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from model import ModelArgs, Transformer
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer
from model.weights import save_model, save_tokenizer
from study.topics import run

SIZES = {
    "0.7M": {"dim": 128, "n_layers": 3, "n_heads": 4, "vocab_size": 1024, "tie_embeddings": True},
    "5M": {"dim": 256, "n_layers": 6, "n_heads": 8, "vocab_size": 2048, "tie_embeddings": True},
}
VIEWS = ("tokens", "rotation", "score", "maps", "cache")
FRAMES = """() => new Promise((done) => {
    let count = 0, last = performance.now(), worst = 0;
    const start = last;
    const frame = (now) => {
        count += 1;
        worst = Math.max(worst, now - last);
        last = now;
        if (now - start < 2000) requestAnimationFrame(frame);
        else done([(1000 * count) / (now - start), worst]);
    };
    requestAnimationFrame(frame);
})"""


def measure(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    start = time.perf_counter()
    page.goto(f"{address}#speed=0&temperature=1&topP=1")
    page.wait_for_selector("html[data-ready]")
    print(f"  opened in {time.perf_counter() - start:.2f} s")
    rates = []
    page.evaluate("document.getElementById('cache').scrollIntoView({ behavior: 'instant' })")
    for run_number in range(5):  # until the context is full, or the model ends the text
        page.evaluate(f"document.getElementById('prompt').value = 'Return {run_number}'")
        page.dispatch_event("#prompt", "input")
        page.wait_for_function("() => tokenizer.encode(state.prompt).length === state.tokens.length")
        page.dispatch_event("#play", "click")
        page.wait_for_selector("#play[aria-pressed=false]")
        page.wait_for_function("() => state.run.count && document.getElementById('rate').textContent")
        page.wait_for_timeout(200)
        rates.append(int(page.inner_text("#rate").split()[2]))
    print(f"  tokens/s in the worker: {', '.join(map(str, rates))}")
    for view in VIEWS:
        page.goto("about:blank")
        page.goto(f"{address}#speed=30&temperature=1&topP=1")
        page.wait_for_selector("html[data-ready]")
        page.evaluate(f"document.getElementById('{view}').scrollIntoView({{ behavior: 'instant' }})")
        page.click("#play")
        rate, worst = page.evaluate(FRAMES)
        print(f"  {view}: {rate:.0f} frames/s, longest frame {worst:.0f} ms")
    page.close()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        for name, sizes in SIZES.items():
            home = Path(folder) / name
            args = ModelArgs(max_seq_len=256, **sizes)
            texts = list(open_documents(["python-docs"]).texts())
            tokenizer = train_tokenizer(texts, home.with_suffix(".model"), "bpe", args.vocab_size)
            save_tokenizer(SentencePieceTokenizer(tokenizer), home)
            model = Transformer(args)
            save_model(model, home)
            out = home.with_suffix(".html")
            run("page", model=home, out=out, prompt="Return the number of")
            count = sum(weight.numel() for weight in model.parameters())
            print(f"{name}: {count:,} parameters, {out.stat().st_size / 1e6:.1f} MB")
            measure(browser, out.as_uri())
        browser.close()


if __name__ == "__main__":
    main()
