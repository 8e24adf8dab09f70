"""The forms in which the reader's rotation table may be written, recognized by their numbers."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


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


FORMS = [Form(), *(Form("tuple", width) for width in ("single", "halves", "neighbours")), Form("last")]


@dataclass
class Conventions:
    """The forms that the reader's functions use, collected as they are judged, and the functions that are right."""

    table: Form | None = None
    layout: str = "neighbours"  # of apply_rotary_emb
    attention_layout: str = ""
    right: set[str] = field(default_factory=set)


def widened(x: Tensor, width: str) -> Tensor:
    """Repeat each number twice, (…, D/2) -> (…, D), or return x for the width ``single``."""
    return {"single": x, "halves": torch.cat((x, x), -1), "neighbours": x.repeat_interleave(2, -1)}[width]


def read_table(result: Any, dim: int, end: int) -> tuple[Tensor | None, Form | None]:
    """The table as complex128 (end, dim/2), and its form; None if the form is unknown."""
    if isinstance(result, Tensor) and result.is_complex():
        ones = axes_of_size_1(result, end, dim // 2)
        if ones is None:
            return None, None
        table = result.detach().to(torch.complex128).reshape(end, dim // 2)
        return table, Form("complex", "single", False, *ones)
    candidates: list[tuple[str, Any]] = [("tuple", result)]
    if isinstance(result, Tensor):
        candidates = [("last", result.unbind(-1)), ("stack", result.unbind(0))] if result.ndim > 2 else []
    for container, parts in candidates:
        if isinstance(parts, list | tuple) and len(parts) == 2 and all(is_real(part) for part in parts):
            read = _read_parts(list(parts), container, dim, end)
            if read[0] is not None:
                return read
    return None, None


def is_real(part: Any) -> bool:
    return isinstance(part, Tensor) and not part.is_complex()


def _read_parts(parts: list[Tensor], container: str, dim: int, end: int) -> tuple[Tensor | None, Form | None]:
    """The table from its cosines and sines, (end, dim/2) or (end, dim) each, in either order."""
    if parts[0].ndim == 0:
        return None, None
    columns = dim if parts[0].shape[-1] == dim else dim // 2
    ones = axes_of_size_1(parts[0], end, columns)
    if ones is None or parts[0].shape != parts[1].shape:
        return None, None
    parts = [part.detach().double().reshape(end, columns) for part in parts]
    width = "single"
    if parts[0].shape[1] == dim:
        width = "halves" if torch.equal(*parts[0].chunk(2, -1)) else "neighbours"
        step = slice(None, dim // 2) if width == "halves" else slice(None, None, 2)
        if any(not torch.equal(part, widened(part[:, step], width)) for part in parts):
            return None, None
        parts = [part[:, step] for part in parts]
    sin_first = bool(parts[0][0].abs().sum() < parts[1][0].abs().sum())  # at position 0 the sines are 0
    parts = parts[::-1] if sin_first else parts
    return torch.complex(*parts), Form(container, width, sin_first, *ones)


def axes_of_size_1(part: Tensor, end: int, columns: int) -> tuple[int, int] | None:
    """The number of axes of size 1 before the positions and between positions and columns; None for other shapes."""
    for before in range(part.ndim - 1):
        between = part.ndim - 2 - before
        if part.shape == (*(1,) * before, end, *(1,) * between, columns):
            return before, between
    return None
