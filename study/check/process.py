"""Run the reader's files and functions in a process of its own, with time limits, and its output in a file."""

import multiprocessing
import os
import sys
import tempfile
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .judge import Conventions, judge, observe
from .reader import reader_of
from .verdict import LOADED, STEPS, Verdict

MEMORY = 6 << 30  # bytes that the process may allocate, Python and torch included
LINES_SHOWN = 5  # of what a function prints
LINE_CHARACTERS = 200
TAIL_BYTES = 1 << 16
# A fork has torch already. Elsewhere libraries do not survive it, so the process imports torch itself.
METHOD = "fork" if sys.platform == "linux" else "spawn"


def judge_files(files: list[Path], seconds: float) -> tuple[list[Verdict], Conventions]:
    """The verdicts on all files and functions, and what these agree on. Each may take ``seconds``.

    One process runs them all. If one of them ends it, or is stopped, another process goes on with the others.
    """
    verdicts: dict[str, Verdict] = {}
    conventions = Conventions()
    files = list(files)
    context: Any = multiprocessing.get_context(METHOD)
    while True:
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory) / "output"
            output.touch()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=run, args=(sender, output, files, list(verdicts), conventions), daemon=True
            )
            process.start()
            sender.close()  # so that the end of the process ends the pipe
            name = receiver.recv()  # the first task, once torch is imported
            problem = ""
            while name and not problem:
                verdict = Verdict(name, "stopped")
                try:
                    if receiver.poll(seconds):
                        receiver.recv()  # the reader's code has ended
                        verdict, conventions = receiver.recv()
                        name = receiver.recv()
                    else:
                        limit = f"it did not end within {seconds:g} seconds; is there an endless loop?"
                        problem = f"{limit} (--seconds N gives more)"
                except EOFError:
                    process.join()
                    problem = f"it ended the process with status {process.exitcode} (os._exit, or out of memory?)"
                if problem:
                    verdict.problem, verdict.printed = problem, last_lines(output)
                    if name not in STEPS:
                        verdict.outcome, verdict.problem = "unloaded", f"{name}: {problem}"
                        files = [path for path in files if str(path) != name]
                verdicts[verdict.function] = verdict
            process.kill()
            process.join()
        if not problem:
            shown = [each for each in verdicts.values() if each.function in STEPS or each.problem or each.printed]
            return shown, conventions


def run(sender: Connection, output: Path, files: list[Path], done: list[str], conventions: Conventions) -> None:
    """The process: it prints into a file, and its memory is limited. It sends the name of each task before it runs."""
    file = output.open("a", 1, encoding="utf-8", errors="backslashreplace")
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    sys.path.append(str(files[0].resolve().parent))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    limit_memory()

    def send(verdict: Verdict) -> None:
        sys.stdout.flush()
        verdict.printed = last_lines(output)
        os.ftruncate(1, 0)
        sender.send((verdict, conventions))

    for number, path in enumerate(files):
        if str(path) in done:
            continue
        sender.send(str(path))
        problem = reader_of(files[: number + 1]).problems.get(path, "")
        sender.send("ended")
        send(Verdict(str(path), "unloaded" if problem else LOADED, problem))
    for function in [each for each in reader_of(files).functions() if each not in done]:
        sender.send(function)
        reader = reader_of(files, function, conventions)
        sys.stdout.flush()
        os.ftruncate(1, 0)  # without what the files print
        observed = observe(function, *reader.functions()[function], conventions)
        sender.send("ended")
        send(judge(observed, conventions))
    sender.send("")


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
