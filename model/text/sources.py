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
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote, urldefrag, urlsplit, urlunsplit

from tqdm import tqdm

from ..cli import quantity
from ..cli.files import write_atomically
from .python_docs import DOCS_FORMAT, corpus_files, python_docs
from .readers import Chunk, File, first_bytes, is_binary, open_text, read_file, split_documents
from .tables import format_of, has_field, is_gzip, is_json_lines, json_format, without_gz
from .token_cache import download_path, explain_disk_errors
from .tokenizer import CHUNK

PYTHON_DOCS = "python-docs"  # the documentation bundled with CPython
DOCUMENTS_FORMAT = 1  # increase when the same files give other documents, so that tokens cached before are not reused
# Limits of the text in which a separator is recognized
SAMPLE_CHARACTERS = 16_000_000
SAMPLE_CHARACTERS_PER_FILE = 4_000_000
SAMPLED_FILES = 1000
# The validation text begins at a chunk. In small texts the chunks are shorter, so that it can begin nearly anywhere.
MIN_CHUNKS = 400  # in a text
MIN_CHUNK = 64  # characters
SPOOL_PREFIX = "ropewalk-stdin-"


class FileStatus(NamedTuple):
    """Path, size and time of a file, to detect changes without reading it."""

    path: str
    size: int  # bytes
    modified: int  # ns


def file_status(path: str | Path) -> FileStatus:
    status = os.stat(path)
    return FileStatus(os.path.realpath(path), status.st_size, status.st_mtime_ns)


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
        total = sum(status.size for status in self.statuses_at_open)
        size = min(CHUNK, max(MIN_CHUNK, total // MIN_CHUNKS))
        for file in self.files:
            if file is None:
                yield PYTHON_DOCS, (chunk for text in python_docs() for chunk in split_documents([text], None))
            else:
                yield file.name, read_file(file, self.text_key, self.separator, size)

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
        plain = [file for file in self.files if file and file.format == "text"]
        sampled = plain[:SAMPLED_FILES]
        limit = min(SAMPLE_CHARACTERS_PER_FILE, SAMPLE_CHARACTERS // max(1, len(sampled)))
        samples = []
        is_all = len(sampled) == len(plain)
        for file in sampled:
            with open_text(file) as stream:
                samples.append(stream.read(limit))
                is_all = is_all and not stream.read(1)
        return samples, is_all

    def _statuses(self) -> list[FileStatus]:
        paths: list[Path] = []
        for file in self.files:
            paths += corpus_files() if file is None else [file.path]
        return [file_status(path) for path in paths]

    def text_size(self) -> int:
        """The size of the text in bytes, separators included; 0 if it is not known before the text is read."""
        is_plain = all(file and file.format == "text" and not is_gzip(file.name) for file in self.files)
        return sum(status.size for status in self.statuses_at_open) if is_plain else 0

    def identity(self) -> str:
        """A hash that changes with a file's path, size or time, and with the way the files are read."""
        formats = ["documentation" if file is None else file.format for file in self.files]
        facts = [DOCUMENTS_FORMAT, DOCS_FORMAT, self.text_key, self.separator, formats, self.statuses_at_open]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Raise ValueError if a file changed after the documents were opened."""
        changed = changed_files(self.statuses_at_open)
        if changed:
            raise ValueError(f"{changed[0]} changed while it was read: run again when nothing writes to it")


def changed_files(statuses: Sequence[FileStatus]) -> list[str]:
    """The paths of the files that have another size or time than in ``statuses``, or are gone."""
    changed = []
    for status in statuses:
        try:
            is_same = file_status(status.path) == status
        except OSError:
            is_same = False
        if not is_same:
            changed.append(status.path)
    return changed


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
    if is_pipe(spec):
        return [_one_file(_spool(spec), "standard input" if spec in STDIN else spec)]
    if is_url(spec):
        path = fetch(spec)
        return [_one_file(path, path.name)]
    path = Path(os.path.expanduser(spec))
    if path.is_file() and path.stat().st_size > 0:
        return [_one_file(path, str(path))]
    if path.is_dir():
        return _text_files(spec, _walk(path, patterns), text_key)
    if path.exists():
        raise ValueError(f"{spec} is empty, or neither a file nor a directory: give a file with text, or pipe it in")
    if glob.has_magic(spec):
        return _text_files(spec, [Path(match) for match in sorted(glob.glob(str(path), recursive=True))], text_key)
    raise ValueError(f"{spec} does not exist: give a text file, a directory, a glob, a URL, - or {PYTHON_DOCS}")


# Folders of programs that a project has beside its text: compiled files, and packages that somebody else wrote
PROGRAM_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv"}


def _walk(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files in a directory that match the patterns, sorted.

    Hidden files and folders and PROGRAM_FOLDERS are left out because ``--data .`` means the user's own text. So are run
    directories: their files are no text, and they change while that run trains, which would keep it from resuming.
    """
    found = []
    for root, folders, names in os.walk(folder):
        if is_run_directory(names):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in PROGRAM_FOLDERS]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    if patterns:
        found = [path for path in found if any(path.relative_to(folder).match(pattern) for pattern in patterns)]
    return sorted(found)


def is_run_directory(names: Sequence[str]) -> bool:
    """Whether train.py writes a directory with these files. A run has metrics.jsonl only after its first evaluation."""
    return "config.toml" in names and not {"metrics.jsonl", ".lock"}.isdisjoint(names)


def _one_file(path: Path, name: str) -> File:
    """A file that the user named. Warns if JSON is read as plain text."""
    start = _decoded(first_bytes(path))
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


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8-sig", errors="ignore")


def _text_files(spec: str, paths: Sequence[Path], text_key: str) -> list[File | None]:
    """The text files among ``paths``. One warning counts the skipped files, with an example.

    A JSON or CSV file without ``text_key`` may be the data of a program. It is read as plain text, unless all files are
    such files: then reading them raises an error. Reading a .jsonl or .ndjson file without the field always raises an
    error.
    """
    texts: list[File] = []
    skipped: dict[str, list[Path]] = {"empty": [], "binary": []}
    without_key: list[Path] = []
    for path in filter(Path.is_file, paths):
        raw = first_bytes(path)
        if not raw or is_binary(raw):
            skipped["binary" if raw else "empty"].append(path)
            continue
        file = File(path, str(path), format_of(path.name, _decoded(raw)))
        texts.append(file)
        # .jsonl and .ndjson promise documents: there a missing field stays an error
        if (
            file.format != "text"
            and not is_json_lines(path.name)
            and not has_field(file.format, _decoded(raw), text_key)
        ):
            without_key.append(path)
    counts = [f"{len(found)} {kind} (for example {found[0]})" for kind, found in skipped.items() if found]
    if not texts:
        only = f", only {' and '.join(counts)}" if counts else ""
        raise ValueError(f"{spec} holds no text files{only}: check the path, and --glob if you gave it")
    notes = [f"skipped: {' and '.join(counts)}"] if counts else []
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
    if spec in STDIN and sys.stdin is None:
        raise ValueError("standard input is closed: pipe some text in")
    with tempfile.NamedTemporaryFile(prefix=SPOOL_PREFIX, delete=False) as file:
        atexit.register(os.unlink, file.name)
        try:
            with nullcontext(sys.stdin.buffer) if spec in STDIN else open(spec, "rb") as pipe:
                shutil.copyfileobj(pipe, file)
        except OSError as error:
            raise ValueError(
                f"{spec} cannot be copied to {file.name} ({error.strerror}): set TMPDIR to another directory"
            ) from None
        if not file.tell():
            raise ValueError(f"{'standard input' if spec in STDIN else spec} is empty: pipe some text in")
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
            write_atomically(path, lambda temporary: _download(address, temporary))
    if expected:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            raise ValueError(
                f"{address} has sha256 {actual[:12]}..., not the expected {expected[:12]}...; remove {path} to "
                "download it again"
            )
    return path


def _download(address: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(_ascii_url(address), timeout=FETCH_TIMEOUT) as response, path.open("wb") as file:
            size = int(response.headers.get("Content-Length") or 0)
            with tqdm.wrapattr(response, "read", size or None, desc=address, disable=None) as stream:
                shutil.copyfileobj(stream, file)
            if size and file.tell() != size:
                raise ValueError(f"{address} broke off after {file.tell()} of {quantity(size, 'byte')}: try again")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, UnicodeError) as error:
        raise ValueError(f"{address} cannot be fetched ({error}): check the address and the connection") from None


def _ascii_url(url: str) -> str:
    """Percent-encode spaces and characters that are not ASCII; those of the host become Punycode.

    Raises UnicodeError for a host that cannot be encoded.
    """
    parts = urlsplit(url)
    netloc = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    path, query = (quote(part, safe=string.punctuation) for part in (parts.path, parts.query))
    return urlunsplit((parts.scheme, netloc, path, query, ""))
