"""Right functions as recipes of named parts, and mistakes as parts that are computed wrongly on purpose."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .faults import Fault

Recipe = dict[str, Callable[..., Any]]  # the parts of a computation, by name


class Mistake(NamedTuple):
    """A part of a recipe that computes the wrong thing, and the fault that explains it."""

    fault: Fault
    part: str
    wrong: Callable[..., Any]


Explanation = tuple[Fault, ...]  # no fault: right; one; or two at once


def explain(
    recipe: Recipe, mistakes: Iterable[Mistake], gives: Callable[[Recipe], bool], at_once: int = 2
) -> Explanation | None:
    """The first explanation whose numbers are the reader's: no mistake, one, or two at once; None if there is none.

    ``gives`` says whether a recipe gives everything that the reader's function gave.
    """
    known = list(mistakes)
    for number in range(at_once + 1):
        for chosen in combinations(known, number):
            parts = {mistake.part: mistake.wrong for mistake in chosen}
            if len(parts) == number and possible(gives, recipe | parts):
                return tuple(dict.fromkeys(mistake.fault for mistake in chosen))
    return None


def possible(gives: Callable[[Recipe], bool], parts: Recipe) -> bool:
    """``gives(parts)``, and False for mistakes that cannot be made with these shapes."""
    try:
        return gives(parts)
    except (RuntimeError, ValueError, IndexError):
        return False


def matches(computed: Iterator[tuple[Any, Any, Any]]) -> bool:
    """Whether the reader's values are a mistake's: triples of the reader's value, the mistake's and the right one.

    Cases in which the reader's function raised are left out by the caller. In one case at least the mistake has to
    show, so that a mistake which changes nothing there explains nothing.
    """
    shown = False
    for value, wrong, right in computed:
        if not same(value, wrong) or isnan_everywhere(value) != isnan_everywhere(wrong):
            return False
        shown = shown or (is_evidence(value, wrong) and not same(wrong, right))
    return shown


def isnan_everywhere(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.isnan().all())


def is_evidence(value: Any, wrong: Any) -> bool:
    """Whether equal results say anything: NaN fits anything, so not if all are NaN, or most of them only here."""
    if not isinstance(wrong, Tensor) or wrong.isnan().double().mean() < 0.5:
        return True
    return not bool(wrong.isnan().all()) and torch.equal(value.isnan(), wrong.isnan())


def same(value: Any, expected: Any, tolerance: float = 3e-3) -> bool:
    """Whether two results are equal: kinds, shapes, and numbers within the tolerance. An expected NaN fits anything."""
    if isinstance(expected, tuple | list):
        if not isinstance(value, tuple | list) or len(value) != len(expected):
            return False
        return all(same(x, y, tolerance) for x, y in zip(value, expected))
    if not isinstance(expected, Tensor):
        return type(value) is type(expected) and bool(value == expected)
    if not isinstance(value, Tensor) or value.shape != expected.shape or value.is_complex() != expected.is_complex():
        return False
    if (value.dtype == torch.bool) != (expected.dtype == torch.bool):
        return False
    if value.dtype == torch.bool:
        return torch.equal(value, expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    value, expected = value.detach().to(wide), expected.detach().to(wide)
    near = torch.isclose(value, expected, rtol=tolerance, atol=tolerance)
    return bool((near | expected.isnan()).all())
