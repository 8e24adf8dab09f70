"""Where text comes from: whatever a user can name, as documents."""

import atexit
import functools
import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .chunks import Piece, split_text
from .corpus import corpus_files, python_docs
from .download import cache_home, fetch
from .readers import read_file

__all__ = ["DEFAULT", "Documents", "cache_home", "open_documents"]

DEFAULT = "python-docs"  # the text that every CPython brings along
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")  # what is text in a directory


class File(NamedTuple):
    path: Path
    name: str  # what errors call it; its ending says how to read it


class Documents:
    """Documents in order, as often as one iterates, in bounded memory: pieces of text, and whether one starts there."""

    def __init__(self, files: Sequence[File | None], text_key: str, separator: str | None):
        """``None`` among ``files`` stands for the default corpus."""
        self.files = files
        self.text_key = text_key
        self.separator = separator

    def __iter__(self) -> Iterator[Piece]:
        for file in self.files:
            if file is None:
                for text in python_docs():
                    for number, piece in enumerate(split_text(text)):
                        yield piece, number == 0
            else:
                yield from read_file(*file, self.text_key, self.separator)

    def texts(self) -> Iterator[str]:
        """The text alone."""
        return (text for text, _ in self)

    def identity(self) -> str:
        """Changes when a file's name, size or time does, without reading the files."""
        facts: list[object] = [self.text_key, self.separator]
        for file in self.files:
            for path in corpus_files() if file is None else [file.path]:
                status = path.stat()
                facts.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def open_documents(specs: Sequence[str | Path], text_key: str = "text", doc_separator: str | None = None) -> Documents:
    """The documents of files, directories, globs, URLs, ``-`` for standard input, or ``python-docs``.

    A document is a file, a line of a .jsonl file (its ``text_key``), or what lies between two ``doc_separator``.
    Raises ValueError when a source is missing or holds no text; what is not text is found when it is read.
    """
    if doc_separator == "":
        raise ValueError("doc_separator is empty: give the text that stands between two documents")
    if isinstance(specs, str | Path):
        specs = [specs]
    return Documents([file for spec in specs for file in _find(str(spec))], text_key, doc_separator)


def _find(spec: str) -> list[File | None]:
    if spec == DEFAULT:
        return [None]
    if spec == "-":
        return [File(_spool(), "standard input")]
    if spec.startswith(("http://", "https://")):
        path = fetch(spec)
        return [File(path, path.name)]
    path = Path(spec).expanduser()
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.stat().st_size)
        if not found:
            raise ValueError(f"{spec} is a directory without text: it needs files that end in {', '.join(SUFFIXES)}")
        return [File(file, str(file)) for file in found]
    if not path.exists() and glob.has_magic(spec):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise ValueError(f"{spec} matches no file: check the pattern")
        return [file for match in matches if os.path.isfile(match) for file in _find(match)]
    if not path.exists():
        raise ValueError(f"{spec} does not exist: give a text file, a directory, a glob, a URL, - or {DEFAULT}")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{spec} is empty: give a file that holds text")
    return [File(path, str(path))]


@functools.cache
def _spool() -> Path:
    """Standard input, which can be read but once, as a file that lives as long as the process."""
    with tempfile.NamedTemporaryFile(prefix="ropewalk-stdin-", delete=False) as file:
        atexit.register(os.unlink, file.name)
        shutil.copyfileobj(sys.stdin.buffer, file)
        if not file.tell():
            raise ValueError("standard input is empty: pipe some text in")
        return Path(file.name)
