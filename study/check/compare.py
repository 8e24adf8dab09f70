"""What the checks share: both languages, the probes, and the first number that differs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..topic import Both
from .reader import Raised, Unwritten, kind


class Mistake(NamedTuple):
    """A step of the walk, and "name: explanation" in English and in Chinese."""

    step: int
    en: str
    zh: str


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
    return bool(differing(x, y, tolerance).logical_not().all())


def differing(x: Tensor, y: Tensor, tolerance: float) -> Tensor:
    return ~torch.isclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)


def difference(label: Both, axes: Sequence[Both], yours: Any, expected: Any, tolerance: float) -> Finding | None:
    """The first number that differs, and its place in words."""
    if isinstance(expected, tuple) and isinstance(yours, tuple) and len(yours) == len(expected):
        names = ("q", "k") if len(expected) == 2 else [str(number) for number in range(len(expected))]
        found = (
            difference(Both(f"{label.en}, {name}", f"{label.zh}，{name}"), axes, x, y, tolerance)
            for name, x, y in zip(names, yours, expected)
        )
        return next(filter(None, found), None)
    if not torch.is_tensor(yours) or not torch.is_tensor(expected):
        same = type(yours) is type(expected) and yours == expected
        return None if same else Finding(label, kind(yours), kind(expected))
    if yours.shape != expected.shape:
        return Finding(Both(f"{label.en}: the shape", f"{label.zh}：形状"), kind(yours), kind(expected))
    if yours.dtype != expected.dtype:
        found = (str(x.dtype)[6:].rstrip("0123456789") for x in (yours, expected))
        return Finding(Both(f"{label.en}: the dtype", f"{label.zh}：dtype"), *found)
    places = differing(yours, expected, tolerance).nonzero().tolist()
    if not places:
        return None
    at = tuple(places[0])
    en, zh = (", ".join(f"{axis[n]} {i}" for axis, i in zip(axes, at)) for n in (0, 1))
    return Finding(Both(f"{label.en}: {en}", f"{label.zh}：{zh}"), number(yours[at]), number(expected[at]))


def number(x: Tensor) -> str:
    return str(x.item()) if x.dtype == torch.bool else f"{x.item():.6g}"
