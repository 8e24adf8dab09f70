"""Check the reader's own functions: they run in a process of their own, and this file reports the results.

process.py     runs that process within limits, and collects its verdicts
child.py       loads the files there, and has each function judged, with our own versions of the others
table.py, reshape.py, rotation.py, mask.py, cache.py, attention.py
               one function each: the right recipe, the known mistakes, and the properties that are tested in order
together.py    all functions that are right alone, in one network
recipe.py      recipes of named parts; a mistake is a part computed wrongly on purpose, and two are tried at once
faults.py      the names of the mistakes, why each is wrong and where to look
forms.py       the ways to write a table of rotations
counterparts.py, calls.py, verdict.py
               our own functions; calls of the reader's; what is said about one

A mistake is named only if it gives the same numbers as the reader's function wherever that gives any. Otherwise the
first property that fails is reported, with the smallest case that shows it.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...cli import script_name
from ..topic import Report
from .calls import FUNCTIONS
from .process import judge_files
from .verdict import GOOD, Verdict


@dataclass(frozen=True)
class Check:
    """Your own RoPE, mask, cache and attention: right, or wrong and which mistake it is."""

    file: Annotated[Path | None, "a Python file, or a directory of them (`exercise` writes some to start from)"] = None
    hint: Annotated[bool, "only the property that fails, with two numbers"] = False
    seconds: Annotated[float, "how long your code may run in all; each function may use half of what is left"] = 10.0


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
    judged = [verdict for verdict in verdicts if verdict.function in FUNCTIONS]
    if not judged:
        problem = next((verdict.hint for verdict in verdicts if verdict.outcome == "unloaded"), "")
        if problem:
            raise ValueError(problem)
        known = ", ".join(FUNCTIONS)
        raise ValueError(f"{options.file} defines none of {known}: write one, or see {study} exercise DIR")
    lines = [line for verdict in verdicts for line in verdict.lines(options.hint)]
    absent = [name for name in FUNCTIONS if name not in {verdict.function for verdict in judged}]
    if absent:
        lines.append(f"not found: {', '.join(absent)}")
    return Report(["\n".join(lines)], code=int(any(is_bad(verdict) for verdict in verdicts)))


def is_bad(verdict: Verdict) -> bool:
    return verdict.outcome not in (*GOOD, "unwritten", "loaded")


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
