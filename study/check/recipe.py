"""Right functions as recipes of named parts, and mistakes as wrong versions of these parts."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .faults import Fault

Recipe = dict[str, Callable[..., Any]]  # the parts of a computation, by name


class Mistake(NamedTuple):
    """A wrong version of one part of a recipe, and the fault that explains it."""

    fault: Fault
    part: str
    wrong: Callable[..., Any]


Explanation = tuple[Fault, ...]  # empty for a right function


def explain(
    recipe: Recipe, mistakes: Iterable[Mistake], fits: Callable[[Recipe], bool], at_once: int = 2
) -> Explanation | None:
    """The first set of up to ``at_once`` mistakes that explains the reader's results; None if there is none.

    ``fits`` tells whether a recipe returns everything that the reader's function returned.
    """
    candidates = list(mistakes)
    for number in range(at_once + 1):
        for chosen in combinations(candidates, number):
            parts = {mistake.part: mistake.wrong for mistake in chosen}
            if len(parts) < number:
                continue  # two mistakes in the same part
            try:
                if fits(recipe | parts):
                    return tuple(dict.fromkeys(mistake.fault for mistake in chosen))
            except (RuntimeError, ValueError, IndexError):
                pass  # these mistakes are impossible with these shapes
    return None


def matches(results: Iterator[tuple[Any, Any, Any]]) -> bool:
    """Whether a mistake explains the reader's values.

    ``results`` yields triples: the reader's value, the mistake's, and the right one.
    The caller leaves out calls in which the reader's function raised. The mistake must change at least one value,
    because otherwise it explains nothing.
    """
    changes_a_value = False
    for value, wrong, right in results:
        if not same(value, wrong) or all_nan(value) != all_nan(wrong):
            return False
        changes_a_value = changes_a_value or (is_evidence(value, wrong) and not same(wrong, right))
    return changes_a_value


def all_nan(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.isnan().all())


def is_evidence(value: Any, wrong: Any) -> bool:
    """Whether ``same(value, wrong)`` is evidence for the mistake that gives ``wrong``.

    ``same`` ignores the numbers that are NaN in ``wrong``. If these are most, some must be numbers, and NaN must be in
    the same places in ``value``.
    """
    if not isinstance(wrong, Tensor) or wrong.isnan().double().mean() < 0.5:
        return True
    return not bool(wrong.isnan().all()) and torch.equal(value.isnan(), wrong.isnan())


def same(value: Any, expected: Any, tolerance: float = 3e-3) -> bool:
    """Whether two results have equal types, shapes and numbers, within the tolerance. Expected NaN equals anything."""
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
    close = torch.isclose(value, expected, rtol=tolerance, atol=tolerance)
    return bool((close | expected.isnan()).all())
