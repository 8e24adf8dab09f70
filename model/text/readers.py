"""Read one file: plain text in blocks, split into documents; or rows, of which each holds a text or a conversation.

The ending of the name says how rows are read (``ROWS``); any other file is plain text. With .gz after the ending, a
file is decompressed. Memory is bounded by a few parts of a document, except that a JSON array is read as a whole.
"""

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from ..cli import quantity
from ..cli.files import kind_of_file
from .python_docs import CORPUS, python_docs
from .tables import PARQUET, table_rows
from .tokenizer import check_encodable, split_text

PYTHON_DOCS = "python-docs"  # the documentation bundled with CPython
PART = 1_000_000  # characters that are read at a time; a longer document becomes tokens in parts
BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")  # at the beginning of a text
CORRECT = "correct it, get the file again, or leave it out"


class File(NamedTuple):
    """A file with documents: at ``path``, or the spooled text of a pipe."""

    name: str  # for the user
    path: Path | None = None
    spooled: IO[bytes] | None = None

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
def open_text(file: File) -> Iterator[TextIO]:
    """Open a file without a byte order mark. Line ends are unchanged. Reading raises ValueError if it is not UTF-8."""
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
    """The text in blocks. Raises ValueError for a zero character, which no text has."""
    before = 0  # characters
    with open_text(file) as stream:
        while block := stream.read(PART):
            if "\0" in block:
                place = before + block.index("\0")
                raise ValueError(
                    f"{file.name} has a zero byte after {quantity(place, 'character')}: if it is text, remove such "
                    "bytes, for example with tr -d '\\0'"
                )
            before += len(block)
            yield block


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
    pattern = "\0"  # is in no text: read_blocks refuses it
    if separator:
        pattern = "\r?\n".join(map(re.escape, separator.replace("\r\n", "\n").split("\n")))
    rest = ""  # the document whose end has not been read, without the parts that have been returned
    starts = True  # whether no part of it has been returned
    follows = False  # whether none has, and a separator is before it
    for block in blocks:
        *documents, rest = re.split(pattern, rest + block)
        for document in documents:
            text = BLANK_LINES.sub("", document) if follows else document
            yield from _parts(split_text(text.rstrip(), size), starts)
            starts = follows = True
        parts = list(split_text(BLANK_LINES.sub("", rest) if follows else rest, size))
        if len(parts) > 2:
            yield from _parts(parts[:-2], starts)
            starts = follows = False
            rest = "".join(parts[-2:])  # the next block may continue the last part, or a separator that begins there
    text = BLANK_LINES.sub("", rest) if follows else rest
    yield from _parts(split_text(text.rstrip() if separator else text, size), starts)


def text_of(where: str, row: Any, text_key: str) -> str:
    """The text of a row; empty if it is null. Raises ValueError if the row has no such field, or another type in it."""
    fields = row if isinstance(row, dict) else {text_key: row}
    value = fields.get(text_key)
    if isinstance(value, str):
        return check_encodable(value, where)
    if text_key not in fields:
        names = ", ".join(map(ascii, list(fields)[:8]))
        raise ValueError(
            f"{where} has no {text_key!r}: give text_key one of its fields, {names}, or write a conversation as "
            f"{MESSAGES}, in a file without texts"
        )
    if value is None:
        return ""
    raise ValueError(f"{where} has {json.dumps(value, default=str)[:40]} under {text_key!r}: a text is needed")


# --- Rows of JSON files and tables: each with its place, for errors

Rows = Iterator[tuple[str, Any]]


def rows(file: File, text_key: str) -> Rows:
    """Each row of a file that is not plain text. Of a table only the columns that can matter."""
    return ROWS[file.format](file, [text_key, *CONVERSATION_KEYS])


def documentation(file: File, columns: Sequence[str]) -> Rows:
    """The documents of ``python_docs``."""
    for text in python_docs():
        yield file.name, text


def json_rows(file: File, columns: Sequence[str]) -> Rows:
    """Each object or text with its place. A .json file that begins with [ is an array; any other has one per line."""
    with open_text(file) as stream:
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


def rows_of_table(file: File, columns: Sequence[str]) -> Rows:
    with open_bytes(file) as raw:
        yield from table_rows(raw, file.name, file.format, columns)


# The format of a name: how its rows are read
ROWS: dict[str, Callable[[File, Sequence[str]], Rows]] = {
    PYTHON_DOCS: documentation,
    ".jsonl": json_rows,
    ".ndjson": json_rows,
    ".json": json_rows,
    PARQUET: rows_of_table,
    ".csv": rows_of_table,
    ".tsv": rows_of_table,
}


# --- Conversations: rows in the forms in which they are published

Message = dict[str, str]  # role, one of ROLES, and content
ROLES = ("system", "user", "assistant")
MESSAGES = '{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
CONVERSATION_KEYS = ("messages", "conversations", "instruction", "input", "output", "prompt", "completion")


def has_conversations(file: File, text_key: str) -> bool:
    """Whether the rows of a file are conversations, as its first row tells: it has no ``text_key``."""
    _, row = ("", None) if file.is_text else next(rows(file, text_key), ("", None))
    return isinstance(row, dict) and text_key not in row and messages_in(row) is not None


def read_conversations(file: File, text_key: str) -> Iterator[tuple[str, list[Message]]]:
    """Each conversation of a file with its place. Raises ValueError for a row that is none."""
    for where, row in rows(file, text_key):
        messages = messages_in(row) if isinstance(row, dict) else None
        if not isinstance(messages, list):
            raise ValueError(f"{where} is no conversation, but the first row is one: correct or remove it")
        found = [read_message(f"{where}, message {number}", each) for number, each in enumerate(messages, 1)]
        if not any(message["role"] == "assistant" for message in found):
            raise ValueError(f"{where} has no message of the assistant, from which to learn: correct or remove it")
        yield where, found


def messages_in(row: dict[str, Any]) -> Any:
    """The list of messages of a row, or None. Their roles and contents are not checked yet.

    The rows are those of OpenAI (``messages``), ShareGPT (``conversations``), Alpaca (``instruction``, perhaps with an
    ``input``, and ``output``), and TRL (``prompt`` and ``completion``).
    """
    if "messages" in row:
        return row["messages"]
    if "conversations" in row:
        return row["conversations"]
    if {"instruction", "output"} <= row.keys():
        question, answer = row["instruction"], row["output"]
        if row.get("input"):
            question = f"{question}\n\n{row['input']}"
    elif {"prompt", "completion"} <= row.keys():
        question, answer = row["prompt"], row["completion"]
        if isinstance(question, list) and isinstance(answer, list):
            return [*question, *answer]
    else:
        return None
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def read_message(where: str, message: Any) -> Message:
    fields = message if isinstance(message, dict) else {}
    role, content = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
    role = SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        raise ValueError(f"{where} has the role {json.dumps(role)[:40]}: give one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"{where} has {json.dumps(content)[:40]} as its content: give a text")
    return {"role": role, "content": check_encodable(content, where)}
