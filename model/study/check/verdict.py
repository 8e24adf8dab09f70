"""The verdict on one function: right, or the property that fails, the mistake, and the smallest case."""

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import faults as known
from .calls import Trial, written_signature
from .faults import Fault
from .recipe import same

WIDTH = 100
ROWS_SHOWN = 3  # of the rows that differ in the smallest case
COLUMNS_SHOWN = 6
GOOD = ("right", "half-split")


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
        return f"{self.sentence}: yours {measured}, expected {expected}."


def with_digits(value: float | str, digits: int) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}g}"


class Comparison(NamedTuple):
    """One call of the reader's function, with the results that it returned and those expected."""

    call: str  # for example "causal_mask(0, 2)"
    results: list[tuple[str, Any, Tensor]]  # name, yours, expected
    inputs: tuple[tuple[str, Tensor], ...] = ()  # small inputs to show


@dataclass
class Verdict:
    """The outcome for one function: right, half-split, wrong, stopped, unwritten or missing.

    The outcome for a file is unloaded if a statement of it failed, and loaded if it printed something.
    """

    function: str
    outcome: str
    hint: str = ""  # the property that fails, or the exception
    faults: list[Fault] = field(default_factory=list)
    look: str = ""  # where to look, if the mistake is unknown
    case: list[str] = field(default_factory=list)  # the smallest case, line by line, if the mistake is unknown
    remarks: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)  # the last lines that the function printed

    @property
    def fault_names(self) -> str:
        return ", and ".join(fault.name for fault in self.faults)

    def lines(self, hint_only: bool) -> Iterator[str]:
        if self.outcome == "unloaded":
            yield self.hint
        else:
            yield f"{self.function}: {self._head(hint_only)}"
        if self.outcome == "wrong":
            yield from self._explanation(hint_only)
        for remark in self.remarks:
            yield from wrapped(remark)
        for line in self.printed:
            yield f"  | {line}"

    def _explanation(self, hint_only: bool) -> Iterator[str]:
        sentence, _, numbers = self.hint.rpartition(": yours ")
        if sentence:
            yield from wrapped(f"{sentence}:")
            yield f"    yours {numbers}"
        elif self.hint:
            yield from wrapped(self.hint)
        if hint_only:
            return
        for fault in self.faults:
            yield from wrapped(f"{fault.why} See docs/rope.md, step {fault.step}.")
        if self.case:
            yield "  The smallest case that shows it:"
            yield from (f"    {line}" for line in self.case)
        if self.look:
            yield from wrapped(self.look)

    def _head(self, hint_only: bool) -> str:
        if self.outcome == "half-split":
            return "right, in the half-split layout (channel i pairs with i + D/2, as in Hugging Face)"
        if self.outcome == "wrong" and self.faults and not hint_only:
            return f"wrong: {self.fault_names}"
        if self.outcome in ("stopped", "missing"):
            return f"{self.outcome}: {self.hint}"
        if self.outcome == "unwritten":
            return "not written yet"
        return self.outcome


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def wrong(
    function: str,
    faults: Iterable[Fault] | None,
    properties: Iterable[Property],
    comparisons: Iterable[Comparison],
    step: int,
    problem: str = "",
) -> Verdict:
    """The verdict on a function that is not right: the first property that fails, and the mistake if it is known.

    ``step`` is the step of docs/rope.md about the function, ``problem`` the first exception. The iterables are read
    only as far as needed.
    """
    failing = next((each for each in properties if not each.holds()), None)
    hint = str(failing) if failing else ""
    if faults:
        return Verdict(function, "wrong", hint or f"It ends in {problem}.", list(faults))
    if problem:
        return Verdict(function, "stopped", problem)
    look = "It is none of the known mistakes, and no two of them."
    if failing and failing.look:
        look += f" {failing.look}"
    look += f" See docs/rope.md, step {step}."
    return Verdict(function, "wrong", hint, look=look, case=smallest_case(comparisons))


Requirement = tuple[Fault, Property]  # of the docstring, and the fault of a function that fails it


def with_requirements(function: str, requirements: Iterable[Requirement], outcome: str) -> Verdict:
    """The verdict on a function with right numbers: wrong if it fails a requirement of its docstring."""
    for fault, required in requirements:
        if not required.holds():
            return Verdict(function, "wrong", str(required), [fault])
    return Verdict(function, outcome)


def keeps_arguments(trials: Iterable[Trial]) -> Requirement:
    """The requirement that the calls did not overwrite their arguments."""
    names = dict.fromkeys(name for trial in trials for name in trial.overwritten)
    return known.CHANGED, Property("No argument is overwritten; it overwrites", ", ".join(names) or "none", "none")


def in_other_order(
    function: str, names: list[str], order: tuple[int, ...], written: Callable[..., Any], method: str = ""
) -> Verdict:
    """The verdict on a function that would be right with its arguments, ``names``, in another order."""
    expected = f"({', '.join(names)})"
    yours = f"({', '.join(names[place] for place in order)}), as {written_signature(written)}"
    hint = f"{method or function} is called with {expected}, in this order"
    return Verdict(function, "wrong", str(Property(hint, yours, expected)), [known.ORDER])


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
