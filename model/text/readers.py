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
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from ..cli import quantity
from .python_docs import python_docs
from .separators import Separator
from .tokenizer import CHUNK, split_text

FORMATS = {".jsonl": "json lines", ".ndjson": "json lines", ".json": "json", ".csv": "csv", ".tsv": "tsv"}
BLOCK = 1 << 18  # characters read at a time
LONG_DOCUMENT = 1 << 20  # characters of a document that are read before its end is found
PROBE = 1 << 16  # bytes at the beginning of a file that are examined before any text is read
MAX_FIELD = 100_000_000  # characters of a field of a CSV file
CONVERT = "if it is text, convert it with iconv -t UTF-8 -f ENCODING, for example UTF-16, GB18030 or CP1252"
# Files that are often mistaken for text, by their first bytes
FOREIGN = {
    b"PAR1": "a Parquet file: write its rows as .jsonl, with pandas: read_parquet(...).to_json(..., orient='records', "
    "lines=True)",
    b"ARROW1": "an Arrow file: write its rows as .jsonl",
    b"PK\3\4": "a zip archive or an Office document: unpack it, or save it as plain text",
    b"\xd0\xcf\x11\xe0": "an Office document: save it as plain text",
    b"%PDF-": "a PDF: extract its text, for example with pdftotext",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it with zstd -d",
    b"\xfd7zXZ": "compressed with xz: decompress it with unxz",
    b"BZh": "compressed with bzip2: decompress it with bunzip2",
    b"\x1f\x8b": "compressed with gzip: give it a name that ends in .gz",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    b"\xff\xfe": "UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8",
}


class File(NamedTuple):
    """A file with documents: at ``path``, or the spooled text of a pipe, or the documentation bundled with Python."""

    name: str  # for the user; its ending is the format
    path: Path | None = None
    spooled: IO[bytes] | None = None

    @property
    def is_gzip(self) -> bool:
        return self.name.lower().endswith(".gz")

    @property
    def format(self) -> str:
        """One of FORMATS, or text, or documentation."""
        if self.path is None and self.spooled is None:
            return "documentation"
        return FORMATS.get(os.path.splitext(self.name.lower().removesuffix(".gz"))[1], "text")


Message = dict[str, str]  # role, one of ROLES, and content
ROLES = ("system", "user", "assistant")


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
            return
        rows = json_rows(stream, file) if "json" in file.format else csv_rows(stream, file, text_key)
        skipped = 0
        for where, row in rows:
            value = field(where, row, text_key)
            if value is None:
                skipped += 1
            else:
                yield from _chunks(split_text(value, size), starts_document=True)
        if skipped:
            warnings.warn(
                f"{file.name}: {quantity(skipped, 'row')} without text under {text_key!r} skipped", stacklevel=1
            )


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
            yield from _chunks(split_text(splitter.trim(document), size), starts)
            starts = True
        if len(rest) > LONG_DOCUMENT:
            parts = list(split_text(rest, size))
            yield from _chunks(parts[:-2], starts)
            starts = starts and len(parts) <= 2
            rest = "".join(parts[-2:])  # the next block may continue the last chunk, or a separator that begins there
    for document in splitter.split(rest, at_end=True):
        yield from _chunks(split_text(splitter.trim(document), size), starts)
        starts = True


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
            raise ValueError(f"{name} is not text: it contains zero bytes; {CONVERT}")
        yield block


def beginning(file: File) -> bytes:
    with open_bytes(file) as raw:
        start: bytes = raw.read(PROBE)
    return start


def foreign(start: bytes) -> str | None:
    """What a file that begins with these bytes is, and what to do with it; None if it may be text."""
    if start[257:262] == b"ustar":
        return "a tar archive: unpack it"
    return next((kind for magic, kind in FOREIGN.items() if start.startswith(magic)), None)


def field(where: str, row: Any, text_key: str) -> str | None:
    """The text of a row; None if it is null. Raises ValueError if the row has no such field, or another type in it."""
    fields = row if isinstance(row, dict) else {text_key: row}
    value = fields.get(text_key)
    if isinstance(value, str):
        return check_encodable(where, value)
    if text_key in fields and value is None:
        return None
    rename = conversation_to_rename(fields)
    if rename:
        raise ValueError(f"{where} {rename}, to learn from its answers; or name a text with text_key")
    texts = ", ".join(ascii(key) for key in list(fields)[:8] if isinstance(fields[key], str))
    remedy = f"give text_key one of {texts}" if texts else "give rows with a text, or another text_key"
    found = f"has {json.dumps(value)[:40]}, which is no text," if text_key in fields else "has no text"
    raise ValueError(f"{where} {found} under {text_key!r}: {remedy}")


MESSAGES = '{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'


def conversation_to_rename(fields: dict[str, Any]) -> str | None:
    """What to do with a row that is a conversation in another form than MESSAGES; None for any other row."""
    if "messages" in fields:
        return "is a conversation, but the first row is none: put conversations into files of their own"
    for key, turns in fields.items():
        turn = turns[0] if isinstance(turns, list) and turns else None
        if isinstance(turn, dict) and "from" in turn:
            return f"has turns with 'from' and 'value': rename them to {MESSAGES}; human is user, gpt is assistant"
        if isinstance(turn, dict) and "role" in turn:
            return f"has a conversation under {key!r}: rename that to 'messages'"
    if {"instruction", "output"} <= fields.keys():
        return f"has an instruction and an output: rename them to {MESSAGES}, with any input after the instruction"
    return None


def has_conversations(file: File, text_key: str) -> bool:
    """Whether the rows of a file are conversations, as its first row tells: it has ``messages`` and no ``text_key``."""
    if "json" not in file.format:
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
            if not any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages):
                raise ValueError(f"{where} has no message of the assistant, from which to learn: correct or remove it")
            yield where, [read_message(f"{where}, message {number}", each) for number, each in enumerate(messages, 1)]


def read_message(where: str, message: Any) -> Message:
    role, content = (message.get(name) if isinstance(message, dict) else None for name in ("role", "content"))
    if role not in ROLES:
        raise ValueError(f"{where} has the role {json.dumps(role)[:40]}: give one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"{where} has {json.dumps(content)[:40]} as its content: give a text")
    return {"role": role, "content": check_encodable(where, content)}


def check_encodable(where: str, text: str) -> str:
    """Raise ValueError for half of a surrogate pair, which JSON allows and UTF-8 does not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} is not valid JSON text ({error}): correct or remove it") from None
    return text


def json_rows(stream: TextIO, file: File) -> Iterator[tuple[str, Any]]:
    """Each object or text with its place. A .json file that begins with [ is an array; any other has one per line."""
    lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
    for index, (number, line) in enumerate(lines):
        if index == 0 and file.format == "json" and line.lstrip().startswith("["):
            for element, value in enumerate(_parsed(line + stream.read(), file.name), 1):
                yield f"{file.name}, element {element}", value
            return
        yield f"{file.name}:{number}", _parsed(line, f"{file.name}:{number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where} is not valid JSON text ({error}): correct it, get the file again, or leave it out with --glob"
        ) from None


def csv_rows(stream: TextIO, file: File, text_key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place. The first row names the columns.

    In .csv, quoted fields may contain line ends, and the delimiter is the one of ``,;|`` and tab that gives the column
    ``text_key``. In .tsv it is the tab, and a quote is text.
    """
    csv.field_size_limit(MAX_FIELD)  # the default is 131,072; the csv module has only one limit per process
    is_tsv = file.format == "tsv"
    options: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if is_tsv else {"strict": True}
    header = [stream.readline()]
    while not is_tsv and "".join(header).count('"') % 2 and (line := stream.readline()):
        header.append(line)  # a quoted name may contain line ends
    columns = {mark: _first_row(header, mark, options) for mark in ("\t" if is_tsv else ",;\t|")}
    delimiter = next((mark for mark in columns if text_key in columns[mark]), None)
    if delimiter is None:
        most = max(columns.values(), key=len)
        raise ValueError(
            f"{file.name} has no column {text_key!r}: give text_key one of {', '.join(map(ascii, most[:8]))}, leave "
            "the file out with --glob, or copy it to a name that ends in .txt to train on it as it is"
        )
    names = columns[delimiter]
    rows = csv.DictReader(stream, names, delimiter=delimiter, **options)
    try:
        for row in rows:
            if None in row:  # where DictReader puts the fields that have no column
                raise csv.Error(f"{len(names) + len(row[None])} fields for {len(names)} columns")
            yield file.name, row
    except csv.Error as error:
        raise ValueError(
            f"{file.name}, line {rows.reader.line_num + len(header)} of the table, is not valid ({error}): put fields "
            f"that contain {delimiter!r} in double quotes, and double the quotes inside them"
        ) from None


def _first_row(lines: list[str], delimiter: str, options: dict[str, Any]) -> list[str]:
    try:
        return next(csv.reader(lines, delimiter=delimiter, **options), [])
    except csv.Error:
        return []
