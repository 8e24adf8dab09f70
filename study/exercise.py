"""Copy the files of the exercise: signatures and docstrings of RoPE, layouts, the cache and attention."""

from pathlib import Path
from shlex import quote
from typing import Annotated

from model.cli.files import write_text

from .topic import Report

TEMPLATES = Path(__file__).with_name("exercise_files")


def exercise(
    directory: Annotated[Path | None, "directory for the files; existing files are not overwritten"] = None,
) -> Report:
    """Files with docstrings and no bodies: write RoPE, layouts, a mask, a cache and attention.

    Raises ValueError, and writes nothing, if one of the files exists.
    """
    if directory is None:
        raise ValueError("no directory is given: write python -m study exercise DIR")
    paths = {directory / name: TEMPLATES / name for name in ("rope.py", "layouts.py", "cache.py", "attention.py")}
    for path in paths:
        if path.exists():
            raise ValueError(f"{path} exists and is not overwritten: give another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for path, template in paths.items():
        write_text(path, template.read_text(encoding="utf-8"))
    # On Windows too, slashes need no quotes.
    command = f"python -m study check {quote(directory.as_posix())} --hint"
    return Report(["\n".join([*(f"written: {path}" for path in paths), f"Write the bodies, then: {command}"])])
