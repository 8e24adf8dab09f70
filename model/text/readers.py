"""Read the documents of one file, plain or gzipped, in chunks."""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from .python_docs import python_docs
from .separators import Separator
from .tables import FileFormat, texts
from .tokenizer import CHUNK, split_text

BLOCK = 1 << 18  # characters read at a time
LONG_DOCUMENT = 1 << 20  # characters of a document that are read before its end is found
PROBE = 1 << 16  # bytes that are examined to detect a file's format
CONVERT = "if it is text, convert it with iconv -t UTF-8 -f ENCODING, for example UTF-16, GB18030 or CP1252"


class File(NamedTuple):
    """A file with documents, or the folder of the documentation that is bundled with Python."""

    path: Path
    name: str  # for errors; its extension also shows whether the file is gzipped
    format: FileFormat


class Chunk(NamedTuple):
    """A part of a document."""

    text: str
    starts_document: bool  # whether it is the first chunk of its document


def read_file(file: File, text_key: str, separator: str | None, size: int = CHUNK) -> Iterator[Chunk]:
    """The documents of one file in chunks of at most ``size`` characters. Raises ValueError if it is not text."""
    if file.format == "documentation":
        for text in python_docs():
            yield from _chunks(split_text(text, size), starts_document=True)
        return
    with open_text(file) as stream:
        if file.format == "text":
            yield from split_documents(read_blocks(stream, file.name), separator, size)
        else:
            for text in texts(stream, file.name, file.format, text_key):
                yield from _chunks(split_text(text, size), starts_document=True)


def split_documents(blocks: Iterable[str], separator: str | None, size: int = CHUNK) -> Iterator[Chunk]:
    """Split a text, given in blocks, into documents at the ``Separator``, and these into chunks.

    A document is held in memory until its end is found, but only up to LONG_DOCUMENT characters and a block.
    """
    splitter = Separator(separator)
    rest = ""  # the document whose end has not been read, without the chunks that have been returned
    starts = True  # whether no chunk of it has been returned
    for block in blocks:
        *documents, rest = splitter.split(rest + block, at_end=False)
        for document in documents:
            yield from _chunks(split_text(splitter.trim(document, starts, True), size), starts)
            starts = True
        if len(rest) > LONG_DOCUMENT:
            parts = list(split_text(splitter.trim(rest, starts, False), size))
            yield from _chunks(parts[:-2], starts)
            starts = starts and len(parts) <= 2
            rest = "".join(parts[-2:])  # the next block may continue the last chunk, or a separator that begins there
    for document in splitter.split(rest, at_end=True):
        yield from _chunks(split_text(splitter.trim(document, starts, True), size), starts)
        starts = True


def _chunks(parts: Iterable[str], starts_document: bool) -> Iterator[Chunk]:
    for text in parts:
        yield Chunk(text, starts_document)
        starts_document = False


def is_gzip(name: str) -> bool:
    return name.lower().endswith(".gz")


@contextmanager
def open_bytes(path: Path, name: str) -> Iterator[Any]:
    """Open a file, decompressed if its name ends in .gz. Reading it raises ValueError if it is not complete."""
    try:
        with gzip.open(path) if is_gzip(name) else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is not a complete gzip file ({error}): get the file again") from None


@contextmanager
def open_text(file: File) -> Iterator[TextIO]:
    """Open a file without a byte order mark. Line ends are unchanged. Reading raises ValueError if it is not UTF-8."""
    with open_bytes(file.path, file.name) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
        try:
            yield stream
        except UnicodeDecodeError as error:
            position = raw.tell() - len(error.object) + error.start
            wrong = f"byte {position} is 0x{error.object[error.start]:02x}"
            raise ValueError(f"{file.name} is not UTF-8 text: {wrong}; {CONVERT}") from None


def read_blocks(stream: TextIO, name: str) -> Iterator[str]:
    """The text in blocks. Raises ValueError for zero characters, as in UTF-16."""
    while block := stream.read(BLOCK):
        if "\0" in block:
            raise ValueError(f"{name} is not text: it contains zero bytes; {CONVERT}")
        yield block


def beginning(path: Path) -> str:
    """The beginning of a file, to detect its format; U+FFFD stands for bytes that are not UTF-8."""
    with open_bytes(path, str(path)) as file:
        return file.read(PROBE).decode("utf-8-sig", errors="replace")
