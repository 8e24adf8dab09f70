#!/usr/bin/env python3
"""Check that no script loses work or ends in a traceback if it is killed, its disk is full or its streams are closed.

    python benchmarks/faults.py [--kills 200] [--seed 0]

After each kill the work is started again (training with --resume), and the end result must be that of an undisturbed
run, bit for bit (kills.py). With the other faults, a script must end with exit code 0, or with 2 and one line on
stderr, and leave nothing half-written. Prints a table of the faults, how often each was tried, and how often it failed.
Exit code 1 if one failed.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kills import (
    ROOT,
    TINY,
    Content,
    Start,
    comparing,
    comparison_result,
    conversion_result,
    converting,
    environment,
    kill_repeatedly,
    training,
    training_result,
    unfinished,
    wait,
)

JUMPING_CLOCK = """
import random, runpy, sys, time
rng, wall = random.Random(1), time.time
time.time = lambda: wall() + rng.uniform(-1e6, 1e6)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
FAILED = "FAILED"  # the beginning of the outcome of a kind of work with another result than undisturbed
TIMEOUT = 300  # seconds; a script takes one or two


class Failure(Exception):
    """A script that did not end as required."""


Limits = Sequence[tuple[int, int]]  # of resource.setrlimit


def run(*command: object, cache: Path, exit_codes: Sequence[int] = (0, 2), shell: str = "", limits: Limits = ()) -> int:
    """Run a script to its end, with redirections by ``shell``.

    Raises Failure for a traceback, another exit code, or an error that is not one line.
    """

    def set_limits() -> None:
        for resource_id, limit in limits:
            resource.setrlimit(resource_id, (limit, limit))

    words = [str(word) for word in command]
    if shell:
        words = ["sh", "-c", f'exec "$@" {shell}', "sh", *words]
    try:
        done = subprocess.run(
            words, env=environment(cache), preexec_fn=set_limits, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace", timeout=TIMEOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Failure(f"not done in {TIMEOUT} seconds") from None
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    one_line = done.returncode != 2 or len(errors) == 1 or "2>" in shell
    if "Traceback" in done.stderr or done.returncode not in exit_codes or not one_line:
        raise Failure(f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.returncode


class Scratch:
    """A text, a finished run, and a new directory for each attempt."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.cache = base / "cache"
        self.text = base / "text.txt"
        self.run = base / "run"
        self.text.write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(3000)), encoding="utf-8")
        process = training(self.text, self.cache, torchrun=False, steps=3)(self.run)
        assert process is not None
        assert wait(process) == 0

    def new_directory(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.base))


def command(name: str, scratch: Scratch, directory: Path) -> list[object]:
    """A short command of each script, which writes to ``directory``."""
    python = sys.executable
    settings = [*TINY, "--tokenizer", "char", "--data", scratch.text, "--max_steps", 2]
    commands: dict[str, list[object]] = {
        "train": [python, ROOT / "train.py", *settings, "--out_dir", directory / "run"],
        "generate": [python, ROOT / "generate.py", scratch.run, "--max_new_tokens", 3, "--device", "cpu"],
        "hf": [python, ROOT / "convert.py", scratch.run, directory / "hf", "--to", "hf"],
        "meta": [python, ROOT / "convert.py", scratch.run, directory / "meta", "--to", "meta"],
        "llama2c": [python, ROOT / "convert.py", scratch.run, directory / "new.bin", "--to", "llama2c"],
        "study": [python, "-m", "study", "rotate"],
    }
    return commands[name]


def attempt(name: str, scratch: Scratch, directory: Path | None = None, cache: Path | None = None, **options) -> str:
    """Run a script with the ``options`` of ``run``. Returns what was wrong, or an empty string."""
    directory = directory or scratch.new_directory()
    try:
        run(*command(name, scratch, directory), cache=cache or directory / "cache", **options)
    except Failure as failure:
        return f"{name} {options}: {failure}"
    if unfinished(directory):
        return f"{name} {options} leaves {unfinished(directory)}"
    return ""


WRITERS = ("train", "hf", "meta", "llama2c")


def full_disk(scratch: Scratch, sizes: Sequence[int] = (512, 4096, 20_000, 60_000)) -> Iterator[str]:
    """Simulate a full disk with a limit of the file size."""
    for size in sizes:
        for name in WRITERS:
            yield attempt(name, scratch, limits=[(resource.RLIMIT_FSIZE, size)])


def read_only_disk(scratch: Scratch) -> Iterator[str]:
    """As root, mount a read-only file system; otherwise remove the write permission of a directory."""
    directory = scratch.new_directory()
    is_root = os.geteuid() == 0
    if is_root:
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", directory]
        if subprocess.run(mount, capture_output=True).returncode:
            return
    else:
        directory.chmod(0o555)
    try:
        for name in WRITERS:
            yield attempt(name, scratch, directory, scratch.cache, exit_codes=(2,))
        yield attempt("train", scratch, cache=directory)
    finally:
        if is_root:
            subprocess.run(["umount", directory], check=True)
        else:
            directory.chmod(0o755)


def closed_streams(scratch: Scratch, names: Sequence[str] = ("train", "generate", "hf", "study")) -> Iterator[str]:
    for shell in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"):
        for name in names:
            exit_codes = (0, 2) if "full" in shell else (0,)
            yield attempt(name, scratch, exit_codes=exit_codes, shell=shell)


def low_memory(scratch: Scratch) -> Iterator[str]:
    for gigabytes in (2, 3, 4, 6):
        for name in ("train", "generate", "meta"):
            yield attempt(name, scratch, limits=[(resource.RLIMIT_AS, gigabytes << 30)])


def jumping_clock(scratch: Scratch) -> Iterator[str]:
    for minutes in ((), ("--minutes", 0.02), ("--minutes", 1e-7)):
        directory = scratch.new_directory()
        flags = [*TINY, "--data", scratch.text, "--max_steps", 20, *minutes, "--out_dir", directory / "run"]
        train = [sys.executable, "-c", JUMPING_CLOCK, ROOT / "train.py", *flags]
        try:
            run(*train, cache=directory / "cache", exit_codes=(0,))
        except Failure as failure:
            yield f"{minutes}: {failure}"
        else:
            yield ""


def two_writers(scratch: Scratch) -> Iterator[str]:
    """Of two trainers in one directory, one must be refused. Three trainers on one text must give the same model."""
    directory = scratch.new_directory()
    start = training(scratch.text, scratch.cache, torchrun=False, steps=60)
    processes = [start(directory / "one"), start(directory / "one")]
    codes = sorted(wait(process) for process in processes if process is not None)
    yield "" if codes == [0, 2] else f"two trainers in one directory ended with {codes}"
    start = training(scratch.text, directory / "cache", torchrun=False, steps=2)
    processes = [start(directory / name) for name in "abc"]
    codes = [wait(process) for process in processes if process is not None]
    yield "" if codes == [0, 0, 0] else f"three trainers with one text ended with {codes}"
    a, b, c = (training_result(directory / name) for name in "abc")
    correct = a == b == c and not unfinished(directory)
    yield "" if correct else f"three trainers with one text differ, or leave {unfinished(directory)}"


FAULTS = (full_disk, read_only_disk, closed_streams, low_memory, jumping_clock, two_writers)


class Job(NamedTuple):
    """A kind of work to kill."""

    start: Start
    content: Content
    fraction: float  # of all kills
    longest_wait: float  # seconds from the first write to a kill at a random moment


def kill_jobs(scratch: Scratch, kills: int, seed: int) -> Iterator[tuple[str, int, str]]:
    """Distribute the kills over all kinds of work. Yields the kind, the number of kills, and where they hit."""
    text, cache = scratch.text, scratch.cache
    long_text = scratch.base / "long.txt"
    long_text.write_text(text.read_text(encoding="utf-8") * 60, encoding="utf-8")
    jobs = {
        "training": Job(training(text, cache, False, 1000), training_result, 0.35, 0.5),
        "torchrun": Job(training(text, cache, True, 200), training_result, 0.1, 2.0),
        "tokenizing": Job(training(long_text, cache, False, 1), training_result, 0.2, 2.0),
    }
    for to in ("hf", "meta", "llama2c"):
        jobs[f"convert to {to}"] = Job(converting(scratch.run, to, cache), conversion_result, 0.05, 0.01)
    jobs["compare"] = Job(comparing(text, cache), comparison_result, 0.2, 4.0)
    for name, job in jobs.items():
        count = max(1, round(job.fraction * kills))
        try:
            hits = kill_repeatedly(job.start, job.content, scratch.new_directory(), count, job.longest_wait, seed)
            yield f"kill: {name}", count, ", ".join(f"{hits[where]} {where}" for where in sorted(hits))
        except AssertionError as error:
            yield f"kill: {name}", count, f"{FAILED}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as base:
        scratch = Scratch(Path(base))
        for fault in FAULTS:
            results = list(fault(scratch))
            failures = [text for text in results if text]
            failed += len(failures)
            print(f"{fault.__name__.replace('_', ' '):<24}{len(results):>4} tried, {len(failures)} failed", flush=True)
            for text in failures:
                print(f"    {text}", flush=True)
        for name, count, outcome in kill_jobs(scratch, flags.kills, flags.seed):
            print(f"{name:<24}{count:>4} kills: {outcome}", flush=True)
            if outcome.startswith(FAILED):
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
