"""The process in which the reader's file runs: ``python -m model.study.check.child NOTES SECONDS SKIPPED FILE...``.

It appends a line of JSON to NOTES before and after each step, so that its parent knows how far it came, however it
ends. A step may take SECONDS of processor time. SKIPPED are functions, separated by commas, that ended such a process
before.
"""

import json
import math
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from . import FUNCTIONS, Verdict
from .attention import judge_attention, judge_mask
from .cache import judge_cache
from .forms import Conventions
from .rotation import judge_rotation
from .table import judge_reshape, judge_table

try:
    import resource
except ImportError:  # only Unix can limit memory
    resource = None  # type: ignore[assignment]

SPARE_BYTES = 4 << 30  # address space the reader's file may take beyond what Python and torch have
JUDGES: dict[str, Callable[..., Verdict]] = {
    "precompute_freqs_cis": judge_table,
    "reshape_for_broadcast": judge_reshape,
    "apply_rotary_emb": judge_rotation,
    "causal_mask": judge_mask,
    "KVCache": judge_cache,
    "attention": judge_attention,
}


def main(notes: Path, seconds: float, skipped: set[str], files: list[Path]) -> None:
    def record(**values: Any) -> None:
        with notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    sys.dont_write_bytecode = True
    sys.path.insert(0, str(files[0].resolve().parent))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if resource:
        limit_memory()
    try:
        for step in verdicts(files, skipped):
            record(**(asdict(step) if isinstance(step, Verdict) else {"at": step}))
            if resource:
                limit_time(seconds)
    except ValueError as error:
        record(error=str(error))


def verdicts(files: list[Path], skipped: Collection[str] = ()) -> Iterator[str | Verdict]:
    """Before each step its name, after each function its verdict, and "end".

    Raises ValueError, in one line, for a file that cannot be loaded.
    """
    conventions = Conventions(broken=set(skipped))
    judged = set(skipped)
    for path in files:
        yield str(path)
        try:
            names = run_file(path)
        except BaseException as error:  # SystemExit too
            raise ValueError(describe_error(error, path)) from None
        for function in FUNCTIONS:
            if callable(names.get(function)) and function not in judged:
                yield function
                verdict = judge_function(function, names, path, conventions)
                judged.add(function)
                if verdict.outcome not in ("right", "half-split"):
                    conventions.broken.add(function)
                yield verdict
    yield "end"


def limit_time(seconds: float) -> None:
    """Let the process be killed once it has worked that much longer: a busy machine does not count."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    set_limit(resource.RLIMIT_CPU, math.ceil(used + seconds))


def limit_memory() -> None:
    """A function that takes ever more memory fails, and not the machine; a crash leaves no core file."""
    set_limit(resource.RLIMIT_CORE, 0)
    statistics = Path("/proc/self/statm")
    if statistics.exists() and not torch.cuda.is_available():  # CUDA reserves far more addresses than it uses
        used = int(statistics.read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        set_limit(resource.RLIMIT_AS, used + SPARE_BYTES)


def set_limit(kind: int, value: int) -> None:
    """Only the soft limit, which the next step raises again; a chat template's process, which imports nothing of this
    project, lowers the hard limit too (model/decoding/template.py).
    """
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def run_file(path: Path) -> dict[str, Any]:
    """Run the file as a module of its name, which the other files may import, and return what it defines."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules.setdefault(path.stem, module)
    sys.argv = [str(path)]
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    torch.set_default_device(None)  # the judge's tensors are on the CPU
    return vars(module)


def judge_function(function: str, names: dict[str, Any], path: Path, conventions: Conventions) -> Verdict:
    """One function's verdict; whatever it raises is part of it."""
    try:
        with torch.enable_grad():
            return JUDGES[function](names, conventions, lambda error: describe_error(error, path))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, NotImplementedError) and last.filename == str(path):
            return Verdict(function, "unwritten")
        # Raised in the judge itself, by a result of an unexpected kind.
        return Verdict(function, "stopped", f"what it returns cannot be judged: {describe_error(error, path)}")


def describe_error(error: BaseException, path: Path) -> str:
    """Where and what, on one line."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename or path} line {error.lineno}" if error.lineno else str(path)
        return f"{place}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path} line {lines[-1]}" if lines else str(path)
    text = " ".join(str(error).split())
    if isinstance(error, EOFError) and not text:
        text = "nothing can be typed in while it is checked"
    name = type(error).__name__
    return f"{where}: {name}: {text[:300]}" if text else f"{where}: {name}"


if __name__ == "__main__":
    skipped = set(filter(None, sys.argv[3].split(",")))
    main(Path(sys.argv[1]), float(sys.argv[2]), skipped, [Path(name) for name in sys.argv[4:]])
    os._exit(0)  # at once: the file may have started threads
