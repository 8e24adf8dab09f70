"""Check the reader's own functions: they run in a process of their own, and this file reports the results.

``child.py`` runs them; ``table.py``, ``rotation.py``, ``cache.py`` and ``attention.py`` judge them, in any of the forms
of ``forms.py``; ``faults.py`` lists the known mistakes. A mistake is reported only when its formula gives the
same numbers as the reader's function on every probe; otherwise only the first failing property is.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from ...cli import script_name
from ..topic import Report
from .faults import Fault


@dataclass(frozen=True)
class Check:
    """Your own RoPE, mask, cache and attention: right, or wrong and which mistake it is."""

    file: Annotated[Path | None, "a Python file, or a directory of them (`exercise` writes some to start from)"] = None
    hint: Annotated[bool, "only the property that fails, with two numbers"] = False
    seconds: Annotated[float, "processor time that one function may take"] = 10.0


FUNCTIONS = (
    "precompute_freqs_cis",
    "reshape_for_broadcast",
    "apply_rotary_emb",
    "causal_mask",
    "KVCache",
    "attention",
)


class Property(NamedTuple):
    """One sentence about a right function, with what was measured and what it should have been."""

    sentence: str
    measured: float | str
    expected: float | str
    tolerance: float = 3e-3

    def holds(self) -> bool:
        if isinstance(self.measured, str) or isinstance(self.expected, str):
            return self.measured == self.expected
        return math.isfinite(self.measured) and abs(self.measured - self.expected) <= self.tolerance

    def __str__(self) -> str:
        measured, expected = in_digits(self.measured, 4), in_digits(self.expected, 4)
        if measured == expected:  # a difference that four digits do not show
            measured, expected = in_digits(self.measured, 8), in_digits(self.expected, 8)
        return f"{self.sentence}: yours {measured}, expected {expected}."


def in_digits(value: float | str, digits: int) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}g}"


@dataclass
class Verdict:
    """The result for one function. ``outcome`` is right, half-split, wrong, stopped or unwritten."""

    function: str
    outcome: str
    hint: str = ""
    fault: str = ""
    why: str = ""
    step: int = 0
    remarks: list[str] = field(default_factory=list)

    def lines(self, hint_only: bool) -> Iterator[str]:
        yield f"{self.function}: {self._head(hint_only)}"
        if self.outcome == "wrong":
            sentence, _, numbers = self.hint.rpartition(": yours ")
            yield from _wrapped(f"{sentence}:" if sentence else self.hint)
            if sentence:
                yield f"    yours {numbers}"
            if not hint_only:
                yield from _wrapped(f"{self.why} See docs/rope.md, step {self.step}.")
        if not hint_only:
            for remark in self.remarks:
                yield from _wrapped(remark)

    def _head(self, hint_only: bool) -> str:
        if self.outcome == "half-split":
            return "right, in the half-split layout (channel i pairs with i + D/2, as in Hugging Face)"
        if self.outcome == "wrong" and self.fault and not hint_only:
            return f"wrong: {self.fault}"
        if self.outcome == "stopped":
            return f"stopped: {self.hint}"
        if self.outcome == "unwritten":
            return "not written yet"
        return self.outcome


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def verdict_on(
    function: str,
    right: Iterable[tuple[str, bool]],
    faults: Iterable[tuple[Fault, bool]],
    properties: Iterable[Property],
    problem: str,
    step: int,
) -> Verdict:
    """The verdict from what matches. All but ``problem``, an exception, are made as they are needed.

    ``right`` pairs an outcome, ``faults`` a mistake, with whether it gives what the reader's function gave.
    """
    for outcome, matches in right:
        if matches:
            return Verdict(function, outcome)
    known = next((fault for fault, matches in faults if matches), None)
    failing = next((str(each) for each in properties if not each.holds()), "")
    if known:
        return Verdict(function, "wrong", failing or f"It ends in {problem}.", known.name, known.why, known.step)
    if problem:
        return Verdict(function, "stopped", problem)
    return Verdict(function, "wrong", failing, "", "No known mistake gives these numbers.", step)


def run(options: Check) -> Report:
    """Judge ``options.file``, a file or a directory of them; the exit status is 1 where something is wrong.

    Raises ValueError where nothing could be judged.
    """
    study = script_name("study")
    if options.file is None:
        raise ValueError(f"which file? give it: {study} check FILE.py; {study} exercise DIR writes some to start from")
    if not 0 < options.seconds < math.inf:
        raise ValueError(f"seconds is {options.seconds:g}: give a number above 0")
    verdicts = judge_files(python_files(options.file), options.seconds)
    if not verdicts:
        known = ", ".join(FUNCTIONS)
        raise ValueError(f"{options.file} defines none of {known}: write one, or see {study} exercise DIR")
    lines = [line for verdict in verdicts for line in verdict.lines(options.hint)]
    wrong = any(verdict.outcome in ("wrong", "stopped") for verdict in verdicts)
    return Report(["\n".join(lines)], code=int(wrong))


def python_files(path: Path) -> list[Path]:
    if not path.is_dir():
        path.open("rb").close()  # an OSError names the file
        return [path]
    order = ("rope", "cache", "attention")  # as study.py exercise writes them; a later one may use an earlier one
    files = sorted(path.glob("*.py"), key=lambda file: (order.index(file.stem) if file.stem in order else 9, file.stem))
    if not files:
        raise ValueError(
            f"{path} holds no Python file: {script_name('study')} exercise {path} writes some to start from"
        )
    return files


def judge_files(files: list[Path], seconds: float) -> list[Verdict]:
    """Run the child on them and collect its verdicts. A function that ends the child is left out of the next try.

    Raises ValueError where a file cannot even be loaded.
    """
    stopped: dict[str, Verdict] = {}
    with tempfile.TemporaryDirectory() as directory:
        while True:
            notes = Path(directory) / "notes.jsonl"
            notes.write_text("", encoding="utf-8")
            status = _run_child(files, list(stopped), notes, seconds)
            found = dict(stopped)
            at = str(files[0])
            for line in notes.read_text(encoding="utf-8").splitlines():
                note = json.loads(line)
                at = note.get("at", at)
                if "error" in note:
                    raise ValueError(note["error"])
                if "function" in note:
                    found[note["function"]] = Verdict(**note)
            if at == "end":
                return [found[name] for name in FUNCTIONS if name in found]
            if at not in FUNCTIONS or at in found:
                raise ValueError(f"{at}: {status}")
            stopped[at] = Verdict(at, "stopped", status)


def _run_child(files: list[Path], skipped: list[str], notes: Path, seconds: float) -> str:
    """Run the child, and return in words how it ended.

    It limits its own processor time; the clock here is for one that sleeps, and for systems without that limit.
    """
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", f"{__name__}.child", str(notes), str(seconds), ",".join(skipped), *map(str, files)]
    endless = f"it did not end within {seconds:g} seconds; is there an endless loop? (--seconds N waits longer)"
    quiet = subprocess.DEVNULL  # input() ends at once, and what the file prints is not shown
    child = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, env={**os.environ, "PYTHONPATH": path})
    try:
        seen = 0
        since = time.monotonic()
        while child.poll() is None:
            size = notes.stat().st_size
            if size != seen or size == 0:  # before the first note Python and torch are starting: not the reader's time
                seen = size
                since = time.monotonic()
            if time.monotonic() - since > 10 * seconds:
                return endless
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    if child.returncode == -getattr(signal, "SIGXCPU", 0) < 0:
        return endless
    if child.returncode < 0:
        return f"the process was killed by signal {-child.returncode}; did it use all the memory, or recurse in C?"
    return f"it ended the process with status {child.returncode} (os._exit?)"
