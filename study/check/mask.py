"""Measure ``causal_mask``: its type, its shape, and the keys that each token sees."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .calls import Caller
from .faults import FAULTS, Fault, in_common
from .forms import Conventions
from .verdict import Finding

ARGUMENTS = ("start_pos", "T")
CHUNKS = ((0, 2), (1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (5, 3))  # start_pos, T; smallest first

SHAPES: list[tuple[Fault, Callable[..., bool]]] = [
    (FAULTS["SQUARE"], lambda shape, start, T: shape == (T, T)),
    (FAULTS["ALL_ROWS"], lambda shape, start, T: shape == (start + T, start + T)),
    (FAULTS["TRANSPOSED_MASK"], lambda shape, start, T: shape == (start + T, T)),
    (FAULTS["MASK_COLUMNS"], lambda shape, start, T: shape[:1] == (T,) or shape[1:] == (start + T,)),
]
# Of q, the position of each token, (T, 1), and k, that of each key, (1, S): whether the token sees the key.
CELLS: list[tuple[Fault, Callable[[Tensor, Tensor, int], Tensor]]] = [
    (FAULTS["INVERTED_MASK"], lambda q, k, start: k > q),
    (FAULTS["NOTHING_SEEN"], lambda q, k, start: k < 0 * q),
    (FAULTS["NO_MASK"], lambda q, k, start: k >= 0 * q),
    (FAULTS["ITSELF"], lambda q, k, start: k == q),
    (FAULTS["CACHED_HIDDEN"], lambda q, k, start: (k <= q) & (k >= start)),
    (FAULTS["TRANSPOSED_MASK"], lambda q, k, start: k >= q),
    (FAULTS["TRANSPOSED_MASK"], lambda q, k, start: k >= q - start),
    (FAULTS["MIRRORED"], lambda q, k, start: k.flip(1) <= q),
    (FAULTS["MIRRORED"], lambda q, k, start: k <= q.flip(0)),
    (FAULTS["CORNER"], lambda q, k, start: k.roll(-start, 1) <= q),
    *((FAULTS["DIAGONAL"], lambda q, k, start, n=n: k <= q + n) for n in range(-8, 9)),
]


def visible(start_pos: int, T: int) -> Tensor:
    """The right mask, (T, S)."""
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos)


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    yield from call.order_finding("causal_mask")
    raws = [call(*chunk) for chunk in CHUNKS]
    typed = type_finding(raws)
    if typed:
        yield typed
    values = [read_mask(raw) for raw in raws]
    masks = [value for value in values if value is not None]
    if len(masks) < len(CHUNKS):
        return
    is_added = any((mask < 0).any() for mask in masks)  # to the scores, so 0 is visible
    masks = [mask > -1 if is_added else mask != 0 for mask in masks]
    yield from list(shape_finding(masks)) or cell_finding(masks)


def type_finding(raws: list[Any]) -> Finding | None:
    """The first mask that is not a boolean tensor."""
    for raw in raws:
        if not isinstance(raw, Tensor):
            fault = FAULTS["NO_MASK_RETURNED"] if raw is None else FAULTS["NUMPY"]
            return Finding("The mask is a boolean tensor; it is of type", type(raw).__name__, "bool", fault)
        if raw.dtype != torch.bool:
            fault = FAULTS["NOT_BOOLEAN"]
            return Finding("The mask is a boolean tensor; it is of type", str(raw.dtype)[6:], "bool", fault)
    return None


def read_mask(raw: Any) -> Tensor | None:
    """The mask in float64, because torch cannot compare tensors of every dtype, without leading axes of size 1."""
    if isinstance(raw, np.ndarray | list | tuple):
        try:
            raw = torch.as_tensor(np.asarray(raw))
        except (TypeError, ValueError):
            return None
    if not isinstance(raw, Tensor) or raw.is_complex():
        return None
    mask = raw.detach().double()
    return mask.reshape(mask.shape[-2:]) if mask.ndim > 2 and mask.shape[:-2].numel() == 1 else mask


def shape_finding(masks: list[Tensor]) -> Iterator[Finding]:
    """The first mask of another shape than (T, S), and what all shapes have in common."""
    cases = [(tuple(mask.shape), start, T) for mask, (start, T) in zip(masks, CHUNKS)]
    for shape, start, T in cases:
        if shape != (T, start + T):
            sentence = f"start_pos {start}, T {T}: the mask covers T new tokens and all start_pos + T keys; its shape"
            yield Finding(sentence, str(shape), str((T, start + T)), in_common(SHAPES, cases))
            return


def cell_finding(masks: list[Tensor]) -> Iterator[Finding]:
    """The first token that sees other keys, and what all masks have in common."""
    for mask, (start, T) in zip(masks, CHUNKS):
        wrong = (mask != visible(start, T)).any(1)
        if wrong.any():
            t = int(wrong.int().argmax())
            sentence = f"start_pos {start}, T {T}: token {t} is at position {start + t}; it sees the keys"
            yours, expected = (
                ", ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in (mask[t], visible(start, T)[t])
            )
            yield Finding(sentence, yours, expected, cell_fault(masks))
            return


def cell_fault(masks: list[Tensor]) -> Fault | None:
    cases = [
        (mask, torch.arange(start, start + T)[:, None], torch.arange(start + T)[None], start)
        for mask, (start, T) in zip(masks, CHUNKS)
    ]
    rules: list[tuple[Fault, Callable[..., bool]]] = [
        *((fault, lambda mask, *case, rule=rule: torch.equal(mask, rule(*case))) for fault, rule in CELLS),
        # A triangle, with another diagonal for each start_pos or T
        (FAULTS["CORNER"], lambda mask, q, k, start: any(torch.equal(mask, k <= q + n) for n in range(-20, 21))),
        (FAULTS["WINDOW"], lambda mask, q, k, start: not (mask & (k > q)).any()),
    ]
    return in_common(rules, cases)
