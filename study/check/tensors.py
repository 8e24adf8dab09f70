"""The tensors of the probes, the forms in which functions take and return a table, and comparisons."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NEIGHBOURS, HALVES = "neighbours", "halves"


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


def near(x: Any, y: Tensor, tolerance: float = 0.01) -> bool:
    """Whether x is a tensor whose numbers differ from those of y by no more than the tolerance."""
    if not torch.is_tensor(x) or x.shape != y.shape or x.is_complex() != y.is_complex():
        return False
    return torch.allclose(x.to(y.dtype), y, rtol=tolerance, atol=tolerance, equal_nan=True)
