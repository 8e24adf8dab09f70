"""``causal_mask``: what it must give, and what known mistakes make of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, parameters
from .faults import Fault
from .forms import Conventions
from .recipe import Explanation, Mistake, Recipe, explain
from .verdict import Comparison, Property, Verdict, in_other_order, kind, wrong

FUNCTION = "causal_mask"
CHUNKS = ((0, 2), (1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (5, 3))  # start_pos, T; smallest first


def visible(start: int, T: int, diagonal: int = 0) -> Tensor:
    return torch.ones(T, start + T, dtype=torch.bool).tril(start + diagonal)  # (T, S)


def diagonal(start: int, T: int) -> Tensor:
    return torch.ones(T, start + T, dtype=torch.bool).triu(start) & visible(start, T)


def whole(start: int, T: int) -> Tensor:
    return visible(0, start + T)


RECIPE: Recipe = {"seen": visible, "result": lambda mask: mask}

MISTAKES = [
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T, -start)),
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T).roll(-start, 1)),  # cached keys behind
    Mistake(known.SQUARE, "seen", lambda start, T: visible(0, T)),
    Mistake(known.ALL_ROWS, "seen", whole),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, -1)),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, 1)),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, 2)),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, -2)),
    Mistake(known.INVERTED_MASK, "result", lambda mask: ~mask),
    Mistake(known.NO_MASK, "seen", lambda start, T: visible(start, T, T)),
    Mistake(known.CACHED_HIDDEN, "seen", lambda start, T: visible(start, T) & (torch.arange(start + T) >= start)),
    Mistake(known.NOTHING_SEEN, "seen", lambda start, T: visible(start, T, -start - T)),
    Mistake(known.ITSELF, "seen", diagonal),
    Mistake(known.TRANSPOSED_MASK, "result", lambda mask: mask.T),
    Mistake(known.TRANSPOSED_MASK, "seen", lambda start, T: ~visible(start, T, -1)),  # triu instead of tril
    Mistake(known.TRANSPOSED_MASK, "seen", lambda start, T: ~visible(start, T, -start - 1)),
    Mistake(known.MIRRORED, "result", lambda mask: mask.flip(1)),
    Mistake(known.MIRRORED, "result", lambda mask: mask.flip(0)),
    Mistake(known.MIRRORED, "result", lambda mask: mask.flip(0, 1)),
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T, T - start)),  # the diagonal is T
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T, start)),  # start_pos twice
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T, 1 - start)),
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T, -1 - start)),
    Mistake(known.WINDOW, "seen", lambda start, T: visible(start, T) & ~visible(start, T, -2)),
    Mistake(known.WINDOW, "seen", lambda start, T: visible(start, T) & ~visible(start, T, -T)),
    Mistake(known.WINDOW, "seen", lambda start, T: visible(start, T) & (torch.arange(start + T) > 0)),
    Mistake(known.MASK_COLUMNS, "seen", lambda start, T: torch.ones(T, start + T + 1, dtype=torch.bool).tril(start)),
    Mistake(known.MASK_COLUMNS, "seen", lambda start, T: torch.ones(T, start + T - 1, dtype=torch.bool).tril(start)),
    Mistake(known.MASK_COLUMNS, "seen", lambda start, T: torch.ones(T, start, dtype=torch.bool).tril(start)),
    Mistake(known.MASK_COLUMNS, "seen", lambda start, T: torch.ones(1, start + T, dtype=torch.bool)),
]


def read_mask(raw: Any) -> tuple[Tensor | None, Fault | None]:
    """The mask as booleans without axes of size 1 in front, and what is wrong with how it is written."""
    fault = None
    if isinstance(raw, np.ndarray | list | tuple):
        try:
            raw = torch.as_tensor(np.asarray(raw))
        except (TypeError, ValueError):
            return None, None
        fault = known.NUMPY
    if not isinstance(raw, Tensor) or raw.is_complex():
        return None, known.NO_MASK_RETURNED if raw is None else None
    mask = raw.detach()
    if mask.ndim > 2 and mask.shape[:-2].numel() == 1:
        mask = mask.reshape(mask.shape[-2:])
    if mask.dtype == torch.bool:
        return mask, fault
    if (mask < 0).any():  # 0 and -inf, or a large negative number: added to the scores
        return mask > -1, known.NOT_BOOLEAN
    return mask != 0, known.NOT_BOOLEAN


LOOK_SHAPE = "Look at the sizes: torch.ones(T, start_pos + T)."
LOOK_ROWS = "Look at the diagonal: tril(diagonal=start_pos) keeps key start_pos + t in row t."


def mask_properties(masks: list[Tensor | None], raws: list[Any]) -> Iterator[Property]:
    for (start, T), mask, raw in zip(CHUNKS, masks, raws):
        of = f"start_pos {start}, T {T}"
        shape = str(tuple(mask.shape)) if mask is not None else kind(raw)
        sentence = f"{of}: the mask covers T new tokens and all start_pos + T keys; its shape"
        yield Property(sentence, shape, str((T, start + T)), LOOK_SHAPE)
    for (start, T), mask in zip(CHUNKS, masks):
        if mask is None or mask.shape != (T, start + T):
            continue
        for t in range(T):
            of = f"start_pos {start}, T {T}: token {t} is at position {start + t}"
            yield Property(f"{of}; the number of keys it sees", int(mask[t].sum()), start + t + 1, LOOK_ROWS)
            if mask[t].any():
                last = int(mask[t].nonzero().max())
                yield Property(f"{of}; the last key it sees", last, start + t, LOOK_ROWS)
    for (start, T), raw in zip(CHUNKS, raws):
        found = str(raw.dtype)[6:] if isinstance(raw, Tensor) else type(raw).__name__
        yield Property(f"start_pos {start}, T {T}: the mask is a boolean tensor, True where a key may be seen; it is",
                       found, "bool", "Write dtype=torch.bool.")  # fmt: skip


def comparisons(masks: list[Tensor | None], raws: list[Any]) -> Iterator[Comparison]:
    for (start, T), mask, raw in zip(CHUNKS, masks, raws):
        yield Comparison(f"{FUNCTION}({start}, {T})", [("mask", raw if mask is None else mask, visible(start, T))])


def judge_mask(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function = names[FUNCTION]
    trials = caller.trials(function, CHUNKS, parameters(FUNCTION))
    problem = next((trial.problem for trial in trials if trial.problem), "")
    raws = [trial.value for trial in trials]
    read = [read_mask(raw) for raw in raws]
    masks = [mask for mask, _ in read]
    miswritten = list(dict.fromkeys(fault for _, fault in read if fault))
    right = all(is_visible(raw, number) for number, raw in enumerate(raws))
    if right and not miswritten:
        return Verdict(FUNCTION, "right")
    if not right:
        order = caller.other_order(function, CHUNKS, is_visible)
        if order:
            return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    explanation = mask_explanation(masks, raws, [trial.error is None for trial in trials])
    if explanation is not None:
        explanation = (*miswritten, *explanation)
    elif miswritten and not problem:
        explanation = tuple(miswritten)
    return wrong(FUNCTION, explanation, mask_properties(masks, raws), comparisons(masks, raws), 8, problem)


def is_visible(raw: Any, number: int) -> bool:
    mask, _ = read_mask(raw)
    return mask is not None and torch.equal(mask, visible(*CHUNKS[number]))


def mask_explanation(masks: list[Tensor | None], raws: list[Any], ran: list[bool]) -> Explanation | None:
    """What is wrong with the masks that there are; None stands for one where a mask is not needed, but not for all."""
    if not any(mask is not None for mask in masks):
        return () if all(raw is None for raw in raws) and all(ran) else None

    def gives(parts: Recipe) -> bool:
        for chunk, mask in zip(CHUNKS, masks):
            if mask is not None and not torch.equal(mask, parts["result"](parts["seen"](*chunk))):
                return False
        return True

    if gives(RECIPE):
        return () if all(ran) else None
    return explain(RECIPE, MISTAKES, gives)
