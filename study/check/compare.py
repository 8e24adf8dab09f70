"""What an exercise consists of, the first number that differs, and the usual mistakes as rows of conditions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .reader import Raised, kind

View = Callable[..., Any]  # a function of the reader with the arguments and results of ours
UNSUITABLE = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)  # raised when a result is measured


class Mistake(NamedTuple):
    """ "name: explanation", the step of the walk, 0 for that of the function, and the part of the result that has it.

    The Chinese of the text is in chinese.toml.
    """

    text: str
    step: int = 0
    part: str = ""  # "" if the whole result has it


class Finding(NamedTuple):
    """The call and the place of the first difference, the reader's value there and the expected one."""

    label: str
    place: Sequence[tuple[str, int]]  # an index on each axis
    yours: str
    expected: str


class Exercise(NamedTuple):
    """A function to write. ``ours`` is a right one for a layout; ``mistakes`` names what a wrong one does."""

    step: int  # of the walk
    arguments: tuple[str, ...]
    ours: Callable[[str], View]
    probes: Callable[[View], Iterable[tuple[str, Any]]]  # what is measured, with its name
    axes: Sequence[str]
    parts: tuple[str, ...]  # of a result that is a tuple
    mistakes: Callable[[View, str], Iterable[Mistake]]
    tolerance: float = 5e-5


def measured(exercise: Exercise, function: View) -> tuple[list[tuple[str, Any]], str]:
    """The names and the plain values of the probes until one raises an exception, and the exception in one line."""
    found: list[tuple[str, Any]] = []
    try:
        found.extend((label, plain(value)) for label, value in exercise.probes(function))
    except Raised as raised:
        return found, str(raised)
    except UNSUITABLE as error:  # a result of another type
        return found, f"its result cannot be judged: {' '.join(str(error).split())[:200]}"
    return found, ""


def first(*rows: Any) -> list[Mistake]:
    """The mistake of the first row, (condition, text, step, part), whose condition is true, unless it is ""."""
    row = next((row for row in rows if row[0]), (True, ""))
    return [Mistake(*row[1:])] if row[1] else []


def of_parts(parts: Sequence[str], found: Sequence[list[Mistake]]) -> list[Mistake]:
    """The mistakes that both parts of the result have, then those of one only."""
    both = [mistake for mistake in found[0] if mistake in found[1]]
    return both + [each._replace(part=part) for part, some in zip(parts, found) for each in some if each not in both]


def difference(exercise: Exercise, label: str, yours: Any, expected: Any) -> Finding | None:
    """The first number that differs, and its place in words."""
    if isinstance(expected, tuple) and isinstance(yours, tuple) and len(yours) == len(expected):
        parts = zip(exercise.parts, yours, expected)
        return next(filter(None, (difference(exercise, f"{label}, {part}", x, y) for part, x, y in parts)), None)
    if not torch.is_tensor(yours) or not torch.is_tensor(expected):
        is_equal = isinstance(yours, str | None) and yours == expected
        return None if is_equal else Finding(label, (), kind(yours), kind(expected))
    if (yours.shape, yours.dtype) != (expected.shape, expected.dtype):
        types = (f"{str(x.dtype)[6:].rstrip('0123456789')} {kind(x)}" for x in (yours, expected))
        return Finding(f"{label}: the dtype and the shape", (), *types)
    is_near = torch.isclose(yours, expected, rtol=exercise.tolerance, atol=exercise.tolerance, equal_nan=True)
    if is_near.all():
        return None
    at = tuple((~is_near).nonzero()[0].tolist())
    values = (str(x[at].item()) if x.dtype == torch.bool else f"{x[at].item():.6g}" for x in (yours, expected))
    return Finding(label, tuple(zip(exercise.axes, at)), *values)


def plain(value: Any) -> Any:
    """Tensors on the CPU in bool, float64 or complex128, so that dtypes do not count."""
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if not torch.is_tensor(value):
        return value
    value = value.detach().to_dense().cpu().resolve_conj()
    if value.dtype == torch.bool:
        return value
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def near(x: Any, y: Tensor, tolerance: float = 0.01) -> bool:
    """Whether x is a tensor whose numbers differ from those of y by no more than the tolerance."""
    if not torch.is_tensor(x) or x.shape != y.shape or x.is_complex() != y.is_complex():
        return False
    return torch.allclose(x.to(y.dtype), y, rtol=tolerance, atol=tolerance, equal_nan=True)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dtypes(values: Iterable[Tensor]) -> str:
    return " and ".join(str(x.dtype).removeprefix("torch.") for x in values)


def refusal(call: Callable[[], Any]) -> str:
    """How a call refuses its arguments; an assertion, as in LLaMA, is as good as a ValueError."""
    try:
        call()
    except (Raised, ValueError) as raised:
        error = raised.__cause__ or raised
        return "ValueError" if isinstance(error, AssertionError) else type(error).__name__
    return "no exception"
