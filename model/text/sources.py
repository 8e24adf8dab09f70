"""Documents from files, folders, globs, standard input or the documentation bundled with Python."""

import glob
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
from .readers import PYTHON_DOCS, TAG, File, Part, look_at, read_file, rows
from .rows import Message, Notes, read_conversation

STDIN = "-"
# Endings of files that are never text: compiled code, pictures, sound, films and fonts. In folders they are left out.
NEVER_TEXT = """
.pyc .pyo .pyd .so .o .a .dll .dylib .exe .class .jar .wasm
.png .jpg .jpeg .gif .bmp .ico .webp .tif .tiff .psd .mp3 .wav .flac .ogg .mp4 .mov .avi .mkv .webm
.ttf .otf .woff .woff2 .eot
"""
# Names of texts that are skipped if there are rows beside them
DOCUMENTATION = re.compile(r"(readme|licen[cs]e).*|.*\.md", re.IGNORECASE)
DATASET_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")  # of save_to_disk, beside its .arrow files
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

    def has_conversations(self, *others: "Documents") -> bool:
        """Whether the files and those of the ``others`` hold conversations. Raises ValueError if only some do."""
        files = [file for source in (self, *others) for file in source.files]
        kinds = {file.has_conversations: file.name for file in files if file.has_conversations is not None}
        if len(kinds) == 2:
            raise ValueError(f"{kinds[True]} holds conversations, {kinds[False]} texts: give files of one kind")
        return True in kinds

    def conversations(self) -> Iterator[tuple[str, list[Message]]]:
        """Each conversation with its place, for errors. A warning at the end names fields and rows that go unused."""
        notes = Notes()
        is_empty = True
        for file in self.files:
            for where, row in rows(file, self.text_key):
                messages = read_conversation(where, row, notes)
                if messages:
                    is_empty = False
                    yield where, messages
        if is_empty and notes.left_out:
            raise ValueError(f"{self.name}: {notes}: no row is left to learn from")
        if str(notes):
            warnings.warn(f"{self.name}: {notes}", stacklevel=1)

    def texts(self) -> Iterator[str]:
        """The text of each part."""
        return (part.text for part in self)

    def text_size(self) -> int:
        """The size of the text in bytes, separators included; 0 if it is not known before the text is read."""
        if any(file.is_gzip or file.spooled or not file.is_text for file in self.files):
            return 0
        return sum(file.path.stat().st_size for file in self.files if file.path)


def open_documents(specs: Sequence[str | Path], text_key: str = TEXT_KEY, doc_separator: str | None = "") -> Documents:
    """The documents of files, directories, globs, pipes, ``-`` for standard input, or ``python-docs``.

    A document is a file, or the text between two ``doc_separator`` in a text file. None means TAG if the beginning of
    a file has one alone on a line, and else no separator. In JSON files and tables a document is the ``text_key`` of
    each object or row. In directories, hidden files and those of run directories are skipped, and links are followed.
    In directories and globs, empty files are skipped, and files that are not text with a warning. Raises ValueError if
    a source is missing, or not text.
    """
    files = [file for spec in specs for file in _find(str(spec), text_key)]
    texts = [file for file in files if file.is_text]
    if text_key != TEXT_KEY and len(texts) == len(files):
        raise ValueError(
            f"text_key is {text_key!r}, but {texts[0].name} is read as plain text: leave it out, or let the names of "
            "files with rows end in .jsonl, .json, .parquet, .arrow, .csv or .tsv"
        )
    json_lines = [file.name for file in files if file.has_json_lines]
    if json_lines:
        warnings.warn(
            f"{json_lines[0]} is read as plain text, but its lines are JSON: to read a field of each, let its name "
            "end in .jsonl",
            stacklevel=1,
        )
    if doc_separator is None and any(file.has_tags for file in files):
        doc_separator = TAG
    name = ", ".join("standard input" if spec == STDIN else str(spec) for spec in specs)
    return Documents(name, files, text_key, doc_separator or "")


def _find(spec: str, text_key: str) -> list[File]:
    """The files that one source names."""
    path = Path(os.path.expanduser(spec))
    file = None
    if spec == PYTHON_DOCS:
        file = File(PYTHON_DOCS, CORPUS)
    elif spec == STDIN:
        file = File("standard input", spooled=_spool(sys.stdin.buffer))
    elif "://" in spec:
        raise ValueError(f"{spec} is an address: fetch it with `curl -LO {quote(spec)}`, then give the file")
    elif path.is_fifo():  # a named pipe, or <(program)
        with path.open("rb") as pipe:
            file = File(spec, spooled=_spool(pipe))
    elif path.is_file() and path.stat().st_size:
        file = File(str(path), path)
    if file:
        return [look_at(file, text_key)]
    if path.is_dir():
        return _readable_files(spec, _walk(path), text_key)
    if glob.has_magic(spec):
        matches = sorted(glob.glob(str(path), recursive=True))
        return _readable_files(spec, [Path(match) for match in matches], text_key)
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

    Hidden files and folders are left out, because ``--data .`` means the user's own text. So are run directories, and
    files whose names say that they are no text.
    """
    found: dict[str, Path] = {}  # by the real path
    entered: set[str] = set()
    never_text = NEVER_TEXT.split()
    for root, folders, names in os.walk(folder, followlinks=True):
        is_run = ".lock" in names or {"config.toml", "metrics.jsonl"}.issubset(names)
        if is_run or os.path.realpath(root) in entered:
            folders.clear()
            continue
        entered.add(os.path.realpath(root))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        of_dataset = DATASET_FILES if DATASET_FILES[0] in names or DATASET_FILES[1] in names else ()
        for name in sorted(names):
            path = Path(root, name)
            if not (name.startswith(".") or name in of_dataset or path.suffix.lower() in never_text):
                found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _readable_files(spec: str, paths: Sequence[Path], text_key: str) -> list[File]:
    """The files among ``paths`` that hold texts or conversations. A warning counts the others. Empty ones are left out.

    A file whose first row holds neither is skipped, too, because the user did not name it. So is documentation in a
    folder with rows, or above one: a dataset of the Hub comes with a README.md.
    """
    files: list[File] = []
    skipped: list[str] = []
    for path in paths:
        if not path.is_file() or not path.stat().st_size:
            continue
        try:
            files.append(look_at(File(str(path), path), text_key))
        except ValueError as error:
            skipped.append(str(error))
    with_rows = {folder for file in files if not file.is_text for folder in Path(file.name).parents}
    for file in files.copy():
        path = Path(file.name)
        if file.is_text and path.parent in with_rows and DOCUMENTATION.fullmatch(path.name):
            files.remove(file)
            skipped.insert(0, f"{path} describes the rows beside it: to read it too, name it")
    others = f"{quantity(len(skipped), 'file')} skipped: {skipped[0]}" if skipped else ""
    if not files:
        reason = others or "check the path (hidden and compiled files, pictures and run directories are not read)"
        raise ValueError(f"{spec}: no text files; {reason}")
    if skipped:
        warnings.warn(f"{spec}: {quantity(len(files), 'text file')}; {others}", stacklevel=1)
    return files


def _spool(pipe: IO[bytes]) -> IO[bytes]:
    """Copy a pipe to a temporary file without a name, because it is read more than once.

    The operating system removes the file when the process ends, even if it is killed.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  it is read until the process ends
    shutil.copyfileobj(pipe, file)
    file.flush()
    return file
