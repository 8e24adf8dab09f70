"""Check the reader's functions: measure what they do, and name the mistake that a measurement shows.

process.py       runs each function in a process of its own, within limits
reader.py        loads the reader's files
judge.py         the verdict on one function
calls.py         calls of the reader's functions, their exceptions, and the order of their arguments
table.py, reshape.py, rotation.py, mask.py, cache.py, attention.py
                 measure one function each, stage by stage: a stage that is wrong ends what depends on it
forms.py         the forms of a rotation table, and what the measurements share
verdict.py       a measurement that differs from the expected one, and the text of a verdict
faults.toml      the mistakes that have a name: the name, why it is wrong, and the step of docs/rope.md about it

A right function passes all measurements, however it is written. What a wrong one does is shown as a measurement beside
the expected value, with a name if the measurement shows a common mistake.
"""

import math
from pathlib import Path
from shlex import quote
from typing import Annotated

from ..topic import Report
from .process import judge_files
from .verdict import FUNCTIONS, GOOD


def check(
    file: Annotated[
        Path | None, "a Python file, or a directory of them (`exercise` writes files to start from)"
    ] = None,
    hint: Annotated[bool, "show only what was measured and what was expected, without the name of the mistake"] = False,
    seconds: Annotated[float, "time limit of each of your functions and files"] = 5.0,
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
    judged = [verdict.function for verdict in verdicts if verdict.function in FUNCTIONS]
    if not judged:
        problems = [verdict.problem for verdict in verdicts if verdict.problem]
        names = ", ".join(FUNCTIONS)
        nothing = f"{file} defines none of {names}: write one; {study} exercise DIR writes files to complete"
        raise ValueError((problems or [nothing])[0])
    lines = [line for verdict in verdicts for line in verdict.lines(hint)]
    absent = [name for name in FUNCTIONS if name not in judged]
    if absent:
        lines.append(f"not found: {', '.join(absent)}")
    is_good = all(verdict.outcome in GOOD for verdict in verdicts)
    return Report(["\n".join(lines)], code=int(not is_good))


def python_files(path: Path) -> list[Path]:
    if not path.is_dir():
        path.open("rb").close()  # an OSError names the file
        return [path]
    files = sorted(path.glob("*.py"))
    if not files:
        command = f"python -m study exercise {quote(path.as_posix())}"
        raise ValueError(f"{path} has no Python file: {command} writes files to complete")
    return files
