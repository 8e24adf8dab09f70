"""The process in which the reader's files run: ``python -m study.check.child NOTES SECONDS SKIPPED FILE...``.

It appends a line of JSON to NOTES before and after each step, so that its parent can read the progress even if the
process is killed. The reader's code may take SECONDS in total. SKIPPED is a JSON list of what is not run again:
functions that raised, ran out of time or could not be judged in an earlier process, and functions and files that ended
that process.
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
from .calls import FUNCTIONS, Caller, OutOfTime, Unwritten, describe_error, out_of_time
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

SPARE_BYTES = 4 << 30  # address space for the reader's code, in addition to that of Python and torch
INTERRUPT_AGAIN = 0.5  # seconds until the next interrupt, for code that catches the first one
SIMILAR = 0.8  # similarity of two names from which one is probably a misspelling of the other
CALLERS = ("apply_rotary_emb", "attention")  # functions that may call other functions of the reader
JUDGES: dict[str, Callable[..., Verdict]] = {
    "precompute_freqs_cis": judge_table,
    "reshape_for_broadcast": judge_reshape,
    "apply_rotary_emb": judge_rotation,
    "causal_mask": judge_mask,
    "KVCache": judge_cache,
    "attention": judge_attention,
}


class TimeLimit:
    """A context manager that limits the time of the reader's code. Each step may take half of the remaining time.

    Only the reader's code counts, not the start of Python or the judges. If the system has interval timers, a call that
    takes longer ends in ``OutOfTime``; otherwise the parent ends the process.
    """

    def __init__(self, seconds: float, record: Callable[..., None]) -> None:
        self.seconds_left = seconds
        self.record = record
        self.step_seconds = seconds / 2
        self.step_seconds_left = seconds / 2
        self.running = False
        self.started = 0.0
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self._interrupt)

    def begin(self, step: str) -> None:
        self.step_seconds = self.step_seconds_left = self.seconds_left / 2
        self.record(step=step, allowed=self.step_seconds)
        print(f"\0{step}", flush=True)  # tells the parent that the following output belongs to this step

    def __enter__(self) -> None:
        self.record(seconds_left=self.seconds_left, running=True)
        self.started = time.monotonic()
        self.running = True
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, max(self.step_seconds_left, 0.01), INTERRUPT_AGAIN)

    def __exit__(self, *_: object) -> None:
        self.running = False
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        taken = time.monotonic() - self.started
        self.seconds_left -= taken
        self.step_seconds_left -= taken
        self.record(seconds_left=self.seconds_left, running=False)

    def _interrupt(self, *_: object) -> None:
        if self.running:
            raise OutOfTime(out_of_time(self.step_seconds))


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
        limit = TimeLimit(seconds, record)
        for step in verdicts(files, skipped, limit):
            if isinstance(step, Verdict):
                record(verdict=asdict(step))
            else:
                limit.begin(step)
        record(finished=True)


def verdicts(
    files: list[Path], skipped: Collection[str] = (), limited: AbstractContextManager[Any] | None = None
) -> Iterator[str | Verdict]:
    """Yield the name of each step before it and the verdict after it.

    The steps are the files, with a verdict only if a statement fails, then the functions, then all functions together.
    """
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
    if isinstance(limited, TimeLimit):
        limited.record(defined=[function for function in FUNCTIONS if home_of(function, loaded)])
    conventions = Conventions()
    names: dict[str, Any] = {}
    for function in FUNCTIONS:
        home = home_of(function, loaded)
        if home is None:
            misspelt = similar_name(function, loaded)
            if misspelt and function not in skipped:
                broken = True
                yield Verdict(function, "missing", misspelt)
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
    """Run the file as a module, which the other files may import: its namespace, and the first problem.

    A statement that raises is skipped, so that the functions below it can still be judged.
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
        vars(module).setdefault(name, function)  # other files may import it from this one
    return vars(module), problem


def home_of(function: str, loaded: dict[Path, dict[str, Any]]) -> Path | None:
    """The file that defines the function, preferred to one that imports it; None if there is none."""
    files = [path for path, names in loaded.items() if callable(names.get(function)) and not is_ours(names[function])]
    for path in files:
        if getattr(loaded[path][function], "__module__", "") == path.stem:
            return path
    return files[0] if files else None


def is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith(("model.", "study."))


def similar_name(function: str, loaded: dict[Path, dict[str, Any]]) -> str:
    """A message about the reader's function whose name is most similar to the missing one; empty if none is similar."""
    best, message = SIMILAR, ""
    for path, names in loaded.items():
        for name, value in names.items():
            if name in FUNCTIONS or name.startswith("_") or getattr(value, "__module__", "") != path.stem:
                continue
            similarity = difflib.SequenceMatcher(None, letters_of(name), letters_of(function)).ratio()
            if callable(value) and similarity >= best:
                best, message = similarity, f"{path} defines {name}; rename it if it is meant to be {function}"
    return message


def letters_of(name: str) -> str:
    return name.lower().replace("_", "")


def judge_function(function: str, names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    """The verdict on one function, with our own versions of the functions that it calls.

    If it is not right with ours, it is judged again with the reader's functions that are right, because these may call
    each other with other arguments than ours take.
    """
    ours = counterparts(conventions.table, conventions.layout)
    not_right = {name: each for name, each in ours.items() if name not in conventions.right}
    try:
        with caller.replaced(ours, function):
            verdict = within_time(function, lambda: JUDGES[function](names, conventions, caller))
        if function in CALLERS and verdict.outcome not in GOOD and len(not_right) < len(ours):
            brief = replace(caller, explain_mistakes=False)
            with caller.replaced(not_right, function):
                second = within_time(function, lambda: JUDGES[function](names, conventions, brief))
            verdict = second if second.outcome in GOOD else verdict
        return verdict
    except Unwritten:
        return Verdict(function, "unwritten")
    except Exception as error:  # raised in the judge, by a result of an unexpected type
        return Verdict(function, "stopped", f"its result cannot be judged: {describe_error(error, caller.path)}")


def within_time(function: str, judge: Callable[[], Verdict]) -> Verdict:
    try:
        return judge()
    except OutOfTime as error:
        return Verdict(function, "stopped", str(error))


def limit_memory() -> None:
    """Limit the memory, so that a function that allocates without end fails alone, and write no core file."""
    set_limit(resource.RLIMIT_CORE, 0)
    statistics = Path("/proc/self/statm")
    if statistics.exists() and not torch.cuda.is_available():  # CUDA reserves far more address space than it uses
        used = int(statistics.read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        set_limit(resource.RLIMIT_AS, used + SPARE_BYTES)


def set_limit(kind: int, value: int) -> None:
    """Set the soft limit."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), set(json.loads(sys.argv[3])), [Path(name) for name in sys.argv[4:]])
    os._exit(0)  # without waiting for threads that the file may have started
