"""Documents from files, folders, globs, standard input or the documentation bundled with Python."""

import glob
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Annotated

from ..cli import quantity
from .python_docs import CORPUS
from .readers import (
    PARQUET,
    PYTHON_DOCS,
    File,
    Message,
    Part,
    has_conversations,
    read_blocks,
    read_conversations,
    read_file,
)

STDIN = "-"
# The end of a document in many published texts. Alone on a line, it is nothing else.
TAG = "<|endoftext|>"
TAG_LINE = re.compile(rf"^[^\S\n]*{re.escape(TAG)}[^\S\n]*$", re.MULTILINE)
SAMPLED_LINES = 3  # at the beginning of a text file, which are perhaps JSON
TEXT_KEY = "text"  # the default
TextKey = Annotated[str, "the field of a JSON line or object, or the column of a table, that holds the text"]
DocSeparator = Annotated[
    str | None,
    "separator of documents in a text file; '' for none (default: that of the run, or else <|endoftext|>, if it is "
    "alone on a line)",
]


@dataclass
class Documents:
    """Documents in order, read in parts, so that memory is bounded. They can be iterated any number of times."""

    name: str  # for the user
    files: list[File]
    text_key: str
    separator: str  # of the documents in a text file; empty for none

    def __iter__(self) -> Iterator[Part]:
        for file in self.files:
            yield from self.read(file)

    def read(self, file: File) -> Iterator[Part]:
        """The documents of one of the files."""
        return read_file(file, self.text_key, self.separator)

    def has_conversations(self) -> bool:
        """Whether the files hold conversations. Raises ValueError if some do and some do not."""
        kinds = {has_conversations(file, self.text_key): file.name for file in self.files}
        if len(kinds) == 2:
            raise ValueError(f"{kinds[True]} holds conversations, {kinds[False]} texts: give files of one kind")
        return True in kinds

    def conversations(self) -> Iterator[tuple[str, list[Message]]]:
        """Each conversation, with its place for errors."""
        for file in self.files:
            yield from read_conversations(file, self.text_key)

    def texts(self) -> Iterator[str]:
        """The text of each part."""
        return (part.text for part in self)

    def recognize_separator(self) -> str:
        """TAG if it is alone on a line near the beginning of a text file; otherwise empty."""
        return TAG if any(file.is_text and TAG_LINE.search(beginning(file)) for file in self.files) else ""

    def text_size(self) -> int:
        """The size of the text in bytes, separators included; 0 if it is not known before the text is read."""
        if any(file.is_gzip or file.spooled or not file.is_text for file in self.files):
            return 0
        return sum(path.stat().st_size for path in self.paths())

    def paths(self) -> list[Path]:
        """The files that are read, without pipes."""
        return [file.path for file in self.files if file.path]


def open_documents(specs: Sequence[str | Path], text_key: str = TEXT_KEY, doc_separator: str | None = "") -> Documents:
    """The documents of files, directories, globs, ``-`` for standard input, or ``python-docs``.

    A document is a file, or the text between two ``doc_separator`` in a text file; None is the one that is recognized.
    In JSON files and tables it is the ``text_key`` of each object or row. In directories, hidden files and files of run
    directories are skipped, and links are followed. In directories and globs, empty files are skipped, and files that
    are not text with a warning. Raises ValueError if a source is missing, or not text.
    """
    files = [file for spec in specs for file in _find(str(spec))]
    texts = [file for file in files if file.is_text]
    if text_key != TEXT_KEY and len(texts) == len(files):
        raise ValueError(
            f"text_key is {text_key!r}, but {texts[0].name} is read as plain text: leave it out, or let the names of "
            "files with rows end in .jsonl, .json, .parquet, .csv or .tsv"
        )
    json_lines = next(filter(holds_json_lines, texts), None)
    if json_lines:
        warnings.warn(
            f"{json_lines.name} is read as plain text, but its lines are JSON: to read a field of each, let its name "
            "end in .jsonl",
            stacklevel=1,
        )
    documents = Documents(", ".join(map(str, specs)), files, text_key, doc_separator or "")
    if doc_separator is None:
        documents.separator = documents.recognize_separator()
    return documents


def _find(spec: str) -> list[File]:
    """The files that one source names."""
    if spec == PYTHON_DOCS:
        return [File(PYTHON_DOCS, CORPUS)]
    if spec == STDIN:
        return [File("standard input", spooled=_spool_stdin())]
    if "://" in spec:
        raise ValueError(f"{spec} is an address: fetch it with `curl -LO {quote(spec)}`, then give the file")
    path = Path(os.path.expanduser(spec))
    if path.is_file() and path.stat().st_size:
        return [File(str(path), path)]
    if path.is_dir():
        return _text_files(spec, _walk(path))
    if glob.has_magic(spec):
        return _text_files(spec, [Path(match) for match in sorted(glob.glob(str(path), recursive=True))])
    hub = ""
    if len(path.parts) == 2 and not path.parent.exists():
        hub = (
            f"; a dataset of the Hugging Face Hub comes with `hf download --repo-type dataset {spec} --local-dir "
            f"{path.name}`, and is then given as '{path.name}/**/*.parquet'"
        )
    raise ValueError(
        f"{spec} does not exist, is empty, or is neither a file nor a directory: give a text file, a directory, a "
        f"glob, - or {PYTHON_DOCS}{hub}"
    )


def _walk(folder: Path) -> list[Path]:
    """The files in a directory, sorted; a file that is found several times, by links, only once.

    Hidden files and folders are left out, because ``--data .`` means the user's own text. So are run directories.
    """
    found: dict[str, Path] = {}  # by the real path
    entered: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        is_run = ".lock" in names or {"config.toml", "metrics.jsonl"}.issubset(names)
        if is_run or os.path.realpath(root) in entered:
            folders.clear()
            continue
        entered.add(os.path.realpath(root))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                path = Path(root, name)
                found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _text_files(spec: str, paths: Sequence[Path]) -> list[File]:
    """The text files and tables among ``paths``. A warning counts the others. Empty ones are left out."""
    files: list[File] = []
    skipped: list[str] = []
    for path in paths:
        if not path.is_file() or not path.stat().st_size:
            continue
        file = File(str(path), path)
        try:
            check_text(file)
            files.append(file)
        except ValueError as error:
            skipped.append(str(error))
    others = f"{quantity(len(skipped), 'file')} skipped: {skipped[0]}" if skipped else ""
    if not files:
        reason = others or "check the path (hidden files and run directories are not read)"
        raise ValueError(f"{spec}: no text files; {reason}")
    if skipped:
        warnings.warn(f"{spec}: {quantity(len(files), 'text file')}; {others}", stacklevel=1)
    return files


def check_text(file: File) -> None:
    """Raise ValueError unless all of a file is UTF-8 text. A Parquet file is checked when it is read."""
    if file.format != PARQUET:
        for _ in read_blocks(file):
            pass


def beginning(file: File) -> str:
    """The first block of a text file."""
    return next(read_blocks(file), "")


def holds_json_lines(file: File) -> bool:
    """Whether the first lines of a text file are all JSON objects."""
    lines = beginning(file).split("\n")[:SAMPLED_LINES]
    try:
        rows = [json.loads(line) for line in lines if line.strip()]
    except (ValueError, RecursionError):
        return False
    return bool(rows) and all(isinstance(row, dict) and row for row in rows)


def _spool_stdin() -> IO[bytes]:
    """Copy standard input to a temporary file without a name, because it is read more than once.

    The operating system removes the file when the process ends, even if it is killed.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  it is read until the process ends
    shutil.copyfileobj(sys.stdin.buffer, file)
    file.flush()
    return file
