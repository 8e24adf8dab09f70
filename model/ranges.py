"""The bounds of settings stand in the annotations of dataclasses: ``--help`` shows them, and this file checks them."""

import math
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST_INTEGER = 2**63 - 1  # the largest that a tensor can hold


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


def range_problems(settings: object) -> Iterator[str]:
    """Yield a message for each field of a dataclass instance whose value has the wrong type or is out of its range.

    None is accepted where it is the default. Only numbers, booleans and Literals are checked.
    """
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        kind, bounds = kind_and_range(hint)
        value = getattr(settings, name)
        is_unset = value is None and getattr(type(settings), name, 0) is None
        if not is_unset and not is_valid(value, kind, bounds):
            limit = " and below 2**63" if is_number(value, int) and value > LARGEST_INTEGER else ""
            yield f"{name} is {reprlib.repr(value)}: give {expected(kind, bounds)}{limit}"


def is_valid(value: Any, kind: Any, bounds: Range) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return is_number(value, int) and value in bounds and abs(value) <= LARGEST_INTEGER
    return kind is not float or (is_number(value) and value in bounds)


def expected(kind: Any, bounds: Range) -> str:
    """What to give for a setting, for error messages."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if kind is bool:
        return "true or false"
    noun = "a whole number" if kind is int else "a number"
    if bounds == Range():
        return noun
    if bounds.high < math.inf:
        return f"{noun} from {bounds}"
    return f"{noun} of {bounds}"


def kind_and_range(hint: Any) -> tuple[Any, Range]:
    """The type in an annotation, without ``| None``, and its ``Range``, ``Range()`` if it has none."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    if extras:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        hint = next(arm for arm in get_args(hint) if arm is not type(None))
    return hint, next((extra for extra in extras if isinstance(extra, Range)), Range())


def is_number(value: object, kind: type = float) -> bool:
    """Whether a value is an int, or for float also a float. True and False are no numbers here."""
    kinds = int if kind is int else int | float
    return isinstance(value, kinds) and not isinstance(value, bool)


def raise_problems(problems: Iterable[str]) -> None:
    """Raise ValueError that lists the problems, if there are any."""
    message = "; ".join(problems)
    if message:
        raise ValueError(message)
