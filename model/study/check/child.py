"""The process in which the reader's file runs: ``python -m model.study.check.child NOTES SKIPPED FILE...``.

It appends a line of JSON to NOTES before and after each step, so that whoever waits knows how far it came, however it
ends. SKIPPED are functions, separated by commas, that ended such a process before.
"""

import json
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from . import NAMES, Verdict
from .attention import judge_attention
from .cache import judge_cache, judge_mask
from .forms import Spelling
from .rotation import judge_rotation
from .table import judge_reshape, judge_table

try:
    import resource
except ImportError:  # only Unix can limit memory
    resource = None  # type: ignore[assignment]

SPARE_BYTES = 4 << 30  # address space the reader's file may take beyond what Python and torch have
JUDGES: dict[str, Callable[..., Verdict]] = dict(zip(NAMES, (judge_table, judge_reshape, judge_rotation, judge_mask, judge_cache, judge_attention)))


def main(notes: Path, skipped: set[str], files: list[Path]) -> None:
    def note(**values: Any) -> None:
        with notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    sys.dont_write_bytecode = True
    sys.path.insert(0, str(files[0].resolve().parent))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    limit_memory()
    spelling = Spelling(broken=set(skipped))
    judged = set(skipped)
    for path in files:
        note(at=str(path))
        try:
            names = load(path)
        except BaseException as error:  # SystemExit too
            note(error=describe(error, path))
            return
        for function in NAMES:
            if function in names and function not in judged:
                note(at=function)
                verdict = judge(function, names, path, spelling)
                note(**asdict(verdict))
                judged.add(function)
                if verdict.outcome not in ("right", "half-split"):
                    spelling.broken.add(function)
    note(at="end")


def limit_memory() -> None:
    """Let a function that takes ever more memory fail, before the machine does."""
    statistics = Path("/proc/self/statm")
    if resource and statistics.exists():
        used = int(statistics.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def load(path: Path) -> dict[str, Any]:
    """Run the file as a module of its name, which its neighbours may import, and return what it defines."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules.setdefault(path.stem, module)
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    return vars(module)


def judge(function: str, names: dict[str, Any], path: Path, spelling: Spelling) -> Verdict:
    """One function's verdict; whatever it raises belongs to it."""
    try:
        with torch.enable_grad():
            return JUDGES[function](names, spelling, lambda error: describe(error, path))
    except NotImplementedError:
        return Verdict(function, "unwritten")


def describe(error: BaseException, path: Path) -> str:
    """Where and what, on one line."""
    if isinstance(error, SyntaxError):
        return f"{error.filename} line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path} line {lines[-1]}" if lines else str(path)
    text = " ".join(str(error).split())
    if isinstance(error, EOFError) and not text:
        text = "nothing can be typed in while it is checked"
    return f"{where}: {type(error).__name__}{': ' if text else ''}{text[:300]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(filter(None, sys.argv[2].split(","))), [Path(name) for name in sys.argv[3:]])
