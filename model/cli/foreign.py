"""The fields of JSON that others wrote: each known one is checked for its type before anything is done with it.

A kind is what to call it and a test; ``check_fields`` names the field, its value and the kind that is needed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Kind = tuple[str, Callable[[Any], bool]]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_ids(value: Any) -> bool:
    return all(_is_whole(item) and item >= 0 for item in (value if isinstance(value, list) else [value]))


WHOLE: Kind = ("a whole number", _is_whole)
NUMBER: Kind = ("a finite number", _is_number)
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
TEXT: Kind = ("a text", _is_text)
TEXTS: Kind = ("a list of texts", _is_texts)
TABLE: Kind = ("a table", lambda value: isinstance(value, dict))
IDS: Kind = ("a token id or a list of them", _is_ids)
TOKEN: Kind = ("a token, as text or as a table with its content", lambda value: _is_text(value) or _is_token(value))


def _is_token(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("content"))


def check_fields(table: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Raise ValueError for the first field that is there, is not null, and is of another kind."""
    for name, (words, fits) in kinds.items():
        if table.get(name) is not None and not fits(table[name]):
            raise ValueError(f"{name} is {shortened(table[name])}: {words} is needed")


def shortened(value: Any) -> str:
    """For one line of a message; a number of thousands of digits is not even written out."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return "a number beyond 2**63"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
