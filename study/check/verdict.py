"""Findings, which are measurements that differ from the expected ones, and the verdict on one function.

A mistake that has a name is one of faults.toml, and is written as its key there, ``SIGN``, or as ``SIGN, in q only``.
"""

import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

# The functions to judge, and the steps of docs/rope.md about them.
FUNCTIONS = {
    "precompute_freqs_cis": 4,
    "reshape_for_broadcast": 4,
    "apply_rotary_emb": 3,
    "causal_mask": 8,
    "KVCache": 8,
    "attention": 7,
}
FAULTS: dict[str, dict[str, str]] = {}  # name, why and step of each mistake
for _step, _faults in tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8")).items():
    FAULTS |= {key: texts | {"step": _step} for key, texts in _faults.items()}
RIGHT, UNWRITTEN, LOADED = "right", "not written yet", "loaded"
HALF_SPLIT = "right, in the half-split layout (channel i pairs with i + D/2, as in Hugging Face)"
GOOD = (RIGHT, HALF_SPLIT, UNWRITTEN, LOADED)


class Finding(NamedTuple):
    """What was measured, the reader's value and the expected one, and the mistake that it shows if it has a name."""

    measured: str
    yours: str
    expected: str
    fault: str = ""

    def only_in(self, tensor: str) -> "Finding":
        return self._replace(fault=self.fault and f"{self.fault}, in {tensor} only")


@dataclass
class Verdict:
    """The outcome for one function: one of the texts above, or wrong, raised (an exception) or stopped.

    ``stopped`` is a function that took too long or ended the process. The outcome for a file is unloaded if a statement
    of it failed, and loaded if it printed something.
    """

    function: str
    outcome: str
    problem: str = ""  # why it raised, stopped, or was not loaded
    findings: list[Finding] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)  # the last lines that the function printed

    @property
    def faults(self) -> list[str]:
        return list(dict.fromkeys(finding.fault for finding in self.findings if finding.fault))

    def lines(self, hint_only: bool) -> Iterator[str]:
        head = f"{self.function}: {self.outcome}"
        if self.faults and not hint_only:
            head += f": {', and '.join(map(name_of, self.faults))}"
        elif self.problem and not self.findings:
            head += f": {self.problem}"
        yield self.problem if self.outcome == "unloaded" else head
        for number, finding in enumerate(self.findings):
            yield from wrapped(f"{finding.measured}:")
            yield from wrapped(f"yours {finding.yours}; expected {finding.expected}.", "    ")
            if not hint_only and finding.fault not in [later.fault for later in self.findings[number + 1 :]]:
                yield from wrapped(explanation(finding.fault, self.function))
        if self.findings and self.problem:
            yield from wrapped(f"It also raises an exception: {self.problem}")
        yield from (f"  | {line}" for line in self.printed)


def name_of(fault: str) -> str:
    key, comma, where = fault.partition(",")
    return f"{FAULTS[key]['name']}{comma}{where}"


def explanation(fault: str, function: str) -> str:
    key = fault.partition(",")[0]
    why = FAULTS[key]["why"] if key else "This mistake has no name."
    step = FAULTS[key]["step"] if key else FUNCTIONS[function]
    page = "rope-models.md" if int(step) > 8 else "rope.md"
    return f"{why} See docs/{page}, step {step}."


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def first(named: Iterable[tuple[str, Any]]) -> str:
    """The first fault that holds; empty if there is none."""
    return next((fault for fault, holds in named if holds), "")


def in_common(rules: Iterable[tuple[str, Callable[..., bool]]], cases: Sequence[tuple[Any, ...]]) -> str:
    """The fault of the first rule that holds for all cases; empty if there is none."""
    return first((fault, cases and all(rule(*case) for case in cases)) for fault, rule in rules)


def numbers(x: Tensor) -> str:
    return ", ".join(f"{float(value) + 0.0:.4g}" for value in x)
