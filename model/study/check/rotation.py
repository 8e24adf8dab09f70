"""``apply_rotary_emb``: what it must give, and what each known mistake makes of it."""

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import Property, Verdict, verdict_on
from .faults import HEADS, MIXED, OVERWRITTEN, REAL, SIGN, SWAPPED, Fault
from .forms import FORMS, Attempt, Conventions, Describe, Form, best, close, observe
from .table import angles, lay, unit

LAYOUTS = ("neighbours", "halves")
OUTCOMES = (("right", "neighbours"), ("half-split", "halves"))  # of a function that is right in a layout


def split_pairs(x: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """(…, D) -> the first and the second numbers of all pairs, (…, D/2) each."""
    return (x[..., ::2], x[..., 1::2]) if layout == "neighbours" else x.chunk(2, -1)  # type: ignore[return-value]


def join_pairs(a: Tensor, b: Tensor, layout: str) -> Tensor:
    return torch.stack((a, b), -1).flatten(-2) if layout == "neighbours" else torch.cat((a, b), -1)


def rotate(
    x: Tensor, angle: Tensor, pairs: str = "neighbours", spread: str = "", written: str = "", axis: int = 1,
    sign: int = 1, shift: float = 0.0, cast: bool = False, overwrite: bool = False,
) -> Tensor:  # fmt: skip
    """x (B, T, H, D) rotated by angle (T, D/2), in float64; each argument but the layout is a known mistake.

    ``pairs`` is the layout in which pairs are read, ``spread`` that of their angles, ``written`` that of the result.
    """
    x = x.double()
    rows = angle[: x.shape[axis]]
    rows = rows[None, :, None] if axis == 1 else rows[None, None]
    a, b = split_pairs(x, pairs)
    # The angle of both numbers of a pair: two different ones where angles are laid out otherwise than pairs.
    first, second = split_pairs(join_pairs(rows, rows, spread or pairs), pairs)
    swing = 0.0 if cast else sign
    first, second = (torch.pi / 2 - f if shift else f for f in (first, second))
    new = a * first.cos() - swing * b * first.sin()
    other = b * second.cos() + swing * (new if overwrite else a) * second.sin()
    return join_pairs(new, other, written or pairs)


# Each known mistake as what it changes in ``rotate``, in both layouts.
ROTATION_FAULTS: list[tuple[Fault, dict[str, Any]]] = [
    (fault, {"pairs": pairs, **change})
    for pairs, other in (LAYOUTS, LAYOUTS[::-1])
    for fault, change in (
        (SIGN, {"sign": -1}),
        (MIXED, {"spread": other}),
        (MIXED, {"written": other}),
        (MIXED, {"spread": other, "sign": -1}),
        (HEADS, {"axis": 2}),
        (REAL, {"cast": True}),
        (SWAPPED, {"shift": True}),
        (OVERWRITTEN, {"overwrite": True}),
    )
]


class Probe(NamedTuple):
    """Queries (B, T, H, D) and keys (B, T, K, D) for positions ``start`` .. ``start + T - 1``."""

    xq: Tensor
    xk: Tensor
    start: int
    theta: float

    @property
    def angle(self) -> Tensor:
        T, D = self.xq.shape[1], self.xq.shape[3]
        return angles(D, self.start + T, self.theta)[self.start :]


def probes() -> list[Probe]:
    """Sizes that all differ, so that no axis fits by accident; and T == H == K, where every axis does."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    still = random(1, 1, 1, 8).expand(1, 6, 2, 8).contiguous()  # one vector at all positions
    one = torch.zeros(1, 5, 2, 6, dtype=torch.float32)
    one[..., 0] = 1
    return [
        Probe(random(1, 3, 3, 6), random(1, 3, 3, 6), 0, 500.0),
        Probe(random(2, 5, 4, 8), random(2, 5, 2, 8), 0, 10000.0),
        Probe(still, random(1, 1, 1, 8).expand(1, 6, 1, 8).contiguous(), 0, 10000.0),
        Probe(one, one[:, :, :1].clone(), 0, 10000.0),
        Probe(random(1, 7, 6, 10), random(1, 7, 3, 10), 20, 10000.0),
    ]


def rotation_gives(values: list[Any], raised: list[bool], cases: list[Probe], change: dict[str, Any]) -> bool:
    """Whether all results are what ``rotate`` gives; an exception matches only where the axis cannot be rotated."""
    for value, failed, case in zip(values, raised, cases):
        if failed and change.get("axis") == 2 and case.xq.shape[1] != case.xq.shape[2]:
            continue
        try:
            if not all(close(x, rotate(y, case.angle, **change)) for x, y in zip(value, case[:2], strict=True)):
                return False
        except (TypeError, ValueError, RuntimeError):  # not two tensors; or more heads than positions
            return False
    return True


def worst(found: Tensor, right: Tensor) -> tuple[int, ...]:
    """Where two tensors of one shape differ most."""
    gap = torch.nan_to_num((found.double() - right.double()).abs(), nan=torch.inf)
    return tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))


def gap(found: Tensor, right: Tensor) -> float:
    """The mean difference: of two layouts, the one with the smaller difference was intended."""
    return float((found.double() - right.double()).abs().mean().nan_to_num(nan=torch.inf))


def rotation_properties(values: list[Any], raised: list[bool], cases: list[Probe]) -> Iterator[Property]:
    ran = [(value, case) for value, failed, case in zip(values, raised, cases) if not failed]
    for value, case in ran:
        shapes = tuple(tuple(x.shape) for x in value) if isinstance(value, tuple | list) and all(
            isinstance(x, Tensor) for x in value) else type(value).__name__  # fmt: skip
        yield Property("It returns queries and keys in the shapes they came in", str(shapes),
                       str((tuple(case.xq.shape), tuple(case.xk.shape))))  # fmt: skip
    for value, case in ran:
        for name, found, x in zip("qk", value, case[:2]):
            if case.start == 0:
                _, h, i = at = worst(found[:, 0], x[:, 0])
                yield Property(f"Position 0 is not rotated; {name} of head {h}, channel {i} there",
                               float(found[:, 0][at]), float(x[:, 0][at]))  # fmt: skip
    for value, case in ran:
        lengths, expected = (x.double().norm(dim=-1) for x in (value[0], case.xq))
        _, t, h = at = worst(lengths, expected)
        yield Property(f"A rotation keeps lengths; that of q at position {case.start + t}, head {h}",
                       float(lengths[at]), float(expected[at]))  # fmt: skip
    for value, case in ran:
        if case.xq.shape[1] == 6:
            early, late = (float((value[0][0, m, 0] * value[1][0, m - 1, 0]).sum()) for m in (1, 5))
            yield Property("A score depends on the distance only; one q and k, moved from positions (1, 0) to (5, 4)",
                           late, early)  # fmt: skip
        if case.xq.shape[1] == 5 and case.xq[0, 0, 0, 0] == 1:
            first = value[0][0, 1, 0]
            yield Property("(1, 0) at position 1 becomes (cos 1, sin 1); its x", float(first[0]), 0.5403)
            yield Property("(1, 0) at position 1 becomes (cos 1, sin 1); its y", float(first[1:].sum()), 0.8415)
    pairs = [(name, found, x, case) for value, case in ran for name, found, x in zip("qk", value, case[:2])]
    layout = min(LAYOUTS, key=lambda each: sum(gap(found, rotate(x, case.angle, each)) for _, found, x, case in pairs))
    for name, found, x, case in pairs:
        right = rotate(x, case.angle, layout)
        _, t, h, i = at = worst(found, right)
        yield Property(f"Each pair i rotates by p theta^(-2i/D); {name} at p = {case.start + t}, head {h}, "
                           f"channel {i} of {x.shape[-1]}", float(found[at]), float(right[at]))  # fmt: skip


def judge_rotation(names: dict[str, Any], conventions: Conventions, describe: Describe) -> Verdict:
    function, cases = names["apply_rotary_emb"], probes()
    if "reshape_for_broadcast" in conventions.broken:  # judged already: replaced by a right one
        names["reshape_for_broadcast"] = lay

    def call(form: Form, case: Probe) -> Any:
        table = form.write(unit(case.angle))
        apart = isinstance(table, tuple) and required(function) >= 4  # apply_rotary_emb(xq, xk, cos, sin)
        return function(case.xq, case.xk, *(table if apart else [table]))

    attempts = []
    for form in [conventions.table] if conventions.table else FORMS:
        values, problem, raised = observe(partial(call, form), [[case] for case in probes()], describe)
        outcomes = [(outcome, rotation_gives(values, raised, cases, {"pairs": pairs})) for outcome, pairs in OUTCOMES]
        attempts.append(Attempt(outcomes, values, problem, raised, form))
    outcomes, values, problem, raised, conventions.table = best(attempts)
    faults = ((fault, rotation_gives(values, raised, cases, change)) for fault, change in ROTATION_FAULTS)
    verdict = verdict_on("apply_rotary_emb", outcomes, faults, rotation_properties(values, raised, cases), problem, 5)
    if verdict.outcome in ("right", "half-split"):
        verdict.remarks.extend(remarks(partial(call, conventions.table), cases[1]))
    return verdict


def required(function: Any) -> int:
    """How many positional arguments it cannot do without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def remarks(call: Any, case: Probe) -> Iterator[str]:
    """What could be better in a function that is right."""
    kept = case._replace(xq=case.xq.clone(), xk=case.xk.clone())
    call(kept)
    if not torch.equal(kept.xq, case.xq) or not torch.equal(kept.xk, case.xk):
        yield "It overwrites xq or xk, which the caller may still need: make new tensors."
    try:
        xq, _ = call(case._replace(xq=case.xq.bfloat16(), xk=case.xk.bfloat16()))
        if xq.dtype != torch.bfloat16:
            yield f"Queries in bfloat16 come back in {str(xq.dtype)[6:]}: end with .type_as(xq)."
    except Exception as error:
        yield f"Queries in bfloat16 end in {type(error).__name__}: rotate in float32 (.float()), then .type_as(xq)."
