"""Run each function of the reader in a process of its own, with a time limit, and its output in a file."""

import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .forms import Conventions
from .judge import counterparts, judge, reader_for
from .reader import Reader
from .verdict import LOADED, Verdict

MEMORY = 6 << 30  # bytes that a process may allocate, Python and torch included
LINES_SHOWN = 5  # of what a function prints
LINE_CHARACTERS = 200
TAIL_BYTES = 1 << 16
# A fork has torch already. Elsewhere libraries do not survive it, so each process imports torch itself.
METHOD = "fork" if sys.platform == "linux" else "spawn"


def judge_files(files: list[Path], seconds: float) -> list[Verdict]:
    """The verdicts on all files and functions; each file and each function may take ``seconds``."""
    verdicts: list[Verdict] = []
    good: list[Path] = []  # the files that end in time
    defined: list[str] = []
    for path in files:
        verdict, functions = run(survey, ([*good, path],), str(path), seconds)
        if functions is not None:
            good.append(path)
            defined = functions
        else:
            verdict.outcome, verdict.problem = "unloaded", f"{path}: {verdict.problem}"
        if verdict.problem or verdict.printed:
            verdicts.append(verdict)
    conventions = Conventions()
    for function in defined:
        verdict, found = run(judge_one, (good, function, conventions), function, seconds)
        conventions = found or conventions
        verdicts.append(verdict)
    return verdicts


# What a process does. Each returns what can be pickled.


def survey(files: list[Path]) -> tuple[Verdict, list[str]]:
    """The verdict on the last file, and the functions that all files define."""
    reader = Reader(counterparts(Conventions()))
    load(reader, files[:-1])
    reader.load(files[-1])
    problem = reader.problems.get(files[-1], "")
    return Verdict(str(files[-1]), "unloaded" if problem else LOADED, problem), list(reader.functions())


def judge_one(files: list[Path], function: str, conventions: Conventions) -> tuple[Verdict, Conventions]:
    reader = reader_for(function, conventions)
    load(reader, files)
    return judge(function, *reader.functions()[function], conventions), conventions


def load(reader: Reader, files: list[Path]) -> None:
    """The files, without what they print."""
    for path in files:
        reader.load(path)
    sys.stdout.flush()
    os.ftruncate(1, 0)


def run(task: Callable[..., Any], given: tuple[Any, ...], name: str, seconds: float) -> tuple[Verdict, Any]:
    """The result of ``task(*given)`` in a process, or the verdict that ``name`` is stopped, and None."""
    context: Any = multiprocessing.get_context(METHOD)
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        output.touch()
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(sender, output, task, given), daemon=True)
        process.start()
        sender.close()  # so that the end of the process ends the pipe
        verdict, found = Verdict(name, "stopped"), None
        try:
            receiver.recv()  # the process has started, and has imported torch
            if receiver.poll(seconds):
                verdict, found = receiver.recv()
            else:
                limit = f"it did not end within {seconds:g} seconds; is there an endless loop?"
                verdict.problem = f"{limit} (--seconds N gives more)"
        except EOFError:
            process.join()
            verdict.problem = f"it ended the process with status {process.exitcode} (os._exit, or out of memory?)"
        process.kill()
        process.join()
        verdict.printed = last_lines(output)
        return verdict, found


def child(sender: Connection, output: Path, task: Callable[..., Any], given: tuple[Any, ...]) -> None:
    """The process: it prints into a file, and its memory is limited."""
    file = output.open("a", 1, encoding="utf-8", errors="backslashreplace")
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    sys.path.append(str(given[0][0].resolve().parent))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    limit_memory()
    sender.send("started")
    result = task(*given)
    sys.stdout.flush()
    sender.send(result)
    sender.close()


def limit_memory() -> None:
    """Limit the memory, so that a function that allocates without end fails alone."""
    with suppress(ImportError, ValueError):  # Windows has no limits; there may be a lower one already
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def last_lines(output: Path) -> list[str]:
    """The last lines that were printed, without control characters, which could clear the terminal."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "backslashreplace").expandtabs().splitlines()
    shown = ["".join(letter if letter.isprintable() else "?" for letter in line) for line in lines[-LINES_SHOWN:]]
    more = ["(more lines before these)"] if len(lines) > LINES_SHOWN else []
    return more + [line.rstrip()[:LINE_CHARACTERS] for line in shown]
