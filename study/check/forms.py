"""The forms in which the reader's rotation table may be written, and what the measurements share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .calls import pair_fault

COMPLEX = "complex"
# Each angle once, or twice: in halves (a0, a1 .. a0, a1 ..) or as neighbours (a0, a0, a1, a1 ..).
SINGLE = "(cos, sin) of D/2 columns"
HALVES = "(cos, sin) of D columns in halves"
NEIGHBOURS = "(cos, sin) of D columns in pairs of neighbours"
STACKED = "(…, 2), a cosine and a sine for each of D/2 columns"
FORMS = (COMPLEX, SINGLE, HALVES, NEIGHBOURS, STACKED)


@dataclass
class Conventions:
    """What the reader's functions agree on, collected as they are judged, and the functions that are right."""

    table: str = ""  # one of FORMS, once it is known
    layout: str = "neighbours"
    right: set[str] = field(default_factory=set)


def write_table(form: str, table: Tensor) -> Any:
    """A table, complex128 (T, D/2), in this form, so that each function is judged alone."""
    if form == COMPLEX:
        return table.to(torch.complex64)
    if form == STACKED:
        return torch.view_as_real(table.to(torch.complex64))
    return tuple(widened(form, part.float()) for part in (table.real, table.imag))


def read_table(form: str, raw: Any) -> Tensor:
    """The table that was written in this form, complex128 (T, D/2)."""
    if form == COMPLEX:
        return raw.to(torch.complex128)
    if form == STACKED:
        return torch.complex(*raw.double().unbind(-1))
    width = raw[0].shape[-1]
    columns = {SINGLE: slice(width), HALVES: slice(width // 2), NEIGHBOURS: slice(0, width, 2)}[form]
    return torch.complex(*(part.double()[..., columns] for part in raw))


def form_of(raw: Any, shape: tuple[int, int]) -> str:
    """The form of a table of the shape (T, D/2); empty if it is in none of them."""
    if torch.is_tensor(raw):
        if raw.is_complex():
            return COMPLEX if raw.shape == shape else ""
        return STACKED if raw.shape == (*shape, 2) else ""
    if pair_fault(raw) or any(part.is_complex() or part.ndim != 2 for part in raw):
        return ""
    for form in (SINGLE, HALVES, NEIGHBOURS) if raw[0].shape == raw[1].shape else ():
        table = read_table(form, raw)
        again = (widened(form, part) for part in (table.real, table.imag))
        if table.shape == shape and all(map(torch.equal, again, (part.double() for part in raw))):
            return form
    return ""


def widened(form: str, x: Tensor) -> Tensor:
    """The columns (…, D/2) of cosines or sines, repeated twice in two of the forms: (…, D)."""
    if form == HALVES:
        return torch.cat((x, x), -1)
    return x.repeat_interleave(2, -1) if form == NEIGHBOURS else x


def angles(dim: int, end: int, theta: float) -> Tensor:
    """float64 (end, dim/2): position times theta^(-2i/dim)."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    return torch.outer(torch.arange(end, dtype=torch.float64), theta ** (-2 * i / dim))


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def close(x: Tensor, y: Tensor, tolerance: float = 3e-3) -> bool:
    """Whether tensors of equal shape have equal numbers within the tolerance."""
    return x.shape == y.shape and bool(((x - y).abs() <= tolerance * (1 + y.abs())).all())


def reached(output: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Whether each vector of ``output(x)``, its last axis, depends on each of x (B, T, H, D): bool (…, B, T, H)."""
    plain, differences = output(x), []
    for place in range(x.shape[:-1].numel()):
        changed = x.clone()
        changed.flatten(0, -2)[place] = x.flatten(0, -2)[place].flip(-1)
        differences.append((output(changed) - plain).abs().amax(-1))
    return (torch.stack(differences, -1) > 1e-5).unflatten(-1, x.shape[:-1])


def row_fault(row: Tensor, b: Tensor, t: Tensor, h: Tensor) -> str:
    """The fault of numbers (b, t, h) that meet these rows of the table instead of row t."""
    if torch.equal(row, t):
        return ""
    last = t.max()
    named = [(h, "HEADS"), (b, "BATCH")]
    named += [(order % (last + 1), "ROW_ORDER") for order in (last - t, t + 1, t - 1)]
    named += [(torch.full_like(row, n), "ONE_ROW") for n in range(int(last) + 1)]
    return next((fault for order, fault in named if torch.equal(row, order)), "")


def missing_axis(shape: tuple[int, ...], right: tuple[int, ...]) -> str:
    """The fault of a shape that lacks an axis of the right one, (B, T, H, D), or has only one place of it."""
    for axis, fault in enumerate(("SOME_BATCH", "SOME_TOKENS", "SOME_HEADS")):
        before, after = right[:axis], right[axis + 1 :]
        if shape in ((*before, *after), (*before, 1, *after)):
            return fault
    return ""
