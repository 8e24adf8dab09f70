#!/usr/bin/env python3
"""Kill the scripts, fill their disks, close their streams: does every one end in one line, and is no work lost?

    python benchmarks/faults.py [--kills 200] [--seed 0]

After each kill the same command goes on, and must leave, bit for bit, what an undisturbed run leaves (kills.py). The
other faults must end with exit code 0, or with 2 and one line on stderr, and leave nothing half-written.
Prints a table: the fault, how often it was tried, how often that was not so.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kills import (
    ROOT,
    TINY,
    compared,
    comparing,
    converted,
    converting,
    environment,
    kill_repeatedly,
    tokenizing,
    trained,
    training,
    unfinished,
    wait,
)

CLOCK = """
import random, runpy, sys, time
rng, wall = random.Random(1), time.time
time.time = lambda: wall() + rng.uniform(-1e6, 1e6)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PATIENCE = 300  # seconds for a script that takes one or two


class Ended(Exception):
    """A script that ended otherwise than it may."""


Limits = Sequence[tuple[int, int]]  # of resource.setrlimit


def run(*command: object, cache: Path, wanted: Sequence[int] = (0, 2), shell: str = "", limits: Limits = ()) -> int:
    """Run a script to its end. ``shell`` redirects. Raises Ended for a traceback, or an error that is not one line."""

    def limit() -> None:
        for which, most in limits:
            resource.setrlimit(which, (most, most))

    words = list(map(str, command))
    words = ["sh", "-c", f'exec "$@" {shell}', "sh", *words] if shell else words
    try:
        ended = subprocess.run(
            words, env=environment(cache), preexec_fn=limit, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace", timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Ended(f"not done in {PATIENCE} seconds") from None
    errors = [line for line in ended.stderr.splitlines() if ": error: " in line]
    one_line = ended.returncode != 2 or len(errors) == 1 or "2>" in shell
    if "Traceback" in ended.stderr or ended.returncode not in wanted or not one_line:
        raise Ended(f"exit {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}")
    return ended.returncode


def scripts(good: Path, text: Path, place: Path) -> dict[str, list[object]]:
    """One short call of each script, writing into ``place``."""
    python = sys.executable
    new = [*TINY, "--tokenizer", "char", "--data", text, "--max_steps", 2]
    return {
        "train": [python, ROOT / "train.py", *new, "--out_dir", place / "run"],
        "resume": [python, ROOT / "train.py", "--resume", "--out_dir", good, "--max_steps", 4],
        "generate": [python, ROOT / "generate.py", good, "--max_new_tokens", 3, "--device", "cpu"],
        "hf": [python, ROOT / "convert.py", good, place / "hf", "--to", "hf"],
        "meta": [python, ROOT / "convert.py", good, place / "meta", "--to", "meta"],
        "llama2c": [python, ROOT / "convert.py", good, place / "new.bin", "--to", "llama2c"],
        "study": [python, ROOT / "study.py", "rotate"],
    }


def attempt(name: str, good: Path, text: Path, place: Path, cache: Path | None = None, **case) -> str:
    """What was wrong with the end of a script under ``run``'s case; nothing, if all was well."""
    try:
        run(*scripts(good, text, place)[name], cache=cache or place / "cache", **case)
    except (Ended, subprocess.TimeoutExpired) as error:
        return f"{name} {case}: {error}"
    return f"{name} {case} leaves {unfinished(place)}" if unfinished(place) else ""


class Scratch:
    """A new directory for each attempt, a text, and a finished run."""

    def __init__(self, base: Path) -> None:
        self.base, self.text, self.good = base, base / "text.txt", base / "good"
        self.text.write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(3000)), encoding="utf-8")
        done = training(self.text, base / "cache", torchrun=False, steps=3)(self.good)
        assert done is not None
        assert wait(done) == 0

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.base))


WRITERS = ("train", "hf", "meta", "llama2c")


def full_disk(scratch: Scratch, sizes: Sequence[int] = (512, 4096, 20_000, 60_000)) -> Iterator[str]:
    """No file may become larger than this: what a full disk does, without one."""
    for size in sizes:
        for name in WRITERS:
            yield attempt(name, scratch.good, scratch.text, scratch.new(), limits=[(resource.RLIMIT_FSIZE, size)])


def read_only_disk(scratch: Scratch) -> Iterator[str]:
    """A file system mounted read-only where root may mount, else a directory without write permission."""
    place = scratch.new()
    root = os.geteuid() == 0
    if root and subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], capture_output=True).returncode:
        return
    place.chmod(0o555) if not root else None
    try:
        for name in WRITERS:
            yield attempt(name, scratch.good, scratch.text, place, scratch.base / "cache", wanted=(2,))
        yield attempt("train", scratch.good, scratch.text, scratch.new(), place)
    finally:
        subprocess.run(["umount", place], check=True) if root else place.chmod(0o755)


def closed_streams(scratch: Scratch, names: Sequence[str] = ("train", "generate", "hf", "study")) -> Iterator[str]:
    for shell in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"):
        for name in names:
            wanted = (0, 2) if "full" in shell else (0,)
            yield attempt(name, scratch.good, scratch.text, scratch.new(), wanted=wanted, shell=shell)


def low_memory(scratch: Scratch) -> Iterator[str]:
    for gigabytes in (2, 3, 4, 6):
        for name in ("train", "generate", "meta"):
            limits = [(resource.RLIMIT_AS, gigabytes << 30)]
            yield attempt(name, scratch.good, scratch.text, scratch.new(), limits=limits)


def jumping_clock(scratch: Scratch) -> Iterator[str]:
    for more in ((), ("--minutes", 0.02), ("--minutes", 1e-7)):
        place = scratch.new()
        new = [*TINY, "--data", scratch.text, "--max_steps", 20, *more, "--out_dir", place / "run"]
        try:
            run(sys.executable, "-c", CLOCK, ROOT / "train.py", *new, cache=place / "cache", wanted=(0,))
        except Ended as error:
            yield f"{more}: {error}"
        else:
            yield ""


def two_writers(scratch: Scratch) -> Iterator[str]:
    """Two trainers in one directory: one may work. Three that tokenize one text at once: all end with one model."""
    place = scratch.new()
    start = training(scratch.text, scratch.base / "cache", torchrun=False, steps=60)
    codes = sorted(wait(process) for process in [start(place / "one"), start(place / "one")] if process is not None)
    yield "" if codes == [0, 2] else f"two trainers in one directory ended with {codes}"
    start = training(scratch.text, place / "cache", torchrun=False, steps=2)
    codes = [wait(process) for process in [start(place / name) for name in "abc"] if process is not None]
    yield "" if codes == [0, 0, 0] else f"three trainers with one text ended with {codes}"
    same = trained(place / "a") == trained(place / "b") == trained(place / "c")
    yield "" if same and not unfinished(place) else f"three trainers with one text differ, or leave {unfinished(place)}"


ONCE = (full_disk, read_only_disk, closed_streams, low_memory, jumping_clock, two_writers)


def killed(scratch: Scratch, kills: int, seed: int) -> Iterator[tuple[str, int, str]]:
    """The kills, shared out: their kind, how many there were, and where they hit or what was wrong."""
    text, good, cache = scratch.text, scratch.good, scratch.base / "cache"
    long = scratch.base / "long.txt"
    long.write_text(text.read_text(encoding="utf-8") * 60, encoding="utf-8")
    works = {
        "training": (training(text, cache, False, 1000), trained, 0.35, 0.5),
        "torchrun": (training(text, cache, True, 200), trained, 0.1, 2.0),
        "tokenizing": (tokenizing(long), trained, 0.2, 2.0),
        **{
            f"convert to {to}": (converting(good, to, cache), converted, 0.05, 0.01) for to in ("hf", "meta", "llama2c")
        },
        "compare": (comparing(text, cache), compared, 0.2, 4.0),
    }
    for name, (start, content, share, patience) in works.items():
        place, count = scratch.new(), max(1, round(share * kills))
        try:
            hits = kill_repeatedly(start, content, place, count, patience, seed)
            yield f"kill: {name}", count, ", ".join(f"{hits[where]} {where}" for where in sorted(hits))
        except AssertionError as error:
            yield f"kill: {name}", count, f"FAILED: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        scratch = Scratch(Path(base))
        for fault in ONCE:
            wrong = list(fault(scratch))
            failed = [text for text in wrong if text]
            print(f"{fault.__name__.replace('_', ' '):<24}{len(wrong):>4} tried, {len(failed)} failed", flush=True)
            print(*(f"    {text}" for text in failed), sep="\n", end="\n" * bool(failed), flush=True)
        for name, count, outcome in killed(scratch, flags.kills, flags.seed):
            print(f"{name:<24}{count:>4} kills: {outcome}", flush=True)


if __name__ == "__main__":
    main()
