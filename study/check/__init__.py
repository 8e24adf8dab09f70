"""Run the reader's functions beside ours: the first number that differs, and the usual mistakes by what they do.

reader.py      loads the reader's files and calls their functions
tensors.py     numbers for the probes, and the forms of a table
compare.py     probes, mistakes in both languages, and the first difference
judge.py       the verdict on one function
table.py, rotation.py, layouts.py, kv_cache.py, attention.py   what is measured of each, and the mistakes that it shows
in_model.py    puts the functions into a trained model

A right function is right however it is written, because only results are compared.
"""

import warnings
from pathlib import Path
from shlex import quote
from typing import Annotated

from ..topic import Both, Report, Table
from .in_model import in_model
from .judge import EXERCISES, Conventions, Verdict, counterparts, judge
from .reader import Reader


def check(
    file: Annotated[
        Path | None, "a Python file, or a directory of them (`exercise` writes files to start from)"
    ] = None,
    hint: Annotated[bool, "show what differs, without the name of the mistake"] = False,
    run: Annotated[Path | None, "a trained model in which your functions are then used, also if they are wrong"] = None,
    prompt: Annotated[str, "the beginning of the text that this model writes"] = "The",
) -> Report:
    """Check your own RoPE, mask, cache and attention: each is right, or its mistake is named.

    ``file`` is a file or a directory of files. The exit status is 0 if every file loads and every function found is
    right; otherwise 1, also if one is not written yet. Raises ValueError if there is nothing to judge.
    """
    study = "python -m study"
    if file is None:
        raise ValueError(
            f"no file is given: write {study} check FILE.py; {study} exercise DIR writes files to complete"
        )
    conventions = Conventions()
    reader = Reader(python_files(file))
    verdicts = judge_all(reader, conventions)
    names = ", ".join(EXERCISES)
    if not verdicts:
        nothing = f"{file} defines none of {names}: write one; {study} exercise DIR writes files to complete"
        raise ValueError(next(iter(reader.problems.values()), nothing))
    absent = ", ".join(name for name in EXERCISES if name not in verdicts)
    texts = []
    for language, not_found in enumerate(("not found: ", "没有找到：")):
        lines = [*reader.problems.values()]
        lines += [line for verdict in verdicts.values() for line in verdict.lines(hint, language)]
        texts.append("\n".join([*lines, f"{not_found}{absent}"] if absent else lines))
    is_good = not reader.problems and all(verdict.is_good for verdict in verdicts.values())
    tables: list[Table | Both] = [Both(*texts)]
    if run is not None:
        tables.append(in_model(conventions, run, prompt))
    return Report(tables, code=int(not is_good))


def judge_all(reader: Reader, conventions: Conventions) -> dict[str, Verdict]:
    """The verdicts. A function that is not right is replaced by ours, so that no other function fails because of it."""
    verdicts = {}
    ours = counterparts(conventions)
    functions = reader.functions(EXERCISES)
    for name in ours.keys() - functions.keys():
        reader.use(name, ours[name])
    with warnings.catch_warnings(action="ignore"):
        for name, (function, path) in functions.items():
            verdicts[name] = judge(name, function, path, conventions)
            if name in ours and not verdicts[name].is_good:
                reader.use(name, ours[name])
    for name, (function, _) in functions.items():
        reader.use(name, function)
    return verdicts


def python_files(path: Path) -> list[Path]:
    if not path.is_dir():
        path.open("rb").close()  # an OSError names the file
        return [path]
    files = sorted(path.glob("*.py"))
    if not files:
        command = f"python -m study exercise {quote(path.as_posix())}"
        raise ValueError(f"{path} has no Python file: {command} writes files to complete")
    return files
