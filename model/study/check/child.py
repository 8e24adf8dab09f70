"""The process in which the reader's files run: ``python -m model.study.check.child NOTES SECONDS SKIPPED FILE...``.

It appends a line of JSON to NOTES before and after each step, so that its parent knows how far it came, however it
ends. The reader's code may take SECONDS in all. SKIPPED is a JSON list of functions and files that ended such a process
before.
"""

import __future__

import ast
import difflib
import json
import os
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from .attention import judge_attention
from .cache import judge_cache
from .calls import FUNCTIONS, Caller, OutOfTime, describe_error, out_of_time
from .counterparts import counterparts
from .forms import Conventions
from .mask import judge_mask
from .reshape import judge_reshape
from .rotation import judge_rotation
from .table import judge_table
from .together import TOGETHER, judge_together
from .verdict import GOOD, Verdict

try:
    import resource
except ImportError:  # only Unix can limit memory
    resource = None  # type: ignore[assignment]

SPARE_BYTES = 4 << 30  # address space the reader's file may take beyond what Python and torch have
REPEATED = 0.5  # seconds between two exceptions in code that catches the first one
SIMILAR = 0.8  # of two names, above which one is probably meant for the other
CALLERS = ("apply_rotary_emb", "attention")  # functions that may call others of the reader's
JUDGES: dict[str, Callable[..., Verdict]] = {
    "precompute_freqs_cis": judge_table,
    "reshape_for_broadcast": judge_reshape,
    "apply_rotary_emb": judge_rotation,
    "causal_mask": judge_mask,
    "KVCache": judge_cache,
    "attention": judge_attention,
}


class Limit:
    """The time that the reader's code may take: each step half of what is left, so that all of it is never exceeded.

    Only the reader's own calls count, and neither the start of Python nor the judges. A call that takes longer ends in
    ``OutOfTime`` where the system has timers that interrupt; elsewhere the parent ends the process.
    """

    def __init__(self, seconds: float, record: Callable[..., None]) -> None:
        self.left = seconds
        self.record = record
        self.allowed = self.share = seconds / 2  # of the step: what is left of its time, and all of it
        self.armed = False
        self.since = 0.0
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self._interrupt)

    def begin(self, step: str) -> None:
        self.allowed = self.share = self.left / 2
        self.record(at=step, allowed=self.allowed)
        print(f"\0{step}", flush=True)  # what is printed from here on belongs to this step

    def __enter__(self) -> None:
        self.record(left=self.left, running=True)
        self.since = time.monotonic()
        self.armed = True
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, max(self.allowed, 0.01), REPEATED)

    def __exit__(self, *_: object) -> None:
        self.armed = False
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        taken = time.monotonic() - self.since
        self.left -= taken
        self.allowed -= taken
        self.record(left=self.left, running=False)

    def _interrupt(self, *_: object) -> None:
        if self.armed:
            raise OutOfTime(out_of_time(self.share))


def main(notes: Path, seconds: float, skipped: set[str], files: list[Path]) -> None:
    with notes.open("a", encoding="utf-8", buffering=1) as file:

        def record(**values: Any) -> None:
            file.write(json.dumps(values) + "\n")

        sys.dont_write_bytecode = True
        sys.path.insert(0, str(files[0].resolve().parent))
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
        sys.stderr = sys.stdout
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        if resource:
            limit_memory()
        limit = Limit(seconds, record)
        for step in verdicts(files, skipped, limit):
            if isinstance(step, Verdict):
                record(verdict=asdict(step))
            else:
                limit.begin(step)
        record(end=True)


def verdicts(
    files: list[Path], skipped: Collection[str] = (), limited: AbstractContextManager[Any] | None = None
) -> Iterator[str | Verdict]:
    """Before each step its name, after it its verdict: each file that cannot be loaded whole, then each function."""
    limited = limited or nullcontext()
    loaded: dict[Path, dict[str, Any]] = {}
    broken = bool(skipped)
    for path in files:
        if str(path) in skipped:
            continue
        yield str(path)
        loaded[path], problem = run_file(path, limited)
        if problem:
            broken = True
            yield Verdict(str(path), "unloaded", problem)
    if isinstance(limited, Limit):
        limited.record(defined=[function for function in FUNCTIONS if home_of(function, loaded)])
    conventions = Conventions()
    names: dict[str, Any] = {}
    for function in FUNCTIONS:
        home = home_of(function, loaded)
        if home is None:
            near = nearest(function, loaded)
            if near and function not in skipped:
                broken = True
                yield Verdict(function, "missing", near)
            continue
        if function in skipped:
            continue
        yield function
        caller = Caller(home, lambda: limited, list(loaded.values()))
        verdict = judge_function(function, loaded[home], conventions, caller)
        if verdict.outcome in GOOD:
            conventions.right.add(function)
            names[function] = loaded[home][function]
        broken = broken or verdict.outcome not in GOOD
        yield verdict
    if not broken and len(names) > 1:
        yield TOGETHER
        caller = Caller(files[0], lambda: limited, list(loaded.values()))
        yield within_time(TOGETHER, lambda: judge_together(names, conventions, caller))


def run_file(path: Path, limited: AbstractContextManager[Any]) -> tuple[dict[str, Any], str]:
    """Run the file as a module of its name, which the other files may import: what it defines, and the first problem.

    A statement that raises is left out, so that what stands below it can still be judged.
    """
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    sys.argv = [str(path)]
    problem = ""
    try:
        statements = ast.parse(path.read_bytes(), str(path)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        statements, problem = [], describe_error(error, path)
    flags = 0
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:
                flags |= getattr(getattr(__future__, alias.name, None), "compiler_flag", 0)
        try:
            code = compile(ast.Module([statement], []), str(path), "exec", flags, dont_inherit=True)
            with limited:
                exec(code, vars(module))
        except OutOfTime as error:
            problem = problem or f"{path} line {statement.lineno}: {error}"
            break
        except BaseException as error:  # SystemExit too
            problem = problem or describe_error(error, path)
    torch.set_default_device(None)  # the judge's tensors are on the CPU
    for name, function in counterparts(None, "neighbours").items():
        vars(module).setdefault(name, function)  # for other files, which may import it from here
    return vars(module), problem


def home_of(function: str, loaded: dict[Path, dict[str, Any]]) -> Path | None:
    """The file that defines the function, and not one that imports it; None if there is none."""
    homes = [path for path, found in loaded.items() if callable(found.get(function)) and not is_ours(found[function])]
    for path in homes:
        if getattr(loaded[path][function], "__module__", "") == path.stem:
            return path
    return homes[0] if homes else None


def is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith(__package__.rpartition(".study")[0] + ".")


def nearest(function: str, loaded: dict[Path, dict[str, Any]]) -> str:
    """In words, the reader's function whose name is most like the one that is missing; nothing if none is."""
    best, words = SIMILAR, ""
    for path, found in loaded.items():
        for name, value in found.items():
            if name in FUNCTIONS or name.startswith("_") or getattr(value, "__module__", "") != path.stem:
                continue
            likeness = difflib.SequenceMatcher(None, bare(name), bare(function)).ratio()
            if callable(value) and likeness >= best:
                best, words = likeness, f"{path} defines {name}; rename it, if it is meant for {function}"
    return words


def bare(name: str) -> str:
    return name.lower().replace("_", "")


def judge_function(function: str, names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    """One function's verdict, with our own versions of the other functions; whatever it raises is part of it.

    If it is not right with them it is judged with those of the reader's that are right: how one of them calls the other
    is the reader's choice.
    """
    ours = counterparts(conventions.table, conventions.layout)
    needed = {name: each for name, each in ours.items() if name not in conventions.right}
    try:
        with caller.replaced(ours, function):
            verdict = within_time(function, lambda: JUDGES[function](names, conventions, caller))
        if function in CALLERS and verdict.outcome not in GOOD and len(needed) < len(ours):
            with caller.replaced(needed, function):
                again = within_time(function, lambda: JUDGES[function](names, conventions, replace(caller, brief=True)))
            verdict = again if again.outcome in GOOD else verdict
        return verdict
    except NotImplementedError:
        return Verdict(function, "unwritten")
    except Exception as error:  # raised in the judge itself, by a result of an unexpected kind
        return Verdict(function, "stopped", f"what it returns cannot be judged: {describe_error(error, caller.path)}")


def within_time(function: str, judge: Callable[[], Verdict]) -> Verdict:
    try:
        return judge()
    except OutOfTime as error:
        return Verdict(function, "stopped", str(error))


def limit_memory() -> None:
    """A function that takes ever more memory fails, and not the machine; a crash leaves no core file."""
    set_limit(resource.RLIMIT_CORE, 0)
    statistics = Path("/proc/self/statm")
    if statistics.exists() and not torch.cuda.is_available():  # CUDA reserves far more addresses than it uses
        used = int(statistics.read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        set_limit(resource.RLIMIT_AS, used + SPARE_BYTES)


def set_limit(kind: int, value: int) -> None:
    """Only the soft limit; a chat template's process, which imports nothing of this project, lowers the hard limit
    too (model/decoding/template.py).
    """
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), set(json.loads(sys.argv[3])), [Path(name) for name in sys.argv[4:]])
    os._exit(0)  # at once: the file may have started threads
