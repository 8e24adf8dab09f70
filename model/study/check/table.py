"""``precompute_freqs_cis`` and ``reshape_for_broadcast``: what they must give, and what known mistakes make of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import Property, Verdict, verdict_on
from .faults import ANGLES, EXPONENT, HEADS, INVERTED, POLAR, REAL, ROUNDED, SHIFTED, SIGN, SWAPPED, UNUSED, Fault
from .forms import FORMS, Attempt, Conventions, Describe, Form, best, close, observe, read_table, widened

HALF_PRECISION = (torch.float16, torch.bfloat16)
TABLES = ((8, 13, 10000.0), (6, 7, 500.0), (16, 2051, 10000.0))  # dim, end, theta


def angles(
    dim: int,
    end: int,
    theta: float,
    exponent: Callable[[Tensor, int], Tensor] = lambda i, dim: -2 * i / dim,
    shift: int = 0,
) -> Tensor:
    """float64 (end, dim/2): position times theta^(-2i/dim), or by another exponent, or from another first position."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    positions = torch.arange(end, dtype=torch.float64) + shift
    return torch.outer(positions, theta ** exponent(i, dim))


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


EXPONENTS: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda i, dim: -4 * i / dim,  # divided by dim // 2
    lambda i, dim: -i / dim,  # arange(dim // 2)
    lambda i, dim: -2 * (i - 1) / dim,
    lambda i, dim: -2 * (i + 1) / dim,
    lambda i, dim: -i / (dim // 2 - 1),  # linspace(0, 1, dim // 2)
    lambda i, dim: -(i + 1) / (dim // 2),
    lambda i, dim: -i,
    lambda i, dim: -2 * i,
)


WIDTHS = ("single", "halves", "neighbours")


def table_faults(tables: list[Any], raws: list[Any]) -> Iterator[tuple[Fault, bool]]:
    def all_are(formula: Callable[[int, int, float], Tensor], limit: float = 1e4) -> bool:
        """Whether every table is exp(j formula); angles so large that float32 cannot hold them are not compared."""
        for table, probe in zip(tables, TABLES):
            angle = formula(*probe)
            if table is None or not (((table - unit(angle)).abs() <= 5e-3) | (angle.abs() > limit)).all():
                return False
        return True

    yield SIGN, all_are(lambda *probe: -angles(*probe))
    yield INVERTED, all_are(partial(angles, exponent=lambda i, dim: 2 * i / dim))
    for exponent in EXPONENTS:
        yield EXPONENT, all_are(partial(angles, exponent=exponent))
    yield SHIFTED, all_are(partial(angles, shift=1)) or all_are(partial(angles, shift=-1))
    yield UNUSED, all_are(lambda dim, end, theta: angles(dim, end, 10000.0))
    yield SWAPPED, all_are(lambda *probe: torch.pi / 2 - angles(*probe))
    plain = [angles(*probe) for probe in TABLES]
    exchanged = [torch.polar(angle, torch.ones_like(angle)) for angle in plain]
    yield POLAR, all(table is not None and close(table, other, 1e-2) for table, other in zip(tables, exchanged))
    real = [raw.squeeze() if isinstance(raw, Tensor) else raw for raw in raws]
    yield ANGLES, any(all(close(raw, widened(a, w), 5e-3) for raw, a in zip(real, plain)) for w in WIDTHS)
    yield REAL, any(all(close(raw, widened(a.cos(), w), 8e-3) for raw, a in zip(real, plain)) for w in WIDTHS)
    yield REAL, all(table is not None and close(table, a.cos() + 0j, 8e-3) for table, a in zip(tables, plain))
    yield ROUNDED, tables[2] is not None and rounded(tables[2], *TABLES[2])


def rounded(table: Tensor, dim: int, end: int, theta: float) -> bool:
    """Whether the long table is what 16-bit positions, frequencies or angles give.

    The frequencies are taken from its own row 1, so that it does not matter how they came to be rounded.
    """
    right = angles(dim, end, theta)
    found = table[1].angle()  # (dim/2,) radians per position
    if not ((found - right[1]).abs() <= 0.05 * right[1]).all():
        return False
    positions = torch.arange(end, dtype=torch.float64)
    for dtype in HALF_PRECISION:
        rates = [right[1], right[1].to(dtype).double()]
        snapped = found.to(dtype).double()
        if (snapped - found).abs().max() < 1e-6:
            rates.append(snapped)
        for steps, freqs, cast in product((positions, positions.to(dtype).double()), rates, (torch.float64, dtype)):
            angle = torch.outer(steps, freqs).to(cast).double()
            if ((table - unit(angle)).abs() <= 1e-2).double().mean() >= 0.99:
                return True
    return False


def table_properties(tables: list[Any], raws: list[Any]) -> Iterator[Property]:
    for (dim, end, theta), table, raw in zip(TABLES, tables, raws):
        if table is None:
            shape = f"{tuple(raw.shape)}" if isinstance(raw, Tensor) else type(raw).__name__
            sentence = f"dim {dim} and end {end} give one complex number for each position and pair; the shape"
            yield Property(sentence, shape, f"({end}, {dim // 2})")
            found = f"{raw.flatten(1)[1, 0].item():.4f}" if isinstance(raw, Tensor) and raw.ndim > 1 else shape
            yield Property("Row 1, column 0 is exp(j) = cos 1 + j sin 1", found, "0.5403+0.8415j")
            return
        of = f"(dim {dim}, theta {theta:g})"
        right = unit(angles(dim, end, theta))
        yield Property("A rotation keeps lengths; the modulus of row 1, column 0", float(table[1, 0].abs()), 1.0, 5e-3)
        yield Property(f"Position 0 is not rotated {of}; the angle of pair 0", float(table[0, 0].angle()), 0.0)
        for i in range(dim // 2):
            expected = float(right[1, i].angle())
            sentence = f"Pair {i} rotates by theta^(-2*{i}/dim) radians a position {of}; at position 1"
            yield Property(sentence, float(table[1, i].angle()), expected, 3e-3 * expected)
        p, i = divmod(int((table - right).abs().argmax()), dim // 2)
        sentence = f"At position {p} pair {i} has rotated by {p} theta^(-2*{i}/dim) {of}"
        yield Property(f"{sentence}; the cosine", float(table[p, i].real), float(right[p, i].real))
        yield Property(f"{sentence}; the sine", float(table[p, i].imag), float(right[p, i].imag))


def judge_table(names: dict[str, Any], conventions: Conventions, describe: Describe) -> Verdict:
    raws, problem, _ = observe(names["precompute_freqs_cis"], TABLES, describe)
    read = [read_table(raw, dim, end) for raw, (dim, end, _) in zip(raws, TABLES)]
    tables = [table for table, _ in read]
    if all(form == read[0][1] for _, form in read):
        conventions.table = read[0][1]
    parts: list[Any] = []
    for raw in raws:
        parts += raw if isinstance(raw, tuple) else [raw]
    is_half = any(isinstance(part, Tensor) and part.dtype in HALF_PRECISION for part in parts)
    tolerance = 1e-2 if is_half else 5e-3
    right = all(
        table is not None and close(table, unit(angles(*probe)), tolerance) for table, probe in zip(tables, TABLES)
    )
    faults, properties = table_faults(tables, raws), table_properties(tables, raws)
    verdict = verdict_on("precompute_freqs_cis", [("right", right)], faults, properties, problem, 4)
    if right and is_half:
        verdict.remarks.append("The table itself is rounded to 16 bits: keep it in float32, it is small.")
    return verdict


# How the table is laid along x: B, T, H and D; in the first every axis fits.
LAID = ((1, 3, 3, 6), (2, 5, 4, 8), (1, 7, 6, 10))


def lay(table: Any, x: Tensor) -> Any:
    """(T, D/2) -> (1, T, 1, D/2), and each part of a tuple so."""
    if isinstance(table, tuple):
        return tuple(part[None, :, None] for part in table)
    return table[None, :, None]


def lies_along(value: Any, table: Tensor, x: Tensor, axis: int) -> bool:
    """Whether ``value``, broadcast, is the table (T, D/2) laid along that axis of x (B, T, H, D/2)."""
    if not isinstance(value, Tensor):
        return False
    if axis == 2 and value.numel() == table.numel() and value.shape[-2:] == (x.shape[1], x.shape[3]):
        return True  # though it broadcasts against x only where T equals H
    rows = table[: x.shape[axis]].reshape(-1, x.shape[-1])
    shape = [1, 1, 1, x.shape[-1]]
    shape[axis] = len(rows)
    try:
        return torch.equal(value.expand(x.shape), rows.reshape(shape).expand(x.shape))
    except RuntimeError:
        return False


@dataclass(frozen=True)
class ReshapeProbe:
    """What ``reshape_for_broadcast`` is called with, and the tables (T, D/2) that it should lay along x."""

    table: Any  # one of ``parts``, or all of them in the reader's form
    x: Tensor  # (B, T, H, D/2), or D wide if every angle is there twice
    parts: list[Tensor]


def calls_of(form: Form, whole: bool) -> list[ReshapeProbe]:
    """A call for each size of ``LAID``; ``whole``: with cosines and sines at once, for a form that has them apart."""
    calls = []
    for B, T, H, D in LAID:
        table = form.write(unit(angles(D, T, 10000.0)))
        if form.container not in ("tuple", "stack"):
            parts = [table]
        elif whole:
            parts = list(table)
        else:
            parts = [table[0]]
        x = torch.ones(B, T, H, parts[0].shape[-1], dtype=parts[0].dtype)
        calls.append(ReshapeProbe(table if whole else parts[0], x, parts))
    return calls


def judge_reshape(names: dict[str, Any], conventions: Conventions, describe: Describe) -> Verdict:
    function = names["reshape_for_broadcast"]
    forms = [form for form in (conventions.table, *FORMS) if form and form.container != "last"]
    attempts, calls_made = [], []
    for form, whole in product(dict.fromkeys(forms), (False, True)):
        calls = calls_of(form, whole)
        values, problem, raised = observe(function, [(call.table, call.x) for call in calls], describe)
        laid = []
        for value, call in zip(values, calls):
            several = len(call.parts) == 2 and isinstance(value, tuple | list)
            laid.append(list(value) if several else [value])
        right = all(all_lie_along(found, call) for found, call in zip(laid, calls))
        attempts.append(Attempt([("right", right)], laid, problem, raised, form))
        calls_made.append(calls)
    chosen = best(attempts)
    calls = next(calls for attempt, calls in zip(attempts, calls_made) if attempt is chosen)
    by_head = not chosen.raised[0]
    for found, call, failed in zip(chosen.values, calls, chosen.raised):
        by_head = by_head and (failed or all_lie_along(found, call, axis=2))
    properties = reshape_properties(chosen, calls)
    verdict = verdict_on("reshape_for_broadcast", chosen.outcomes, [(HEADS, by_head)], properties, chosen.problem, 7)
    table, x = calls[1].table, calls[1].x
    row = tuple(part[:1] for part in table) if isinstance(table, tuple) else table[:1]
    if verdict.outcome == "right" and not observe(function, [(row, x)], describe)[2][0]:
        verdict.remarks.append(
            f"It takes a table of 1 row for T = {x.shape[1]} and would broadcast it over all positions: raise "
            "ValueError unless freqs_cis.shape == (x.shape[1], x.shape[3])."
        )
    return verdict


def reshape_properties(attempt: Attempt, calls: list[ReshapeProbe]) -> Iterator[Property]:
    for found, call, failed in zip(attempt.values, calls, attempt.raised):
        if failed:
            continue
        for value in found:
            shape = str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
            sentence = f"For x of {tuple(call.x.shape)} the table lies along axis 1; its shape"
            yield Property(sentence, shape, str((1, call.x.shape[1], 1, call.x.shape[3])))


def all_lie_along(laid: list[Any], call: ReshapeProbe, axis: int = 1) -> bool:
    if len(laid) != len(call.parts):
        return False
    return all(lies_along(value, part, call.x, axis) for value, part in zip(laid, call.parts))
