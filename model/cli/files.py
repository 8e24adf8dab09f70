"""Atomic writes, JSON files, and UTF-8."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cache_home() -> Path:
    """The directory of downloads and compiled code, which can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a temporary file or directory beside ``path``, then rename it to ``path``.

    The content is synced to disk before the rename, so even after a power failure ``path`` is the old file or the new
    one. A ``write`` that makes a directory must sync the files in it. If ``write`` fails, the old file stays and the
    temporary one is removed; an OSError names the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.ropewalk.tmp")  # remove_unfinished finds it by this name
    try:
        write(temporary)
        _sync(temporary)
        _replace(temporary, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # "disk full" errors from an open file have no name
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def remove_unfinished(directory: Path) -> None:
    """Remove the temporary files of this program that were left by processes killed while they wrote a file."""
    for found in directory.glob(".*.ropewalk.tmp"):
        found.unlink()


def _replace(temporary: Path, path: Path) -> None:
    """``os.replace``; an empty directory is replaced, too.

    On Windows it is repeated, because it fails while another process has the old file open.
    """
    if sys.platform == "win32" and path.is_dir():
        path.rmdir()  # Windows replaces files only
    attempts = 20 if sys.platform == "win32" else 0
    for _ in range(attempts):
        try:
            os.replace(temporary, path)
            return
        except PermissionError:
            time.sleep(0.1)
    os.replace(temporary, path)


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)  # Windows needs O_RDWR for fsync
    except PermissionError:
        if path.is_dir():  # Windows cannot open directories and needs no sync; elsewhere it may not be readable
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_is_file(path: Path) -> None:
    """Raise ValueError for a directory, a pipe, which may block, and a device, which may never end."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file: give one, or restore it")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file. Its fields may have any type.

    Raises FileNotFoundError if the file is missing, and ValueError with its name if it is invalid.
    """
    check_is_file(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"{path} is not valid JSON ({error}): restore the file") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}: a JSON object is needed")
    return value


def decode_utf8(content: bytes, source: str) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises ValueError that names the source and the invalid byte."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 at byte {error.start}: convert it to UTF-8") from None
