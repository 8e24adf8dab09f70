"""Run a script in this process, which saves the seconds of importing PyTorch, or in another one; a small run."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from model import ModelArgs, Transformer
from model.cli import run_script
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_tokenizer, save_model, save_tokenizer

ROOT = Path(__file__).parents[1]


def run_in_process(main: Callable[[], int | None], script: str, *arguments: object) -> int:
    """Run ``main`` as the command ``python SCRIPT ARGUMENTS...`` does; returns the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_script(main, script)
    return ended.value.code


def run_python(*arguments: str | Path, cwd: Path = ROOT, **options) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS...`` in another process."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, encoding="utf-8", **options)


def library_example() -> str:
    """The code block of docs/library.md that defines SlidingTransformer."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "class SlidingTransformer" in block]
    return example


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Simulate a full disk: the kernel refuses to write more than ``size`` bytes to a file."""
    resource = pytest.importorskip("resource", reason="POSIX only")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_run(directory: Path, text: str, scale: float, **args) -> Transformer:
    """Save a random network, its matrices multiplied by ``scale``, and a tokenizer for ``text``."""
    file = train_tokenizer([text], directory.with_name(f"{directory.name}.model"), vocab_size=args["vocab_size"])
    save_tokenizer(load_tokenizer(file), directory)
    model = Transformer(ModelArgs(**args))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale if weight.ndim == 2 else 1)
    save_model(model, directory)
    return model
