"""The verdict on one function: right, or the property that fails, the mistake, and the smallest case."""

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import faults as known
from .calls import written_signature
from .faults import Fault
from .properties import Comparison, Property, Requirement, smallest_case

WIDTH = 100
GOOD = ("right", "half-split")


@dataclass
class Verdict:
    """The outcome for one function: right, half-split, wrong, raised (an exception), stopped, unwritten or missing.

    ``stopped`` is a function that took too long or ended the process, or whose result cannot be judged. The outcome for
    a file is unloaded if a statement of it failed, and loaded if it printed something.
    """

    function: str
    outcome: str
    hint: str = ""  # the property that fails, with its numbers on a second line, or the exception
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
        for number, line in enumerate(self.hint.splitlines()):
            if number == 0:
                yield from wrapped(line)
            else:
                yield f"    {line}"
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
        if self.outcome in ("raised", "stopped", "missing"):
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
        return Verdict(function, "wrong", hint or f"It raises an exception, {problem}.", list(faults))
    if problem:
        return Verdict(function, "raised", problem)
    look = "It matches none of the known mistakes."
    if failing and failing.look:
        look += f" {failing.look}"
    look += f" See docs/rope.md, step {step}."
    return Verdict(function, "wrong", hint, look=look, case=smallest_case(comparisons))


def with_requirements(function: str, requirements: Iterable[Requirement], outcome: str) -> Verdict:
    """The verdict on a function with right numbers: wrong if it fails a requirement of its docstring."""
    for fault, required in requirements:
        if not required.holds():
            return Verdict(function, "wrong", str(required), [fault])
    return Verdict(function, outcome)


def in_other_order(
    function: str, names: list[str], order: tuple[int, ...], written: Callable[..., Any], method: str = ""
) -> Verdict:
    """The verdict on a function that would be right with its arguments, ``names``, in another order."""
    expected = f"({', '.join(names)})"
    yours = f"({', '.join(names[place] for place in order)}), written as {written_signature(written)}"
    hint = f"{method or function} is called with {expected}, in this order"
    return Verdict(function, "wrong", str(Property(hint, yours, expected)), [known.ORDER])
