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
from .judge import counterparts, judge
from .reader import Reader
from .verdict import LOADED, Verdict

SPARE_BYTES = 4 << 30  # address space for the reader's code, in addition to that of Python and torch
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
        answer, problem, printed = run(survey, ([*good, path],), seconds)
        if answer is None:
            problem = f"{path}: {problem}"
        else:
            good.append(path)
            problem, defined = answer
        if problem or printed:
            verdicts.append(Verdict(str(path), "unloaded" if problem else LOADED, problem, printed=printed))
    conventions = Conventions()
    for function in defined:
        answer, problem, printed = run(judge_one, (good, function, conventions), seconds)
        verdict, conventions = answer or (Verdict(function, "stopped", problem), conventions)
        verdict.printed = printed
        verdicts.append(verdict)
    return verdicts


# What a process does. Each returns what can be pickled.


def survey(files: list[Path]) -> tuple[str, list[str]]:
    """The problem of the last file, and the functions that all files define."""
    reader = load(files[:-1])
    reader.load(files[-1])
    return reader.problems.get(files[-1], ""), list(reader.functions())


def judge_one(files: list[Path], function: str, conventions: Conventions) -> tuple[Verdict, Conventions]:
    return judge(function, load(files), conventions), conventions


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
            receiver.recv()  # the process has started, and has imported torch
            if receiver.poll(seconds):
                result = receiver.recv()
            else:
                problem = (
                    f"it did not end within {seconds:g} seconds; is there an endless loop? (--seconds N gives more)"
                )
        except EOFError:
            process.join()
            problem = f"it ended the process with status {process.exitcode} (os._exit, or out of memory?)"
        process.kill()
        process.join()
        return result, problem, last_lines(output)


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
    statistics = Path("/proc/self/statm")
    if statistics.exists() and not torch.cuda.is_available():  # CUDA reserves far more address space than it uses
        import resource  # only Unix has it

        used = int(statistics.read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        with suppress(ValueError):  # there is a lower limit already
            resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, hard))


def last_lines(output: Path) -> list[str]:
    """The last lines that were printed, without control characters, which could clear the terminal."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "backslashreplace").expandtabs().splitlines()
    shown = ["".join(letter if letter.isprintable() else "?" for letter in line) for line in lines[-LINES_SHOWN:]]
    more = ["(more lines before these)"] if len(lines) > LINES_SHOWN else []
    return more + [line.rstrip()[:LINE_CHARACTERS] for line in shown]
