"""Start a program as a user does, but in this process, because importing PyTorch takes seconds; a small model."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from script_helpers import run_in_process, save_run

FOX = "The quick brown fox jumps over the lazy dog, and says: I am a fox. " * 20
TEMPLATE = """{% for message in messages %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if mode %}{{ mode }}{% endif %}{% endif %}"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def start(monkeypatch, capfd) -> Callable[..., Outcome]:
    """``start(generate, "--prompt", "A fox", stdin=b"")`` is the command ``python generate.py --prompt "A fox"``."""

    def call(program: ModuleType, *arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capfd.readouterr()
        code = run_in_process(program.main, f"{program.__name__}.py", *arguments)
        return Outcome(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def fox_dir(tmp_path_factory) -> Path:
    """A small random network, with a context of 96 and a real tokenizer."""
    path = tmp_path_factory.mktemp("fox") / "model"
    torch.manual_seed(0)
    save_run(path, FOX, scale=10, dim=32, n_layers=1, n_heads=2, vocab_size=320, max_seq_len=96)
    return path


@pytest.fixture(scope="session")
def chat_dir(fox_dir, tmp_path_factory) -> Path:
    """The same network with a chat template."""
    path = shutil.copytree(fox_dir, tmp_path_factory.mktemp("chat") / "model")
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path
