"""Documents from files, folders, globs, URLs, standard input or the bundled documentation."""

import atexit
import copy
import functools
import glob
import hashlib
import http.client
import json
import os
import shutil
import string
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urldefrag, urlsplit, urlunsplit

from tqdm import tqdm

from ..cli import quantity
from ..cli.files import write_atomically
from .python_docs import DOCS_FORMAT, corpus_files, python_docs
from .readers import Chunk, first_bytes, is_binary, read_blocks, read_file
from .separators import SEPARATOR_FORMAT
from .tables import FileFormat, format_of, has_field, is_json_lines, json_format, without_gz
from .token_cache import CACHE_TAG, download_path, explain_disk_errors
from .tokenizer import split_text

PYTHON_DOCS = "python-docs"  # the documentation bundled with CPython
# Limits of the text in which a separator is recognized
SAMPLE_CHARACTERS = 16_000_000
SAMPLE_CHARACTERS_PER_FILE = 4_000_000
SAMPLED_FILES = 1000
# Part of the cache key of files in these formats, so that tokens cached by earlier versions, which read such files as
# plain text, are not reused. The 2 is a version: increase it when the rules for the CSV delimiter change.
FORMAT_VERSIONS = {"csv": ("csv", 2), "json array": ("json array",)}


class File(NamedTuple):
    path: Path
    name: str  # for errors; its extension also shows whether the file is gzipped, or TSV
    format: FileFormat


class FileStatus(NamedTuple):
    """Path, size and time of a file, to detect changes without reading it."""

    path: str
    size: int  # bytes
    modified: int  # ns


class Documents:
    """Documents in order, read in chunks, so that memory is bounded. They can be iterated any number of times."""

    def __init__(self, specs: list[str | Path], files: Sequence[File | None], text_key: str, separator: str | None):
        """``specs`` are the user's arguments, ``files`` the files that they name; None is the bundled documentation."""
        self.specs = specs
        self.files = files
        self.text_key = text_key
        self.separator = separator
        self.statuses_at_open = self._statuses()  # part of the key of the cache entry; compared again after reading

    def __iter__(self) -> Iterator[Chunk]:
        for _, chunks in self.by_file():
            yield from chunks

    def by_file(self) -> Iterator[tuple[str, Iterator[Chunk]]]:
        """The name and the documents of each file."""
        for file in self.files:
            if file is None:
                yield PYTHON_DOCS, _python_docs_chunks()
            else:
                yield file.name, read_file(file.path, file.name, file.format, self.text_key, self.separator)

    def paths(self) -> list[str]:
        """The resolved path of each file, or ``python-docs``."""
        return [PYTHON_DOCS if file is None else str(file.path.resolve()) for file in self.files]

    def texts(self) -> Iterator[str]:
        """The text of each chunk."""
        return (chunk.text for chunk in self)

    def with_separator(self, separator: str | None) -> Self:
        """The same files with another separator."""
        documents = copy.copy(self)
        documents.separator = separator
        return documents

    def beginnings(self) -> tuple[list[str], bool]:
        """The beginnings of the first plain text files, in bounded memory, and whether they are all their text."""
        samples: list[str] = []
        remaining = SAMPLE_CHARACTERS
        is_all = True
        for file in self.files:
            if file is None or file.format != "text":
                continue
            if remaining <= 0 or len(samples) == SAMPLED_FILES:
                return samples, False
            sample = ""
            limit = min(remaining, SAMPLE_CHARACTERS_PER_FILE)
            with closing(read_blocks(file.path, file.name)) as blocks:
                for block in blocks:
                    if len(sample) >= limit:
                        is_all = False
                        break
                    sample += block
            remaining -= len(sample)
            samples.append(sample)
        return samples, is_all

    def _statuses(self) -> list[FileStatus]:
        found = []
        if None in self.files:
            found.append(FileStatus(PYTHON_DOCS, DOCS_FORMAT, 0))  # the format's version in place of a file's size
        for file in self.files:
            for path in corpus_files() if file is None else [file.path]:
                status = path.stat()
                found.append(FileStatus(str(path.resolve()), status.st_size, status.st_mtime_ns))
        return found

    def identity(self) -> str:
        """A hash that changes with a file's path, size or time, and with the way the files are read."""
        facts: list[Any] = [self.text_key, self.separator, *self.statuses_at_open]
        if self.separator:
            facts.append(SEPARATOR_FORMAT)
        facts += [
            (number, *FORMAT_VERSIONS[file.format])
            for number, file in enumerate(self.files)
            if file and file.format in FORMAT_VERSIONS
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Raise ValueError if a file changed after the documents were opened."""
        for before, now in zip(self.statuses_at_open, self._statuses()):
            if before != now:
                raise ValueError(f"{before.path} changed while it was read: run again when nothing writes to it")


def _python_docs_chunks() -> Iterator[Chunk]:
    for document in python_docs():
        for number, text in enumerate(split_text(document)):
            yield Chunk(text, starts_document=number == 0)


def open_documents(
    specs: Sequence[str | Path],
    text_key: str = "text",
    doc_separator: str | None = None,
    patterns: Sequence[str] = (),
) -> Documents:
    """The documents of files, directories, globs, URLs, ``-`` for standard input, or ``python-docs``.

    A document is a file, or the text between two ``doc_separator`` in a file. In JSON lines, JSON arrays, CSV and TSV
    it is the ``text_key`` of each object or row. ``patterns``, for example ``*.py``, select files in directories.
    In directories, hidden files and files of run directories are skipped. In directories and globs, empty and binary
    files are skipped with a warning. Raises ValueError if a source is missing or has no text. Text that is not UTF-8 is
    detected only when it is read.
    """
    if doc_separator == "":
        raise ValueError("doc_separator is empty: give the text that stands between two documents")
    named: list[str | Path] = [specs] if isinstance(specs, str | Path) else list(specs)
    files = [file for spec in named for file in _find(str(spec), patterns, text_key)]
    return Documents(named, files, text_key, doc_separator)


STDIN = ("-", "/dev/stdin")


def is_pipe(spec: str) -> bool:
    """Whether the source can be read only once: standard input, or a shell's ``<(command)``."""
    return spec in STDIN or spec.startswith(("/dev/fd/", "/proc/self/fd/"))


def is_url(spec: str) -> bool:
    return spec.startswith(("http://", "https://"))


def _find(spec: str, patterns: Sequence[str], text_key: str) -> list[File | None]:
    """The text files that one source names."""
    if spec == PYTHON_DOCS:
        return [None]
    if spec in STDIN:
        return [_one_file(_spool("-"), "standard input")]
    if is_pipe(spec):
        return [_one_file(_spool(spec), spec)]
    if is_url(spec):
        path = fetch(spec)
        return [_one_file(path, path.name)]
    path = Path(os.path.expanduser(spec))
    if path.is_dir():
        found = sorted(path.rglob("*"))
        generated = {file.parent for file in found if _marks_generated(file)}
        selected = [file for file in found if generated.isdisjoint(file.parents) and _is_selected(file, path, patterns)]
        return _text_files(spec, selected, text_key)
    if not path.exists() and glob.has_magic(spec):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise ValueError(f"{spec} matches no file: check the pattern")
        return _text_files(spec, [Path(match) for match in matches], text_key)
    if not path.exists():
        raise ValueError(f"{spec} does not exist: give a text file, a directory, a glob, a URL, - or {PYTHON_DOCS}")
    if not path.is_file():
        raise ValueError(f"{spec} is neither a file nor a directory: pipe its text into --data -")
    if path.stat().st_size == 0:
        raise ValueError(f"{spec} is empty: give a file with text")
    return [_one_file(path, str(path))]


def _marks_generated(file: Path) -> bool:
    """Whether the file shows that its directory is a cache, or a run, whose files change while it trains."""
    if file.name == CACHE_TAG or file.parent.name == "__pycache__":
        return True
    is_of_run = file.name in ("metrics.jsonl", "tokenizer.model", "tokenizer.json")
    return is_of_run and (file.parent / "config.toml").exists()


def _is_selected(file: Path, folder: Path, patterns: Sequence[str]) -> bool:
    """Whether a file in a directory matches the patterns. Hidden files and those in hidden directories do not."""
    inside = file.relative_to(folder)
    hidden = any(part.startswith(".") for part in inside.parts)
    return not hidden and (not patterns or any(inside.match(pattern) for pattern in patterns))


def _one_file(path: Path, name: str) -> File:
    """A file that the user named. Warns if JSON is read as plain text."""
    start = _start_of_text(path)
    file_format = format_of(name, start)
    if file_format == "text" and json_format(start) != "text":
        kind = json_format(start).replace("json", "JSON")
        ending = ".json" if kind == "JSON array" else ".jsonl"
        warnings.warn(
            f"{name} looks like {kind}, but is read as plain text: to read one field of it (--text_key), give a file "
            f"whose name ends in {ending}",
            stacklevel=4,
        )
    elif file_format == "text" and without_gz(name).endswith(".json"):
        warnings.warn(
            f"{name} is neither an array of objects or texts nor JSON lines: it is read as plain text", stacklevel=4
        )
    return File(path, name, file_format)


def _start_of_text(path: Path) -> str:
    return first_bytes(path).decode("utf-8-sig", errors="ignore")


def _text_files(spec: str, files: Sequence[Path], text_key: str) -> list[File | None]:
    """The text files among ``files``. One warning counts the skipped files, with an example.

    A JSON or CSV file without ``text_key`` may be the data of a program. It is read as plain text, unless all files are
    such files: then reading them raises an error. Reading a .jsonl or .ndjson file without the field always raises an
    error.
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
            file_format = format_of(file.name, start)
            texts.append(File(file, str(file), file_format))
            # .jsonl and .ndjson promise documents: there a missing field stays an error
            key_is_optional = file_format != "text" and not is_json_lines(file.name)
            if key_is_optional and not has_field(file_format, file.name, start, text_key):
                without_key.append(file)
    skipped = []
    if empty:
        skipped.append(f"{len(empty)} empty (for example {empty[0]})")
    if binary:
        skipped.append(f"{len(binary)} binary (for example {binary[0]})")
    if not texts:
        only = f", only {' and '.join(skipped)}" if skipped else ""
        raise ValueError(f"{spec} holds no text files{only}: check the path, and --glob if you gave it")
    notes = [f"skipped: {' and '.join(skipped)}"] if skipped else []
    if 0 < len(without_key) < len(texts):
        plain = set(without_key)
        texts = [file._replace(format="text") if file.path in plain else file for file in texts]
        notes.append(
            f"{len(without_key)} without a field {text_key!r} are read as plain text (for example {without_key[0]})"
        )
    if notes:
        warnings.warn(f"{spec}: {quantity(len(texts), 'text file')}; {'; '.join(notes)}", stacklevel=2)
    return list(texts)


@functools.cache
def _spool(spec: str) -> Path:
    """Copy standard input or another pipe to a temporary file, because it is read more than once. Removed at exit."""
    if spec == "-" and sys.stdin is None:
        raise ValueError("standard input is closed: pipe some text in")
    with tempfile.NamedTemporaryFile(prefix="ropewalk-stdin-", delete=False) as file:
        atexit.register(os.unlink, file.name)
        try:
            with nullcontext(sys.stdin.buffer) if spec == "-" else open(spec, "rb") as pipe:
                shutil.copyfileobj(pipe, file)
        except OSError as error:
            raise ValueError(
                f"{spec} cannot be copied to {file.name} ({error.strerror}): set TMPDIR to another directory"
            ) from None
        if not file.tell():
            raise ValueError(f"{'standard input' if spec == '-' else spec} is empty: pipe some text in")
        return Path(file.name)


FETCH_TIMEOUT = 30  # seconds without a byte


def fetch(url: str) -> Path:
    """Download ``url`` into the cache unless it is there. A fragment ``#sha256=HEX`` is verified each time.

    Raises ValueError if the download fails or the hash differs.
    """
    address, fragment = urldefrag(url)
    expected = fragment.removeprefix("sha256=").lower()
    if fragment and (not fragment.startswith("sha256=") or len(expected) != 64):
        raise ValueError(f"{url}: the part after # must be sha256= and 64 hexadecimal digits")
    path = download_path(address)
    if not path.exists():
        with explain_disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda temporary: _download(address, temporary, expected))
    elif expected:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        _check_hash(address, actual, expected, f"; remove {path} to download it again")
    return path


def _download(address: str, path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(_ascii_url(address), timeout=FETCH_TIMEOUT) as response, path.open("wb") as file:
            size = int(response.headers.get("Content-Length") or 0)
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=address, disable=None) as bar:
                while block := response.read(1 << 18):
                    file.write(block)
                    digest.update(block)
                    bar.update(len(block))
            if size and file.tell() != size:
                raise ValueError(f"{address} broke off after {file.tell()} of {quantity(size, 'byte')}: try again")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, UnicodeError) as error:
        raise ValueError(f"{address} cannot be fetched ({error}): check the address and the connection") from None
    _check_hash(address, digest.hexdigest(), expected, "")


def _ascii_url(url: str) -> str:
    """Percent-encode spaces and characters that are not ASCII; those of the host become Punycode.

    Raises UnicodeError for a host that cannot be encoded.
    """
    parts = urlsplit(url)
    netloc = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    path, query = (quote(part, safe=string.punctuation) for part in (parts.path, parts.query))
    return urlunsplit((parts.scheme, netloc, path, query, ""))


def _check_hash(address: str, actual: str, expected: str, remedy: str) -> None:
    if expected and actual != expected:
        raise ValueError(f"{address} has sha256 {actual[:12]}..., not the expected {expected[:12]}...{remedy}")
