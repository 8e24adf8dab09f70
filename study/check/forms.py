"""The forms in which the reader's rotation table may be written, recognized by their shapes and repetitions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

COMPLEX, TUPLE, LAST, STACK = "complex", "(cos, sin)", "(…, 2)", "(2, …)"
# Each angle once, or twice: in halves (a0, a1 .. a0, a1 ..) or as neighbours (a0, a0, a1, a1 ..).
SINGLE, HALVES, NEIGHBOURS = "D/2 columns", "D columns in halves", "D columns in pairs of neighbours"
WIDTHS = (SINGLE, HALVES, NEIGHBOURS)


class Form(NamedTuple):
    """The form of a table. ``write`` writes the right table in the reader's form, so each function is judged alone."""

    container: str = COMPLEX
    width: str = SINGLE
    sin_first: bool = False
    axes: tuple[int, ...] = (-1,)  # sizes before the columns: -1 for the positions, 1 for axes added to broadcast

    def write(self, table: Tensor) -> Any:
        """A table, complex128 (T, D/2), in this form."""
        if self.container == COMPLEX:
            return table.to(torch.complex64).reshape(*self.axes, table.shape[1])
        parts = [widened(part.float(), self.width) for part in (table.real, table.imag)]
        parts = [part.reshape(*self.axes, part.shape[1]) for part in parts]
        parts = parts[::-1] if self.sin_first else parts
        if self.container == TUPLE:
            return tuple(parts)
        return torch.stack(parts, -1 if self.container == LAST else 0)

    def read(self, raw: Any) -> Tensor:
        """The table that was written in this form, complex128 (T, D/2), with any axes of size 1."""
        parts = dict(parts_of(raw))[self.container]
        cos, sin = (narrowed(part.double().reshape(-1, part.shape[-1]), self.width) for part in parts)
        return torch.complex(sin, cos) if self.sin_first else torch.complex(cos, sin)

    def __str__(self) -> str:
        return f"{self.container} of {self.width}{', sines first' if self.sin_first else ''}"


FORMS = [Form(), *(Form(TUPLE, width) for width in WIDTHS), Form(LAST)]


@dataclass
class Conventions:
    """What the reader's functions agree on, collected as they are judged, and the functions that are right."""

    table: Form | None = None
    layout: str = "neighbours"
    right: set[str] = field(default_factory=set)


class Reading(NamedTuple):
    """The numbers of a table, complex128 (end, dim/2), its form, and the fault of the form if it is a wrong one."""

    table: Tensor
    form: Form | None
    fault: str = ""


# What makes a right form of a wrong one. Of a table with one real number in each place, the other part is 0.
WRONG_FORMS: list[tuple[str, Callable[[Any], Any]]] = [
    ("NUMPY", lambda raw: tuple(map(torch.as_tensor, raw)) if type(raw) is tuple else torch.as_tensor(raw)),
    ("STACKED", lambda raw: raw.unbind(1)),
    ("STACKED", lambda raw: raw.chunk(2, -1)),
    ("STACKED", lambda raw: (raw[..., ::2], raw[..., 1::2])),
    ("TRANSPOSED_TABLE", lambda raw: tuple(map(transposed, raw)) if type(raw) is tuple else transposed(raw)),
    ("", lambda raw: (raw, torch.zeros_like(raw))),
]


def read_table(raw: Any, dim: int, end: int) -> Reading | None:
    """The numbers of a table and its form; None if its shape is none of these."""
    read = read_form(raw, dim, end)
    for fault, corrected in WRONG_FORMS if read is None else []:
        try:
            read = read_form(corrected(raw), dim, end)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            continue
        if read and (fault != "STACKED" or close(read.table.abs(), torch.ones(end, dim // 2), 1e-2)):
            return read._replace(form=read.form if fault else None, fault=fault)
        read = None
    return read


def read_form(raw: Any, dim: int, end: int) -> Reading | None:
    """The reading of a table in one of the right forms."""
    for container, parts in parts_of(raw):
        if len(parts) != 2 or not all(isinstance(part, Tensor) and not part.is_complex() for part in parts):
            continue
        axes = tuple(-1 if size == end else size for size in parts[0].shape[:-1])
        if parts[1].shape != parts[0].shape or sorted(axes) != [-1, *[1] * (len(axes) - 1)]:
            continue
        for width in WIDTHS if container != COMPLEX else WIDTHS[:1]:
            form = Form(container, width, False, axes)
            table = form.read(raw)
            again = (widened(x, width).reshape(part.shape) for x, part in zip((table.real, table.imag), parts))
            if table.shape[1] == dim // 2 and all(map(torch.equal, again, (part.double() for part in parts))):
                # At position 0 the sines are 0.
                if container != COMPLEX and table[0].real.abs().sum() < table[0].imag.abs().sum():
                    form = form._replace(sin_first=True)
                return Reading(form.read(raw), form)
    return None


def parts_of(raw: Any) -> list[tuple[str, Sequence[Any]]]:
    """The containers that ``raw`` may be, with its cosines and sines, in either order."""
    if isinstance(raw, tuple | list):
        return [(TUPLE, raw)]
    if not isinstance(raw, Tensor):
        return []
    if raw.is_complex():
        return [(COMPLEX, (raw.real, raw.imag))]
    return [(LAST, raw.unbind(-1)), (STACK, raw.unbind(0))] if raw.ndim > 2 else []


def widened(x: Tensor, width: str) -> Tensor:
    """Repeat each number twice, (…, D/2) -> (…, D), or return x for SINGLE."""
    return {SINGLE: x, HALVES: torch.cat((x, x), -1), NEIGHBOURS: x.repeat_interleave(2, -1)}[width]


def narrowed(x: Tensor, width: str) -> Tensor:
    """The reverse of ``widened``."""
    return {SINGLE: x, HALVES: x[..., : x.shape[-1] // 2], NEIGHBOURS: x[..., ::2]}[width]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def angles(dim: int, end: int, theta: float) -> Tensor:
    """float64 (end, dim/2): position times theta^(-2i/dim)."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    return torch.outer(torch.arange(end, dtype=torch.float64), theta ** (-2 * i / dim))


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def close(x: Tensor, y: Tensor, tolerance: float = 3e-3) -> bool:
    """Whether tensors of equal shape have equal numbers within the tolerance."""
    return x.shape == y.shape and bool(((x - y).abs() <= tolerance * (1 + y.abs())).all())
