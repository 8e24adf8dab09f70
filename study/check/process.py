"""Run each function of the reader in a process of its own, with a time limit, and its output in a file."""

import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .calls import FUNCTIONS
from .forms import Conventions
from .judge import TOGETHER, counterparts, judge, judge_together
from .reader import Reader
from .verdict import Verdict

try:
    import resource
except ImportError:  # only Unix can limit memory
    resource = None  # type: ignore[assignment]

SPARE_BYTES = 4 << 30  # address space for the reader's code, in addition to that of Python and torch
LINES_SHOWN = 5  # of what a function prints
LINE_CHARACTERS = 200
TAIL_BYTES = 1 << 16
STARTED = "started"
STARTUP_SECONDS = 60.0  # for a process that has to import torch first
# A fork has torch already. Elsewhere libraries do not survive it, so each process imports torch itself.
METHOD = "fork" if sys.platform == "linux" else "spawn"


def judge_files(files: list[Path], seconds: float) -> list[Verdict]:
    """The verdicts on all files and functions; each file and each function may take ``seconds``."""
    conventions = Conventions()
    verdicts, good = load_files(files, seconds)
    defined: list[str] = []
    if good:
        answer, problem, _ = run(list_functions, (good,), seconds * len(good))
        if answer is None:
            raise ValueError(f"{files[0]}: {problem}")
        defined, missing = answer
        verdicts += missing
    loaded = all(verdict.outcome == "loaded" for verdict in verdicts)
    for function in defined:
        answer, problem, printed = run(judge_one, (good, function, conventions), seconds)
        verdict, conventions = answer or (Verdict(function, "stopped", problem), conventions)
        verdict.printed = printed
        verdicts.append(verdict)
    if loaded and len(defined) > 1 and conventions.right == set(defined):
        answer, problem, _ = run(judge_all, (good, conventions), seconds)
        verdicts.append(answer or Verdict(TOGETHER, "stopped", problem))
    order = [*map(str, files), *FUNCTIONS, TOGETHER]
    return sorted(verdicts, key=lambda verdict: order.index(verdict.function))


def load_files(files: list[Path], seconds: float) -> tuple[list[Verdict], list[Path]]:
    """The verdicts on files that have a problem or print something, and the files that end in time."""
    verdicts: list[Verdict] = []
    good: list[Path] = []
    for path in files:
        answer, problem, printed = run(load_one, ([*good, path], path), seconds)
        if answer is None:
            verdicts.append(Verdict(str(path), "unloaded", f"{path}: {problem}", printed=printed))
            continue
        good.append(path)
        if answer:
            verdicts.append(Verdict(str(path), "unloaded", answer, printed=printed))
        elif printed:
            verdicts.append(Verdict(str(path), "loaded", printed=printed))
    return verdicts, good


# What a process does. Each returns what can be pickled.


def load_one(files: list[Path], path: Path) -> str:
    reader = load(files[:-1])
    reader.load(path)
    return reader.problems.get(path, "")


def list_functions(files: list[Path]) -> tuple[list[str], list[Verdict]]:
    """The functions that the files define, and verdicts on those that seem to be misspelt."""
    reader = load(files)
    defined = reader.defined()
    similar = {name: reader.similar(name) for name in FUNCTIONS if name not in defined}
    return defined, [Verdict(name, "missing", message) for name, message in similar.items() if message]


def judge_one(files: list[Path], function: str, conventions: Conventions) -> tuple[Verdict, Conventions]:
    return judge(function, load(files), conventions), conventions


def judge_all(files: list[Path], conventions: Conventions) -> Verdict:
    return judge_together(load(files), conventions)


def load(files: list[Path]) -> Reader:
    """The files, without what they print."""
    reader = Reader(counterparts(Conventions()))
    for path in files:
        reader.load(path)
    sys.stdout.flush()
    os.ftruncate(1, 0)
    return reader


def run(task: Callable[..., Any], given: tuple[Any, ...], seconds: float) -> tuple[Any, str, list[str]]:
    """Run ``task(*given)`` in a process: its result, None if it has none, then the problem, and the lines printed."""
    context: Any = multiprocessing.get_context(METHOD)
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        output.touch()
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(sender, output, task, given), daemon=True)
        process.start()
        sender.close()  # so that the end of the process ends the pipe
        result, problem = None, ""
        try:
            if receiver.poll(STARTUP_SECONDS) and receiver.recv() == STARTED:
                if receiver.poll(seconds):
                    result = receiver.recv()
                else:
                    problem = f"it did not end within {seconds:g} seconds; is there an endless loop?"
                    problem += " (--seconds N gives more)"
        except EOFError:
            process.join()
        finally:
            process.kill()
            process.join()
        if result is None and not problem:
            problem = exit_message(process.exitcode or 0)
        return result, problem, last_lines(output)


def child(sender: Connection, output: Path, task: Callable[..., Any], given: tuple[Any, ...]) -> None:
    """The process: it reads nothing, prints into a file, and ends without waiting for threads of the reader."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # input() raises EOFError
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stderr = os.fdopen(1, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.dont_write_bytecode = True
    sys.path.append(str(given[0][0].resolve().parent))
    sys.argv = [str(given[0][0])]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    if resource:
        limit_memory()
    sender.send(STARTED)
    sender.send(task(*given))
    sys.stdout.flush()
    os._exit(0)


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


def exit_message(code: int) -> str:
    if code < 0:
        return f"the process was killed by signal {-code}; did it use all the memory, or recurse in C?"
    return f"it ended the process with status {code} (os._exit?)"


def last_lines(output: Path) -> list[str]:
    """The last lines that were printed, without control characters, which could clear the terminal."""
    with output.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        text = file.read().decode("utf-8", "backslashreplace")
    lines = [line.expandtabs().rstrip()[:LINE_CHARACTERS] for line in text.split("\n")]
    lines = lines if lines[-1] else lines[:-1]
    shown = ["".join(letter if letter.isprintable() else "?" for letter in line) for line in lines[-LINES_SHOWN:]]
    return ["(more lines before these)", *shown] if len(lines) > LINES_SHOWN else shown
