"""Files that are either whole or not there: a kill or a full disk never leaves one half-written."""

import json
import os
import shutil
import time
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
        _replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _replace(temporary: Path, path: Path) -> None:
    """``os.replace``, with patience on Windows, where a reader that has the old file open makes it fail."""
    for _ in range(20 if os.name == "nt" else 0):
        try:
            return os.replace(temporary, path)
        except PermissionError:
            time.sleep(0.1)
    os.replace(temporary, path)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no directory, and keeps names safe by itself
        return
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)  # Windows syncs only what may be written
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
