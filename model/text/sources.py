"""Documents from files, folders, globs, URLs, standard input or the bundled documentation."""

import glob
import hashlib
import http.client
import os
import re
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tqdm import tqdm

from ..cli import quantity
from ..cli.files import cache_home, write_atomically
from .python_docs import corpus_files
from .readers import Chunk, File, Message, has_conversations, open_bytes, open_text, read_conversations, read_file
from .tokenizer import CHUNK

PYTHON_DOCS = "python-docs"  # the documentation bundled with CPython
STDIN = "-"
# The end of a document in many published texts. Alone on a line, it is nothing else.
TAG = "<|endoftext|>"
TAG_LINE = re.compile(rf"^[^\S\n]*{re.escape(TAG)}[^\S\n]*$", re.MULTILINE)
SAMPLED_CHARACTERS = 1_000_000  # at the beginning of each text file, in which the tag is looked for
PROBE = 1 << 16  # bytes at the beginning of a file; text has no zero bytes, and other files have some
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

    def recognize_separator(self) -> str:
        """TAG if it is alone on a line near the beginning of a text file; otherwise empty."""
        for file in self.files:
            if file.is_text:
                with open_text(file) as stream:
                    if TAG_LINE.search(stream.read(SAMPLED_CHARACTERS)):
                        return TAG
        return ""

    def text_size(self) -> int:
        """The size of the text in bytes, separators included; 0 if it is not known before the text is read."""
        is_plain = all(file.is_text and not file.is_gzip for file in self.files)
        return self._size() if is_plain else 0

    def _size(self) -> int:
        spooled = sum(os.fstat(file.spooled.fileno()).st_size for file in self.files if file.spooled)
        return spooled + sum(path.stat().st_size for path in self.paths())

    def paths(self) -> list[Path]:
        """The files that are read: for the documentation, all of its folder; without pipes."""
        paths: list[Path] = []
        for file in self.files:
            if file.is_documentation:
                paths += corpus_files()
            elif file.path:
                paths.append(file.path)
        return paths


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
    files are skipped, and binary ones with a warning. Raises ValueError if a source is missing. Text that is not UTF-8
    is detected only when it is read.
    """
    return Documents([file for spec in specs for file in _find(str(spec), patterns)], text_key, doc_separator)


def _find(spec: str, patterns: Sequence[str]) -> list[File]:
    """The text files that one source names."""
    if spec == PYTHON_DOCS:
        return [File(PYTHON_DOCS)]
    if spec == STDIN:
        return [File("standard input", spooled=_spool_stdin())]
    if spec.startswith(("http://", "https://")):
        path = fetch(spec)
        return [File(path.name, path)]
    path = Path(os.path.expanduser(spec))
    if path.is_file() and path.stat().st_size:
        return [File(str(path), path)]
    if path.is_dir():
        return _text_files(spec, _walk(path, patterns))
    if glob.has_magic(spec):
        return _text_files(spec, [Path(match) for match in sorted(glob.glob(str(path), recursive=True))])
    raise ValueError(
        f"{spec} does not exist, is empty, or is neither a file nor a directory: give a text file, a directory, a "
        f"glob, a URL, - or {PYTHON_DOCS}"
    )


def _walk(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files in a directory that match the patterns, sorted.

    Hidden files and folders are left out, because ``--data .`` means the user's own text. So are run directories.
    """
    found = []
    for root, folders, names in os.walk(folder):
        if ".lock" in names or {"config.toml", "metrics.jsonl"}.issubset(names):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    if patterns:
        found = [path for path in found if any(path.relative_to(folder).match(pattern) for pattern in patterns)]
    return sorted(found)


def _text_files(spec: str, paths: Sequence[Path]) -> list[File]:
    """The text files among ``paths``. A warning counts the binary files. Empty ones are left out."""
    files: list[File] = []
    binary: list[Path] = []
    for path in paths:
        if not path.is_file() or not path.stat().st_size:
            continue
        file = File(str(path), path)
        with open_bytes(file) as raw:
            is_binary = b"\0" in raw.read(PROBE)
        if is_binary:
            binary.append(path)
        else:
            files.append(file)
    skipped = f"; {quantity(len(binary), 'binary file')} skipped, for example {binary[0]}" if binary else ""
    if not files:
        raise ValueError(
            f"{spec}: no text files{skipped}; check the path, and --glob if you gave it (hidden files and run "
            "directories are not read)"
        )
    if binary:
        warnings.warn(f"{spec}: {quantity(len(files), 'text file')}{skipped}", stacklevel=1)
    return files


def _spool_stdin() -> IO[bytes]:
    """Copy standard input to a temporary file without a name, because it is read more than once.

    The operating system removes the file when the process ends, even if it is killed.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  it is read until the process ends
    shutil.copyfileobj(sys.stdin.buffer, file)
    file.flush()
    return file


FETCH_TIMEOUT = 30  # seconds without a byte


def fetch(url: str) -> Path:
    """Download ``url`` into the cache unless it is there. Raises ValueError if that fails."""
    name = os.path.basename(urlsplit(url).path)
    path = cache_home() / "downloads" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: _download(url, temporary))
    return path


def _download(url: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT) as response, path.open("wb") as file:
            size = int(response.headers.get("Content-Length") or 0)
            with tqdm.wrapattr(response, "read", size or None, desc=url, disable=None) as stream:
                shutil.copyfileobj(stream, file)
            if size and file.tell() != size:
                raise ValueError(f"{url} broke off after {file.tell()} of {quantity(size, 'byte')}: try again")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, UnicodeError) as error:
        raise ValueError(f"{url} cannot be fetched ({error}): check the address and the connection") from None
