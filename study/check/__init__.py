"""Run the reader's functions beside ours: the first number that differs, and the usual mistakes by what they do.

compare.py     what an exercise consists of, and the first difference
rope.py, layouts.py, kv_cache.py, attention.py   an exercise file each: what is measured, and the mistakes that it shows
reader.py      loads the reader's files and calls their functions
judge.py       the reader's functions with our arguments, and the verdicts
in_model.py    puts the functions into a trained model

A right function is right however it is written, because only results are compared.
"""

from pathlib import Path
from typing import Annotated

from ..topic import Report, Table, Text, Translate
from .in_model import in_model
from .judge import EXERCISES, judge_all
from .reader import Reader


def check(
    file: Annotated[
        Path | None, "a Python file, or a directory of them (`exercise` writes files to start from)"
    ] = None,
    hint: Annotated[bool, "show what differs, without the name of the mistake"] = False,
    run: Annotated[Path | None, "a trained model in which your functions are then used, also if they are wrong"] = None,
    prompt: Annotated[str, "the beginning of the text that this model writes"] = "Open a file",
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
    reader = Reader(sorted(file.glob("*.py")) if file.is_dir() else [file])
    solution = judge_all(reader)
    verdicts = solution.verdicts
    names = ", ".join(EXERCISES)
    if not verdicts:
        nothing = f"{file} defines none of {names}: write one; {study} exercise DIR writes files to complete"
        raise ValueError(next(iter(reader.problems.values()), nothing))
    absent = ", ".join(name for name in EXERCISES if name not in verdicts)

    def text(translate: Translate) -> str:
        lines = [*reader.problems.values()]
        lines += [line for verdict in verdicts.values() for line in verdict.lines(hint, translate)]
        return "\n".join([*lines, translate(f"not found: {absent}")] if absent else lines)

    is_good = not reader.problems and all(verdict.is_good for verdict in verdicts.values())
    tables: list[Table | Text] = [Text(text, "check")]
    if run is not None:
        tables.append(in_model(solution, run, prompt))
    return Report(tables, code=int(not is_good))
