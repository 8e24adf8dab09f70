"""Measure ``causal_mask``: its shape, and the keys that each token sees, described by their diagonals."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import faults
from .calls import Caller, kind
from .faults import Fault
from .forms import Conventions
from .verdict import Finding

ARGUMENTS = ("start_pos", "T")
CHUNKS = ((0, 2), (1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (5, 3))  # start_pos, T; smallest first


def visible(start_pos: int, T: int) -> Tensor:
    """The right mask, (T, S)."""
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos)


def read_mask(raw: Any, is_added: bool = False) -> tuple[Tensor | None, Fault | None]:
    """The mask as booleans without leading axes of size 1, and the fault of its form if it has one.

    ``is_added`` if a number of any mask is negative: 0 then is visible, because the masks are added to the scores.
    """
    fault = None
    if isinstance(raw, np.ndarray | list | tuple):
        try:
            raw = torch.as_tensor(np.asarray(raw))
        except (TypeError, ValueError):
            return None, None
        fault = faults.NUMPY
    if not isinstance(raw, Tensor) or raw.is_complex():
        return None, faults.NO_MASK_RETURNED if raw is None else None
    mask = raw.detach()
    if mask.ndim > 2 and mask.shape[:-2].numel() == 1:
        mask = mask.reshape(mask.shape[-2:])
    if mask.dtype == torch.bool:
        return mask, fault
    values = mask.to(torch.float64)  # torch cannot compare tensors of every dtype
    if is_added or (values < 0).any():
        return values > -1, faults.NOT_BOOLEAN
    return values != 0, faults.NOT_BOOLEAN


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    yield from call.order_finding("causal_mask")
    raws = [call(*chunk) for chunk in CHUNKS]
    is_added = any(isinstance(raw, Tensor) and not raw.is_complex() and (raw.double() < 0).any() for raw in raws)
    masks = [read_mask(raw, is_added)[0] for raw in raws]
    shape = shape_finding(raws, masks)
    if shape:
        yield shape
    fault = next((fault for _, fault in map(read_mask, raws) if fault), None)
    if fault is faults.NO_MASK_RETURNED and shape and shape.fault is fault:
        return
    if fault:
        raw = next(raw for raw in raws if read_mask(raw)[1])
        yours = str(raw.dtype)[6:] if isinstance(raw, Tensor) else type(raw).__name__
        yield Finding("The mask is a boolean tensor; it is of type", yours, "bool", fault)
    if shape is None:
        yield from cell_finding([mask for mask in masks if mask is not None])


def shape_finding(raws: list[Any], masks: list[Tensor | None]) -> Finding | None:
    """The first chunk whose mask has another shape than (T, S), and what all shapes have in common."""
    shapes = [None if mask is None else tuple(mask.shape) for mask in masks]
    wrong = [n for n, (start, T) in enumerate(CHUNKS) if shapes[n] != (T, start + T)]
    if not wrong:
        return None
    start, T = CHUNKS[wrong[0]]
    candidates = [
        (faults.SQUARE, lambda start, T: (T, T)),
        (faults.ALL_ROWS, lambda start, T: (start + T, start + T)),
        (faults.TRANSPOSED_MASK, lambda start, T: (start + T, T)),
        (faults.MASK_COLUMNS, lambda start, T: (T, None)),
        (faults.MASK_COLUMNS, lambda start, T: (None, start + T)),
    ]
    fault = faults.NO_MASK_RETURNED if raws[wrong[0]] is None else None
    for candidate, shape_of in candidates:
        expected = [shape_of(*chunk) for chunk in CHUNKS]
        if fault is None and all(shape and agree(shape, right) for shape, right in zip(shapes, expected)):
            fault = candidate
    shape = shapes[wrong[0]]
    yours = kind(raws[wrong[0]]) if shape is None else str(shape)
    sentence = f"start_pos {start}, T {T}: the mask covers T new tokens and all start_pos + T keys; its shape"
    return Finding(sentence, yours, str((T, start + T)), fault)


def agree(shape: tuple[int, ...], right: tuple[int | None, ...]) -> bool:
    return len(shape) == len(right) and all(size in (found, None) for found, size in zip(shape, right))


def diagonals(start: int, T: int) -> Tensor:
    """The distance of each key from the token's own, (T, S): 0 is the token itself, 1 the next."""
    return torch.arange(start + T)[None, :] - torch.arange(start, start + T)[:, None]


def cell_finding(masks: list[Tensor]) -> Iterator[Finding]:
    wrong = [n for n, mask in enumerate(masks) if not torch.equal(mask, visible(*CHUNKS[n]))]
    if not wrong:
        return
    start, T = CHUNKS[wrong[0]]
    mask, right = masks[wrong[0]], visible(start, T)
    t = int((mask != right).any(1).nonzero()[0])
    sentence = f"start_pos {start}, T {T}: token {t} is at position {start + t}; it sees the keys"
    fault = cell_fault(masks)
    if fault is None and all(torch.equal(masks[n], visible(*CHUNKS[n])) for n in range(len(masks)) if CHUNKS[n][0]):
        sentence = f"Wrong only without cached keys. {sentence}"
    yield Finding(sentence, keys_text(mask[t]), keys_text(right[t]), fault)


def keys_text(row: Tensor) -> str:
    """``0 .. 4``, or a list."""
    keys = row.nonzero()[:, 0].tolist()
    if not keys:
        return "none"
    if len(keys) > 1 and keys == list(range(keys[0], keys[-1] + 1)):
        return f"{keys[0]} .. {keys[-1]}"
    return ", ".join(map(str, keys))


def cell_fault(masks: list[Tensor]) -> Fault | None:
    """The fault that the cells of all masks, of the right shapes, have in common."""
    cases = [
        (mask, visible(*chunk), diagonals(*chunk), start, T)
        for mask, chunk in zip(masks, CHUNKS)
        for start, T in [chunk]
    ]

    def always(expected: Any) -> bool:
        return all(torch.equal(mask, expected(right, d, start, T)) for mask, right, d, start, T in cases)

    if always(lambda right, d, start, T: ~right):
        return faults.INVERTED_MASK
    if always(lambda right, d, start, T: torch.zeros_like(right)):
        return faults.NOTHING_SEEN
    if always(lambda right, d, start, T: torch.ones_like(right)):
        return faults.NO_MASK
    if always(lambda right, d, start, T: d == 0):
        return faults.ITSELF
    if always(lambda right, d, start, T: right & (d >= -start - torch.arange(T)[:, None] + start)):
        return faults.CACHED_HIDDEN
    if always(lambda right, d, start, T: d >= 0) or always(lambda right, d, start, T: d + start >= 0):
        return faults.TRANSPOSED_MASK
    if always(lambda right, d, start, T: right.flip(1)) or always(lambda right, d, start, T: right.flip(0)):
        return faults.MIRRORED
    if always(lambda right, d, start, T: right.roll(-start, 1)):
        return faults.CORNER
    lasts = [last_diagonal(mask, d) for mask, _, d, _, _ in cases]
    if all(last is not None for last in lasts):  # each token sees all keys up to a diagonal
        # At the edges of a mask several diagonals give the same cells, so each chunk allows a range of them.
        if any(all(low <= shift <= high for low, high in filter(None, lasts)) for shift in range(-8, 9)):
            return faults.DIAGONAL
        return faults.CORNER
    if all(not (mask & ~right).any() for mask, right, *_ in cases):
        return faults.WINDOW
    return None


def last_diagonal(mask: Tensor, d: Tensor) -> tuple[int, int] | None:
    """The range of diagonals up to which the mask would show all keys; None if it is no such mask."""
    fitting = [last for last in range(-20, 21) if torch.equal(mask, d <= last)]
    return (fitting[0], fitting[-1]) if fitting else None
