"""``causal_mask``: what it must give, and what each known mistake makes of it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import Property, Verdict, decide
from . import faults as known
from .faults import Fault
from .forms import Describe, Spelling, observe

CHUNKS = ((0, 4), (3, 5), (7, 2), (2, 1), (5, 3))  # start_pos, T


def visible(start: int, T: int, diagonal: int = 0) -> Tensor:
    return torch.ones(T, start + T, dtype=torch.bool).tril(start + diagonal)  # (T, S)


MASK_FAULTS: list[tuple[Fault, Callable[[int, int], Tensor]]] = [
    (known.CORNER, lambda start, T: visible(start, T, -start)),
    (known.CORNER, lambda start, T: visible(start, T).roll(-start, 1)),  # the cached keys put behind the triangle
    (known.SQUARE, lambda start, T: visible(0, T)),
    (known.DIAGONAL, lambda start, T: visible(start, T, -1)),
    (known.DIAGONAL, lambda start, T: visible(start, T, 1)),
    (known.INVERTED_MASK, lambda start, T: ~visible(start, T)),
    (known.NO_MASK, lambda start, T: visible(start, T, T)),
    (known.CACHED_HIDDEN, lambda start, T: visible(start, T) & (torch.arange(start + T) >= start)),
]


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
        if isinstance(mask, Tensor):
            mask = mask.detach()
            mask = mask.reshape(mask.shape[-2:]) if mask.ndim > 2 and mask.shape[:-2].numel() == 1 else mask
            read.append(mask > -1e3 if way == "additive" else mask != 0)
        else:
            read.append(None)
    return read, way


def needless(raw: Any, start: int, T: int) -> bool:
    """Whether None stands where no mask is needed: one token sees everything, and a whole text is plainly causal."""
    return raw is None and (T == 1 or start == 0)


def mask_properties(masks: list[Tensor | None], raws: list[Any]) -> Iterator[Property]:
    for (start, T), mask, raw in zip(CHUNKS, masks, raws):
        of = f"start_pos {start}, T {T}"
        if not needless(raw, start, T):
            shape = str(tuple(mask.shape)) if mask is not None else type(raw).__name__
            yield Property(f"{of}: the mask covers T new tokens and all start_pos + T keys; its shape", shape,
                           str((T, start + T)))  # fmt: skip
    for (start, T), mask in zip(CHUNKS, masks):
        for t in range(T if mask is not None and mask.shape == (T, start + T) else 0):
            of = f"start_pos {start}, T {T}: token {t} is at position {start + t}"
            assert mask is not None
            yield Property(f"{of}; the number of keys it sees", int(mask[t].sum()), start + t + 1)
            last = int(mask[t].nonzero().max())
            yield Property(f"{of}; the last key it sees", last, start + t)


def judge_mask(names: dict[str, Any], spelling: Spelling, describe: Describe) -> Verdict:
    raws, problem, _ = observe(names["causal_mask"], CHUNKS, describe)
    masks, way = read_masks(raws)

    def match(formula: Callable[[int, int], Tensor]) -> bool:
        """Whether that is how all the masks were made."""
        return all(
            needless(raw, *chunk) or (mask is not None and torch.equal(mask, formula(*chunk)))
            for mask, raw, chunk in zip(masks, raws, CHUNKS)
        )

    right = match(visible)
    spelling.mask = way if right else ""
    faults = ((fault, match(formula)) for fault, formula in MASK_FAULTS)
    verdict = decide("causal_mask", [("right", right)], faults, mask_properties(masks, raws), problem, 8)
    if right and raws[0] is None:
        verdict.remarks.append("At start_pos 0 it gives None: then attention itself has to hide the future there.")
    return verdict
