"""Measure ``precompute_freqs_cis``: its form, the lengths of its numbers, its positions and its exponents.

The base of the probes is small, so that no angle between two rows exceeds half a turn, and positions and frequencies
can be read from the table. Each probe changes one argument.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from .calls import Caller, Raised, kind
from .faults import FAULTS, Fault
from .forms import Conventions, angles, close, read_table, unit
from .verdict import Finding, numbers

ARGUMENTS = ("dim", "end", "theta")
END, LONGER = 7, 11
THETA, OTHER_THETA = 3.0, 2.0
PROBES = [(dim, end, theta) for dim in (8, 6, 4) for end in (END, LONGER) for theta in (THETA, OTHER_THETA)]
FAR = (16, 2051, 10000.0)  # positions for which 16 bits are not enough
OTHERS = ((4, 3, 10000.0), (6, 7, 500.0), (8, 13, 10000.0), FAR)
TOLERANCE = 5e-3

# What each part of the table may hold, as a function of the right angles (end, dim/2).
PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "0": torch.zeros_like,
    "cos a": torch.cos,
    "sin a": torch.sin,
    "a": lambda angle: angle,
    "exp a": torch.exp,
    "theta^(-2i/dim)": lambda angle: angle[1:2].expand_as(angle),
}
FAULTS_OF_PARTS: dict[tuple[str, ...], Fault] = {
    ("cos a", "0"): FAULTS["REAL"],
    ("sin a", "0"): FAULTS["ONLY_SINES"],
    ("0", "sin a"): FAULTS["ONLY_SINES"],
    ("cos a", "cos a"): FAULTS["TWO_OF_A_KIND"],
    ("sin a", "sin a"): FAULTS["TWO_OF_A_KIND"],
    ("a", "a"): FAULTS["ANGLES"],
    ("a", "0"): FAULTS["ANGLES"],
    ("0", "a"): FAULTS["ANGLES"],
    ("exp a", "0"): FAULTS["NO_J"],
    ("theta^(-2i/dim)", "0"): FAULTS["FREQUENCIES"],
}
FACTORS = {
    -1.0: FAULTS["SIGN"],
    180 / math.pi: FAULTS["DEGREES"],
    math.pi / 180: FAULTS["DEGREES"],
    **dict.fromkeys((2 * math.pi, math.pi, 1 / math.pi, 1 / (2 * math.pi)), FAULTS["CIRCLES"]),
}


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding | str]:
    yield from call.order_finding("precompute_freqs_cis")
    raw = call(8, END, THETA)
    read = read_table(raw, 8, END)
    if read is None:
        yield shape_finding(raw, 8, END)
        return
    if read.fault:
        yield Finding("The form of the table for dim 8 and end 7", kind(raw), "(7, 4), a complex tensor", read.fault)
    conventions.table = read.form
    wrong = number_finding(read.table)
    if wrong:
        yield wrong
        if wrong.fault not in (FAULTS["LENGTH"], FAULTS["SWAPPED"]):
            return
    table: dict[tuple[int, int, float], Tensor] = {}  # the angles for each probe, (end, dim/2)
    for given in (*PROBES, *OTHERS):
        raw = call(*given)
        read = read_table(raw, *given[:2])
        if read is None:
            yield shape_finding(raw, *given[:2])
            return
        angle = read.table.angle()
        table[given] = unwrapped(math.pi / 2 - angle if wrong and wrong.fault is FAULTS["SWAPPED"] else angle)
    found = [*angle_findings(table, 8)] or [*angle_findings(table, 6)] or [*other_findings(table)]
    yield from found
    yield from default_finding(call)
    parts = raw if isinstance(raw, tuple | list) else [raw]
    if any(torch.is_tensor(part) and part.dtype.itemsize == 2 for part in parts):
        yield "The table is rounded to 16 bits: keep it in float32, because it is small."


def shape_finding(raw: Any, dim: int, end: int) -> Finding:
    shapes = [tuple(part.shape) for part in (raw if isinstance(raw, tuple | list) else [raw]) if torch.is_tensor(part)]
    fault = None
    if raw is None:
        fault = FAULTS["NOT_RETURNED"]
    elif (dim // 2,) in shapes:
        fault = FAULTS["FREQUENCIES"]
    elif (end, dim) in shapes:
        fault = FAULTS["CHANNELS"]
    elif any(shape[-1:] == (dim // 2,) for shape in shapes):
        fault = FAULTS["ROWS"]
    elif any(len(shape) == 2 and shape[0] == end for shape in shapes):
        fault = FAULTS["COLUMNS"]
    expected = f"({end}, {dim // 2}), complex, or the tuple (cos, sin)"
    return Finding(f"The table for dim {dim} and end {end}; its shape", kind(raw), expected, fault)


def number_finding(table: Tensor) -> Finding | None:
    """Whether the numbers are the cosine and the sine of one angle, so that each has the length 1."""
    right, length = angles(8, END, THETA), table.abs()
    names = tuple(
        next((name for name, formula in PARTS.items() if close(part, formula(right), 1e-2)), "")
        for part in (table.real, table.imag)
    )
    if names in FAULTS_OF_PARTS:
        sentence = "The numbers of the table at the angle a hold"
        return Finding(sentence, " and ".join(names), "cos a and sin a", FAULTS_OF_PARTS[names])
    if close(table[0], torch.full_like(table[0], 1j)):
        return Finding("Row 0 of the table, position 0", "0 + 1j", "1 + 0j", FAULTS["SWAPPED"])
    if close(length, torch.ones_like(length), 2 * TOLERANCE):
        return None
    if names[1] == "0":
        sentence = "The table has one real number for each position and pair; row 1"
        return Finding(sentence, numbers(table.real[1]), "a cosine and a sine", FAULTS["REAL"])
    fault = None
    turns = unwrapped(table.angle())[1:].diff(dim=0)
    if (table[1:].angle() - 1).abs().max() < 1e-3:
        fault = FAULTS["POLAR"]
    elif (turns - turns[0]).abs().max() < 1e-3:
        fault = FAULTS["LENGTH"]
    return Finding("Every number has the length 1; the lengths of row 2", numbers(length[2]), "1, 1, 1, 1", fault)


def unwrapped(angle: Tensor) -> Tensor:
    """Angles (end, dim/2) plus full turns, so that no step from a row to the next exceeds half a turn."""
    full_turns = (angle.diff(dim=0) / (2 * math.pi)).round().cumsum(0)
    return torch.cat((angle[:1], angle[1:] - 2 * math.pi * full_turns))


def same(angle: Tensor, right: Tensor, tolerance: float = 2e-2) -> bool:
    """Whether angles are equal up to full turns."""
    return close(unit(angle), unit(right), tolerance)


def angle_findings(table: dict[tuple[int, int, float], Tensor], dim: int) -> Iterator[Finding]:
    """Positions and exponents: the angles are (start + p) times theta^(-e), of which start is 0 and e is 2i/dim."""
    found, right = table[dim, END, THETA], angles(dim, END, THETA)
    if same(found, right, TOLERANCE):
        return
    first, steps = found[0], found.diff(dim=0)
    step, frequencies = steps.mean(0), right[1]
    factor = next((factor for factor in FACTORS if same(found, factor * right)), None)
    if factor is not None:
        sentence = "All angles are the expected ones times a factor"
        yield Finding(sentence, f"{factor:.4g}", "1", FACTORS[factor])
        return
    if (steps - step).abs().max() > 2e-2:
        pair = int(((found - right).abs() > 1e-2).any(0).nonzero()[0])
        sentence = f"The angles of pair {pair} at positions 0, 1, 2 .. (dim {dim}, theta {THETA:g})"
        fault = FAULTS["ADDED_ANGLES"] if close(found[4], found[2] ** 2, 1e-2) else FAULTS["POSITIONS"]  # p^f
        yield Finding(sentence, numbers(found[:, pair]), numbers(right[:, pair]), fault)
        return
    if step.abs().max() < 1e-3:
        sentence = "The angles of all rows are the same"
        yield Finding(sentence, numbers(first), "0, then 1, 2 .. times the frequencies", FAULTS["POSITIONS"])
        return
    start = next((k for k in (0, 1, -1, *range(2, END), -2, 1 - END) if same(first, k * step)), None)
    if start is None:
        is_sum = close(first.abs(), frequencies, TOLERANCE) and close(step, torch.ones_like(step), TOLERANCE)
        added = FAULTS["ADDED_ANGLES"] if is_sum else None
        yield Finding("Position 0 is not rotated; the angles of row 0", numbers(first), "0", added)
    elif start == 1 - END:
        yield Finding("The positions of rows 0, 1, 2 ..", "6, 5, 4", "0, 1, 2", FAULTS["POSITIONS"])
    elif start:
        yours = f"{start}, {start + 1}, {start + 2}"
        yield Finding("The positions of rows 0, 1, 2 ..", yours, "0, 1, 2", FAULTS["SHIFTED"])
    if start is not None and start != 1 - END and not close(step, frequencies):
        yield from frequency_findings({given: angle.diff(dim=0).mean(0) for given, angle in table.items()}, dim)


def frequency_findings(step: dict[tuple[int, int, float], Tensor], dim: int) -> Iterator[Finding]:
    """A factor of all angles, or the exponents of theta, from the radians per position for each probe, (dim/2,)."""
    found, other, longer, narrow = (
        step[given]
        for given in ((dim, END, THETA), (dim, END, OTHER_THETA), (dim, LONGER, THETA), (dim - 2, END, THETA))
    )
    exponents = torch.arange(0, dim, 2) / dim
    right = THETA**-exponents
    sentence = f"The frequencies for dim {dim} and theta {THETA:g}"
    factors, factor, long_factor = found / right, float(found[0]), float(longer[0])
    if close(found, right, 1e-2):
        yield Finding(sentence, numbers(found, 6), numbers(right, 6), FAULTS["ROUNDED"])
        return
    if close(factors, torch.full_like(factors, factor)) and close(other, factor * OTHER_THETA**-exponents):
        if abs(factor - long_factor) < 5e-3 * abs(factor):
            yield Finding("All angles are the expected ones times a factor", f"{factor:.4g}", "1", FAULTS["FACTOR"])
            return
        positions = torch.arange(END)  # linspace ends at a whole number, 1 or end
        fault = FAULTS["LINSPACE" if abs(factor * 6 - round(factor * 6)) < 1e-2 else "POSITIONS"]
        yield Finding("The positions of rows 0, 1, 2 ..", numbers(factor * positions), numbers(positions), fault)
        return
    if (found < 0).all():
        sign = "Pair 0 rotates by one radian per position; its angle at position 1"
        yield Finding(sign, numbers(found[:1]), "1", FAULTS["SIGN"])
    yours, others = (-x.abs().log() / math.log(theta) for x, theta in ((found, THETA), (other, OTHER_THETA)))
    if not close(yours, others, 2e-2):
        base = (-found[1:].abs().log() / exponents[1:]).exp()
        is_fixed = close(found, other, 1e-3) and close(base / base[0], torch.ones_like(base), 2e-2)
        if is_fixed and abs(base[0] - math.e) > 1e-2:
            sentence = "The table does not depend on theta; for theta 3 and 2 it has the angles of theta"
            yield Finding(sentence, f"{float(base.mean()):.4g}", "3 and 2", FAULTS["UNUSED"])
        else:
            yield Finding(sentence, numbers(found), numbers(right), FAULTS["NOT_A_POWER"])
        return
    # linspace ends at the same exponent for every dim, or at (dim - 1)/dim.
    last, narrow_last = yours[-1], -narrow[-1].abs().log() / math.log(THETA)
    ends = abs(last - narrow_last) < 1e-2 or abs(last * dim + 1 - dim) + abs(narrow_last * (dim - 2) + 3 - dim) < 1e-2
    is_even = yours[0].abs() < 1e-2 < last and (yours.diff().diff().abs() < 1e-2).all()
    fault = FAULTS["EXPONENT"]
    if not close(found, longer, 1e-3):
        fault = FAULTS["END_FOR_DIM"]
    elif close(yours, -exponents, 1e-2):
        fault = FAULTS["INVERTED"]
    elif (yours.diff() < -1e-3).all() and (yours > -1e-3).all():
        fault = FAULTS["REVERSED"]
    elif is_even and ends:
        fault = FAULTS["LINSPACE"]
    sentence = f"The exponents e of the frequencies theta^(-e) for dim {dim}"
    yield Finding(sentence, fractions(yours), fractions(exponents), fault)


def other_findings(table: dict[tuple[int, int, float], Tensor]) -> Iterator[Finding]:
    """Other sizes and bases, and positions far away."""
    for given in OTHERS:
        (dim, end, theta), found, right = given, table[given], angles(*given)
        wrong = (unit(found) - unit(right)).abs() > 2 * TOLERANCE
        if wrong.any():
            p, i = (int(index) for index in wrong.nonzero()[0])
            sentence = f"The angle of pair {i} at position {p} (dim {dim}, end {end}, theta {theta:g}), modulo 2 pi"
            yours, expected = (float(unit(x[p, i]).angle()) for x in (found, right))
            starts_right = ((found[1] - right[1]).abs() < 1e-2 * right[1]).all()
            fault = FAULTS["ROUNDED"] if given == FAR and starts_right else None
            yield Finding(sentence, f"{yours:.4f}", f"{expected:.4f}", fault)
            return


def default_finding(call: Caller) -> Iterator[Finding]:
    sentence = "Without theta, the angle of pair 1 of dim 8 at position 1 is 10000^(-2/8)"
    given, default = (call.attempt(8, END, *theta) for theta in ((10000.0,), ()))
    if isinstance(default, Raised):
        yield Finding(sentence, str(default), "0.1", FAULTS["DEFAULT_THETA"])
        return
    read = read_table(given, 8, END), read_table(default, 8, END)
    if read[0] and read[1] and not close(read[0].table, read[1].table):
        yield Finding(sentence, f"{float(read[1].table[1, 1].angle()):.4g}", "0.1", FAULTS["DEFAULT_THETA"])


def fractions(x: Tensor) -> str:
    """The numbers as fractions of small denominators where they are, ``0, 1/4, 1/2``."""
    texts = []
    for value in x.tolist():
        fraction = Fraction(value).limit_denominator(64) if math.isfinite(value) else Fraction(1, 65)
        texts.append(str(fraction) if abs(fraction - value) < 2e-4 else f"{value:.4g}")
    return ", ".join(texts)
