"""Read the documents in the fields of JSON lines, JSON arrays, CSV and TSV, and detect these formats."""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from ..cli import quantity

FileFormat = Literal["text", "json lines", "json array", "csv"]
MAX_LENGTH = 100_000_000  # characters of a line or array element, because all of it is held in memory
DELIMITERS = ",\t;|"
OR_PLAIN_TEXT = "or copy the file to a name that ends in .txt to train on it as it is"


def format_of(name: str, start: str) -> FileFormat:
    """The format of a file, by the ending of its name; for a .json file also by the ``start`` of its text."""
    if is_json_lines(name):
        return "json lines"
    if without_gz(name).endswith((".csv", ".tsv")):
        return "csv"
    return json_format(start) if without_gz(name).endswith(".json") else "text"


def is_json_lines(name: str) -> bool:
    """Whether the ending of the name promises JSON lines."""
    return without_gz(name).endswith((".jsonl", ".ndjson"))


def is_gzip(name: str) -> bool:
    return name.lower().endswith(".gz")


def without_gz(name: str) -> str:
    """The name in lower case, without the ending of a gzip file."""
    return name.lower().removesuffix(".gz")


def json_format(start: str) -> FileFormat:
    """The JSON format of a text that starts with ``start``; "text" if it is not JSON with documents."""
    start = start.lstrip("\ufeff \t\r\n")
    if start[:1] == "[" and start[1:].lstrip()[:1] in ("{", '"'):
        return "json array"
    first, _, second = start.partition("\n")
    if second.lstrip()[:1] == "{" and _is_object(first):
        return "json lines"
    return "text"


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def has_field(file_format: FileFormat, name: str, start: str, text_key: str) -> bool:
    """Whether the first document of a file that starts with ``start`` has the field ``text_key``.

    Also true if the first element of an array or the first row is not complete in ``start``.
    """
    try:
        next(texts(file_format, [start], name, text_key), None)
    except UnfinishedError:
        return True
    except ValueError:
        return False
    return True


def texts(file_format: FileFormat, blocks: Iterable[str], name: str, text_key: str) -> Iterator[str]:
    """The text of each document. Raises ValueError with the place in the file if the file is invalid."""
    if file_format == "csv":
        return _csv_rows(blocks, name, text_key)
    if file_format == "json array":
        return _array_elements(blocks, name, text_key)
    return _json_lines(blocks, name, text_key)


class UnfinishedError(ValueError):
    """The file ends within a CSV row or a JSON array.

    Also raised for an array element that is not valid, because it may be one whose end is missing.
    """


def _lines(blocks: Iterable[str], name: str) -> Iterator[str]:
    """The lines with their line ends."""
    rest = ""
    number = 0
    for block in blocks:
        *complete, rest = (rest + block).split("\n")
        for line in complete:
            yield line + "\n"
        number += len(complete)
        if len(rest) > MAX_LENGTH:
            raise ValueError(f"{name}:{number + 1} is over {MAX_LENGTH // 1_000_000} MB long: split the line")
    if rest:
        yield rest


def _json_lines(blocks: Iterable[str], name: str, text_key: str) -> Iterator[str]:
    for number, line in enumerate(_lines(blocks, name), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{name}:{number} is not valid JSON text ({error}): correct or remove the line"
                ) from None
            yield _text_of(value, f"{name}:{number}", text_key)


def _text_of(value: Any, where: str, text_key: str) -> str:
    """The string that an object has under ``text_key``."""
    text = value.get(text_key) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{where} has no text under {text_key!r}: {_suggest_keys(value)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON allows half of a surrogate pair, UTF-8 does not
        raise ValueError(f"{where} is not valid JSON text ({error}): correct or remove it") from None
    return text


def _suggest_keys(value: Any) -> str:
    keys = [key for key in value if isinstance(value[key], str)] if isinstance(value, dict) else []
    return f"give text_key one of {list_names(keys)}" if keys else "it has no text at all"


def list_names(names: list[str]) -> str:
    return ", ".join(ascii(name) for name in names[:8])


class _Buffer:
    """Text that was read but not decoded yet."""

    def __init__(self, blocks: Iterable[str]) -> None:
        self._blocks = iter(blocks)
        self.text = ""
        self.position = 0  # of the first character that is not decoded

    def read(self, at_least: int = 1) -> bool:
        """Read at least this many more characters, if there are any. Returns False at the end of the file."""
        parts = [self.text[self.position :]]
        new = 0
        while new < at_least:
            block = next(self._blocks, None)
            if block is None:
                break
            parts.append(block)
            new += len(block)
        self.text = "".join(parts)
        self.position = 0
        return new > 0

    def peek(self) -> str:
        """The next character that is not white space, without consuming it; empty at the end of the file."""
        while True:
            while self.position < len(self.text):
                if self.text[self.position] not in " \t\r\n":
                    return self.text[self.position]
                self.position += 1
            if not self.read():
                return ""


def _array_elements(blocks: Iterable[str], name: str, text_key: str) -> Iterator[str]:
    """The text of each element. One element at a time is decoded, so that memory is bounded."""
    buffer = _Buffer(blocks)
    for number in itertools.count(1):
        character = buffer.peek()
        if character == "]" and number > 1:
            return
        if character != ("[" if number == 1 else ","):
            error = ValueError if character else UnfinishedError
            raise error(f"{name} is not valid JSON after element {number - 1}: get the file again, or correct it")
        buffer.position += 1
        if buffer.peek() == "]" and number == 1:
            return
        where = f"{name}, element {number}"
        value = _decode_element(buffer, where)
        yield _text_of({text_key: value} if isinstance(value, str) else value, where, text_key)


def _decode_element(buffer: _Buffer, where: str) -> Any:
    while True:
        try:
            value, buffer.position = json.JSONDecoder().raw_decode(buffer.text, buffer.position)
            return value
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", error)
        length = len(buffer.text) - buffer.position
        if length > MAX_LENGTH:
            raise ValueError(
                f"{where} is not valid JSON ({reason}), or over {MAX_LENGTH // 1_000_000} MB long: split it"
            )
        if not buffer.read(at_least=max(1, length)):  # doubling keeps the number of attempts small
            raise UnfinishedError(f"{where} is not valid JSON ({reason}): get the file again, or correct it")


def _delimiter(header: str, name: str, text_key: str) -> str:
    """The delimiter that gives the header a column ``text_key``, or else the most columns. In .tsv, tabs come first."""
    columns = {delimiter: _columns(header, delimiter) for delimiter in DELIMITERS}
    if without_gz(name).endswith(".tsv") and len(columns["\t"]) > 1:
        return "\t"
    candidates = [delimiter for delimiter in DELIMITERS if text_key in columns[delimiter]]
    return max(candidates or DELIMITERS, key=lambda delimiter: len(columns[delimiter]))


def _columns(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([header], delimiter=delimiter))
    except csv.Error:  # will be reported with its line
        return []


def _csv_rows(blocks: Iterable[str], name: str, text_key: str) -> Iterator[str]:
    """The column ``text_key`` of each row. Quoted fields may contain line ends.

    The first line that is not blank names the columns. Rows that are too short to have the column are skipped; rows
    that are too long are an error.
    """
    csv.field_size_limit(MAX_LENGTH)  # the default is 131,072; the csv module has only one limit per process
    lines = _lines(blocks, name)
    header = ""
    blank_lines = -1
    while not header.strip():
        header = next(lines, "")
        blank_lines += 1
        if not header:
            raise ValueError(f"{name} has no line with the names of the columns: add one, {OR_PLAIN_TEXT}")
    delimiter = _delimiter(header, name, text_key)
    rows = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    try:
        columns = next(rows)
        if text_key not in columns:
            raise ValueError(
                f"{name} has no column {text_key!r}: give text_key one of {list_names(columns)}; {OR_PLAIN_TEXT}"
            )
        index = columns.index(text_key)
        for row in rows:
            if len(row) > len(columns):
                raise ValueError(
                    f"{name}:{blank_lines + rows.line_num} ends a row of {quantity(len(row), 'field')}, but the first "
                    f"line names {quantity(len(columns), 'column')}: put fields that contain {delimiter!r} in double "
                    "quotes"
                )
            if index < len(row):
                yield row[index]
    except csv.Error as error:
        kind = UnfinishedError if "unexpected end" in str(error) else ValueError
        raise kind(f"{name}:{blank_lines + rows.line_num} is not valid CSV ({error}): correct its quotes") from None
