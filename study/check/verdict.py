"""The verdict on one function, and its text."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .mistakes import Mistake

# The functions to judge, and the steps of docs/rope.md about them.
STEPS = {
    "precompute_freqs_cis": 5,
    "reshape_for_broadcast": 4,
    "apply_rotary_emb": 3,
    "to_neighbours": 3,
    "to_halves": 3,
    "causal_mask": 8,
    "KVCache": 8,
    "attention": 7,
}
RIGHT, UNWRITTEN, LOADED = "right", "not written yet", "loaded"
HALF_SPLIT = "right, in the half-split layout (channel i pairs with i + D/2, as in Hugging Face)"


class Finding(NamedTuple):
    """What was measured, the reader's value and the expected one."""

    measured: str
    yours: str
    expected: str


class Named(NamedTuple):
    """A mistake that the reader made, in q or k only, and the line of mistakes.txt that gives the same results."""

    mistake: Mistake
    only: str = ""
    wrong: str = ""
    right: str = ""

    @property
    def where(self) -> str:
        return f", in {self.only} only" if self.only else ""


@dataclass
class Verdict:
    """The outcome for one function: one of the texts above, or wrong, raised (an exception) or stopped.

    ``stopped`` is a function that took too long or ended the process. The outcome for a file is unloaded if a statement
    of it failed, and loaded if it printed something.
    """

    function: str
    outcome: str
    problem: str = ""  # why it raised, stopped, or was not loaded
    named: list[Named] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)  # the last lines that the function printed

    @property
    def is_good(self) -> bool:
        return self.outcome.startswith(RIGHT) or self.outcome in (UNWRITTEN, LOADED)

    def lines(self, hint_only: bool) -> Iterator[str]:
        if self.outcome == "unloaded":
            yield self.problem
        elif self.named and hint_only:
            yield f"{self.function}: {self.outcome}{', and'.join(dict.fromkeys(each.where for each in self.named))}"
        elif self.named:
            names = dict.fromkeys(each.mistake.name + each.where for each in self.named)
            yield f"{self.function}: {self.outcome}: {', and '.join(names)}"
        else:
            yield f"{self.function}: {self.outcome}{': ' if self.problem and not self.findings else ''}" + (
                "" if self.findings else self.problem
            )
        for finding in self.findings:
            yield from wrapped(f"{finding.measured}:")
            yield from wrapped(f"yours {finding.yours}; expected {finding.expected}.", "    ")
        if self.findings and self.problem:
            yield from wrapped(f"It also raises an exception: {self.problem}")
        if not hint_only:
            yield from self.explanations()
        yield from (f"  | {line}" for line in self.printed)

    def explanations(self) -> Iterator[str]:
        for each in self.named:
            if each.wrong:
                yield from wrapped(f"The same results come from {each.wrong} in place of {each.right}.")
            yield from wrapped(f"{each.mistake.why} {see(each.mistake.step)}")
        if self.outcome == "wrong" and not self.named:
            yield from wrapped(f"This mistake has no name. {see(STEPS[self.function])}")


def see(step: int) -> str:
    return f"See docs/{'rope.md' if step <= 8 else 'rope-models.md'}, step {step}."


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
