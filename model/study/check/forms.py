"""The forms in which a reader may write a table of rotations or a mask, recognized by their content."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

Describe = Callable[[BaseException], str]


class Form(NamedTuple):
    """How a table is written. The right one can be written in the reader's form, so each function is judged alone."""

    container: str = "complex"  # complex, last (…, 2), tuple (cos, sin), or stack (2, …)
    width: str = "single"  # each angle once; or twice: halves (a0, a1 .. a0, a1 ..), neighbours (a0, a0, a1, a1 ..)
    sin_first: bool = False
    before: int = 0  # axes of size 1 before the positions
    between: int = 0  # and between these and the pairs

    def write(self, table: Tensor) -> Any:
        """Complex128 (T, D/2) in this form."""
        if self.container == "complex":
            return self.lay(table.to(torch.complex64))
        parts = [self.lay(widened(part.float(), self.width)) for part in (table.real, table.imag)]
        parts = parts[::-1] if self.sin_first else parts
        if self.container == "tuple":
            return tuple(parts)
        return torch.stack(parts, -1 if self.container == "last" else 0)

    def lay(self, part: Tensor) -> Tensor:
        return part.reshape(*(1,) * self.before, len(part), *(1,) * self.between, -1)


FORMS = [Form(), *(Form("tuple", width) for width in ("single", "halves", "neighbours")), Form("last")]


@dataclass
class Conventions:
    """The forms that the reader's functions use, as far as they have been judged."""

    table: Form | None = None
    mask: str = ""
    broken: set[str] = field(default_factory=set)  # functions that are wrong, and replaced when a later one calls them


def widened(x: Tensor, width: str) -> Tensor:
    """(…, D/2) -> (…, D), each number twice; or as it is."""
    return {"single": x, "halves": torch.cat((x, x), -1), "neighbours": x.repeat_interleave(2, -1)}[width]


def read_table(result: Any, dim: int, end: int) -> tuple[Tensor | None, Form | None]:
    """Complex128 (end, dim/2) and the form it came in, or None for an unknown form."""
    if isinstance(result, Tensor) and result.is_complex():
        if [size for size in result.shape if size != 1] != [end, dim // 2]:
            return None, None
        table = result.detach().to(torch.complex128).reshape(end, dim // 2)
        return table, Form("complex", "single", False, *ones(result, end))
    container = "tuple"
    if isinstance(result, Tensor):
        container = "last" if result.shape[-1:] == (2,) else "stack"
        if result.ndim <= 2:
            return None, None
        result = result.unbind(-1 if container == "last" else 0)
    if not isinstance(result, list | tuple) or len(result) != 2 or not all(isinstance(r, Tensor) for r in result):
        return None, None
    parts = [part.detach().double().squeeze() for part in result]
    if any(part.shape not in ((end, dim // 2), (end, dim)) for part in parts) or parts[0].shape != parts[1].shape:
        return None, None
    width = "single"
    if parts[0].shape[1] == dim:
        width = "halves" if torch.equal(*parts[0].chunk(2, -1)) else "neighbours"
        step = slice(None, dim // 2) if width == "halves" else slice(None, None, 2)
        if any(not torch.equal(part, widened(part[:, step], width)) for part in parts):
            return None, None
        parts = [part[:, step] for part in parts]
    sin_first = bool(parts[0][0].abs().sum() < parts[1][0].abs().sum())
    parts = parts[::-1] if sin_first else parts
    return torch.complex(*parts), Form(container, width, sin_first, *ones(result[0], end))


def ones(part: Tensor, end: int) -> tuple[int, int]:
    before = part.shape.index(end)
    return before, part.ndim - 2 - before


def write_mask(mask: Tensor, way: str) -> Tensor:
    """True where a key is seen, in one of the ways a mask is written."""
    if way == "additive":
        return torch.zeros(mask.shape, dtype=torch.float32).masked_fill(~mask, -torch.inf)
    return {"bool": mask, "ones": mask.float(), "inverted": ~mask}[way]


def read_masks(masks: list[Any]) -> tuple[list[Tensor | None], str]:
    """Each as True where a key is seen, without axes of size 1 in front, and the way they are written."""
    tensors = [mask.detach() for mask in masks if isinstance(mask, Tensor)]
    way = "bool"
    if any(mask.dtype != torch.bool for mask in tensors):
        way = "ones" if any((mask == 1).any() for mask in tensors) else "additive"
    read: list[Tensor | None] = []
    for mask in masks:
        if not isinstance(mask, Tensor):
            read.append(None)
            continue
        mask = mask.detach()
        if mask.ndim > 2 and mask.shape[:-2].numel() == 1:
            mask = mask.reshape(mask.shape[-2:])
        read.append(mask > -1e3 if way == "additive" else mask != 0)
    return read, way


class Attempt(NamedTuple):
    """One way of calling the reader's function on every probe, and what came of it."""

    outcomes: list[tuple[str, bool]]  # what it is if right, and whether it is
    values: list[Any]  # None where it raised
    problem: str  # the first exception, in words
    raised: list[bool]
    form: Form | None = None


def best(attempts: list[Attempt]) -> Attempt:
    """The first one that is right, else the first of those with fewest exceptions."""
    return min(attempts, key=lambda a: (not any(matches for _, matches in a.outcomes), sum(a.raised)))


def observe(
    call: Callable[..., Any], probes: Iterable[Sequence[Any]], describe: Describe
) -> tuple[list[Any], str, list[bool]]:
    """What ``call`` gives for each probe (None where it raised), the first exception in words, and which raised."""
    values: list[Any] = []
    raised: list[bool] = []
    problem = ""
    for probe in probes:
        value = None
        failed = False
        try:
            value = plain(call(*(x.clone() if isinstance(x, Tensor) else x for x in probe)))
        except NotImplementedError:
            raise
        except BaseException as error:
            problem = problem or describe(error)
            failed = True
        values.append(value)
        raised.append(failed)
    return values, problem, raised


def plain(value: Any) -> Any:
    """Copies of the tensors in it, dense and on the CPU: later calls may write to what was returned."""
    if isinstance(value, tuple | list):
        copies = [plain(item) for item in value]
        return copies if type(value) is list else tuple(copies)
    if not isinstance(value, Tensor):
        return value
    if value.is_meta:
        raise ValueError("it returns a tensor on the meta device, which holds no numbers")
    return (value if value.layout == torch.strided else value.to_dense()).cpu().clone()


def close(value: Any, expected: Tensor, tolerance: float = 3e-3) -> bool:
    if not isinstance(value, Tensor) or value.shape != expected.shape or value.is_complex() != expected.is_complex():
        return False
    return bool(((value.detach().to(expected.dtype) - expected).abs() <= tolerance).all())
