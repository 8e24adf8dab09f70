"""``apply_rotary_emb``: what it must give, and what each known mistake makes of it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Rotation:
    """A way of rotating: right in either layout of ``pairs``; each other field makes a known mistake of it."""

    pairs: str = "neighbours"  # the layout in which pairs are read
    spread: str = ""  # the layout of their angles, if it is another one
    written: str = ""  # the layout of the result, if it is another one
    axis: int = 1  # of x, along which the positions lie
    sign: int = 1
    exchanged: bool = False  # cosine and sine
    cast: bool = False  # the table to a real dtype
    overwrite: bool = False  # the first number of a pair, before the second is computed


def split_pairs(x: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """(…, D) -> the first and the second numbers of all pairs, (…, D/2) each."""
    if layout == "neighbours":
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second


def join_pairs(a: Tensor, b: Tensor, layout: str) -> Tensor:
    if layout == "neighbours":
        return torch.stack((a, b), -1).flatten(-2)
    return torch.cat((a, b), -1)


def rotate(x: Tensor, angle: Tensor, way: Rotation) -> Tensor:
    """x (B, T, H, D) rotated by angle (T, D/2), in float64."""
    x = x.double()
    rows = angle[: x.shape[way.axis]]
    rows = rows[None, :, None] if way.axis == 1 else rows[None, None]
    a, b = split_pairs(x, way.pairs)
    # The angle of both numbers of a pair: two different ones if angles are not laid out like pairs.
    first, second = split_pairs(join_pairs(rows, rows, way.spread or way.pairs), way.pairs)
    if way.exchanged:
        first = torch.pi / 2 - first
        second = torch.pi / 2 - second
    swing = 0.0 if way.cast else way.sign
    new = a * first.cos() - swing * b * first.sin()
    if way.overwrite:
        a = new
    other = b * second.cos() + swing * a * second.sin()
    return join_pairs(new, other, way.written or way.pairs)


def rotation_faults() -> Iterator[tuple[Fault, Rotation]]:
    """Each known mistake, in both layouts."""
    for pairs, other in (LAYOUTS, LAYOUTS[::-1]):
        yield SIGN, Rotation(pairs, sign=-1)
        yield MIXED, Rotation(pairs, spread=other)
        yield MIXED, Rotation(pairs, written=other)
        yield MIXED, Rotation(pairs, spread=other, sign=-1)
        yield HEADS, Rotation(pairs, axis=2)
        yield REAL, Rotation(pairs, cast=True)
        yield SWAPPED, Rotation(pairs, exchanged=True)
        yield OVERWRITTEN, Rotation(pairs, overwrite=True)


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


def rotation_gives(values: list[Any], raised: list[bool], cases: list[Probe], way: Rotation) -> bool:
    """Whether all results are what ``rotate`` gives; an exception matches only if the axis cannot be rotated."""
    for value, failed, case in zip(values, raised, cases):
        if failed and way.axis == 2 and case.xq.shape[1] != case.xq.shape[2]:
            continue
        try:
            xq, xk = value
            if not close(xq, rotate(case.xq, case.angle, way)) or not close(xk, rotate(case.xk, case.angle, way)):
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
        if isinstance(value, tuple | list) and all(isinstance(x, Tensor) for x in value):
            found = str(tuple(tuple(x.shape) for x in value))
        else:
            found = type(value).__name__
        expected = str((tuple(case.xq.shape), tuple(case.xk.shape)))
        yield Property("It returns queries and keys in the shapes they came in", found, expected)
    named = []  # q or k, what it became, what it was, and where
    for value, case in ran:
        named += [("q", value[0], case.xq, case), ("k", value[1], case.xk, case)]
    for name, rotated, x, case in named:
        if case.start == 0:
            _, h, i = at = worst(rotated[:, 0], x[:, 0])
            sentence = f"Position 0 is not rotated; {name} of head {h}, channel {i} there"
            yield Property(sentence, float(rotated[:, 0][at]), float(x[:, 0][at]))
    for value, case in ran:
        after = value[0].double().norm(dim=-1)  # (B, T, H)
        before = case.xq.double().norm(dim=-1)  # (B, T, H)
        _, t, h = at = worst(after, before)
        sentence = f"A rotation keeps lengths; that of q at position {case.start + t}, head {h}"
        yield Property(sentence, float(after[at]), float(before[at]))
    for value, case in ran:
        if case.xq.shape[1] == 6:
            early = float((value[0][0, 1, 0] * value[1][0, 0, 0]).sum())
            late = float((value[0][0, 5, 0] * value[1][0, 4, 0]).sum())
            sentence = "A score depends on the distance only; one q and k, moved from positions (1, 0) to (5, 4)"
            yield Property(sentence, late, early)
        if case.xq.shape[1] == 5 and case.xq[0, 0, 0, 0] == 1:
            first = value[0][0, 1, 0]
            yield Property("(1, 0) at position 1 becomes (cos 1, sin 1); its x", float(first[0]), 0.5403)
            yield Property("(1, 0) at position 1 becomes (cos 1, sin 1); its y", float(first[1:].sum()), 0.8415)

    def distance(layout: str) -> float:
        return sum(gap(rotated, rotate(x, case.angle, Rotation(layout))) for _, rotated, x, case in named)

    intended = Rotation(min(LAYOUTS, key=distance))
    for name, rotated, x, case in named:
        right = rotate(x, case.angle, intended)
        _, t, h, i = at = worst(rotated, right)
        sentence = (
            f"Each pair i rotates by p theta^(-2i/D); {name} at p = {case.start + t}, head {h}, "
            f"channel {i} of {x.shape[-1]}"
        )
        yield Property(sentence, float(rotated[at]), float(right[at]))


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
        outcomes = [(outcome, rotation_gives(values, raised, cases, Rotation(pairs))) for outcome, pairs in OUTCOMES]
        attempts.append(Attempt(outcomes, values, problem, raised, form))
    chosen = best(attempts)
    values, raised, conventions.table = chosen.values, chosen.raised, chosen.form
    faults = ((fault, rotation_gives(values, raised, cases, way)) for fault, way in rotation_faults())
    properties = rotation_properties(values, raised, cases)
    verdict = verdict_on("apply_rotary_emb", chosen.outcomes, faults, properties, chosen.problem, 5)
    if verdict.outcome in ("right", "half-split") and chosen.form is not None:
        verdict.remarks.extend(remarks(partial(call, chosen.form), cases[1]))
    return verdict


def required(function: Callable[..., Any]) -> int:
    """How many positional arguments it cannot do without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def remarks(call: Callable[[Probe], Any], case: Probe) -> Iterator[str]:
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
