"""Documents from files, folders, globs, URLs, standard input or the bundled documentation."""

import glob
import hashlib
import http.client
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote, urldefrag, urlsplit

from tqdm import tqdm

from ..cli import quantity
from ..cli.files import cache_home, write_atomically
from .python_docs import corpus_files
from .readers import (
    CONVERT,
    Chunk,
    File,
    Message,
    beginning,
    foreign,
    has_conversations,
    open_text,
    read_conversations,
    read_file,
)
from .tokenizer import CHUNK

PYTHON_DOCS = "python-docs"  # the documentation bundled with CPython
SAMPLED_FILES, SAMPLED_CHARACTERS = 100, 1_000_000  # in which a separator is recognized; the characters of each file
# The validation text begins at a chunk. In small texts the chunks are shorter, so that it can begin nearly anywhere.
MIN_CHUNKS = 400  # in a text
MIN_CHUNK = 64  # characters


@dataclass
class Documents:
    """Documents in order, read in chunks, so that memory is bounded. They can be iterated any number of times."""

    files: list[File]
    text_key: str
    separator: str | None

    def __iter__(self) -> Iterator[Chunk]:
        for _, chunks in self.by_file():
            yield from chunks

    def by_file(self) -> Iterator[tuple[str, Iterator[Chunk]]]:
        """The name and the documents of each file."""
        chunk_size = min(CHUNK, max(MIN_CHUNK, self._size() // MIN_CHUNKS))
        for file in self.files:
            yield file.name, read_file(file, self.text_key, self.separator, chunk_size)

    def has_conversations(self) -> bool:
        """Whether the files hold conversations. Raises ValueError if some do and some do not."""
        kinds = {has_conversations(file, self.text_key): file.name for file in self.files}
        if len(kinds) == 2:
            raise ValueError(f"{kinds[True]} holds conversations, {kinds[False]} texts: give files of one kind")
        return True in kinds

    def conversations(self) -> Iterator[tuple[str, list[Message]]]:
        """Each conversation, with its place for errors."""
        for file in self.files:
            yield from read_conversations(file)

    def texts(self) -> Iterator[str]:
        """The text of each chunk."""
        return (chunk.text for chunk in self)

    def beginnings(self) -> Iterator[str]:
        """The beginnings of the first plain text files."""
        for file in [file for file in self.files if file.format == "text"][:SAMPLED_FILES]:
            with open_text(file) as stream:
                yield stream.read(SAMPLED_CHARACTERS)

    def text_size(self) -> int:
        """The size of the text in bytes, separators included; 0 if it is not known before the text is read."""
        is_plain = all(file.format == "text" and not file.is_gzip for file in self.files)
        return self._size() if is_plain else 0

    def _size(self) -> int:
        spooled = sum(os.fstat(file.spooled.fileno()).st_size for file in self.files if file.spooled)
        return spooled + sum(path.stat().st_size for path in self.paths())

    def paths(self) -> list[Path]:
        """The files that are read: for the documentation, all of its folder; without pipes."""
        paths: list[Path] = []
        for file in self.files:
            if file.format == "documentation":
                paths += corpus_files()
            elif file.path:
                paths.append(file.path)
        return paths

    def state(self) -> list[list[str | int]] | None:
        """Path, size and times of all files, which tell whether one has changed; None for the text of a pipe."""
        if any(file.spooled for file in self.files):
            return None
        found: list[list[str | int]] = []
        for path in self.paths():
            stat = path.stat()
            found.append([os.path.realpath(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])
        return found


def open_documents(
    specs: Sequence[str | Path],
    text_key: str = "text",
    doc_separator: str | None = None,
    patterns: Sequence[str] = (),
) -> Documents:
    """The documents of files, directories, globs, URLs, ``-`` for standard input, or ``python-docs``.

    A document is a file, or the text between two ``doc_separator`` in a file. In files that end in .jsonl, .json, .csv
    or .tsv it is the ``text_key`` of each object or row. ``patterns``, for example ``*.py``, select files in
    directories. In directories, hidden files and files of run directories are skipped. In directories and globs, empty
    and binary files are skipped with a warning. Raises ValueError if a source is missing or has no text. Text that is
    not UTF-8 is detected only when it is read.
    """
    return Documents([file for spec in specs for file in _find(str(spec), patterns)], text_key, doc_separator)


STDIN = ("-", "/dev/stdin")


def is_pipe(spec: str) -> bool:
    """Whether the source can be read only once: standard input, or a shell's ``<(command)``."""
    return spec in STDIN or spec.startswith(("/dev/fd/", "/proc/self/fd/"))


def is_url(spec: str) -> bool:
    return spec.startswith(("http://", "https://"))


def _find(spec: str, patterns: Sequence[str]) -> list[File]:
    """The text files that one source names."""
    if spec == PYTHON_DOCS:
        return [File(PYTHON_DOCS)]
    if is_pipe(spec):
        return [_checked(File("standard input" if spec in STDIN else spec, spooled=_spool(spec)))]
    if is_url(spec):
        path = fetch(spec)
        return [_checked(File(path.name, path))]
    path = Path(os.path.expanduser(spec))
    if path.is_file() and path.stat().st_size > 0:
        return [_checked(File(str(path), path))]
    if path.is_dir():
        return _text_files(spec, _walk(path, patterns))
    if path.exists():
        raise ValueError(f"{spec} is empty, or neither a file nor a directory: give a file with text, or pipe it in")
    if glob.has_magic(spec):
        return _text_files(spec, [Path(match) for match in sorted(glob.glob(str(path), recursive=True))])
    raise ValueError(f"{spec} does not exist: give a text file, a directory, a glob, a URL, - or {PYTHON_DOCS}")


def _checked(file: File) -> File:
    """A file that the user named. Raises ValueError if its first bytes are not those of text."""
    start = beginning(file)
    kind = foreign(start)
    if kind:
        raise ValueError(f"{file.name} is {kind}")
    if b"\0" in start:
        raise ValueError(f"{file.name} is not text: it contains zero bytes; {CONVERT}")
    if start.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        warnings.warn(f"{file.name} is a web page, so its tags are learnt, too: save its text instead", stacklevel=1)
    return file


# Folders of programs that a project has beside its text: compiled files, and packages that somebody else wrote
PROGRAM_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv"}


def _walk(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files in a directory that match the patterns, sorted.

    Hidden files and folders and PROGRAM_FOLDERS are left out because ``--data .`` means the user's own text. So are run
    directories and the cache, whose files are no text.
    """
    cache = os.path.realpath(cache_home())
    found = []
    for root, folders, names in os.walk(folder):
        is_run = ".lock" in names or {"config.toml", "metrics.jsonl"}.issubset(names)
        if is_run or os.path.realpath(root) == cache:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in PROGRAM_FOLDERS]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    if patterns:
        found = [path for path in found if any(path.relative_to(folder).match(pattern) for pattern in patterns)]
    return sorted(found)


def _text_files(spec: str, paths: Sequence[Path]) -> list[File]:
    """The text files among ``paths``. One warning counts the others, with an example of each kind."""
    files: list[File] = []
    skipped: dict[str, list[Path]] = {"empty": [], "binary": []}
    for path in filter(Path.is_file, paths):
        file = File(str(path), path)
        start = beginning(file)
        if not start or b"\0" in start or foreign(start):
            skipped["binary" if start else "empty"].append(path)
        else:
            files.append(file)
    notes = [f"{len(found)} {kind} (for example {found[0]})" for kind, found in skipped.items() if found]
    if not files:
        raise ValueError(f"{spec}: {'; '.join(['no text files', *notes])}; check the path, and --glob if you gave it")
    if notes:
        warnings.warn(f"{spec}: {'; '.join([quantity(len(files), 'text file'), *notes])}", stacklevel=1)
    return files


def _spool(spec: str) -> IO[bytes]:
    """Copy standard input or another pipe to a temporary file without a name, because it is read more than once.

    The operating system removes the file when the process ends, even if it is killed.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  it is read until the process ends
    with nullcontext(sys.stdin.buffer) if spec in STDIN else open(spec, "rb") as pipe:
        try:
            shutil.copyfileobj(pipe, file)
            file.flush()
        except OSError as error:
            raise ValueError(f"{tempfile.gettempdir()}: {error.strerror}: set TMPDIR to a larger disk") from None
    if not file.tell():
        raise ValueError(f"{'standard input' if spec in STDIN else spec} is empty: pipe some text in")
    return file


FETCH_TIMEOUT = 30  # seconds without a byte


def download_path(url: str) -> Path:
    """The path of a downloaded file in the cache. The fragment of ``url`` is ignored."""
    address = urldefrag(url).url
    name = os.path.basename(unquote(urlsplit(address).path)) or "index.txt"
    return cache_home() / "downloads" / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"


def fetch(url: str) -> Path:
    """Download ``url`` into the cache unless it is there. Raises ValueError if that fails."""
    path = download_path(url)
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda temporary: _download(url, temporary))
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}: set XDG_CACHE_HOME to keep downloads elsewhere") from None
    return path


def _download(url: str, path: Path) -> None:
    address = quote(url, safe=string.punctuation)  # encodes spaces and characters that are not ASCII
    try:
        with urllib.request.urlopen(address, timeout=FETCH_TIMEOUT) as response, path.open("wb") as file:
            size = int(response.headers.get("Content-Length") or 0)
            with tqdm.wrapattr(response, "read", size or None, desc=url, disable=None) as stream:
                shutil.copyfileobj(stream, file)
            if size and file.tell() != size:
                raise ValueError(f"{url} broke off after {file.tell()} of {quantity(size, 'byte')}: try again")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise ValueError(f"{url} cannot be fetched ({error}): check the address and the connection") from None
