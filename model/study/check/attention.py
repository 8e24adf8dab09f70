"""``causal_mask`` and ``attention`` with grouped heads: what they must give, and what known mistakes make of them."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import Property, Verdict, verdict_on
from . import faults as known
from .faults import Fault
from .forms import FORMS, Attempt, Conventions, Describe, Form, best, close, observe, read_masks, write_mask
from .rotation import LAYOUTS, OUTCOMES, ROTATION_FAULTS, Probe, gap, probes, rotate, worst
from .table import lay, unit

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


def needless(raw: Any, start: int, T: int) -> bool:
    """Whether the result is None where no mask is needed: for one token, and for a whole text."""
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


def judge_mask(names: dict[str, Any], conventions: Conventions, describe: Describe) -> Verdict:
    raws, problem, _ = observe(names["causal_mask"], CHUNKS, describe)
    masks, way = read_masks(raws)

    def match(formula: Callable[[int, int], Tensor]) -> bool:
        """Whether that is how all the masks were made."""
        return all(
            needless(raw, *chunk) or (mask is not None and torch.equal(mask, formula(*chunk)))
            for mask, raw, chunk in zip(masks, raws, CHUNKS)
        )

    right = match(visible)
    conventions.mask = way if right else ""
    faults = ((fault, match(formula)) for fault, formula in MASK_FAULTS)
    verdict = verdict_on("causal_mask", [("right", right)], faults, mask_properties(masks, raws), problem, 8)
    if right and raws[0] is None:
        verdict.remarks.append("At start_pos 0 it returns None: attention itself then has to hide later keys.")
    return verdict


Case = tuple[Probe, Tensor, Tensor]  # queries and keys; values (B, T, K, D); mask (T, T)


def cases() -> list[Case]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for number, probe in enumerate(probes()):
        T = probe.xq.shape[1]
        values = torch.randn(probe.xk.shape, generator=generator, dtype=torch.float32)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        if number == 2:  # one vector at all positions: values of 1, a random mask
            values, mask = torch.ones_like(values), (torch.rand(T, T, generator=generator) < 0.6) | mask.T.logical_not()
            mask |= torch.eye(T, dtype=torch.bool)
        found.append((probe, values, mask))
    return [*found, (found[-1][0]._replace(start=3), *found[-1][1:])]  # the last one at other positions


def attend_with(
    case: Case, tile: bool = False, rotate_values: bool = False, scale: bool = True, q: bool = True, k: bool = True,
    masked: bool = True, invert: bool = False, softmax: int = -1, regroup: bool = False, **rotation: Any,
) -> Tensor:  # fmt: skip
    """(B, T, H, D) in float64, right or with the mistakes asked for."""
    (xq, xk, *_), xv, mask = case
    angle = case[0].angle
    xq = rotate(xq, angle, **rotation) if q else xq.double()
    xk = rotate(xk, angle, **rotation) if k else xk.double()
    xv = rotate(xv, angle, **rotation) if rotate_values else xv.double()
    groups = xq.shape[2] // xk.shape[2]
    xk, xv = (x.repeat(1, 1, groups, 1) if tile else x.repeat_interleave(groups, 2) for x in (xk, xv))  # (B, T, H, D)
    scores = torch.einsum("bthd,bshd->bhts", xq, xk) / (math.sqrt(xq.shape[3]) if scale else 1)
    if masked:
        scores = scores.masked_fill(mask if invert else ~mask, -torch.inf)
    weights = scores.softmax(softmax)  # NaN for a query that sees nothing
    out = torch.einsum("bhts,bshd->bthd", weights, xv)
    return out.unflatten(2, (groups, -1)).transpose(2, 3).flatten(2, 3) if regroup else out


ATTENTION_FAULTS: list[tuple[Fault, dict[str, Any]]] = [
    *(
        (fault, {"pairs": pairs, **change})
        for pairs in LAYOUTS
        for fault, change in (
            (known.TILED, {"tile": True}),
            (known.TILED, {"tile": True, "regroup": True}),  # queries cut into (H / K, K) heads
            (known.VALUES, {"rotate_values": True}),
            (known.UNSCALED, {"scale": False}),
            (known.UNROTATED, {"q": False, "k": False}),
            (known.ONE_ROTATED, {"q": False}),
            (known.ONE_ROTATED, {"k": False}),
            (known.MASK_UNUSED, {"masked": False}),
            (known.INVERTED_MASK, {"invert": True}),
            (known.SOFTMAX, {"softmax": -2}),
        )
    ),
    *ROTATION_FAULTS,
]


def attention_gives(values: list[Any], raised: list[bool], asked: list[Case], change: dict[str, Any]) -> bool:
    for value, failed, case in zip(values, raised, asked):
        _, T, H, _ = case[0].xq.shape
        if failed and change.get("axis") == 2 and T != H:
            continue
        try:
            expected = attend_with(case, **change)
        except RuntimeError:  # more heads than positions
            return False
        expected = expected.flatten(2) if isinstance(value, Tensor) and value.ndim == 3 else expected
        unknown = expected.isnan()
        if isinstance(value, Tensor) and value.shape == expected.shape:
            value = value.masked_fill(unknown, 0.0)
        if not close(value, expected.masked_fill(unknown, 0.0)):
            return False
    return True


def properties(values: list[Any], raised: list[bool], asked: list[Case]) -> Iterator[Property]:
    ran = [(value, case) for value, failed, case in zip(values, raised, asked) if not failed]
    for value, ((xq, *_), _, _) in ran:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != tuple(xq.flatten(2).shape):
            yield Property("The output has the shape of xq", str(shape), str(tuple(xq.shape)))
    shaped = [(value.reshape(case[0].xq.shape), case) for value, case in ran]
    for value, ((xq, xk, start, _), xv, mask) in shaped:
        groups = xq.shape[2] // xk.shape[2]
        if mask[0].sum() == 1:
            right = xv[:, 0].repeat_interleave(groups, 1)  # (B, H, D)
            _, h, i = at = worst(value[:, 0], right)
            yield Property(f"A token that sees only itself gets its own value, head {h} of {xq.shape[2]} that of "
                           f"key/value head {h // groups} of {xk.shape[2]}; at position {start}, channel {i}",
                           float(value[:, 0][at]), float(right[at]))  # fmt: skip
        else:
            _, t, *_ = at = worst(value, torch.ones_like(value))
            yield Property(f"Weights sum to 1, so values of 1 give 1; at position {start + t}", float(value[at]), 1.0)
    if len(shaped) == len(asked):
        *_, (late, (probe, *_)), (early, _) = shaped
        _, t, h, i = at = worst(late, early)
        yield Property(f"The output depends on distances only: from position {probe.start} on it is that from 3 on; "
                       f"token {t}, head {h}, channel {i}", float(late[at]), float(early[at]))  # fmt: skip
    layout = min(LAYOUTS, key=lambda each: sum(gap(value, attend_with(case, pairs=each)) for value, case in shaped))
    for value, case in shaped:
        right = attend_with(case, pairs=layout)
        _, t, h, i = at = worst(value, right)
        yield Property(f"softmax(q k^T / sqrt(D)) v over visible keys, q and k rotated, H = {value.shape[2]}, "
                       f"D = {value.shape[3]}; position {case[0].start + t}, head {h}, channel {i}",
                       float(value[at]), float(right[at]))  # fmt: skip


def judge_attention(names: dict[str, Any], conventions: Conventions, describe: Describe) -> Verdict:
    asked, attempts = cases(), []
    ways = [conventions.mask] if conventions.mask else ["bool", "additive", "ones"]
    if "causal_mask" in conventions.broken:  # this one may be made for masks like that
        ways.append("inverted")
    for form, way in product([conventions.table] if conventions.table else FORMS, ways):
        call = partial(_call, names, conventions, form, way)
        values, problem, raised = observe(call, [[case] for case in asked], describe)
        outcomes = [(outcome, attention_gives(values, raised, asked, {"pairs": pairs})) for outcome, pairs in OUTCOMES]
        attempts.append(Attempt(outcomes, values, problem, raised))
    outcomes, values, problem, raised, _ = best(attempts)
    faults = ((fault, attention_gives(values, raised, asked, change)) for fault, change in ATTENTION_FAULTS)
    return verdict_on("attention", outcomes, faults, properties(values, raised, asked), problem, 6)


def _call(names: dict[str, Any], conventions: Conventions, form: Form, way: str, case: Case) -> Any:
    """The reader's attention, with right functions in the place of those that were judged and are not."""
    (xq, xk, *_), xv, mask = case
    angle = case[0].angle
    if "reshape_for_broadcast" in conventions.broken:
        names["reshape_for_broadcast"] = lay
    if "apply_rotary_emb" in conventions.broken:
        names["apply_rotary_emb"] = lambda xq, xk, *_: (rotate(xq, angle).type_as(xq), rotate(xk, angle).type_as(xk))
    return names["attention"](xq.clone(), xk.clone(), xv.clone(), form.write(unit(angle)), write_mask(mask, way))
