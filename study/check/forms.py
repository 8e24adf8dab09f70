"""The forms in which the reader's rotation table may be written, recognized by their shapes and repetitions."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import faults
from .faults import Fault


class Form(NamedTuple):
    """The form of a table. ``write`` writes the right table in the reader's form, so each function is judged alone."""

    container: str = "complex"  # complex, last (…, 2), tuple (cos, sin), or stack (2, …)
    width: str = "single"  # each angle once; or twice: halves (a0, a1 .. a0, a1 ..), neighbours (a0, a0, a1, a1 ..)
    sin_first: bool = False
    before: int = 0  # axes of size 1 before the positions
    between: int = 0  # axes of size 1 between positions and pairs

    def write(self, table: Tensor) -> Any:
        """A table, complex128 (T, D/2), in this form."""
        if self.container == "complex":
            return self.with_axes(table.to(torch.complex64))
        parts = [self.with_axes(widened(part.float(), self.width)) for part in (table.real, table.imag)]
        parts = parts[::-1] if self.sin_first else parts
        if self.container == "tuple":
            return tuple(parts)
        return torch.stack(parts, -1 if self.container == "last" else 0)

    def with_axes(self, part: Tensor) -> Tensor:
        return part.reshape(*(1,) * self.before, len(part), *(1,) * self.between, -1)

    def rows(self, table: Any, start: int, end: int) -> Any:
        """The rows of positions start .. end - 1 of a table in this form."""
        if isinstance(table, tuple | list):
            return tuple(part.narrow(self.before, start, end - start) for part in table)
        return table.narrow(self.before + (self.container == "stack"), start, end - start)

    def __str__(self) -> str:
        columns = {"single": "D/2", "halves": "D (twice, in halves)", "neighbours": "D (twice, side by side)"}
        parts = "sin and cos" if self.sin_first else "cos and sin"
        containers = {"complex": "complex", "last": f"{parts} in a last axis of 2", "stack": f"{parts}, stacked"}
        text = f"{containers.get(self.container, parts)} of {columns[self.width]} columns"
        return text + ", already reshaped for broadcasting" if self.before or self.between else text


FORMS = [Form(), *(Form("tuple", width) for width in ("single", "halves", "neighbours")), Form("last")]


@dataclass
class Conventions:
    """What the reader's functions agree on, collected as they are judged, and the functions that are right."""

    table: Form | None = None
    layout: str = "neighbours"  # of apply_rotary_emb
    attention_layout: str = ""
    right: set[str] = field(default_factory=set)


class Reading(NamedTuple):
    """The numbers of a table as float64 (end, dim/2), cosines and sines or a single part, and its form."""

    parts: list[Tensor]
    form: Form | None = None
    fault: Fault | None = None  # of the form

    def rotations(self) -> Tensor:
        return torch.complex(*self.parts)


def widened(x: Tensor, width: str) -> Tensor:
    """Repeat each number twice, (…, D/2) -> (…, D), or return x for the width ``single``."""
    return {"single": x, "halves": torch.cat((x, x), -1), "neighbours": x.repeat_interleave(2, -1)}[width]


def read_table(raw: Any, dim: int, end: int) -> Reading | None:
    """The parts of a table and its form; None if its shape is none of these."""
    read = read_form(raw, dim, end)
    if read is not None:
        return read
    if isinstance(raw, np.ndarray | list) or (isinstance(raw, tuple) and any(isinstance(x, np.ndarray) for x in raw)):
        try:
            parts = [torch.as_tensor(np.asarray(part)) for part in raw] if isinstance(raw, tuple) else None
            read = read_table(torch.as_tensor(np.asarray(raw)) if parts is None else tuple(parts), dim, end)
        except (TypeError, ValueError):
            return None
        return read and read._replace(fault=faults.NUMPY)
    tensors = raw if isinstance(raw, tuple | list) else [raw]
    if all(isinstance(part, Tensor) and part.shape == (dim // 2, end) for part in tensors):
        read = read_form(tuple(part.T for part in tensors) if len(tensors) > 1 else raw.T, dim, end)
        return read and read._replace(fault=faults.TRANSPOSED_TABLE)
    if not isinstance(raw, Tensor) or raw.is_complex():
        return None
    x = raw.detach().double()
    if x.shape == (end, dim // 2):
        return Reading([x])
    if x.shape == (end, 2, dim // 2):
        return Reading(list(x.unbind(1)), fault=faults.STACKED)
    if x.shape == (end, dim):
        for width in ("halves", "neighbours"):
            part = unwidened(x, width)
            if part is not None:
                return Reading([part])
        for cos, sin in (x.chunk(2, -1), x.unflatten(-1, (-1, 2)).unbind(-1)):
            if (cos**2 + sin**2 - 1).abs().max() < 1e-2:
                return Reading([cos, sin], fault=faults.STACKED)
    return None


def read_form(raw: Any, dim: int, end: int) -> Reading | None:
    """The reading of a table in one of the right forms."""
    if isinstance(raw, Tensor) and raw.is_complex():
        ones = axes_of_size_1(raw, end, dim // 2)
        if ones is None:
            return None
        table = raw.detach().to(torch.complex128).reshape(end, dim // 2)
        return Reading([table.real, table.imag], Form("complex", "single", False, *ones))
    candidates: list[tuple[str, Any]] = [("tuple", raw)]
    if isinstance(raw, Tensor):
        candidates = [("last", raw.unbind(-1)), ("stack", raw.unbind(0))] if raw.ndim > 2 else []
    for container, parts in candidates:
        if isinstance(parts, list | tuple) and len(parts) == 2 and all(is_real(part) for part in parts):
            read = read_parts(list(parts), container, dim, end)
            if read is not None:
                return read
    return None


def is_real(part: Any) -> bool:
    return isinstance(part, Tensor) and not part.is_complex() and part.ndim > 0


def read_parts(parts: list[Tensor], container: str, dim: int, end: int) -> Reading | None:
    """The reading of cosines and sines, (end, dim/2) or (end, dim) each, in either order."""
    columns = dim if parts[0].shape[-1] == dim else dim // 2
    ones = axes_of_size_1(parts[0], end, columns)
    if ones is None or parts[0].shape != parts[1].shape:
        return None
    parts = [part.detach().double().reshape(end, columns) for part in parts]
    width = "single"
    if columns == dim:
        narrow = {width: [unwidened(part, width) for part in parts] for width in ("halves", "neighbours")}
        fitting = [width for width, found in narrow.items() if all(part is not None for part in found)]
        if not fitting:
            return None
        width = fitting[0]
        parts = [part for part in narrow[width] if part is not None]
    sin_first = bool(parts[0][0].abs().sum() < parts[1][0].abs().sum())  # at position 0 the sines are 0
    return Reading(parts[::-1] if sin_first else parts, Form(container, width, sin_first, *ones))


def unwidened(x: Tensor, width: str) -> Tensor | None:
    """(…, D) -> (…, D/2) if each number is there twice, else None."""
    half = x[..., : x.shape[-1] // 2] if width == "halves" else x[..., ::2]
    return half if torch.equal(widened(half, width), x) else None


def axes_of_size_1(part: Tensor, end: int, columns: int) -> tuple[int, int] | None:
    """The number of axes of size 1 before the positions and between positions and columns; None for other shapes."""
    for before in range(part.ndim - 1):
        between = part.ndim - 2 - before
        if part.shape == (*(1,) * before, end, *(1,) * between, columns):
            return before, between
    return None


def angles(dim: int, end: int, theta: float) -> Tensor:
    """float64 (end, dim/2): position times theta^(-2i/dim)."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    return torch.outer(torch.arange(end, dtype=torch.float64), theta ** (-2 * i / dim))


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def close(x: Tensor, y: Tensor, tolerance: float = 3e-3) -> bool:
    """Whether tensors of equal shape have equal numbers within the tolerance."""
    return x.shape == y.shape and bool(((x - y).abs() <= tolerance * (1 + y.abs())).all())
