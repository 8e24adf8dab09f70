"""Files that are either whole or not there, and JSON that others wrote, checked before it is used.

A kind is a name for a field's type, and a test; ``check_fields`` names the field, its value and the kind it needs.
"""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Kind = tuple[str, Callable[[Any], bool]]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in value)


def _is_ids(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(_is_whole(item) and item >= 0 for item in items)


def _is_token(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, dict) and _is_text(value.get("content")))


WHOLE: Kind = ("a whole number", _is_whole)
NUMBER: Kind = ("a finite number", _is_number)
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
TEXT: Kind = ("a text", _is_text)
TEXTS: Kind = ("a list of texts", _is_texts)
TABLE: Kind = ("a table", lambda value: isinstance(value, dict))
IDS: Kind = ("a token id or a list of them", _is_ids)
TOKEN: Kind = ("a token, as text or as a table with its content", _is_token)


def check_fields(table: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Raise ValueError for the first field that is there, is not null, and is of another kind."""
    for name, (words, fits) in kinds.items():
        if table.get(name) is not None and not fits(table[name]):
            raise ValueError(f"{name} is {shortened(table[name])}: {words} is needed")


def shortened(value: Any) -> str:
    """For one line of a message; a number of thousands of digits is not even written out."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return "a number beyond 2**63"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def displayable_name(name: str) -> str:
    """A file name as valid Unicode, for JSON and plots: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", sys.getfilesystemencodeerrors()).decode(errors="backslashreplace")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a temporary neighbour of ``path``, file or directory, then put it in place in one step.

    The content reaches the disk before the name does, so whoever reads ``path``, even after a power cut, finds the
    old file or the new one. When ``write`` fails, the old one stays and the neighbour goes; an OSError names the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _sync(temporary)
        _replace(temporary, path)
    except OSError as error:  # a write to an open file, on a full disk, does not say which
        error.filename = error.filename or str(path)
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _replace(temporary: Path, path: Path) -> None:
    """``os.replace``, with patience on Windows, where a reader that has the old file open makes it fail."""
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
        descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)  # Windows syncs what may be written
    except PermissionError:
        if path.is_dir():  # Windows opens none, and keeps names safe by itself; elsewhere this one may not be listed
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
    """Raise ValueError for a pipe, which would be waited for, and for a device, which may never end."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file: give one, or restore it")


LARGEST_JSON = 200_000_000  # bytes of JSON; the largest tokenizer.json there are have some 20 million


def read_json(path: Path, kinds: Mapping[str, Kind] | None = None) -> dict[str, Any]:
    """The object in the file, with the fields in ``kinds`` checked.

    Raises ValueError that names the file, FileNotFoundError when there is none.
    """
    check_is_file(path)
    if path.stat().st_size > LARGEST_JSON:
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
