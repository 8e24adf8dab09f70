"""Where text comes from: whatever a user can name, as documents."""

import atexit
import copy
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
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urldefrag

from tqdm import tqdm

from ..cli import local_path, quantity
from ..cli.files import write_atomically
from .python_docs import DOCS_FORMAT, corpus_files, python_docs
from .readers import Piece, first_bytes, is_binary, read_blocks, read_file
from .tables import Form, form_of, has_field, json_form
from .token_cache import download_path, explained
from .tokenizer import split_text

DEFAULT = "python-docs"  # the text that every CPython brings along
SAMPLE, SAMPLE_OF_FILE = 16_000_000, 4_000_000  # characters of all files and of one, that show what separates documents
SAMPLED_FILES = 1000
NEW_FORMS = ("csv", "json array")  # which earlier versions read as plain text: caches made then are not used


class File(NamedTuple):
    path: Path
    name: str  # what errors call it
    form: Form  # how its documents are found


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
        for _, pieces in self.by_file():
            yield from pieces

    def by_file(self) -> Iterator[tuple[str, Iterator[Piece]]]:
        """Each file's name and its documents."""
        for file in self.files:
            if file is None:
                yield DEFAULT, _default_pieces()
            else:
                yield file.name, read_file(file.path, file.name, file.form, self.text_key, self.separator)

    def texts(self) -> Iterator[str]:
        """The text alone."""
        return (text for text, _ in self)

    def separated_by(self, separator: str | None) -> Self:
        """The same files, with another separator."""
        documents = copy.copy(self)
        documents.separator = separator
        return documents

    def beginnings(self) -> tuple[list[str], bool]:
        """How the plain text files begin, and whether that is all of them: a sample of bounded size."""
        samples: list[str] = []
        left, is_all = SAMPLE, True
        for file in self.files:
            if file is None or file.form != "text":
                continue
            if left <= 0 or len(samples) == SAMPLED_FILES:
                return samples, False
            parts: list[str] = []
            most = min(left, SAMPLE_OF_FILE)
            with closing(read_blocks(file.path, file.name)) as blocks:
                for block in blocks:
                    if most <= 0:
                        is_all = False
                        break
                    parts.append(block)
                    most -= len(block)
                    left -= len(block)
            samples.append("".join(parts))
        return samples, is_all

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
        """Differs where a file's name, size or time did when the documents were opened, or how they are read."""
        facts: list[Any] = [self.text_key, self.separator, *self.opened]
        facts += [(number, file.form) for number, file in enumerate(self.files) if file and file.form in NEW_FORMS]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Raise ValueError if a file is no longer as it was when the documents were opened."""
        for before, now in zip(self.opened, self._status()):
            if before != now:
                raise ValueError(f"{before[0]} changed while it was read: run again when nothing writes to it")


def _default_pieces() -> Iterator[Piece]:
    for text in python_docs():
        for number, piece in enumerate(split_text(text)):
            yield piece, number == 0


def open_documents(
    specs: Sequence[str | Path],
    text_key: str = "text",
    doc_separator: str | None = None,
    patterns: Sequence[str] = (),
) -> Documents:
    """The documents of files, directories, globs, URLs, ``-`` for standard input, or ``python-docs``.

    A document is a file, or what lies between two ``doc_separator`` in it; of JSON lines, JSON arrays, CSV and TSV, the
    ``text_key`` of each object or row. Of directories and globs, empty and binary files are left out, and one warning
    counts them; ``patterns``, such as ``*.py``, choose among the files of directories. Raises ValueError when a source
    is missing or holds no text; what is not UTF-8 is found when it is read.
    """
    if doc_separator == "":
        raise ValueError("doc_separator is empty: give the text that stands between two documents")
    named: list[str | Path] = [specs] if isinstance(specs, str | Path) else list(specs)
    files = [file for spec in named for file in _find(str(spec), patterns, text_key)]
    return Documents(named, files, text_key, doc_separator)


STDIN = ("-", "/dev/stdin")


def is_pipe(spec: str) -> bool:
    """Whether the source can be read but once: standard input, or a shell's ``<(command)``."""
    return spec in STDIN or spec.startswith(("/dev/fd/", "/proc/self/fd/"))


def is_url(spec: str) -> bool:
    return spec.startswith(("http://", "https://"))


def _find(spec: str, patterns: Sequence[str], text_key: str) -> list[File | None]:
    if spec == DEFAULT:
        return [None]
    if is_pipe(spec):
        is_stdin = spec in STDIN
        return [_one_file(_spool("-" if is_stdin else spec), "standard input" if is_stdin else spec)]
    if is_url(spec):
        path = fetch(spec)
        return [_one_file(path, path.name)]
    path = local_path(os.path.expanduser(spec))  # which leaves alone what is no user's home
    if path.is_dir():
        return _text_files(
            spec, [file for file in sorted(path.rglob("*")) if _is_wanted(file, path, patterns)], text_key
        )
    if not path.exists() and glob.has_magic(spec):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise ValueError(f"{spec} matches no file: check the pattern")
        return _text_files(spec, [Path(match) for match in matches], text_key)
    if not path.exists():
        raise ValueError(f"{spec} does not exist: give a text file, a directory, a glob, a URL, - or {DEFAULT}")
    if not path.is_file():
        raise ValueError(f"{spec} is neither a file nor a directory: pipe its text into --data -")
    if path.stat().st_size == 0:
        raise ValueError(f"{spec} is empty: give a file that holds text")
    return [_one_file(path, str(path))]


def _is_wanted(file: Path, folder: Path, patterns: Sequence[str]) -> bool:
    """Whether a file of a directory is neither hidden, as .git is, nor of another kind than asked for."""
    inside = file.relative_to(folder)
    hidden = any(part.startswith(".") for part in inside.parts)
    return not hidden and (not patterns or any(inside.match(str(local_path(pattern))) for pattern in patterns))


def _one_file(path: Path, name: str) -> File:
    """A file that was named. Warns of JSON that is read as plain text."""
    start = _first_text(path)
    form = form_of(name, start)
    if form == "text" and json_form(start) != "text":
        kind = json_form(start).replace("json", "JSON")
        warnings.warn(
            f"{name} looks like {kind}, but is read as plain text: for a field of it, --text_key, its name has to end "
            f"in {'.json' if kind == 'JSON array' else '.jsonl'}",
            stacklevel=4,
        )
    elif form == "text" and name.lower().removesuffix(".gz").endswith(".json"):
        warnings.warn(
            f"{name} is no array of objects or texts, and no JSON lines: it is read as plain text", stacklevel=4
        )
    return File(path, name, form)


def _first_text(path: Path) -> str:
    return first_bytes(path).decode("utf-8-sig", errors="ignore")


def _text_files(spec: str, files: Sequence[Path], text_key: str) -> list[File | None]:
    """Those that hold text. What is left out is counted in one warning, with an example.

    Tables that have no ``text_key`` are plain text, as they are a part of a program; but not if there is nothing else.
    """
    texts: list[File] = []
    empty: list[Path] = []
    binary: list[Path] = []
    without_key: list[Path] = []
    for file in files:
        if not file.is_file():
            continue
        raw = first_bytes(file)
        start = raw.decode("utf-8-sig", errors="ignore")
        if not raw:
            empty.append(file)
        elif is_binary(raw):
            binary.append(file)
        else:
            form = form_of(file.name, start)
            texts.append(File(file, str(file), form))
            is_lines = file.name.removesuffix(".gz").endswith(".jsonl")
            if form != "text" and not is_lines and not has_field(form, file.name, start, text_key):
                without_key.append(file)
    noted = []
    if empty:
        noted.append(f"{len(empty)} empty (such as {empty[0]})")
    if binary:
        noted.append(f"{len(binary)} binary (such as {binary[0]})")
    if not texts:
        there = f", but {' and '.join(noted)}" if noted else ""
        raise ValueError(f"{spec} holds no text files{there}: check the path, and --glob where it is given")
    notes = [f"left out: {' and '.join(noted)}"] if noted else []
    if 0 < len(without_key) < len(texts):
        plain = set(without_key)
        texts = [file._replace(form="text") if file.path in plain else file for file in texts]
        notes.append(f"{len(without_key)} without {text_key!r} read as plain text (such as {without_key[0]})")
    if notes:
        warnings.warn(f"{spec}: {quantity(len(texts), 'text file')}; {'; '.join(notes)}", stacklevel=2)
    return list(texts)


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
                raise ValueError(f"{address} broke off after {file.tell()} of {quantity(size, 'byte')}: try again")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise ValueError(f"{address} cannot be fetched ({error}): check the address and the connection") from None
    _compare(address, digest.hexdigest(), wanted, "")


def _compare(address: str, got: str, wanted: str, remedy: str) -> None:
    if wanted and got != wanted:
        raise ValueError(f"{address} has sha256 {got[:12]}..., not the {wanted[:12]}... that was asked for{remedy}")
