"""Files that are either whole or not there: a kill or a full disk never leaves one half-written."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .foreign import Kind, check_fields


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
    for _ in range(20 if sys.platform == "win32" else 0):
        try:
            return os.replace(temporary, path)
        except PermissionError:
            time.sleep(0.1)
    os.replace(temporary, path)


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():  # Windows opens no directory, and keeps names safe by itself
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


LARGEST = 200_000_000  # bytes of JSON; the largest tokenizer.json there are have some 20 million


def read_json(path: Path, kinds: Mapping[str, Kind] | None = None) -> dict[str, Any]:
    """The object in the file, with the fields in ``kinds`` checked.

    Raises ValueError that names the file, FileNotFoundError when there is none.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device never end
        raise ValueError(f"{path} is not a file: restore it")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than any such file: restore it")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"{path} is not valid JSON ({error}): restore the file") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}: a JSON object is needed")
    try:
        check_fields(value, kinds or {})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return value
