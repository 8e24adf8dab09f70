"""Files that are either whole or not there: what a kill, a full disk or a foreign hand cannot leave half-done."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a temporary neighbour of ``path``, file or directory, then put it in place in one step.

    The content reaches the disk before the name does, so whoever reads ``path``, even after a power cut, finds the
    old file or the new one. When ``write`` fails, the old one stays and the neighbour goes.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file. Raises ValueError that names the file, FileNotFoundError when there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"{path} is not valid JSON ({error}): restore the file") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}: a JSON object is needed")
    return value
