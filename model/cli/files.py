"""Atomic writes, and JSON from elsewhere, with its fields checked before use.

A check is the name of a field's type and a test for it. ``check_fields`` reports the field, its value and this type.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

Check = tuple[str, Callable[[Any], bool]]


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode the text: Python decodes other bytes to halves of surrogate pairs."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_utf8(value)


INTEGER: Check = ("a whole number", lambda value: type(value) is int)
FLAG: Check = ("true or false", lambda value: isinstance(value, bool))
TEXT: Check = ("a text", _is_text)
TEXTS: Check = ("a list of texts", lambda value: isinstance(value, list) and all(map(_is_text, value)))
TABLE: Check = ("a table", lambda value: isinstance(value, dict))
IDS: Check = (
    "a token id or a list of them",
    lambda value: all(type(item) is int for item in (value if isinstance(value, list) else [value])),
)
TOKEN: Check = (
    "a token, as text or as a table with its content",
    lambda value: _is_text(value.get("content") if isinstance(value, dict) else value),
)


def check_fields(table: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Raise ValueError for the first field whose value fails its check. Missing and null fields are accepted."""
    for name, (description, test) in checks.items():
        if table.get(name) is not None and not test(table[name]):
            raise ValueError(f"{name} is {short_repr(table[name])}: {description} is needed")


def short_repr(value: Any) -> str:
    """The value in ASCII, at most 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def displayable_name(name: str) -> str:
    """A file name as valid Unicode, for JSON and plots: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", sys.getfilesystemencodeerrors()).decode(errors="backslashreplace")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a temporary file or directory beside ``path``, then rename it to ``path``.

    The content is synced to disk before the rename, so even after a power failure ``path`` is the old file or the new
    one. A ``write`` that makes a directory must sync the files in it. If ``write`` fails, the old file stays and the
    temporary one is removed; an OSError names the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # remove_unfinished finds it by this name
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


def remove_unfinished(directory: Path, names: Collection[str]) -> None:
    """Remove the temporary files that were left by processes killed while they wrote files with these names."""
    for found in directory.glob(".*.tmp"):
        name, _, process = found.name[1:].removesuffix(".tmp").rpartition(".")
        if name in names and process.isdecimal() and found.is_file():
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


def read_json(path: Path, checks: Mapping[str, Check] | None = None) -> dict[str, Any]:
    """The JSON object in the file, with the fields in ``checks`` checked.

    Raises FileNotFoundError if the file is missing, and ValueError with its name if it is invalid.
    """
    check_is_file(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"{path} is not valid JSON ({error}): restore the file") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}: a JSON object is needed")
    try:
        check_fields(value, checks or {})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return value
