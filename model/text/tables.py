"""Read the documents in the fields of JSON lines, JSON arrays, CSV and TSV, and detect these formats."""

import csv
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal, TextIO

FileFormat = Literal["text", "json lines", "json array", "csv", "documentation"]
MAX_HEADER, MAX_FIELD = 1 << 16, 100_000_000  # characters of the first row and of a field of a CSV file
DELIMITERS = ",\t;|"


def format_of(name: str, start: str) -> FileFormat:
    """The format of a file, by the ending of its name; for a .json file also by the ``start`` of its text."""
    name = name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return "json lines"
    if name.endswith((".csv", ".tsv")):
        return "csv"
    return json_format(start) if name.endswith(".json") else "text"


def json_format(start: str) -> FileFormat:
    """The JSON format of a text that starts with ``start``; "text" if it is not JSON with documents."""
    start = start.lstrip()
    if start[:1] == "[" and start[1:].lstrip()[:1] in ("{", '"'):
        return "json array"
    first, _, second = start.partition("\n")
    try:
        is_lines = second.lstrip()[:1] == "{" and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        is_lines = False
    return "json lines" if is_lines else "text"


def has_field(file_format: FileFormat, start: str, text_key: str) -> bool:
    """Whether the first documents of a table or an array that starts with ``start`` have the field ``text_key``."""
    if file_format == "csv":
        return text_key in _columns(start, text_key)[1]
    is_array_of_texts = start.lstrip()[1:].lstrip().startswith('"')
    return is_array_of_texts or json.dumps(text_key) in start or json.dumps(text_key, ensure_ascii=False) in start


def texts(file: TextIO, name: str, file_format: FileFormat, text_key: str) -> Iterator[str]:
    """The text of each document. Raises ValueError with the place in the file if the file is invalid."""
    if file_format == "csv":
        yield from _csv_rows(file, name, text_key)
        return
    for where, value in _json_values(file, name, file_format):
        fields = value if isinstance(value, dict) else {text_key: value}
        text = fields.get(text_key)
        if not isinstance(text, str):
            candidates = [key for key in fields if isinstance(fields[key], str)]
            remedy = f"give text_key one of {_list_names(candidates)}" if candidates else "it has no text at all"
            raise ValueError(f"{where} has no text under {text_key!r}: {remedy}")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON allows half of a surrogate pair, UTF-8 does not
            raise ValueError(f"{where} is not valid JSON text ({error}): correct or remove it") from None
        yield text


def _json_values(file: TextIO, name: str, file_format: FileFormat) -> Iterator[tuple[str, Any]]:
    """Each object or text, and its place for errors. An array is held in memory as a whole."""
    if file_format == "json array":
        for number, value in enumerate(_parsed(file.read(), name), 1):
            yield f"{name}, element {number}", value
        return
    for number, line in enumerate(file, 1):
        if line.strip():
            yield f"{name}:{number}", _parsed(line, f"{name}:{number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON text ({error}): correct it, or get the file again") from None


def _csv_rows(file: TextIO, name: str, text_key: str) -> Iterator[str]:
    """The column ``text_key`` of each row. The first row names the columns; quoted fields may contain line ends.

    Rows that are too short to have the column are skipped; rows that are too long are an error.
    """
    csv.field_size_limit(MAX_FIELD)  # the default is 131,072; the csv module has only one limit per process
    start = file.read(MAX_HEADER) + file.readline()  # whole lines
    delimiter, columns = _columns(start, text_key)
    if text_key not in columns:
        raise ValueError(
            f"{name} has no column {text_key!r}: give text_key one of {_list_names(columns)}, or copy the file to a "
            "name that ends in .txt to train on it as it is"
        )
    lines = itertools.chain(io.StringIO(start, newline=""), file)
    rows = csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        for row in rows:
            if None in row:  # where DictReader puts the fields that have no column
                raise csv.Error(f"{len(columns) + len(row[None])} fields for {len(columns)} columns")
            if row[text_key] is not None:
                yield row[text_key]
    except csv.Error as error:
        raise ValueError(
            f"{name}, line {rows.reader.line_num} of the table, is not valid CSV ({error}): put fields that contain "
            f"{delimiter!r} in double quotes, and double the quotes inside them"
        ) from None


def _columns(start: str, text_key: str) -> tuple[str, list[str]]:
    """The delimiter that gives the first row a column ``text_key``, or else the most columns; and these columns.

    csv.Sniffer finds none for a single column, takes the full stop of prose for one, and misses doubled quotes.
    """
    splits = []
    for delimiter in DELIMITERS:
        rows = csv.reader(io.StringIO(start, newline=""), delimiter=delimiter)
        splits.append((delimiter, next(rows, [])))
    return max(splits, key=lambda split: (text_key in split[1], len(split[1])))


def _list_names(names: list[str]) -> str:
    return ", ".join(ascii(name) for name in names[:8])
