"""Read the documents of one file in chunks: plain text, and the fields of JSON lines, JSON arrays, CSV and TSV.

Or its conversations, if the rows of a JSON file have ``messages``.

The ending of the name says what a file is; with .gz after it, it is decompressed. Memory is bounded by a chunk, except
that a JSON array is read as a whole.
"""

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from .python_docs import python_docs
from .tokenizer import CHUNK, check_encodable, split_text

JSON = (".jsonl", ".json")
TABLES = (".csv", ".tsv")
BLOCK = 1 << 18  # characters read at a time
BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")  # at the beginning of a text
MAX_FIELD = 100_000_000  # characters of a field of a CSV file
CONVERT = (
    "save the text of a PDF, a Word document or a Parquet file as .txt or .jsonl, unpack an archive, and convert other "
    "text with iconv -t UTF-8 -f ENCODING, for example UTF-16, GB18030 or CP1252"
)
CORRECT = "correct it, get the file again, or leave it out with --glob"


class File(NamedTuple):
    """A file with documents: at ``path``, or the spooled text of a pipe, or the documentation bundled with Python."""

    name: str  # for the user; its ending is the format
    path: Path | None = None
    spooled: IO[bytes] | None = None

    @property
    def is_gzip(self) -> bool:
        return self.name.lower().endswith(".gz")

    @property
    def ending(self) -> str:
        return os.path.splitext(self.name.lower().removesuffix(".gz"))[1]

    @property
    def is_documentation(self) -> bool:
        return self.path is None and self.spooled is None

    @property
    def is_text(self) -> bool:
        return not self.is_documentation and self.ending not in JSON + TABLES


Message = dict[str, str]  # role, one of ROLES, and content
ROLES = ("system", "user", "assistant")
MESSAGES = '{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'


class Chunk(NamedTuple):
    """A part of a document."""

    text: str
    starts_document: bool  # whether it is the first chunk of its document


def read_file(file: File, text_key: str, separator: str | None, size: int = CHUNK) -> Iterator[Chunk]:
    """The documents of one file in chunks of at most ``size`` characters. Raises ValueError if it is not text."""
    if file.is_documentation:
        for text in python_docs():
            yield from _chunks(split_text(text, size), starts_document=True)
        return
    with open_text(file) as stream:
        if file.is_text:
            yield from split_documents(read_blocks(stream, file.name), separator, size)
            return
        rows = json_rows(stream, file) if file.ending in JSON else csv_rows(stream, file, text_key)
        for where, row in rows:
            yield from _chunks(split_text(field(where, row, text_key), size), starts_document=True)


def split_documents(blocks: Iterable[str], separator: str | None, size: int = CHUNK) -> Iterator[Chunk]:
    """Split a text, given in blocks, into documents at the separator, and these into chunks.

    White space before a separator, and blank lines after it, belong to no document. A line end in the separator may
    also be CRLF. Without a separator the text is one document.
    """
    pattern = "\0"  # is in no text: read_blocks refuses it
    if separator:
        pattern = "\r?\n".join(map(re.escape, separator.replace("\r\n", "\n").split("\n")))
    rest = ""  # the document whose end has not been read, without the chunks that have been returned
    starts = True  # whether no chunk of it has been returned
    follows = False  # whether none has, and a separator is before it
    for block in blocks:
        *documents, rest = re.split(pattern, rest + block)
        for document in documents:
            text = BLANK_LINES.sub("", document) if follows else document
            yield from _chunks(split_text(text.rstrip(), size), starts)
            starts = follows = True
        parts = list(split_text(BLANK_LINES.sub("", rest) if follows else rest, size))
        if len(parts) > 2:
            yield from _chunks(parts[:-2], starts)
            starts = follows = False
            rest = "".join(parts[-2:])  # the next block may continue the last chunk, or a separator that begins there
    text = BLANK_LINES.sub("", rest) if follows else rest
    yield from _chunks(split_text(text.rstrip() if separator else text, size), starts)


def _chunks(parts: Iterable[str], starts_document: bool) -> Iterator[Chunk]:
    for text in parts:
        yield Chunk(text, starts_document)
        starts_document = False


@contextmanager
def open_bytes(file: File) -> Iterator[Any]:
    """Open a file, decompressed if its name ends in .gz. Reading it raises ValueError if it is not complete."""
    if file.spooled:
        file.spooled.seek(0)
        with open(os.dup(file.spooled.fileno()), "rb") as raw:
            yield raw
        return
    assert file.path
    try:
        with gzip.open(file.path) if file.is_gzip else file.path.open("rb") as raw:
            yield raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file.name} is not a complete gzip file ({error}): get the file again") from None


@contextmanager
def open_text(file: File) -> Iterator[TextIO]:
    """Open a file without a byte order mark. Line ends are unchanged. Reading raises ValueError if it is not UTF-8."""
    with open_bytes(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
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
            raise ValueError(f"{name} is not UTF-8 text: it contains zero bytes; {CONVERT}")
        yield block


def field(where: str, row: Any, text_key: str) -> str:
    """The text of a row; empty if it is null. Raises ValueError if the row has no such field, or another type in it."""
    fields = row if isinstance(row, dict) else {text_key: row}
    value = fields.get(text_key)
    if isinstance(value, str):
        return check_encodable(value, where)
    if text_key in fields and value is None:
        return ""
    names = ", ".join(map(ascii, list(fields)[:8]))
    raise ValueError(
        f"{where} has no text under {text_key!r}: give text_key one of its fields, {names}, or write a conversation as "
        f"{MESSAGES}, in a file without texts"
    )


def has_conversations(file: File, text_key: str) -> bool:
    """Whether the rows of a file are conversations, as its first row tells: it has ``messages`` and no ``text_key``."""
    if file.ending not in JSON:
        return False
    with open_text(file) as stream:
        _, row = next(json_rows(stream, file), ("", None))
    return isinstance(row, dict) and "messages" in row and text_key not in row


def read_conversations(file: File) -> Iterator[tuple[str, list[Message]]]:
    """Each conversation of a JSON file with its place. Raises ValueError for a row that is none."""
    with open_text(file) as stream:
        for where, row in json_rows(stream, file):
            messages = row.get("messages") if isinstance(row, dict) else None
            if not isinstance(messages, list):
                raise ValueError(f"{where} has no list of messages, but the first row has one: correct or remove it")
            found = [read_message(f"{where}, message {number}", each) for number, each in enumerate(messages, 1)]
            if not any(message["role"] == "assistant" for message in found):
                raise ValueError(f"{where} has no message of the assistant, from which to learn: correct or remove it")
            yield where, found


def read_message(where: str, message: Any) -> Message:
    role, content = (message.get(name) if isinstance(message, dict) else None for name in ("role", "content"))
    if role not in ROLES:
        raise ValueError(f"{where} has the role {json.dumps(role)[:40]}: give one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"{where} has {json.dumps(content)[:40]} as its content: give a text")
    return {"role": role, "content": check_encodable(content, where)}


def json_rows(stream: TextIO, file: File) -> Iterator[tuple[str, Any]]:
    """Each object or text with its place. A .json file that begins with [ is an array; any other has one per line."""
    lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
    for index, (number, line) in enumerate(lines):
        if index == 0 and file.ending == ".json" and line.lstrip().startswith("["):
            for element, value in enumerate(_parsed(line + stream.read(), file.name), 1):
                yield f"{file.name}, element {element}", value
            return
        where = f"{file.name}:{number}"
        yield where, _parsed(line, f"{where} alone")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON ({error}): {CORRECT}") from None


def csv_rows(stream: TextIO, file: File, text_key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place. The first row names the columns.

    In .csv the delimiter is the comma, and quoted fields may contain line ends. In .tsv it is the tab, and a quote is
    text.
    """
    csv.field_size_limit(MAX_FIELD)  # the default is 131,072; the csv module has only one limit per process
    tsv = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    options: dict[str, Any] = tsv if file.ending == ".tsv" else {"delimiter": ","}
    rows = csv.DictReader(stream, strict=True, **options)
    try:
        names = rows.fieldnames or []
        if text_key not in names:
            raise ValueError(
                f"{file.name} has no column {text_key!r}: give text_key one of {', '.join(map(ascii, names[:8]))}, or "
                f"separate the columns by {options['delimiter']!r}"
            )
        for row in rows:
            if None in row:  # where DictReader puts the fields that have no column
                raise csv.Error(f"{len(names) + len(row[None])} fields for {len(names)} columns")
            yield f"{file.name}, line {rows.line_num}", row
    except csv.Error as error:
        raise ValueError(f"{file.name}, line {rows.reader.line_num}, is not valid ({error}): {CORRECT}") from None
