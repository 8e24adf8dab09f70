"""Read one file: plain text in blocks, split into documents; or rows, of which each holds a text or a conversation.

The ending of the name says how rows are read (``ROWS``); any other file is plain text. With .gz after the ending, a
file is decompressed. Memory is bounded by a few parts of a document, except that a JSON array is read as a whole.
``look_at`` finds out the rest from the beginning of a file, for example whether it holds conversations.
"""

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO, Any, NamedTuple, TextIO

from ..cli.files import kind_of_file
from .python_docs import CORPUS, python_docs
from .rows import EXAMPLE, is_conversation
from .tables import ARROW, PARQUET, Rows, arrow_rows, csv_rows, is_raw_tsv
from .tokenizer import check_encodable, split_text

PYTHON_DOCS = "python-docs"  # the documentation bundled with CPython
PART = 1_000_000  # characters that are read at a time; a longer document becomes tokens in parts
BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")  # at the beginning of a text
# The end of a document in many published texts. Alone on a line, it is nothing else.
TAG = "<|endoftext|>"
TAG_LINE = re.compile(rf"^[^\S\n]*{re.escape(TAG)}[^\S\n]*$", re.MULTILINE)
SAMPLED_LINES = 3  # at the beginning of a text file, which are perhaps JSON
TSV = ".tsv"
CORRECT = "correct it, get the file again, or leave it out"


class File(NamedTuple):
    """A file with documents: at ``path``, or the spooled text of a pipe. ``look_at`` completes it."""

    name: str  # for the user
    path: Path | None = None
    spooled: IO[bytes] | None = None
    has_conversations: bool | None = None  # None before look_at, and for a table without a row
    has_tags: bool = False  # TAG, on lines of its own
    has_json_lines: bool = False  # although it is read as text
    is_raw: bool = False  # a TSV file in which quotes are ordinary characters

    @property
    def is_gzip(self) -> bool:
        return self.name.lower().endswith(".gz")

    @property
    def format(self) -> str:
        """A key of ``ROWS``; anything else is plain text."""
        return PYTHON_DOCS if self.path == CORPUS else Path(self.name.lower().removesuffix(".gz")).suffix

    @property
    def is_text(self) -> bool:
        return self.format not in ROWS


@contextmanager
def open_bytes(file: File) -> Iterator[Any]:
    """Open a file, decompressed if its name ends in .gz.

    Raises ValueError if its first bytes tell that it is neither text nor the table that its name says. Reading raises
    it if a compressed file is not complete.
    """
    try:
        with _opened(file) as raw:
            start = raw.read(512)
            kind = kind_of_file(start)
            if not kind and b"\0" in start and file.format not in (PARQUET, ARROW):
                kind = "is no text: give the text itself (token ids, such as nanoGPT's train.bin, are not read)"
            if kind and not (file.format == PARQUET and start.startswith(b"PAR1")):
                raise ValueError(f"{file.name} {kind}")
            raw.seek(0)
            yield raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file.name} is not a complete gzip file ({error}): get the file again") from None


def _opened(file: File) -> gzip.GzipFile | IO[bytes]:
    if file.spooled:
        file.spooled.seek(0)
        return open(os.dup(file.spooled.fileno()), "rb")
    assert file.path
    return gzip.open(file.path) if file.is_gzip else file.path.open("rb")


@contextmanager
def open_utf8(file: File) -> Iterator[TextIO]:
    """Open a file as text, without a byte order mark, line ends unchanged. Reading raises ValueError if not UTF-8."""
    with open_bytes(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
        try:
            yield stream
        except UnicodeDecodeError as error:
            position = raw.tell() - len(error.object) + error.start
            raise ValueError(
                f"{file.name} is not UTF-8 text: byte {position} is 0x{error.object[error.start]:02x}; convert it with "
                "iconv -t UTF-8 -f ENCODING, for example GB18030 or CP1252"
            ) from None


def read_blocks(file: File) -> Iterator[str]:
    """The text in blocks."""
    with open_utf8(file) as stream:
        while block := stream.read(PART):
            yield block


def look_at(file: File, text_key: str) -> File:
    """Complete a file with the facts that its beginning shows: the first block of a text, or the first row.

    Raises ValueError if it is not what its name says, or if the row holds neither a text nor a conversation.
    """
    if file.is_text:
        start = next(read_blocks(file), "")
        has_tags = bool(TAG_LINE.search(start))
        return file._replace(has_conversations=False, has_tags=has_tags, has_json_lines=holds_json_lines(start))
    if file.format == TSV:
        with open_utf8(file) as stream:
            file = file._replace(is_raw=is_raw_tsv(stream))
    for where, row in rows(file, text_key):  # only the first
        is_text = not isinstance(row, dict) or find_field(row, text_key) is not MISSING
        if is_text or not is_conversation(row):
            text_of(where, row, text_key)  # called for its ValueError
        return file._replace(has_conversations=not is_text)
    return file


def holds_json_lines(start: str) -> bool:
    """Whether the first lines of a text are all JSON objects."""
    try:
        found = [json.loads(line) for line in start.split("\n", SAMPLED_LINES)[:SAMPLED_LINES] if line.strip()]
    except (ValueError, RecursionError):
        return False
    return bool(found) and all(isinstance(row, dict) and row for row in found)


# --- Documents: what a text holds between separators, or the text of a row


class Part(NamedTuple):
    """A document, or a part of a long one."""

    text: str
    starts_document: bool  # whether it is the first part of its document


def read_file(file: File, text_key: str, separator: str | None) -> Iterator[Part]:
    """The documents of one file. Raises ValueError if it is not what its name says."""
    if file.is_text:
        yield from split_documents(read_blocks(file), separator)
        return
    for where, row in rows(file, text_key):
        yield from _parts(split_text(text_of(where, row, text_key), PART), starts_document=True)


def _parts(texts: Iterable[str], starts_document: bool) -> Iterator[Part]:
    for text in texts:
        yield Part(text, starts_document)
        starts_document = False


def split_documents(blocks: Iterable[str], separator: str | None, size: int = PART) -> Iterator[Part]:
    """Split a text, given in blocks, into documents at the separator, and those longer than ``size`` into parts.

    White space before a separator, and blank lines after it, belong to no document. A line end in the separator may
    also be CRLF. Without a separator the text is one document.
    """
    pattern = "(?!)"  # matches nothing
    if separator:
        pattern = "\r?\n".join(map(re.escape, separator.replace("\r\n", "\n").split("\n")))
    rest = ""  # the document whose end has not been read, without the parts that have been returned
    starts_document, after_separator = True, False  # whether the rest does, and whether it follows one
    for block in blocks:
        *documents, rest = re.split(pattern, rest + block)
        for document in documents:
            yield from _parts(split_text(_trimmed(document, after_separator).rstrip(), size), starts_document)
            starts_document = after_separator = True
        parts = list(split_text(_trimmed(rest, after_separator), size))
        if len(parts) > 2:  # the last two wait, because a separator that begins in them may end in the next block
            yield from _parts(parts[:-2], starts_document)
            starts_document = after_separator = False
            rest = "".join(parts[-2:])
    text = _trimmed(rest, after_separator)
    yield from _parts(split_text(text.rstrip() if separator else text, size), starts_document)


def _trimmed(text: str, after_separator: bool) -> str:
    """A text without the blank lines between it and the separator before it."""
    return BLANK_LINES.sub("", text) if after_separator else text


MISSING = object()


def find_field(row: dict[str, Any], name: str) -> Any:
    """The value of a field, or of a field in a field: ``translation.en``. MISSING if there is none."""
    if name in row:
        return row[name]
    outer, _, inner = name.partition(".")
    nested = row.get(outer)
    return find_field(nested, inner) if inner and isinstance(nested, dict) else MISSING


def text_of(where: str, row: Any, text_key: str) -> str:
    """The text of a row; empty if it is null. Raises ValueError if the row has no such field, or another type in it."""
    value = find_field(row, text_key) if isinstance(row, dict) else row
    if isinstance(value, str):
        return check_encodable(value, where)
    if value is MISSING:
        raise ValueError(f"{where} has no {text_key!r}: {_other_fields(row)}, or write a conversation as {EXAMPLE}")
    if value is None and isinstance(row, dict):
        return ""
    raise ValueError(f"{where} has {json.dumps(value, default=str)[:40]} under {text_key!r}: a text is needed")


def _other_fields(row: dict[str, Any]) -> str:
    """What to type instead of a field that a row lacks: the longest text is probably meant."""
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    for outer, nested in row.items():
        if isinstance(nested, dict):
            texts |= {f"{outer}.{name}": value for name, value in nested.items() if isinstance(value, str)}
    if not texts:
        return "it has no field with a text"
    likely = max(texts, key=lambda name: len(texts[name]))
    others = [ascii(name) for name in texts if name != likely][:8]
    return f"type --text_key {quote(likely)}" + (f", or another field ({', '.join(others)})" if others else "")


# --- Rows of JSON files and tables


def rows(file: File, text_key: str) -> Rows:
    """Each row of a file that is not plain text. Of a table with a column ``text_key`` only that."""
    return ROWS[file.format](file, text_key)


def python_docs_rows(file: File, text_key: str) -> Rows:
    for text in python_docs():
        yield file.name, text


def json_rows(file: File, text_key: str) -> Rows:
    """Each object or text with its place. A .json file that begins with [ is an array; any other has one per line."""
    with open_utf8(file) as stream:
        lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
        for index, (number, line) in enumerate(lines):
            if index == 0 and file.format == ".json" and line.lstrip().startswith("["):
                for element, value in enumerate(_parsed(line + stream.read(), file.name), 1):
                    yield f"{file.name}, element {element}", value
                return
            if index == 0 and line.strip() in ("{", "["):
                raise ValueError(
                    f"{file.name} is JSON over several lines: write a list of rows, [{{...}}, ...], into a .json file, "
                    "or one row a line, for example with jq -c '.[]'"
                )
            where = f"{file.name}:{number}"
            yield where, _parsed(line, f"{where} alone")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON ({error}): {CORRECT}") from None


def table_rows(file: File, text_key: str) -> Rows:
    with open_bytes(file) as raw:
        yield from arrow_rows(raw, file.name, file.format, text_key)


def delimited_rows(file: File, text_key: str) -> Rows:
    with open_utf8(file) as stream:
        yield from csv_rows(stream, file.name, "\t" if file.format == TSV else None, file.is_raw)


# The format of a name: how its rows are read
ROWS: dict[str, Callable[[File, str], Rows]] = {
    PYTHON_DOCS: python_docs_rows,
    ".jsonl": json_rows,
    ".ndjson": json_rows,
    ".json": json_rows,
    PARQUET: table_rows,
    ARROW: table_rows,
    ".csv": delimited_rows,
    TSV: delimited_rows,
}
