"""The annotation of a setting holds its help and its bounds: ``--help`` shows them, and this file checks the values.

A field is written ``name: Annotated[type, "help"] = default``, with bounds ``Annotated[int, "help", Range(1)]``. Its
type is int, float, bool, str, Path, Literal, ``tuple[str, ...]``, or a frozen dataclass, each also with ``| None``.
"""

import math
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from .config import LARGEST, out_of_range

TEXTS = tuple[str, ...]
TYPE_NAMES = {bool: "true or false", str: "a text", Path: "a path", TEXTS: "a list of texts"}


class Range(NamedTuple):
    """A closed interval: ``dim: Annotated[int, "width of the network", Range(1)] = 256``."""

    low: float = -math.inf
    high: float = LARGEST

    def __str__(self) -> str:
        return f"at least {self.low:,}" if self.high == LARGEST else f"{self.low:,} to {self.high:,}"


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


def check_settings(settings: object, conflicts: Iterable[str] = ()) -> None:
    """Raise ValueError that lists each wrong value of a dataclass instance, and the ``conflicts`` between its fields.

    None is accepted where it is the default.
    """
    problems: list[str] = []
    for name, field in setting_fields(type(settings)).items():
        value = getattr(settings, name)
        if not (value is None and getattr(type(settings), name, 0) is None):
            problems += value_problems(name, value, field)
    raise_problems([*problems, *conflicts])


def value_problems(name: str, value: Any, field: Field) -> Iterator[str]:
    """Yield a message if the value of a setting has the wrong type or is out of its range."""
    kind = field.kind
    if kind in (int, float):
        yield from out_of_range(name, value, kind, *field.range)
    elif not has_type(value, kind):
        expected = TYPE_NAMES.get(kind, "a table like { name = value }")
        if get_origin(kind) is Literal:
            expected = f"one of {', '.join(get_args(kind))}"
        yield f"{name} is {reprlib.repr(value)}: give {expected}"


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value has the type of a setting that is not a number."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind == TEXTS:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return isinstance(value, kind)


def raise_problems(problems: Iterable[str]) -> None:
    """Raise ValueError that lists the problems, if there are any."""
    message = "; ".join(problems)
    if message:
        raise ValueError(message)
