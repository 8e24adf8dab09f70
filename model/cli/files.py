"""Atomic writes, JSON files, UTF-8, and the kind of a file that cannot be read."""

import codecs
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

RUNS = Path("runs")  # where train.py writes its runs
# What a file is, by its first bytes, and what to do with it: the end of a sentence that begins with its name.
UTF_16 = "is UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`"
ZIP = (
    "is a zip archive, as are Word documents and PyTorch's .bin and .pth: unpack it, or save a document's text as .txt"
)
PICKLE = "is a Python pickle, which is not read because it can run code: get a model's model.safetensors, or save texts"
KINDS = {
    b"\x1f\x8b": "is compressed by gzip: unpack it with gunzip, or if it is text, let its name end in .gz",
    b"PK\x03\x04": ZIP,
    b"%PDF-": "is a PDF: save its text as .txt, for example with pdftotext",
    b"PAR1": "is a Parquet table: let its name end in .parquet",
    b"\x80\x02": PICKLE,
    b"\x80\x04": PICKLE,
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
}
# The whole of the small text that stands for a file of Git LFS
LFS_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/\S+\n(\S+ [^\n]*\n)*oid \S+\nsize \d+\s*")
NO_TEXT = re.compile(rb"[\0-\x07\x0e-\x1a\x1c-\x1f\x7f]")  # control characters that occur in no text


def kind_of_file(file: Path | bytes) -> str | None:
    """The kind of a file by its first bytes, and what to do with it; None if it is unknown, or text.

    A Git LFS pointer is text, but has a kind.
    """
    start = file
    if isinstance(start, Path):
        with start.open("rb") as stream:
            start = stream.read(512)
    if LFS_POINTER.fullmatch(start):
        return "is a Git LFS pointer instead of the file: run `git lfs pull` in its repository, or download the file"
    if is_text(start):
        return None
    for first, kind in KINDS.items():
        if start.startswith(first):
            return kind
    for even, odd in ((start[::2], start[1::2]), (start[1::2], start[::2])):  # without a byte order mark
        if odd.count(0) > len(start) // 4 and 0 not in even:
            return UTF_16
    return None


def is_text(start: bytes) -> bool:
    """Whether the first bytes of a file are UTF-8 without control characters; the last character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return not NO_TEXT.search(start)


def cache_home() -> Path:
    """A folder for files that can be made again, such as compiled code: in XDG_CACHE_HOME, or else in the home.

    If the user has no home, or one that is read-only, as some services have, it is a folder of the user's among the
    temporary files. Raises ValueError if that cannot be made, or if it is somebody else's, who could put code into it.
    """
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "ropewalk"
    with suppress(OSError, RuntimeError):
        home = Path.home() / ".cache" / "ropewalk"
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    with suppress(OSError, AttributeError):  # Windows has no user ids
        temporary = Path(tempfile.gettempdir()) / f"ropewalk-{os.getuid()}"
        temporary.mkdir(mode=0o700, exist_ok=True)
        if temporary.lstat().st_uid == os.getuid():
            return temporary
    raise ValueError("there is no folder for cached files: set XDG_CACHE_HOME to one that you can write to")


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
    """``os.replace``. On Windows it is repeated, because it fails while another process has the old file open."""
    for _ in range(20 if sys.platform == "win32" else 0):
        with suppress(PermissionError):
            os.replace(temporary, path)
            return
        time.sleep(0.1)
    os.replace(temporary, path)


def _sync(path: Path) -> None:
    if path.is_dir() and sys.platform == "win32":  # which cannot open directories, and needs no sync of them
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows syncs writable files only
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file. Its fields may have any type.

    Raises FileNotFoundError if the file is missing, and ValueError with its name if it is invalid.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        kind = kind_of_file(path) or f"is not valid JSON ({error}): get the file again"
        raise ValueError(f"{path} {kind}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}: a JSON object is needed")
    return value


def decode_utf8(content: bytes, source: str) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises ValueError that names the source and the invalid byte."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 at byte {error.start}: convert it to UTF-8") from None
