"""Check the reader's functions: find the wrong version of mistakes.txt that gives the same results, and name it.

in_model.py    puts the functions into a trained model
process.py     runs the functions in a process of their own, within limits
reader.py      loads the reader's files
calls.py       calls of the reader's functions, their exceptions, and the order of their arguments
probes.py      the calls by which functions are compared, and the forms in which tables and results may be written
mistakes.txt   right functions, and below each line what is written there by mistake, with a name and why it is wrong
mistakes.py    reads and runs them
judge.py       compares, and finds the first number that differs
rotation.py    what a rotation does to a pair, as algebra
verdict.py     the text

A right function is right however it is written, because only results are compared.
"""

import math
from pathlib import Path
from shlex import quote
from typing import Annotated

from ..topic import Report, Table
from .in_model import in_model
from .process import judge_files
from .verdict import STEPS, UNWRITTEN


def check(
    file: Annotated[
        Path | None, "a Python file, or a directory of them (`exercise` writes files to start from)"
    ] = None,
    hint: Annotated[bool, "show what differs, without the name of the mistake"] = False,
    seconds: Annotated[float, "time limit of each of your functions and files"] = 5.0,
    run: Annotated[Path | None, "a trained model in which your functions are then used, also if they are wrong"] = None,
    prompt: Annotated[str, "the beginning of the text that this model writes"] = "The",
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
    files = python_files(file)
    verdicts, conventions = judge_files(files, seconds)
    judged = [verdict.function for verdict in verdicts if verdict.function in STEPS]
    if not judged:
        problems = [verdict.problem for verdict in verdicts if verdict.problem]
        names = ", ".join(STEPS)
        nothing = f"{file} defines none of {names}: write one; {study} exercise DIR writes files to complete"
        raise ValueError((problems or [nothing])[0])
    lines = [line for verdict in verdicts for line in verdict.lines(hint)]
    absent = [name for name in STEPS if name not in judged]
    if absent:
        lines.append(f"not found: {', '.join(absent)}")
    is_good = all(verdict.is_good for verdict in verdicts)
    tables: list[Table | str] = ["\n".join(lines)]
    if run is not None:
        written = [each.function for each in verdicts if each.outcome not in (UNWRITTEN, "stopped", "unloaded")]
        tables.append(in_model(files, written, conventions, run, prompt))
    return Report(tables, code=int(not is_good))


def python_files(path: Path) -> list[Path]:
    if not path.is_dir():
        path.open("rb").close()  # an OSError names the file
        return [path]
    files = sorted(path.glob("*.py"))
    if not files:
        command = f"python -m study exercise {quote(path.as_posix())}"
        raise ValueError(f"{path} has no Python file: {command} writes files to complete")
    return files
