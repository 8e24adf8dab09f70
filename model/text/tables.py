"""Files whose documents are fields: JSON lines, a JSON array, CSV and TSV; and what a file's beginning says it is."""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from ..cli import quantity

Form = Literal["text", "json lines", "json array", "csv"]
LONGEST = 100_000_000  # characters of a line, or of an element of an array, which is held whole
DELIMITERS = ",\t;|"
AS_IT_IS = "or copy it to a name that ends in .txt to train on it as it is"


def form_of(name: str, start: str) -> Form:
    """How to read the file: by the ending of its name and, of a .json, by how its text starts."""
    plain = name.lower().removesuffix(".gz")
    if plain.endswith((".jsonl", ".ndjson")):
        return "json lines"
    if plain.endswith((".csv", ".tsv")):
        return "csv"
    return json_form(start) if plain.endswith(".json") else "text"


def json_form(start: str) -> Form:
    """What a text that starts so is, if it is JSON with documents in it; else plain text."""
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


def has_field(form: Form, name: str, start: str, text_key: str) -> bool:
    """Whether the first document of a file that starts so has its text under ``text_key``.

    If the start is too short to tell, it is assumed to.
    """
    try:
        next(texts(form, [start, " "], name, text_key), None)
    except UnfinishedError:
        return True
    except ValueError:
        return False
    return True


def texts(form: Form, blocks: Iterable[str], name: str, text_key: str) -> Iterator[str]:
    """The text of each document. Raises ValueError that names file and place for one that has none."""
    if form == "csv":
        return _csv_rows(blocks, name, text_key)
    if form == "json array":
        return _array_elements(blocks, name, text_key)
    return _json_lines(blocks, name, text_key)


class UnfinishedError(ValueError):
    """The file ends within a line or an element."""


def _lines(blocks: Iterable[str], name: str) -> Iterator[str]:
    """The lines, with their ends."""
    rest = ""
    number = 0
    for block in blocks:
        *whole, rest = (rest + block).split("\n")
        for line in whole:
            yield line + "\n"
        number += len(whole)
        if len(rest) > LONGEST:
            raise ValueError(f"{name}:{number + 1} is over {LONGEST // 1_000_000} MB long: split the line")
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
    """What an object has under ``text_key``."""
    text = value.get(text_key) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{where} has no text under {text_key!r}: {_which_keys(value)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair is JSON, but not text
        raise ValueError(f"{where} is not valid JSON text ({error}): correct or remove it") from None
    return text


def _which_keys(value: Any) -> str:
    """What to give as text_key for such a value."""
    keys = [key for key in value if isinstance(value[key], str)] if isinstance(value, dict) else []
    return f"give text_key one of {listed(keys)}" if keys else "it has no text at all"


def listed(names: list[str]) -> str:
    return ", ".join(ascii(name) for name in names[:8])


class _Buffer:
    """Text that has been read and not been decoded yet."""

    def __init__(self, blocks: Iterable[str]) -> None:
        self._blocks = iter(blocks)
        self.text = ""
        self.place = 0  # of the first character that is not decoded

    def read(self, least: int = 1) -> bool:
        """Read at least so many characters more; False if the file has none."""
        parts = [self.text[self.place :]]
        wanted = least + len(parts[0])
        while sum(map(len, parts)) < wanted and (block := next(self._blocks, None)) is not None:
            parts.append(block)
        found = any(parts[1:])
        self.text, self.place = "".join(parts), 0
        return found

    def next_sign(self) -> str:
        """The next character that is not white space, which stays; empty at the end of the file."""
        while True:
            while self.place < len(self.text):
                if self.text[self.place] not in " \t\r\n":
                    return self.text[self.place]
                self.place += 1
            if not self.read():
                return ""


def _array_elements(blocks: Iterable[str], name: str, text_key: str) -> Iterator[str]:
    """Each element is decoded as soon as it has been read: the array is never held whole."""
    buffer = _Buffer(blocks)
    for number in itertools.count(1):
        sign = buffer.next_sign()
        if sign == "]" and number > 1:
            return
        if sign != ("[" if number == 1 else ","):
            error = UnfinishedError if not sign else ValueError
            raise error(f"{name} is not valid JSON after element {number - 1}: get it again, or correct it")
        buffer.place += 1
        if buffer.next_sign() == "]" and number == 1:
            return
        where = f"{name}, element {number}"
        value = _decode_element(buffer, where)
        yield _text_of({text_key: value} if isinstance(value, str) else value, where, text_key)


def _decode_element(buffer: _Buffer, where: str) -> Any:
    while True:
        try:
            value, buffer.place = json.JSONDecoder().raw_decode(buffer.text, buffer.place)
            return value
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", error)
        held = len(buffer.text) - buffer.place
        if held > LONGEST:
            raise ValueError(f"{where} is not valid JSON ({reason}), or over {LONGEST // 1_000_000} MB long: split it")
        if not buffer.read(least=max(1, held)):  # twice as much each time: a long element is decoded few times
            raise UnfinishedError(f"{where} is not valid JSON ({reason}): get the file again, or correct it")


def _csv_rows(blocks: Iterable[str], name: str, text_key: str) -> Iterator[str]:
    """The column ``text_key``, as the first line calls it, of each row; a quoted field may have line ends in it."""
    csv.field_size_limit(LONGEST)  # which the csv module has for the whole process only; by default 131,072
    lines = _lines(blocks, name)
    header = ""
    while not header.strip():
        header = next(lines, "")
        if not header:
            raise ValueError(f"{name} has no line with the columns' names: write one, {AS_IT_IS}")
    delimiter = max(DELIMITERS, key=header.count)
    rows = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    try:
        columns = next(rows)
        if text_key not in columns:
            raise ValueError(f"{name} has no column {text_key!r}: give text_key one of {listed(columns)}, {AS_IT_IS}")
        place = columns.index(text_key)
        for row in rows:
            if len(row) > len(columns):
                raise ValueError(
                    f"{name}:{rows.line_num} ends a row of {quantity(len(row), 'field')}, the first line names "
                    f"{quantity(len(columns), 'column')}: put fields with a {delimiter!r} in them between double quotes"
                )
            if place < len(row):
                yield row[place]
    except csv.Error as error:
        kind = UnfinishedError if "unexpected end" in str(error) else ValueError
        raise kind(f"{name}:{rows.line_num} is not valid CSV ({error}): correct its quotes") from None
