"""Findings, which are measurements that differ from the expected ones, and the verdict on one function."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from .faults import Fault

WIDTH = 100
GOOD = ("right", "half-split")


class Finding(NamedTuple):
    """What was measured, the reader's value and the expected one, and the mistake that it shows if it has a name."""

    measured: str
    yours: str
    expected: str
    fault: Fault | None = None

    def only_in(self, tensor: str) -> "Finding":
        return self._replace(fault=self.fault and self.fault.only_in(tensor))


def numbers(x: Tensor, digits: int = 4) -> str:
    return ", ".join(f"{float(value) + 0.0:.{digits}g}" for value in x)


@dataclass
class Verdict:
    """The outcome for one function: right, half-split, wrong, raised (an exception), stopped, unwritten or missing.

    ``stopped`` is a function that took too long or ended the process. The outcome for a file is unloaded if a statement
    of it failed, and loaded if it printed something.
    """

    function: str
    outcome: str
    problem: str = ""  # why it raised, stopped, is missing or was not loaded
    findings: list[Finding] = field(default_factory=list)
    step: int = 0  # of docs/rope.md, about the function
    remarks: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)  # the last lines that the function printed

    @property
    def faults(self) -> list[Fault]:
        return list(dict.fromkeys(finding.fault for finding in self.findings if finding.fault))

    def lines(self, hint_only: bool) -> Iterator[str]:
        yield self.problem if self.outcome == "unloaded" else f"{self.function}: {self._head(hint_only)}"
        for number, finding in enumerate(self.findings):
            yield from wrapped(f"{finding.measured}:")
            yield from wrapped(f"yours {finding.yours}; expected {finding.expected}.", "    ")
            is_last = finding.fault not in [later.fault for later in self.findings[number + 1 :]]
            if finding.fault and is_last and not hint_only:
                yield from wrapped(f"{finding.fault.why} See docs/rope.md, step {finding.fault.step}.")
        if self.findings and not self.faults and not hint_only:
            yield from wrapped(f"This mistake has no name. See docs/rope.md, step {self.step}.")
        if self.findings and self.problem:
            yield from wrapped(f"It also raises an exception: {self.problem}")
        yield from (line for remark in self.remarks for line in wrapped(remark))
        yield from (f"  | {line}" for line in self.printed)

    def _head(self, hint_only: bool) -> str:
        if self.faults and not hint_only:
            return f"wrong: {', and '.join(fault.name for fault in self.faults)}"
        if self.outcome in ("raised", "stopped", "missing"):
            return f"{self.outcome}: {self.problem}"
        half_split = "right, in the half-split layout (channel i pairs with i + D/2, as in Hugging Face)"
        return {"half-split": half_split, "unwritten": "not written yet"}.get(self.outcome, self.outcome)


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
