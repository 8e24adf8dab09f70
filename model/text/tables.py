"""Read the documents in the fields of JSON lines, JSON arrays, CSV and TSV, and detect these formats."""

import csv
import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal, TextIO

from ..cli import quantity

FileFormat = Literal["text", "json lines", "json array", "csv"]
MAX_LENGTH = 100_000_000  # characters of a line, because all of it is held in memory
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
    try:
        is_lines = second.lstrip()[:1] == "{" and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        is_lines = False
    return "json lines" if is_lines else "text"


def has_field(file_format: FileFormat, start: str, text_key: str) -> bool:
    """Whether the first documents of a file that starts with ``start`` have the field ``text_key``."""
    start = start.lstrip("\ufeff \t\r\n")
    if file_format == "csv":
        header = start.partition("\n")[0]
        return any(text_key in _columns(header, delimiter) for delimiter in DELIMITERS)
    is_array_of_texts = file_format == "json array" and start[1:].lstrip().startswith('"')
    return is_array_of_texts or json.dumps(text_key) in start or json.dumps(text_key, ensure_ascii=False) in start


def texts(file: TextIO, name: str, file_format: FileFormat, text_key: str) -> Iterator[str]:
    """The text of each document. Raises ValueError with the place in the file if the file is invalid."""
    if file_format == "csv":
        return _csv_rows(file, name, text_key)
    if file_format == "json array":
        return _array_elements(file, name, text_key)
    return _json_lines(file, name, text_key)


def _lines(file: TextIO, name: str) -> Iterator[str]:
    """The lines with their line ends."""
    for number in itertools.count(1):
        line = file.readline(MAX_LENGTH + 1)
        if not line:
            return
        if len(line) > MAX_LENGTH:
            raise ValueError(f"{name}:{number} is over {MAX_LENGTH // 1_000_000} MB long: split the line")
        yield line


def _json_lines(file: TextIO, name: str, text_key: str) -> Iterator[str]:
    for number, line in enumerate(_lines(file, name), 1):
        if line.strip():
            value = _parsed(line, f"{name}:{number}")
            yield _text_of(value, f"{name}:{number}", text_key)


def _array_elements(file: TextIO, name: str, text_key: str) -> Iterator[str]:
    """The text of each element. The whole array is held in memory."""
    for number, value in enumerate(_parsed(file.read(), name), 1):
        yield _text_of({text_key: value} if isinstance(value, str) else value, f"{name}, element {number}", text_key)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON text ({error}): correct it, or get the file again") from None


def _text_of(value: Any, where: str, text_key: str) -> str:
    """The string that an object has under ``text_key``."""
    text = value.get(text_key) if isinstance(value, dict) else None
    if not isinstance(text, str):
        keys = [key for key in value if isinstance(value[key], str)] if isinstance(value, dict) else []
        remedy = f"give text_key one of {_list_names(keys)}" if keys else "it has no text at all"
        raise ValueError(f"{where} has no text under {text_key!r}: {remedy}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON allows half of a surrogate pair, UTF-8 does not
        raise ValueError(f"{where} is not valid JSON text ({error}): correct or remove it") from None
    return text


def _list_names(names: list[str]) -> str:
    return ", ".join(ascii(name) for name in names[:8])


def _csv_rows(file: TextIO, name: str, text_key: str) -> Iterator[str]:
    """The column ``text_key`` of each row. Quoted fields may contain line ends.

    The first line that is not blank names the columns. Rows that are too short to have the column are skipped; rows
    that are too long are an error.
    """
    csv.field_size_limit(MAX_LENGTH)  # the default is 131,072; the csv module has only one limit per process
    lines = itertools.dropwhile(lambda line: not line.strip(), _lines(file, name))
    header = next(lines, None)
    if header is None:
        raise ValueError(f"{name} has no line with the names of the columns: add one, {OR_PLAIN_TEXT}")
    delimiter = _delimiter(header, name, text_key)
    rows = csv.DictReader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    try:
        columns = list(rows.fieldnames or ())
        if text_key not in columns:
            raise ValueError(
                f"{name} has no column {text_key!r}: give text_key one of {_list_names(columns)}; {OR_PLAIN_TEXT}"
            )
        for row in rows:
            if None in row:  # where DictReader puts the fields that have no column
                raise ValueError(
                    f"{name}, line {rows.reader.line_num} of the table, ends a row of "
                    f"{quantity(len(columns) + len(row[None]), 'field')}, but there are "
                    f"{quantity(len(columns), 'column')}: put fields that contain {delimiter!r} in double quotes"
                )
            if row[text_key] is not None:
                yield row[text_key]
    except csv.Error as error:
        raise ValueError(
            f"{name}, line {rows.reader.line_num} of the table, is not valid CSV ({error}): correct its quotes"
        ) from None


def _delimiter(header: str, name: str, text_key: str) -> str:
    """The delimiter that gives the header a column ``text_key``, or else the most columns. In .tsv, tabs come first.

    csv.Sniffer finds none for a single column, takes the full stop of prose for one, and misses doubled quotes.
    """
    columns = {delimiter: _columns(header, delimiter) for delimiter in DELIMITERS}
    if without_gz(name).endswith(".tsv") and len(columns["\t"]) > 1:
        return "\t"
    candidates = [delimiter for delimiter in DELIMITERS if text_key in columns[delimiter]]
    return max(candidates or DELIMITERS, key=lambda delimiter: len(columns[delimiter]))


def _columns(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:  # will be reported with its line
        return []
