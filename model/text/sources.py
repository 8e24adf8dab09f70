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
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

from tqdm import tqdm

from ..cli.files import write_atomically
from .python_docs import corpus_files, python_docs
from .readers import Piece, read_file, split_text

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


TIMEOUT = 30  # seconds without a byte


def cache_home() -> Path:
    """Where this project keeps what it can make or fetch again: $XDG_CACHE_HOME/ropewalk or ~/.cache/ropewalk."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"


def fetch(url: str) -> Path:
    """The file behind ``url``, from the cache when it is there. ``#sha256=HEX`` is checked each time.

    Raises ValueError when it cannot be had whole, or is not the file that was named.
    """
    address, fragment = urldefrag(url)
    wanted = fragment.removeprefix("sha256=").lower()
    if fragment and (not fragment.startswith("sha256=") or len(wanted) != 64):
        raise ValueError(f"{url}: the part after # is to be sha256= and 64 hexadecimal digits")
    name = os.path.basename(unquote(urlsplit(address).path)) or "index.txt"
    path = cache_home() / "downloads" / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: _download(address, temporary, wanted))
    elif wanted:
        with path.open("rb") as file:
            _compare(
                address, hashlib.file_digest(file, "sha256").hexdigest(), wanted, f"; remove {path} to fetch it anew"
            )
    return path


def _download(address: str, path: Path, wanted: str) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, path.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=address, disable=None) as bar:
                while block := answer.read(1 << 18):
                    file.write(block)
                    digest.update(block)
                    bar.update(len(block))
            if size and file.tell() != size:
                raise ValueError(f"{address} broke off after {file.tell()} of {size} bytes: try again")
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ValueError(f"{address} cannot be fetched ({error}): check the address and the connection") from None
    _compare(address, digest.hexdigest(), wanted, "")


def _compare(address: str, got: str, wanted: str, remedy: str) -> None:
    if wanted and got != wanted:
        raise ValueError(f"{address} has sha256 {got}, not the {wanted} that was asked for{remedy}")
