"""Properties of right functions and comparisons of results, from which the text of a verdict is made."""

import math
from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import faults as known
from .calls import Trial
from .faults import Fault
from .recipe import same

ROWS_SHOWN = 3  # of the rows that differ in the smallest case
COLUMNS_SHOWN = 6


class Property(NamedTuple):
    """A sentence that is true of a right function, its measured and expected value, and where to look if it fails."""

    sentence: str
    measured: float | str
    expected: float | str
    look: str = ""
    tolerance: float = 3e-3

    def holds(self) -> bool:
        if isinstance(self.measured, str) or isinstance(self.expected, str):
            return self.measured == self.expected
        return math.isfinite(self.measured) and abs(self.measured - self.expected) <= self.tolerance

    def __str__(self) -> str:
        measured, expected = with_digits(self.measured, 4), with_digits(self.expected, 4)
        if measured == expected:  # the difference needs more digits
            measured, expected = with_digits(self.measured, 8), with_digits(self.expected, 8)
        return f"{self.sentence}:\nyours {measured}, expected {expected}."


def with_digits(value: float | str, digits: int) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}g}"


class Comparison(NamedTuple):
    """One call of the reader's function, with the results that it returned and those expected."""

    call: str  # for example "causal_mask(0, 2)"
    results: list[tuple[str, Any, Tensor]]  # name, yours, expected
    inputs: tuple[tuple[str, Tensor], ...] = ()  # small inputs to show


# The fault of a function that breaks a promise of its docstring, and the property that shows it
Requirement = tuple[Fault, Property]


def keeps_arguments(trials: Iterable[Trial]) -> Requirement:
    """The requirement that the calls did not overwrite their arguments."""
    names = dict.fromkeys(name for trial in trials for name in trial.overwritten)
    return known.CHANGED, Property("Overwritten arguments", ", ".join(names) or "none", "none")


def smallest_case(comparisons: Iterable[Comparison]) -> list[str]:
    """The first comparison with a difference, as lines: the call, its inputs, and your and the expected numbers."""
    for call, results, inputs in comparisons:
        different = [(name, yours, expected) for name, yours, expected in results if not same(yours, expected)]
        if not different:
            continue
        lines = [call]
        for name, x in inputs:
            lines += row_lines(name, {"": x}, rows_of(x))
        for name, yours, expected in different:
            if not isinstance(yours, Tensor) or yours.shape != expected.shape:
                lines.append(f"{name}: yours {kind(yours)}, expected {kind(expected)}")
                continue
            differing = [index for index in rows_of(expected) if not same(yours[index], expected[index])]
            lines += row_lines(name, {"yours": yours, "expected": expected}, differing)
        return lines
    return []


def rows_of(x: Tensor) -> list[tuple[int, ...]]:
    return list(product(*map(range, x.shape[:-1])))


def row_lines(name: str, tensors: dict[str, Tensor], rows: list[tuple[int, ...]]) -> list[str]:
    """Rows of tensors of equal shape, one below the other: ``q[0, 1, 0]  yours  0.5403 -0.8415``."""
    lines = []
    for index in rows[:ROWS_SHOWN]:
        place = f"{name}[{', '.join(map(str, index))}]" if index else name
        for title, x in tensors.items():
            numbers = "  ".join(number(value) for value in x[index].reshape(-1)[:COLUMNS_SHOWN])
            dots = "  .." if x.shape[-1] > COLUMNS_SHOWN else ""
            lines.append(f"{place:16} {title:9}{numbers}{dots}")
            place = ""
    if len(rows) > ROWS_SHOWN:
        lines.append(f"{name}: {len(rows) - ROWS_SHOWN} more rows")
    return lines


def number(value: Tensor) -> str:
    if value.dtype == torch.bool:
        return f"{bool(value)!s:5}"
    if value.is_complex():
        return f"{value.real:.4f}{value.imag:+.4f}j"
    return f"{float(value):9.4g}"


def kind(value: Any) -> str:
    """The shape of a tensor, the type of any other value."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
