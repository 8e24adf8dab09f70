"""The right functions and the wrong versions of their lines, read from mistakes.txt, and how they are run."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Mistake(NamedTuple):
    """Its name, the step of docs/rope.md about it, and why it is wrong."""

    name: str
    step: int
    why: str


class Version(NamedTuple):
    """What is written by mistake in place of a right line, in q, k or v only if ``only`` is not empty.

    A mistake that is not in one line has no code.
    """

    mistake: Mistake
    only: str = ""
    wrong: str = ""
    right: str = ""
    number: int = -1  # of the line
    code: Any = None

    @property
    def name(self) -> str:
        return self.mistake.name + self.where

    @property
    def where(self) -> str:
        return f", in {self.only} only" if self.only else ""

    @property
    def calls_helpers(self) -> bool:
        """Whether its lines call what only mistakes.txt defines."""
        return not HELPER_NAMES.isdisjoint(re.findall(r"\w+", self.wrong + self.right))


@dataclass
class Function:
    """A right function, one line after the other, and the wrong versions of each line."""

    parameters: tuple[str, ...]
    lines: list[CodeType] = field(default_factory=list)
    versions: list[list[Version]] = field(default_factory=list)

    def choices(self, count: int) -> Iterator[tuple[Version, ...]]:
        """All versions in which ``count`` lines are wrong."""
        for lines in combinations(self.versions, count):
            yield from product(*lines)

    def run(self, chosen: Sequence[Version], layout: str, *arguments: Any) -> Any:
        """The result if the chosen versions replace their lines."""
        names = {"torch": torch, "math": math, **HELPERS[layout], **dict(zip(self.parameters, arguments))}
        lines = list(self.lines)
        for version in chosen:
            lines[version.number] = version.code
        for line in lines:
            exec(line, names)
        return names["result"]


def read(text: str) -> tuple[dict[str, Function], dict[str, Mistake]]:
    """The functions and the mistakes by their names."""
    functions: dict[str, Function] = {}
    mistakes: dict[str, Mistake] = {}
    letters: list[str] = []
    right = ""
    for line in text[text.index("\ndef ") :].splitlines():
        code = line.strip()
        if line.startswith("def "):
            name, parameters = line[4:-2].split("(")
            function = functions[name] = Function(tuple(parameters.split(", ")))
        elif code.startswith("# "):
            explained = re.fullmatch(r"# (.*) \[(\d+)\]: (.*)", code)
            name = explained[1] if explained else code[2:]
            if explained:
                mistakes[name] = Mistake(name, int(explained[2]), explained[3])
        elif line.startswith(" " * 8):
            number = len(function.lines) - 1
            for only in ("", *letters):
                source = for_each(letters, code, right, only)
                version = Version(mistakes[name], only, code, right, number, compiled(source))
                function.versions[number].append(version)
        elif line.startswith(" " * 4):
            each = re.fullmatch(r"((?:[qkv] )+[qkv]): (.*)", code)  # "q k: x = f(x)"
            letters, right = (each[1].split(), each[2]) if each else ([], code)
            function.lines.append(compiled(for_each(letters, right)))
            function.versions.append([])
    return functions, mistakes


def for_each(letters: Sequence[str], code: str, right: str = "", only: str = "") -> str:
    """The code for every letter in place of x, or for one of them, and the right code for the others."""
    if not letters:
        return code
    lines = [right if only and letter != only else code for letter in letters]
    return "\n".join(re.sub(r"\bx\b", letter, line) for letter, line in zip(letters, lines))


def compiled(code: str) -> CodeType:
    return compile(re.sub("^return ", "result = ", code), code, "exec")


# What the lines call.


def first(new: Sequence[Tensor], old: Sequence[Tensor], count: int, axis: int) -> list[Tensor]:
    """The first ``count`` places of an axis from the new tensors, the others from the old ones."""
    size = old[0].shape[axis]
    kept = torch.arange(count % size, size)
    return [x.index_copy(axis, kept, y.index_select(axis, kept)) for x, y in zip(new, old)]


def written(slots: Tensor, start: int, end: int, new: Tensor) -> Tensor:
    """A copy of the slots (B, K, S, D) in which some are new."""
    slots = slots.clone()
    slots[:, :, start:end] = new
    return slots


def moved(x: Tensor, moves: Sequence[tuple[int, int]]) -> Tensor:
    """The rows of each head, moved one after another within one tensor (heads, .., .., dim)."""
    rows = x.flatten(1, 2).clone()
    for target, source in moves:
        rows[:, target] = rows[:, source]
    return rows.view(x.shape)


def helpers(layout: str, other: str) -> dict[str, Any]:
    """The functions of a layout that lines call, and those of the other layout."""
    split, join = PAIRS[layout]
    other_split, other_join = PAIRS[other]

    def rotate(x: Tensor, freqs_cis: Tensor, split: Any = split, join: Any = join) -> Tensor:
        pairs = torch.complex(*split(x.double())) * freqs_cis[None, :, None]
        return join(pairs.real, pairs.imag).to(x.dtype)

    def other_rotate(x: Tensor, freqs_cis: Tensor) -> Tensor:
        return rotate(x, freqs_cis, other_split, other_join)

    functions = (first, written, moved, rotate, other_rotate)
    named = {function.__name__: function for function in functions}
    return named | {"split": split, "join": join, "other_split": other_split, "other_join": other_join}


# How the pairs of a head are split into their first and their second numbers, and joined again.
PAIRS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "neighbours": (lambda x: (x[..., ::2], x[..., 1::2]), lambda a, b: torch.stack((a, b), -1).flatten(-2)),
    "halves": (lambda x: x.chunk(2, -1), lambda a, b: torch.cat((a, b), -1)),
}
NEIGHBOURS = helpers("neighbours", "halves")
HELPERS = {"": NEIGHBOURS, "neighbours": NEIGHBOURS, "halves": helpers("halves", "neighbours")}
HELPER_NAMES = {"cache", "slots", *NEIGHBOURS}
FUNCTIONS, MISTAKES = read(Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8"))
