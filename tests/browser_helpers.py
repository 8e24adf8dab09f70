"""A small model, and pages in Chromium, from disk and offline, that are watched for errors and requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from script_helpers import save_run


def save_small_model(home: Path, text: str) -> None:
    """Write a model whose sizes are unequal and whose predictions differ, with a tokenizer of ``text``."""
    torch.manual_seed(3)
    sizes = {"dim": 24, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "head_dim": 8, "hidden_dim": 40}
    save_run(home, text, scale=15, **sizes, vocab_size=330, max_seq_len=120)


@contextmanager
def watched_pages(browser: Any) -> Iterator[Callable[..., Any]]:
    """A function that opens an address and waits until the page is ready.

    At the end, AssertionError if any page logged an entry, sent a request or opened a dialog.
    """
    faults: list[str] = []
    contexts = []

    def open_page(address: str, ready: str = "html[data-ready]", **options: Any) -> Any:
        defaults = {"viewport": {"width": 1200, "height": 900}, "offline": True}
        contexts.append(browser.new_context(**(defaults | options)))
        page = contexts[-1].new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        inside = ("file:", "data:")
        page.on("request", lambda request: None if request.url.startswith(inside) else faults.append(request.url))
        page.goto(address)
        page.wait_for_selector(ready, timeout=20_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
