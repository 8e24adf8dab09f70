"""Read the documents of one file, plain or gzipped, in chunks."""

import codecs
import gzip
import shlex
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO, cast

from .separators import Separator
from .tables import FileFormat, is_gzip, texts
from .tokenizer import CHUNK, split_text

BLOCK = 1 << 18  # characters read at a time
LONG_DOCUMENT = 1 << 22  # characters of a document that are read before its end is found
PROBE = 1 << 16  # bytes that are examined to detect a file's format


class File(NamedTuple):
    path: Path
    name: str  # for errors; its extension also shows whether the file is gzipped, or TSV
    format: FileFormat


class Chunk(NamedTuple):
    """A part of a document."""

    text: str
    starts_document: bool  # whether it is the first chunk of its document


def read_file(file: File, text_key: str, separator: str | None, size: int = CHUNK) -> Iterator[Chunk]:
    """The documents of one file in chunks of at most ``size`` characters. Raises ValueError if it is not text."""
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
    splitter = Separator(separator) if separator else None
    rest = ""  # the document whose end has not been read, without the chunks that have been returned
    starts = True  # whether no chunk of it has been returned
    for block in blocks:
        rest += block
        begin = 0
        for match in splitter.pattern.finditer(rest) if splitter else ():
            if match.end() == len(rest):
                break  # the next block may continue the separator
            yield from _last_chunks(rest[begin : match.start()], splitter, starts, size)
            begin = match.end()
            starts = True
        rest = rest[begin:]
        if splitter is None or len(rest) > LONG_DOCUMENT:
            parts = list(split_text(splitter.trim(rest, starts, False) if splitter else rest, size))
            yield from _chunks(parts[:-2], starts)
            starts = starts and len(parts) <= 2
            rest = "".join(parts[-2:])  # the next block may continue the last chunk, or a separator that begins there
    # A separator that ends the text was not accepted above
    for number, document in enumerate(splitter.pattern.split(rest) if splitter else [rest]):
        yield from _last_chunks(document, splitter, starts or number > 0, size)


def _last_chunks(text: str, splitter: Separator | None, starts: bool, size: int) -> Iterator[Chunk]:
    """The chunks of a document, or the last ones if ``starts`` is false."""
    trimmed = splitter.trim(text, starts, True) if splitter else text
    return _chunks(split_text(trimmed, size), starts)


def _chunks(parts: Iterable[str], starts_document: bool) -> Iterator[Chunk]:
    for text in parts:
        yield Chunk(text, starts_document)
        starts_document = False


@contextmanager
def open_text(file: File) -> Iterator[TextIO]:
    """Open a file, decompressed if its name ends in .gz, without a byte order mark. Line ends are unchanged.

    Reading it raises ValueError if it is not UTF-8 text.
    """
    opened: Any = gzip.open if is_gzip(file.name) else open
    try:
        with opened(file.path, "rt", encoding="utf-8-sig", newline="\n") as stream:
            try:
                yield stream
            except UnicodeDecodeError as error:
                position = stream.buffer.tell() - len(error.object) + error.start
                wrong = f"byte {position} is 0x{error.object[error.start]:02x}"
                raise ValueError(f"{file.name} is not UTF-8 text: {wrong}; {how_to_convert(file.name)}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file.name} is not a complete gzip file ({error}): get the file again") from None


def read_blocks(stream: TextIO, name: str) -> Iterator[str]:
    """The text in blocks. Raises ValueError for zero characters, as in UTF-16."""
    while block := stream.read(BLOCK):
        if "\0" in block:
            raise ValueError(f"{name} is not text: it contains zero bytes; {how_to_convert(name)}")
        yield block


def how_to_convert(name: str) -> str:
    source = f"gzip -dc {shlex.quote(name)} | iconv" if is_gzip(name) else f"iconv {shlex.quote(name)}"
    return f"if it is text, convert it: {source} -t UTF-8 -f ENCODING, for example UTF-16, GB18030 or CP1252"


def first_bytes(path: Path) -> bytes:
    """The first bytes of a file, decompressed if its name ends in .gz and it is a valid gzip file."""
    try:
        with cast(BinaryIO, gzip.open(path) if is_gzip(path.name) else path.open("rb")) as file:
            return file.read(PROBE)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        with path.open("rb") as file:
            return file.read(PROBE)


def is_binary(raw: bytes) -> bool:
    """Whether a file that starts with ``raw`` is not text: it has zero bytes, or many control characters.

    UTF-16 and UTF-32 with a byte order mark count as text, so that reading them raises an error that tells the remedy.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return False
    control = sum(raw.count(byte) for byte in range(32) if byte not in b"\t\n\r\f\b\x1b")
    return b"\0" in raw or 10 * control > len(raw)
