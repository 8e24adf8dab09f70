"""Documents from files, folders, globs, URLs, standard input or the bundled documentation."""

import atexit
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
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tqdm import tqdm

from ..cli import quantity
from ..cli.files import write_atomically
from .python_docs import CORPUS, DOCS_FORMAT, corpus_files
from .readers import Chunk, File, beginning, is_gzip, open_text, read_file
from .tables import format_of, has_field, json_format
from .token_cache import cache_home, download_path, writing_into
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


def file_digest(path: str) -> str:
    """A hash of the content of a file; empty if it is gone."""
    if not os.path.isfile(path):  # opening a pipe would block
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Documents:
    """Documents in order, read in chunks, so that memory is bounded. They can be iterated any number of times."""

    specs: list[str]  # the user's arguments
    files: list[File]  # the files that they name
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

    def paths(self) -> list[str]:
        """The resolved path of each file; for the documentation, that of its folder."""
        return [os.path.realpath(file.path) for file in self.files]

    def texts(self) -> Iterator[str]:
        """The text of each chunk."""
        return (chunk.text for chunk in self)

    def beginnings(self) -> list[str]:
        """The beginnings of the first plain text files, in bounded memory."""
        plain = [file for file in self.files if file.format == "text"][:SAMPLED_FILES]
        limit = min(SAMPLE_CHARACTERS_PER_FILE, SAMPLE_CHARACTERS // max(1, len(plain)))
        samples = []
        for file in plain:
            with open_text(file) as stream:
                samples.append(stream.read(limit))
        return samples

    def text_size(self) -> int:
        """The size of the text in bytes, separators included; 0 if it is not known before the text is read."""
        is_plain = all(file.format == "text" and not is_gzip(file.name) for file in self.files)
        return self._size() if is_plain else 0

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._read_paths())

    def _read_paths(self) -> list[Path]:
        """The files that are read: for the documentation, all of its folder."""
        paths: list[Path] = []
        for file in self.files:
            paths += corpus_files() if file.format == "documentation" else [file.path]
        return paths

    @functools.cached_property
    def digests(self) -> list[tuple[str, str]]:
        """The path and a hash of the content of each file that is read; the path of text from a pipe is empty.

        Hashing takes 0.7 s per GB on Zen 4. By size and time, a ``touch`` or a ``git checkout`` would change a text.
        """
        paths = [os.path.realpath(path) for path in self._read_paths()]
        return [("" if os.path.basename(path).startswith(SPOOLED) else path, file_digest(path)) for path in paths]

    def identity(self) -> str:
        """A hash that changes with a file's path or content, and with the way the files are read."""
        formats = [file.format for file in self.files]
        facts = [DOCUMENTS_FORMAT, DOCS_FORMAT, self.text_key, self.separator, formats, self.digests]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Raise ValueError if the content of a file is not that of ``identity``."""
        for path, digest in self.digests:
            if path and file_digest(path) != digest:
                raise ValueError(f"{path} changed while it was read: run again when nothing writes to it")


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
    named = [str(spec) for spec in specs]
    files = [file for spec in named for file in _find(spec, patterns, text_key)]
    return Documents(named, files, text_key, doc_separator)


STDIN = ("-", "/dev/stdin")


def is_pipe(spec: str) -> bool:
    """Whether the source can be read only once: standard input, or a shell's ``<(command)``."""
    return spec in STDIN or spec.startswith(("/dev/fd/", "/proc/self/fd/"))


def is_url(spec: str) -> bool:
    return spec.startswith(("http://", "https://"))


def _find(spec: str, patterns: Sequence[str], text_key: str) -> list[File]:
    """The text files that one source names."""
    if spec == PYTHON_DOCS:
        return [File(CORPUS, PYTHON_DOCS, "documentation")]
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
    directories and the cache: their files are no text, and they change during a run, which would keep it from resuming.
    """
    cache = os.path.realpath(cache_home())
    found = []
    for root, folders, names in os.walk(folder):
        # A run has metrics.jsonl only after its first evaluation
        is_run = "config.toml" in names and not {"metrics.jsonl", ".lock"}.isdisjoint(names)
        if is_run or os.path.realpath(root) == cache:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in PROGRAM_FOLDERS]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    if patterns:
        found = [path for path in found if any(path.relative_to(folder).match(pattern) for pattern in patterns)]
    return sorted(found)


def _one_file(path: Path, name: str) -> File:
    """A file that the user named. Warns if JSON is read as plain text."""
    start = beginning(path)
    file_format = format_of(name, start)
    is_json = json_format(start) != "text" or name.lower().removesuffix(".gz").endswith(".json")
    if file_format == "text" and is_json:
        warnings.warn(
            f"{name} is read as plain text: to read one field of it (--text_key), give JSON lines in a file whose name "
            "ends in .jsonl, or an array of objects or texts in one that ends in .json",
            stacklevel=4,
        )
    return File(path, name, file_format)


def _text_files(spec: str, paths: Sequence[Path], text_key: str) -> list[File]:
    """The text files among ``paths``. One warning counts the others, with an example of each kind.

    A JSON array or CSV file without ``text_key`` may be the data of a program, so beside other texts it is read as
    plain text. If there are no other texts, reading it raises an error, as for JSON lines, which promise documents.
    """
    files: list[File] = []
    noted: dict[str, list[Path]] = {"empty": [], "binary": []}
    for path in filter(Path.is_file, paths):
        start = beginning(path)
        if not start or "\0" in start:
            noted["binary" if start else "empty"].append(path)
        else:
            files.append(File(path, str(path), format_of(path.name, start)))
    tables = [file for file in files if file.format in ("csv", "json array")]
    without_field = {file.path for file in tables if not has_field(file.format, beginning(file.path), text_key)}
    if len(without_field) < len(files):
        noted[f"without a field {text_key!r}, read as plain text"] = sorted(without_field)
        files = [file._replace(format="text") if file.path in without_field else file for file in files]
    notes = [f"{len(found)} {kind} (for example {found[0]})" for kind, found in noted.items() if found]
    if not files:
        raise ValueError(f"{spec}: {'; '.join(['no text files', *notes])}; check the path, and --glob if you gave it")
    if notes:
        warnings.warn(f"{spec}: {'; '.join([quantity(len(files), 'text file'), *notes])}", stacklevel=2)
    return files


SPOOLED = "ropewalk-stdin-"  # begins the name of the file


@functools.cache
def _spool(spec: str) -> Path:
    """Copy standard input or another pipe to a file, because it is read more than once. The file is removed at exit."""
    home = cache_home()
    with writing_into(home), tempfile.NamedTemporaryFile(dir=home, prefix=SPOOLED, delete=False) as file:
        atexit.register(Path(file.name).unlink, missing_ok=True)
        with nullcontext(sys.stdin.buffer) if spec in STDIN else open(spec, "rb") as pipe:
            shutil.copyfileobj(pipe, file)
        if not file.tell():
            raise ValueError(f"{'standard input' if spec in STDIN else spec} is empty: pipe some text in")
    return Path(file.name)


FETCH_TIMEOUT = 30  # seconds without a byte


def fetch(url: str) -> Path:
    """Download ``url`` into the cache unless it is there. Raises ValueError if that fails."""
    path = download_path(url)
    if not path.exists():
        with writing_into(path.parent):
            write_atomically(path, lambda temporary: _download(url, temporary))
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
