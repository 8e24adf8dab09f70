"""``causal_mask`` and ``attention`` with grouped heads: what they must give, and what known mistakes make of them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import Property, Verdict, verdict_on
from . import faults as known
from .faults import Fault
from .forms import FORMS, Attempt, Conventions, Describe, Form, best, close, observe, read_masks, write_mask
from .rotation import LAYOUTS, OUTCOMES, Probe, Rotation, gap, probes, rotate, rotation_faults, worst
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
            sentence = f"{of}: the mask covers T new tokens and all start_pos + T keys; its shape"
            yield Property(sentence, shape, str((T, start + T)))
    for (start, T), mask in zip(CHUNKS, masks):
        if mask is None or mask.shape != (T, start + T):
            continue
        for t in range(T):
            of = f"start_pos {start}, T {T}: token {t} is at position {start + t}"
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


class Case(NamedTuple):
    probe: Probe  # queries and keys
    xv: Tensor  # (B, T, K, D)
    mask: Tensor  # (T, T)


def cases() -> list[Case]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for number, probe in enumerate(probes()):
        T = probe.xq.shape[1]
        values = torch.randn(probe.xk.shape, generator=generator, dtype=torch.float32)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        if number == 2:  # one vector at all positions: values of 1, a random mask
            values = torch.ones_like(values)
            mask = (torch.rand(T, T, generator=generator) < 0.6) | mask.T.logical_not()
            mask |= torch.eye(T, dtype=torch.bool)
        found.append(Case(probe, values, mask))
    last = found[-1]
    found.append(last._replace(probe=last.probe._replace(start=3)))  # the same at other positions
    return found


@dataclass(frozen=True)
class Way:
    """A way of computing attention: right in either layout of ``rotation``; each other field is a known mistake."""

    rotation: Rotation
    rotate_q: bool = True
    rotate_k: bool = True
    rotate_v: bool = False
    tile: bool = False  # heads, instead of repeating each
    regroup: bool = False  # queries cut into (H / K, K) heads
    scale: bool = True
    masked: bool = True
    invert: bool = False  # the mask
    softmax: int = -1  # its axis


def attend_with(case: Case, way: Way) -> Tensor:
    """(B, T, H, D) in float64."""
    angle = case.probe.angle
    xq, xk, xv = case.probe.xq.double(), case.probe.xk.double(), case.xv.double()
    if way.rotate_q:
        xq = rotate(xq, angle, way.rotation)
    if way.rotate_k:
        xk = rotate(xk, angle, way.rotation)
    if way.rotate_v:
        xv = rotate(xv, angle, way.rotation)
    groups = xq.shape[2] // xk.shape[2]
    if way.tile:
        xk, xv = xk.repeat(1, 1, groups, 1), xv.repeat(1, 1, groups, 1)  # (B, T, H, D) each
    else:
        xk, xv = xk.repeat_interleave(groups, 2), xv.repeat_interleave(groups, 2)  # (B, T, H, D) each
    scores = torch.einsum("bthd,bshd->bhts", xq, xk)
    if way.scale:
        scores = scores / math.sqrt(xq.shape[3])
    if way.masked:
        scores = scores.masked_fill(case.mask if way.invert else ~case.mask, -torch.inf)
    weights = scores.softmax(way.softmax)  # NaN for a query that sees nothing
    out = torch.einsum("bhts,bshd->bthd", weights, xv)
    if way.regroup:
        out = out.unflatten(2, (groups, -1)).transpose(2, 3).flatten(2, 3)
    return out


def attention_faults() -> Iterator[tuple[Fault, Way]]:
    """Each known mistake, in both layouts; then those of the rotation."""
    for layout in LAYOUTS:
        rotation = Rotation(layout)
        yield known.TILED, Way(rotation, tile=True)
        yield known.TILED, Way(rotation, tile=True, regroup=True)
        yield known.VALUES, Way(rotation, rotate_v=True)
        yield known.UNSCALED, Way(rotation, scale=False)
        yield known.UNROTATED, Way(rotation, rotate_q=False, rotate_k=False)
        yield known.ONE_ROTATED, Way(rotation, rotate_q=False)
        yield known.ONE_ROTATED, Way(rotation, rotate_k=False)
        yield known.MASK_UNUSED, Way(rotation, masked=False)
        yield known.INVERTED_MASK, Way(rotation, invert=True)
        yield known.SOFTMAX, Way(rotation, softmax=-2)
    for fault, rotation in rotation_faults():
        yield fault, Way(rotation)


def attention_gives(values: list[Any], raised: list[bool], asked: list[Case], way: Way) -> bool:
    for value, failed, case in zip(values, raised, asked):
        _, T, H, _ = case.probe.xq.shape
        if failed and way.rotation.axis == 2 and T != H:
            continue
        try:
            expected = attend_with(case, way)
        except RuntimeError:  # more heads than positions
            return False
        if isinstance(value, Tensor) and value.ndim == 3:
            expected = expected.flatten(2)
        unknown = expected.isnan()
        if isinstance(value, Tensor) and value.shape == expected.shape:
            value = value.masked_fill(unknown, 0.0)
        if not close(value, expected.masked_fill(unknown, 0.0)):
            return False
    return True


def attention_properties(values: list[Any], raised: list[bool], asked: list[Case]) -> Iterator[Property]:
    ran = [(value, case) for value, failed, case in zip(values, raised, asked) if not failed]
    for value, case in ran:
        xq = case.probe.xq
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != tuple(xq.flatten(2).shape):
            yield Property("The output has the shape of xq", str(shape), str(tuple(xq.shape)))
    shaped = [(value.reshape(case.probe.xq.shape), case) for value, case in ran]
    for value, case in shaped:
        H, K = value.shape[2], case.xv.shape[2]
        start = case.probe.start
        if case.mask[0].sum() == 1:
            right = case.xv[:, 0].repeat_interleave(H // K, 1)  # (B, H, D)
            _, h, i = at = worst(value[:, 0], right)
            sentence = (
                f"A token that sees only itself gets its own value, head {h} of {H} that of "
                f"key/value head {h // (H // K)} of {K}; at position {start}, channel {i}"
            )
            yield Property(sentence, float(value[:, 0][at]), float(right[at]))
        else:
            _, t, *_ = at = worst(value, torch.ones_like(value))
            yield Property(f"Weights sum to 1, so values of 1 give 1; at position {start + t}", float(value[at]), 1.0)
    if len(shaped) == len(asked):
        late, case = shaped[-2]
        early, _ = shaped[-1]
        _, t, h, i = at = worst(late, early)
        sentence = (
            f"The output depends on distances only: from position {case.probe.start} on it is that from 3 on; "
            f"token {t}, head {h}, channel {i}"
        )
        yield Property(sentence, float(late[at]), float(early[at]))

    def distance(layout: str) -> float:
        return sum(gap(value, attend_with(case, Way(Rotation(layout)))) for value, case in shaped)

    intended = Way(Rotation(min(LAYOUTS, key=distance)))
    for value, case in shaped:
        right = attend_with(case, intended)
        _, t, h, i = at = worst(value, right)
        sentence = (
            f"softmax(q k^T / sqrt(D)) v over visible keys, q and k rotated, H = {value.shape[2]}, "
            f"D = {value.shape[3]}; position {case.probe.start + t}, head {h}, channel {i}"
        )
        yield Property(sentence, float(value[at]), float(right[at]))


def judge_attention(names: dict[str, Any], conventions: Conventions, describe: Describe) -> Verdict:
    asked = cases()
    attempts = []
    ways = [conventions.mask] if conventions.mask else ["bool", "additive", "ones"]
    if "causal_mask" in conventions.broken:  # this one may be made for masks like that
        ways.append("inverted")
    for form, way in product([conventions.table] if conventions.table else FORMS, ways):
        call = partial(_call, names, conventions, form, way)
        values, problem, raised = observe(call, [[case] for case in asked], describe)
        outcomes = []
        for outcome, pairs in OUTCOMES:
            outcomes.append((outcome, attention_gives(values, raised, asked, Way(Rotation(pairs)))))
        attempts.append(Attempt(outcomes, values, problem, raised))
    chosen = best(attempts)
    values, raised = chosen.values, chosen.raised
    faults = ((fault, attention_gives(values, raised, asked, way)) for fault, way in attention_faults())
    properties = attention_properties(values, raised, asked)
    return verdict_on("attention", chosen.outcomes, faults, properties, chosen.problem, 6)


def _call(names: dict[str, Any], conventions: Conventions, form: Form, way: str, case: Case) -> Any:
    """The reader's attention, with right functions in the place of those that were judged and are not."""
    xq, xk, xv = case.probe.xq.clone(), case.probe.xk.clone(), case.xv.clone()
    angle = case.probe.angle

    def right_rotation(xq: Tensor, xk: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return rotate(xq, angle, Rotation()).type_as(xq), rotate(xk, angle, Rotation()).type_as(xk)

    if "reshape_for_broadcast" in conventions.broken:
        names["reshape_for_broadcast"] = lay
    if "apply_rotary_emb" in conventions.broken:
        names["apply_rotary_emb"] = right_rotation
    return names["attention"](xq, xk, xv, form.write(unit(angle)), write_mask(case.mask, way))
