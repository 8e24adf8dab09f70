"""Where text comes from: whatever a user can name, as documents."""

import atexit
import functools
import glob
import hashlib
import http.client
import json
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urldefrag

from tqdm import tqdm

from ..cli import local_path
from ..cli.files import write_atomically
from .python_docs import DOCS_FORMAT, corpus_files, python_docs
from .readers import Piece, first_bytes, is_binary, read_file
from .token_cache import download_path, explained
from .tokenizer import split_text

DEFAULT = "python-docs"  # the text that every CPython brings along


class File(NamedTuple):
    path: Path
    name: str  # what errors call it; its ending says how to read it


class Documents:
    """Documents in order, as often as one iterates, in bounded memory: pieces of text, and whether one starts there."""

    def __init__(self, specs: list[str | Path], files: Sequence[File | None], text_key: str, separator: str | None):
        """``specs`` are what the user named; ``None`` among the ``files`` of them stands for the default corpus."""
        self.specs = specs
        self.files = files
        self.text_key = text_key
        self.separator = separator
        self.opened = self._status()  # what the cache finds the text by, and what it must still be once it is read

    def __iter__(self) -> Iterator[Piece]:
        for file in self.files:
            if file is not None:
                yield from read_file(file.path, file.name, self.text_key, self.separator)
                continue
            for text in python_docs():
                for number, piece in enumerate(split_text(text)):
                    yield piece, number == 0

    def texts(self) -> Iterator[str]:
        """The text alone."""
        return (text for text, _ in self)

    def _status(self) -> list[tuple[str, int, int]]:
        """Name, size and time of every file, without reading it."""
        found = []
        if None in self.files:
            found.append((DEFAULT, DOCS_FORMAT, 0))
        for file in self.files:
            for path in corpus_files() if file is None else [file.path]:
                status = path.stat()
                found.append((str(path.resolve()), status.st_size, status.st_mtime_ns))
        return found

    def identity(self) -> str:
        """Differs where a file's name, size or time did when the documents were opened."""
        return hashlib.sha256(json.dumps([self.text_key, self.separator, *self.opened]).encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Raise ValueError if a file is no longer as it was when the documents were opened."""
        for before, now in zip(self.opened, self._status()):
            if before != now:
                raise ValueError(f"{before[0]} changed while it was read: run again when nothing writes to it")


def open_documents(
    specs: Sequence[str | Path],
    text_key: str = "text",
    doc_separator: str | None = None,
    patterns: Sequence[str] = (),
) -> Documents:
    """The documents of files, directories, globs, URLs, ``-`` for standard input, or ``python-docs``.

    A document is a file, a line of a .jsonl file (its ``text_key``), or what lies between two ``doc_separator``. Of
    directories and globs, empty and binary files are left out, and one warning counts them; ``patterns``, such as
    ``*.py``, choose among the files of directories. Raises ValueError when a source is missing or holds no text; what
    is not UTF-8 is found when it is read.
    """
    if doc_separator == "":
        raise ValueError("doc_separator is empty: give the text that stands between two documents")
    named: list[str | Path] = [specs] if isinstance(specs, str | Path) else list(specs)
    files = [file for spec in named for file in _find(str(spec), patterns)]
    return Documents(named, files, text_key, doc_separator)


def _find(spec: str, patterns: Sequence[str]) -> list[File | None]:
    if spec == DEFAULT:
        return [None]
    if spec in ("-", "/dev/stdin"):
        return [File(_spool("-"), "standard input")]
    if spec.startswith(("/dev/fd/", "/proc/self/fd/")):  # a shell's <(command)
        return [File(_spool(spec), spec)]
    if spec.startswith(("http://", "https://")):
        path = fetch(spec)
        return [File(path, path.name)]
    path = local_path(os.path.expanduser(spec))  # which leaves alone what is no user's home
    if path.is_dir():
        return _text_files(spec, [file for file in sorted(path.rglob("*")) if _is_wanted(file, path, patterns)])
    if not path.exists() and glob.has_magic(spec):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise ValueError(f"{spec} matches no file: check the pattern")
        return _text_files(spec, [Path(match) for match in matches])
    if not path.exists():
        raise ValueError(f"{spec} does not exist: give a text file, a directory, a glob, a URL, - or {DEFAULT}")
    if not path.is_file():
        raise ValueError(f"{spec} is neither a file nor a directory: pipe its text into --data -")
    if path.stat().st_size == 0:
        raise ValueError(f"{spec} is empty: give a file that holds text")
    return [File(path, str(path))]


def _is_wanted(file: Path, folder: Path, patterns: Sequence[str]) -> bool:
    """Whether a file of a directory is neither hidden, as .git is, nor of another kind than asked for."""
    inside = file.relative_to(folder)
    hidden = any(part.startswith(".") for part in inside.parts)
    return not hidden and (not patterns or any(inside.match(str(local_path(pattern))) for pattern in patterns))


def _text_files(spec: str, files: Sequence[Path]) -> list[File | None]:
    """Those that hold text. What is left out is counted in one warning, with an example."""
    texts: list[File | None] = []
    empty: list[Path] = []
    binary: list[Path] = []
    for file in files:
        if not file.is_file():
            continue
        start = first_bytes(file)
        if not start:
            empty.append(file)
        elif is_binary(start):
            binary.append(file)
        else:
            texts.append(File(file, str(file)))
    left_out = []
    if empty:
        left_out.append(f"{len(empty)} empty (such as {empty[0]})")
    if binary:
        left_out.append(f"{len(binary)} binary (such as {binary[0]})")
    if not texts:
        there = f", but {' and '.join(left_out)}" if left_out else ""
        raise ValueError(f"{spec} holds no text files{there}: check the path, and --glob where it is given")
    if left_out:
        warnings.warn(f"{spec}: {len(texts)} text files; left out: {' and '.join(left_out)}", stacklevel=2)
    return texts


@functools.cache
def _spool(spec: str) -> Path:
    """Standard input or another pipe, which can be read but once, as a file that lives as long as the process."""
    if spec == "-" and sys.stdin is None:
        raise ValueError("standard input is closed: pipe some text in")
    with tempfile.NamedTemporaryFile(prefix="ropewalk-stdin-", delete=False) as file:
        atexit.register(os.unlink, file.name)
        try:
            with nullcontext(sys.stdin.buffer) if spec == "-" else open(spec, "rb") as pipe:
                shutil.copyfileobj(pipe, file)
        except OSError as error:
            raise ValueError(f"{spec} cannot be read into {file.name} ({error.strerror}): see TMPDIR") from None
        if not file.tell():
            raise ValueError(f"{'standard input' if spec == '-' else spec} is empty: pipe some text in")
        return Path(file.name)


FETCH_TIMEOUT = 30  # seconds without a byte


def fetch(url: str) -> Path:
    """The file behind ``url``, from the cache when it is there. ``#sha256=HEX`` is checked each time.

    Raises ValueError when it cannot be had whole, or is not the file that was named.
    """
    address, fragment = urldefrag(url)
    wanted = fragment.removeprefix("sha256=").lower()
    if fragment and (not fragment.startswith("sha256=") or len(wanted) != 64):
        raise ValueError(f"{url}: the part after # is to be sha256= and 64 hexadecimal digits")
    path = download_path(address)
    if not path.exists():
        with explained(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda temporary: _download(address, temporary, wanted))
    elif wanted:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        _compare(address, found, wanted, f"; remove {path} to download it again")
    return path


def _download(address: str, path: Path, wanted: str) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(address, timeout=FETCH_TIMEOUT) as answer, path.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=address, disable=None) as bar:
                while block := answer.read(1 << 18):
                    file.write(block)
                    digest.update(block)
                    bar.update(len(block))
            if size and file.tell() != size:
                raise ValueError(f"{address} broke off after {file.tell()} of {size} bytes: try again")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise ValueError(f"{address} cannot be fetched ({error}): check the address and the connection") from None
    _compare(address, digest.hexdigest(), wanted, "")


def _compare(address: str, got: str, wanted: str, remedy: str) -> None:
    if wanted and got != wanted:
        raise ValueError(f"{address} has sha256 {got}, not the {wanted} that was asked for{remedy}")
