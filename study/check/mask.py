"""Judge ``causal_mask``: the right mask, the known mistakes, and the properties tested in order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, first_problem, parameters
from .faults import Fault
from .forms import Conventions
from .properties import Comparison, Property, kind
from .recipe import Explanation, Mistake, Recipe, explain
from .verdict import Verdict, in_other_order, wrong

FUNCTION = "causal_mask"
CHUNKS = ((0, 2), (1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (5, 3))  # start_pos, T; smallest first


def visible(start_pos: int, T: int, diagonal: int = 0) -> Tensor:
    """The right mask, (T, S); with ``diagonal``, its diagonal is moved to the right."""
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos + diagonal)


RECIPE: Recipe = {"seen": visible, "result": lambda mask: mask}

MISTAKES = [
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T, -start)),
    Mistake(known.CORNER, "seen", lambda start, T: visible(start, T).roll(-start, 1)),  # cached keys after the new ones
    Mistake(known.SQUARE, "seen", lambda start, T: visible(0, T)),
    Mistake(known.ALL_ROWS, "seen", lambda start, T: visible(0, start + T)),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, -1)),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, 1)),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, 2)),
    Mistake(known.DIAGONAL, "seen", lambda start, T: visible(start, T, -2)),
    Mistake(known.INVERTED_MASK, "result", lambda mask: ~mask),
    Mistake(known.NO_MASK, "seen", lambda start, T: visible(start, T, T)),
    Mistake(known.CACHED_HIDDEN, "seen", lambda start, T: visible(start, T) & (torch.arange(start + T) >= start)),
    Mistake(known.NOTHING_SEEN, "seen", lambda start, T: visible(start, T, -start - T)),
    Mistake(known.ITSELF, "seen", lambda start, T: visible(start, T) & ~visible(start, T, -1)),
    Mistake(known.TRANSPOSED_MASK, "result", lambda mask: mask.T),
    Mistake(known.TRANSPOSED_MASK, "seen", lambda start, T: ~visible(start, T, -1)),  # triu instead of tril
    Mistake(known.TRANSPOSED_MASK, "seen", lambda start, T: ~visible(start, T, -start - 1)),
    Mistake(known.MIRRORED, "result", lambda mask: mask.flip(1)),
    Mistake(known.MIRRORED, "result", lambda mask: mask.flip(0)),
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
    """The mask as booleans without leading axes of size 1, and the fault of its form if it has one."""
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
    numbers = mask.to(torch.float64)  # torch cannot compare tensors of every dtype
    if (numbers < 0).any():  # 0 and -inf, or a large negative number, to be added to the scores
        return numbers > -1, known.NOT_BOOLEAN
    return numbers != 0, known.NOT_BOOLEAN


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
        sentence = f"start_pos {start}, T {T}: the mask is a boolean tensor, True where a token may see a key; it is"
        yield Property(sentence, found, "bool", "Write dtype=torch.bool.")


def comparisons(masks: list[Tensor | None], raws: list[Any]) -> Iterator[Comparison]:
    for (start, T), mask, raw in zip(CHUNKS, masks, raws):
        yield Comparison(f"{FUNCTION}({start}, {T})", [("mask", raw if mask is None else mask, visible(start, T))])


def judge_mask(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function = names[FUNCTION]
    trials = caller.trials(function, CHUNKS, parameters(FUNCTION))
    problem = first_problem(trials)
    raws = [trial.value for trial in trials]
    read = [read_mask(raw) for raw in raws]
    masks = [mask for mask, _ in read]
    form_faults = list(dict.fromkeys(fault for _, fault in read if fault))
    right = all(is_visible(raw, number) for number, raw in enumerate(raws))
    if right and not form_faults:
        return Verdict(FUNCTION, "right")
    if not right:
        order = caller.other_order(lambda: function, CHUNKS, is_visible)
        if order:
            return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    explanation = mask_explanation(masks, raws, complete=not problem)
    if explanation is not None:
        explanation = (*form_faults, *explanation)
    verdict = wrong(FUNCTION, explanation, mask_properties(masks, raws), comparisons(masks, raws), 8, problem)
    if explanation is None and not problem:  # removing the fault of the form would not make the mask right
        verdict.remarks += [f"Also: {fault.name}." for fault in form_faults]
    return verdict


def is_visible(raw: Any, number: int) -> bool:
    mask, _ = read_mask(raw)
    return mask is not None and torch.equal(mask, visible(*CHUNKS[number]))


def mask_explanation(masks: list[Tensor | None], raws: list[Any], complete: bool) -> Explanation | None:
    """The mistake in the returned masks. ``complete`` if no call raised.

    Chunks without a readable mask are skipped, unless no chunk has one.
    """
    if all(mask is None for mask in masks):
        return () if all(raw is None for raw in raws) and complete else None

    def fits(parts: Recipe) -> bool:
        for chunk, mask in zip(CHUNKS, masks):
            if mask is not None and not torch.equal(mask, parts["result"](parts["seen"](*chunk))):
                return False
        return True

    if fits(RECIPE):
        return () if complete else None
    return explain(RECIPE, MISTAKES, fits)
