"""The annotation of a setting holds its help and its bounds: ``--help`` shows them, and this file checks the values.

A field is written ``name: Annotated[type, "help"] = default``, with bounds ``Annotated[int, "help", Range(1)]``. Its
type is int, float, bool, str, Path, Literal, a tuple of one of these, any of them ``| None``, or a frozen dataclass.
"""

import math
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

LARGEST_INTEGER = 2**63 - 1  # the largest that a tensor can hold
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


@dataclass(frozen=True)
class Range:
    """A closed interval of finite numbers: ``dim: Annotated[int, "width of the network", Range(1)] = 256``."""

    low: float = -math.inf
    high: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and abs(value) != math.inf  # isfinite overflows for large ints

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"at least {_format(self.low)}"
        return f"{_format(self.low)} to {_format(self.high)}"


def _format(number: float) -> str:
    return f"{int(number):,}" if number == int(number) and abs(number) < 2**40 else f"{number:g}"


class Field(NamedTuple):
    """A setting's type, without ``| None``, its help and its range."""

    kind: Any
    help: str
    range: Range


def setting_fields(*classes: type) -> dict[str, Field]:
    """The fields of the dataclasses by name."""
    fields = {}
    for cls in classes:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            if get_origin(kind) in (Union, UnionType):
                kind = next(arm for arm in get_args(kind) if arm is not type(None))
            text = next((extra for extra in extras if isinstance(extra, str)), "")
            bounds = next((extra for extra in extras if isinstance(extra, Range)), Range())
            fields[name] = Field(kind, text, bounds)
    return fields


def range_problems(settings: object) -> Iterator[str]:
    """Yield a message for each field of a dataclass instance whose value has the wrong type or is out of its range.

    None is accepted where it is the default. Only numbers, booleans and Literals are checked.
    """
    for name, (kind, _, bounds) in setting_fields(type(settings)).items():
        value = getattr(settings, name)
        is_unset = value is None and getattr(type(settings), name, 0) is None
        is_number_kind = kind in (int, float)
        if is_unset or not (is_number_kind or kind is bool or get_origin(kind) is Literal):
            continue
        if not has_type(value, kind) or (is_number_kind and value not in bounds):
            yield wrong_value(name, value, kind, bounds)


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value has the type of a setting; integers beyond those of a tensor do not."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind in (int, float):
        return is_number(value, kind) and (isinstance(value, float) or abs(value) <= LARGEST_INTEGER)
    return isinstance(value, kind)


def wrong_value(name: str, value: Any, kind: Any, bounds: Range = Range()) -> str:
    """An error message: the value of a setting, and what to give instead."""
    expected = TYPE_NAMES.get(kind, "a table like { name = value }")
    if get_origin(kind) is Literal:
        expected = f"one of {', '.join(map(str, get_args(kind)))}"
    elif bounds != Range():
        expected += f" {'from' if bounds.high < math.inf else 'of'} {bounds}"
    limit = ", below 2**63" if is_number(value, int) and value > LARGEST_INTEGER else ""
    return f"{name} is {reprlib.repr(value)}: give {expected}{limit}"


def is_number(value: object, kind: type = float) -> bool:
    """Whether a value is an int, or for float also a float. True and False are no numbers here."""
    kinds = int if kind is int else int | float
    return isinstance(value, kinds) and not isinstance(value, bool)


def raise_problems(problems: Iterable[str]) -> None:
    """Raise ValueError that lists the problems, if there are any."""
    message = "; ".join(problems)
    if message:
        raise ValueError(message)
