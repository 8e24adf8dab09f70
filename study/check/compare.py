"""What the checks share: both languages, the probes, and the first number that differs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..topic import Both
from .reader import Raised, Unwritten, kind


class Mistake(NamedTuple):
    """ "name: explanation" in English and in Chinese, and the step of the walk, 0 for that of the function."""

    en: str
    zh: str
    step: int = 0


def first(*rows: Any) -> Iterator[Mistake]:
    """The mistake of the first row, (condition, English, Chinese, step), whose condition is true; none if it is empty."""
    row = next((row for row in rows if row[0]), None)
    if row and row[1]:
        yield Mistake(*row[1:])


def of_parts(names: Sequence[str], found: Sequence[list[Mistake]]) -> list[Mistake]:
    """The mistakes of two parts; one that only one of them makes says so."""
    mistakes = []
    for mistake in dict.fromkeys([*found[0], *found[1]]):
        parts = [name for name, part in zip(names, found) if mistake in part]
        if len(parts) == 1:
            en, zh = mistake.en.partition(":"), mistake.zh.partition("：")
            mistake = mistake._replace(
                en=f"{en[0]}, in {parts[0]} only{en[1]}{en[2]}", zh=f"{zh[0]}（只在 {parts[0]}）{zh[1]}{zh[2]}"
            )
        mistakes.append(mistake)
    return mistakes


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
        except (Unwritten, Raised) as raised:
            if isinstance(raised, Unwritten):
                raise
            return raised
        except Exception as error:  # a result of any type, where the probe expects tensors
            return Raised(f"its result cannot be judged: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


# The tensors of the probes.


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_table(T: int, pairs: int) -> Tensor:
    """Angles from 0.3 to 2.8: complex128 (T, D/2)."""
    angles = 0.3 + 2.5 * torch.rand(T, pairs, generator=torch.Generator().manual_seed(T), dtype=torch.float64)
    return rotation(angles)


def rotation(angles: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angles), angles)


NEIGHBOURS, HALVES = "neighbours", "halves"


def pairs_of(layout: str, D: int) -> Tensor:
    """The channels of each pair, (D/2, 2)."""
    channels = torch.arange(D)
    return channels.view(-1, 2) if layout == NEIGHBOURS else channels.view(2, -1).T


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
}


def write_table(form: str, table: Tensor) -> Any:
    """A complex table (T, D/2) in this form."""
    return FORMS[form](table.real.float(), table.imag.float())


def read_table(raw: Any, pairs: int) -> tuple[str, Any]:
    """The form of a table and its complex128 numbers, or COMPLEX and what it is if it has none of the forms."""
    is_pair = isinstance(raw, tuple | list) and len(raw) == 2 and all(map(torch.is_tensor, raw))
    if is_pair and raw[0].shape == raw[1].shape and not raw[0].is_complex() and raw[0].ndim in (2, 3):
        found = torch.complex(*(part.double() for part in raw))
        if found.ndim == 3 and len(found) == 1:
            return "batch", found[0, :, :pairs]
        if found.shape[-1] != 2 * pairs:
            return "tuple", found
        if torch.equal(found[:, :pairs], found[:, pairs:]):
            return "halves", found[:, :pairs]
        return "neighbours", found[:, ::2] if torch.equal(found[:, ::2], found[:, 1::2]) else found
    if torch.is_tensor(raw) and not raw.is_complex() and raw.ndim == 3 and raw.shape[2] == 2:
        return "last axis of 2", torch.view_as_complex(raw.double().contiguous())
    if torch.is_tensor(raw) and raw.shape[-1:] == (2 * pairs,) and torch.equal(raw[..., :pairs], raw[..., pairs:]):
        raw = raw[..., :pairs]
    return COMPLEX, raw if torch.is_tensor(raw) or raw is None else type(raw).__name__


# Comparison.


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


def difference(probe: Probe, axes: Sequence[Both], yours: Any, expected: Any) -> Finding | None:
    """The first number that differs, and its place in words."""
    label, tolerance = probe.label, probe.tolerance
    if isinstance(expected, tuple) and isinstance(yours, tuple) and len(yours) == len(expected) == 2:
        first_one, second_one = (
            difference(probe._replace(label=Both(f"{label.en}, {en}", f"{label.zh}，{zh}")), axes, x, y)
            for en, zh, x, y in zip(("first result", "second result"), ("第一个结果", "第二个结果"), yours, expected)
        )
        return first_one or second_one
    if not torch.is_tensor(yours) or not torch.is_tensor(expected):
        return (
            None if type(yours) is type(expected) and yours == expected else Finding(label, kind(yours), kind(expected))
        )
    if yours.shape != expected.shape:
        return Finding(Both(f"{label.en}: the shape", f"{label.zh}：形状"), kind(yours), kind(expected))
    if yours.dtype != expected.dtype:
        names = (str(x.dtype)[6:].rstrip("0123456789") for x in (yours, expected))
        return Finding(Both(f"{label.en}: the dtype", f"{label.zh}：dtype"), *names)
    places = (~torch.isclose(yours, expected, rtol=tolerance, atol=tolerance, equal_nan=True)).nonzero().tolist()
    if not places:
        return None
    at = tuple(places[0])
    if expected.dtype == torch.bool:
        position = expected.shape[1] - expected.shape[0] + at[0]
        seen = (", ".join(map(str, x[at[0]].nonzero()[:, 0].tolist())) or "none" for x in (yours, expected))
        return Finding(
            Both(
                f"{label.en}: token {at[0]} is at position {position}; it sees the keys",
                f"{label.zh}：token {at[0]} 在位置 {position}，它看得到的 key",
            ),
            *seen,
        )
    en, zh = (", ".join(f"{axis[n]} {i}" for axis, i in zip(axes, at)) for n in (0, 1))
    return Finding(
        Both(f"{label.en}: {en}", f"{label.zh}：{zh}"), f"{yours[at].item():.6g}", f"{expected[at].item():.6g}"
    )
