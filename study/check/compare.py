"""What the checks share: exercises and their probes, mistakes in both languages, and the first number that differs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..topic import Both
from .reader import Raised, kind

View = Callable[..., Any]  # a function of the reader with the arguments and results of ours
NEIGHBOURS, HALVES = "neighbours", "halves"


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


def same(text: str) -> Both:
    """A text that is the same in both languages."""
    return Both(text, text)


class Exercise(NamedTuple):
    """A function to write: the step of the walk about it, its arguments, ours for a layout, and what is measured."""

    step: int
    arguments: tuple[str, ...]
    ours: Callable[[str], View]
    probes: Sequence[Probe]
    axes: Sequence[Both]
    parts: tuple[str, ...]  # of a result that is a tuple
    mistakes: Callable[[View, str], Iterator[Mistake]]


def first(*rows: Any) -> list[Mistake]:
    """The mistake of the first row, (condition, English, Chinese, step), whose condition is true, unless it is ""."""
    row = next((row for row in rows if row[0]), (True, ""))
    return [Mistake(*row[1:])] if row[1] else []


def of_parts(names: Sequence[str], found: Sequence[list[Mistake]]) -> list[Mistake]:
    """The mistakes of two parts; one that only one of them makes says so."""
    mistakes = []
    for mistake in dict.fromkeys([*found[0], *found[1]]):
        parts = [name for name, part in zip(names, found) if mistake in part]
        if len(parts) == 1:
            (en, colon, why), (zh, zh_colon, zh_why) = mistake.en.partition(":"), mistake.zh.partition("：")
            en, zh = f"{en}, in {parts[0]} only", f"{zh}（只在 {parts[0]}）"
            mistake = Mistake(f"{en}{colon}{why}", f"{zh}{zh_colon}{zh_why}", mistake.step)
        mistakes.append(mistake)
    return mistakes


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_table(T: int, pairs: int) -> Tensor:
    """Rotations by angles from 0.3 to 2.8: complex128 (T, D/2)."""
    return rotation(0.3 + 2.5 * torch.rand(T, pairs, generator=torch.Generator().manual_seed(T), dtype=torch.float64))


def rotation(angles: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angles), angles)


def pairs_of(layout: str, D: int) -> Tensor:
    """The channels of each pair, (D/2, 2)."""
    return torch.arange(D).view(-1, 2) if layout == NEIGHBOURS else torch.arange(D).view(2, -1).T


def rotate(x: Tensor, table: Tensor, layout: str = NEIGHBOURS) -> Tensor:
    """Rotate (B, T, H, D) by the table (T, D/2)."""
    pairs = pairs_of(layout, x.shape[-1])
    z = torch.complex(*x[..., pairs].double().unbind(-1)) * table[:, None]
    return torch.view_as_real(z).flatten(3)[..., pairs.flatten().argsort()].to(x.dtype)


# The forms of a table: complex, or cosines and sines (T, D/2), also with each angle twice, or with a batch axis.
COMPLEX = "complex"
FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    COMPLEX: torch.complex,
    "tuple": lambda cos, sin: (cos, sin),
    "halves": lambda cos, sin: (cos.repeat(1, 2), sin.repeat(1, 2)),
    "neighbours": lambda cos, sin: (cos.repeat_interleave(2, 1), sin.repeat_interleave(2, 1)),
    "last axis of 2": lambda cos, sin: torch.stack((cos, sin), -1),
    "batch": lambda cos, sin: (cos.repeat(1, 2)[None], sin.repeat(1, 2)[None]),
    "heads first": lambda cos, sin: (cos.repeat(1, 2)[None], sin.repeat(1, 2)[None]),
}


def read_table(raw: Any, pairs: int) -> tuple[str, Any]:
    """The form of a table and its complex128 numbers, or COMPLEX and what it is if it has none of the forms."""
    form = COMPLEX
    is_pair = isinstance(raw, tuple | list) and len(raw) == 2 and all(map(torch.is_tensor, raw))
    if is_pair and raw[0].shape == raw[1].shape and not raw[0].is_complex():
        form, raw = "tuple", torch.complex(*(part.double() for part in raw))
        if raw.ndim == 3 and len(raw) == 1:
            return "batch", raw[0, :, :pairs]
    elif torch.is_tensor(raw) and not raw.is_complex() and raw.ndim == 3 and raw.shape[2] == 2:
        return "last axis of 2", torch.view_as_complex(raw.double().contiguous())
    if torch.is_tensor(raw) and raw.shape[-1:] == (2 * pairs,):
        halves = {"halves": raw.chunk(2, -1), "neighbours": (raw[..., ::2], raw[..., 1::2])}
        return next(((name, part) for name, (part, again) in halves.items() if torch.equal(part, again)), (form, raw))
    return form, raw if torch.is_tensor(raw) or raw is None else type(raw).__name__


def plain(value: Any) -> Any:
    """Tensors on the CPU in bool, float64 or complex128, so that dtypes do not count."""
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if not torch.is_tensor(value):
        return value
    value = value.detach().to_dense().cpu().resolve_conj()
    if value.dtype == torch.bool:
        return value.clone()
    return value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)


def near(x: Any, y: Any, tolerance: float = 0.01) -> bool:
    """Whether these are tensors of one shape whose numbers differ by no more than the tolerance."""
    if not torch.is_tensor(x) or not torch.is_tensor(y) or x.shape != y.shape or x.is_complex() != y.is_complex():
        return False
    return torch.allclose(x.to(y.dtype), y, rtol=tolerance, atol=tolerance, equal_nan=True)


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
        en, zh = (", ".join(f"{axis[n]} {i}" for axis, i in zip(exercise.axes, at)) for n in (0, 1))
        values = [f"{x[at].item():.6g}" for x in (yours, expected)]
    return Finding(Both(f"{label.en}: {en}", f"{label.zh}：{zh}"), *values)
