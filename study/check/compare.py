"""Exercises with their probes, mistakes in both languages, and the first number that differs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ..topic import Both
from .reader import Raised, kind
from .tensors import plain

View = Callable[..., Any]  # a function of the reader with the arguments and results of ours
# Of the axes of results.
CHINESE = {"position": "位置", "pair": "组", "row": "行", "column": "列", "slot": "槽位", "channel": "分量"}


class Mistake(NamedTuple):
    """ "name: explanation" in English and in Chinese, and the step of the walk, 0 for that of the function."""

    en: str
    zh: str
    step: int = 0


class Finding(NamedTuple):
    """Where the first difference is, the reader's value and the expected one."""

    where: Both
    yours: str
    expected: str


class Probe(NamedTuple):
    """What is measured of a function: numbers, or a text. Numbers may differ by the tolerance."""

    label: Both
    measure: Callable[[Any], Any]
    tolerance: float = 5e-5

    def of(self, function: Any) -> Any:
        """The measured value in plain tensors, or Raised."""
        try:
            return plain(self.measure(function))
        except Raised as raised:
            return raised
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:  # a result of another type
            return Raised(f"its result cannot be judged: {' '.join(str(error).split())[:200]}")


class Exercise(NamedTuple):
    """A function to write: the step of the walk about it, its arguments, ours for a layout, and what is measured."""

    step: int
    arguments: tuple[str, ...]
    ours: Callable[[str], View]
    probes: Sequence[Probe]
    axes: Sequence[str]
    parts: tuple[str, ...]  # of a result that is a tuple
    mistakes: Callable[[View, str], Iterable[Mistake]]


def same(text: str) -> Both:
    """A text that is the same in both languages."""
    return Both(text, text)


def first(*rows: Any) -> list[Mistake]:
    """The mistake of the first row, (condition, English, Chinese, step), whose condition is true, unless it is ""."""
    row = next((row for row in rows if row[0]), (True, ""))
    return [Mistake(*row[1:])] if row[1] else []


def only(part: str, mistake: Mistake) -> Mistake:
    """This mistake, if only one part of the result has it."""
    (en, colon, why), (zh, zh_colon, zh_why) = mistake.en.partition(":"), mistake.zh.partition("：")
    return Mistake(f"{en}, in {part} only{colon}{why}", f"{zh}（只在 {part}）{zh_colon}{zh_why}", mistake.step)


def of_parts(parts: Sequence[str], found: Sequence[list[Mistake]]) -> list[Mistake]:
    """The mistakes that both parts of the result have, then those of one only."""
    both = [mistake for mistake in found[0] if mistake in found[1]]
    return both + [only(part, each) for part, some in zip(parts, found) for each in some if each not in both]


def words(values: Iterable[Any]) -> str:
    """The names of dtypes, or other values: ``bfloat16 and float32``."""
    return " and ".join(str(value).removeprefix("torch.") for value in values)


def difference(exercise: Exercise, probe: Probe, yours: Any, expected: Any) -> Finding | None:
    """The first number that differs, and its place in words."""
    label, tolerance = probe.label, probe.tolerance
    if isinstance(expected, tuple) and isinstance(yours, tuple) and len(yours) == len(expected):
        for part, x, y in zip(exercise.parts, yours, expected):
            named = probe._replace(label=Both(f"{label.en}, {part}", f"{label.zh}，{part}"))
            if found := difference(exercise, named, x, y):
                return found
        return None
    if not torch.is_tensor(yours) or not torch.is_tensor(expected):
        is_equal = isinstance(yours, str | None) and yours == expected
        return None if is_equal else Finding(label, kind(yours), kind(expected))
    if (yours.shape, yours.dtype) != (expected.shape, expected.dtype):
        types = (f"{str(x.dtype)[6:].rstrip('0123456789')} {kind(x)}" for x in (yours, expected))
        return Finding(Both(f"{label.en}: the dtype and the shape", f"{label.zh}：dtype 和形状"), *types)
    places = (~torch.isclose(yours, expected, rtol=tolerance, atol=tolerance, equal_nan=True)).nonzero().tolist()
    if not places:
        return None
    at = tuple(places[0])
    if expected.dtype == torch.bool:  # a mask
        position = expected.shape[1] - expected.shape[0] + at[0]
        en = f"token {at[0]} is at position {position}; it sees the keys"
        zh = f"token {at[0]} 在位置 {position}，它看得到的 key"
        values = [", ".join(map(str, x[at[0]].nonzero()[:, 0].tolist())) or "-" for x in (yours, expected)]
    else:
        en = ", ".join(f"{axis} {i}" for axis, i in zip(exercise.axes, at))
        zh = ", ".join(f"{CHINESE.get(axis, axis)} {i}" for axis, i in zip(exercise.axes, at))
        values = [f"{x[at].item():.6g}" for x in (yours, expected)]
    return Finding(Both(f"{label.en}: {en}", f"{label.zh}：{zh}"), *values)
