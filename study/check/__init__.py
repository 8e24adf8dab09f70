"""Check the reader's functions: they run in a separate process, and this file reports the results.

process.py       runs that process within limits, and collects its verdicts
child.py         the process: loads the files, and has each function judged
table.py, reshape.py, rotation.py, mask.py, cache.py, attention.py
                 judge one function each: the right recipe, the known mistakes, and properties tested in order
together.py      judges all functions together, if each is right alone
recipe.py        recipes of named parts; a mistake is a wrong version of one part, and two at once are tried too
faults.py        what is shown of a mistake: its name, and why it is wrong
forms.py         the forms of a rotation table
counterparts.py  right versions of all functions
calls.py         calls of the reader's functions
properties.py    properties of right functions, and comparisons of results
verdict.py       the verdict on one function, and its text

A mistake is named if it returns the same numbers as the reader's function in the calls that are compared (each file
says which). Otherwise the first property that fails is reported, with the smallest case that shows it.
"""

import math
from pathlib import Path
from shlex import quote
from typing import Annotated

from ..topic import Report
from .calls import FUNCTIONS
from .process import judge_files
from .verdict import GOOD, Verdict


def check(
    file: Annotated[
        Path | None, "a Python file, or a directory of them (`exercise` writes files to start from)"
    ] = None,
    hint: Annotated[bool, "show only the property that fails, with the measured and the expected value"] = False,
    seconds: Annotated[float, "time limit of your code; each function may use half of the remaining time"] = 10.0,
) -> Report:
    """Check your own RoPE, mask, cache and attention: reports each as right, or names its mistake.

    ``file`` is a file or a directory of files. The exit status is 0 if every file loads and every function found is
    right or not written yet; otherwise 1. Raises ValueError if there is nothing to judge.
    """
    study = "python -m study"
    if file is None:
        raise ValueError(
            f"no file is given: write {study} check FILE.py; {study} exercise DIR writes files to complete"
        )
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds is {seconds:g}: give a number above 0")
    verdicts = judge_files(python_files(file), seconds)
    judged = [verdict for verdict in verdicts if verdict.function in FUNCTIONS]
    if not judged:
        problem = next((verdict.hint for verdict in verdicts if verdict.outcome == "unloaded"), "")
        if problem:
            raise ValueError(problem)
        names = ", ".join(FUNCTIONS)
        raise ValueError(f"{file} defines none of {names}: write one, or see {study} exercise DIR")
    lines = [line for verdict in verdicts for line in verdict.lines(hint)]
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
    order = ("rope", "cache", "attention")  # of the exercise: later files may import earlier ones
    files = sorted(path.glob("*.py"), key=lambda file: (order.index(file.stem) if file.stem in order else 9, file.stem))
    if not files:
        command = f"python -m study exercise {quote(path.as_posix())}"
        raise ValueError(f"{path} has no Python file: {command} writes files to complete")
    return files
