"""Measure ``causal_mask``: its type, its shape, and the keys that each token sees."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .calls import Caller
from .forms import Conventions
from .verdict import Finding, in_common

CHUNKS = ((0, 2), (1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (5, 3))  # start_pos, T; smallest first

SHAPES: list[tuple[str, Callable[..., bool]]] = [
    ("SQUARE", lambda shape, start, T: shape == (T, T)),
    ("ALL_ROWS", lambda shape, start, T: shape == (start + T, start + T)),
    ("TRANSPOSED_MASK", lambda shape, start, T: shape == (start + T, T)),
    ("MASK_COLUMNS", lambda shape, start, T: shape[:1] == (T,) or shape[1:] == (start + T,)),
]
# Of q, the position of each token, (T, 1), and k, that of each key, (1, S): whether the token sees the key.
CELLS: list[tuple[str, Callable[[Tensor, Tensor, int], Tensor]]] = [
    ("INVERTED_MASK", lambda q, k, start: k > q),
    ("WINDOW", lambda q, k, start: k < 0 * q),
    ("NO_MASK", lambda q, k, start: k >= 0 * q),
    ("CACHED_HIDDEN", lambda q, k, start: (k <= q) & (k >= start)),
    ("TRANSPOSED_MASK", lambda q, k, start: k >= q),
    ("TRANSPOSED_MASK", lambda q, k, start: k >= q - start),
    ("MIRRORED", lambda q, k, start: k.flip(1) <= q),
    ("MIRRORED", lambda q, k, start: k <= q.flip(0)),
    ("CORNER", lambda q, k, start: k.roll(-start, 1) <= q),
    *(("DIAGONAL", lambda q, k, start, n=n: k <= q + n) for n in range(-8, 9)),
]
# Of the mask too
MASKS: list[tuple[str, Callable[..., bool]]] = [
    *((fault, lambda mask, *case, rule=rule: torch.equal(mask, rule(*case))) for fault, rule in CELLS),
    # A triangle, with another diagonal for each start_pos or T
    ("CORNER", lambda mask, q, k, start: any(torch.equal(mask, k <= q + n) for n in range(-20, 21))),
    ("WINDOW", lambda mask, q, k, start: not (mask & (k > q)).any()),
]


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    raws = [call(*chunk) for chunk in CHUNKS]
    for raw in raws:
        name = str(raw.dtype)[6:] if isinstance(raw, Tensor) else type(raw).__name__
        if name != "bool":
            fault = "NO_MASK_RETURNED" if raw is None else "NOT_BOOLEAN"
            yield Finding("The mask is a boolean tensor; it is of type", name, "bool", fault)
            break
    masks = [read_mask(raw) for raw in raws if raw is not None]
    if len(masks) < len(CHUNKS):
        return
    if any((mask < 0).any() for mask in masks):  # added to the scores, so 0 is visible
        masks = [mask + 1 for mask in masks]
    yield from wrong_shape(masks) or wrong_cells([mask > 0 for mask in masks])


def read_mask(raw: Any) -> Tensor:
    """The mask in float64, because torch cannot compare tensors of every dtype, without leading axes of size 1."""
    mask = torch.as_tensor(raw).detach().double()
    return mask.reshape(mask.shape[-2:]) if mask.ndim > 2 and mask.shape[:-2].numel() == 1 else mask


def wrong_shape(masks: list[Tensor]) -> list[Finding]:
    """The first mask of another shape than (T, S), and what all shapes have in common."""
    cases = [(tuple(mask.shape), start, T) for mask, (start, T) in zip(masks, CHUNKS)]
    for shape, start, T in cases:
        if shape != (T, start + T):
            sentence = f"start_pos {start}, T {T}: the mask covers T new tokens and all start_pos + T keys; its shape"
            return [Finding(sentence, str(shape), str((T, start + T)), in_common(SHAPES, cases))]
    return []


def wrong_cells(masks: list[Tensor]) -> list[Finding]:
    """The first token that sees other keys, and what all masks have in common."""
    cases = [
        (mask, torch.arange(start, start + T)[:, None], torch.arange(start + T)[None], start)
        for mask, (start, T) in zip(masks, CHUNKS)
    ]
    for mask, q, k, start in cases:
        right = k <= q
        wrong = (mask != right).any(1)
        if wrong.any():
            t = int(wrong.int().argmax())
            sentence = f"start_pos {start}, T {len(q)}: token {t} is at position {start + t}; it sees the keys"
            yours, expected = (
                ", ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in (mask[t], right[t])
            )
            return [Finding(sentence, yours, expected, in_common(MASKS, cases))]
    return []
