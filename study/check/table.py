"""Measure ``precompute_freqs_cis``: its form, the lengths of its numbers, its positions and its exponents.

The base of the probes is small, so that no angle between two rows exceeds half a turn, and positions and frequencies
can be read from the table. Each probe changes one argument.
"""

import cmath
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .calls import Caller, Raised, kind
from .forms import COMPLEX, Conventions, angles, close, form_of, read_table, unit
from .verdict import Finding, first, numbers

BASE = (8, 7, 3.0)  # dim, end, theta
OTHER_THETA, LONGER = (8, 7, 2.0), (8, 11, 3.0)
RIGHT = angles(*BASE)
FAR = (16, 2051, 10000.0)  # positions for which 16 bits are not enough
OTHERS = ((10, 3, 10000.0), (6, 7, 500.0), (8, 13, 10000.0), FAR)
TOLERANCE = 5e-3

# What the table may hold instead of cos a + j sin a, as a function of the right angles.
NUMBERS: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
    ("cos a", "REAL", torch.cos),
    ("sin a", "ONLY_SINES", torch.sin),
    ("j sin a", "ONLY_SINES", lambda a: 1j * a.sin()),
    ("cos a + j cos a", "TWO_OF_A_KIND", lambda a: (1 + 1j) * a.cos()),
    ("sin a + j sin a", "TWO_OF_A_KIND", lambda a: (1 + 1j) * a.sin()),
    ("a", "ANGLES", lambda a: a),
    ("j a", "ANGLES", lambda a: 1j * a),
    ("a + j a", "ANGLES", lambda a: (1 + 1j) * a),
    ("exp a", "NO_J", torch.exp),
    ("a cos 1 + j a sin 1", "POLAR", lambda a: cmath.exp(1j) * a),
]
FACTORS = {
    -1.0: "SIGN",
    180 / math.pi: "DEGREES",
    math.pi / 180: "DEGREES",
    **dict.fromkeys((2 * math.pi, math.pi, 1 / math.pi, 1 / (2 * math.pi)), "FACTOR"),
}


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    table: dict[tuple[int, int, float], Tensor] = {}  # the angles for each probe, (end, dim/2)
    for given in (BASE, OTHER_THETA, LONGER, *OTHERS):
        (dim, end, _), raw = given, call(*given)
        form = form_of(raw, (end, dim // 2))
        if not form and (not torch.is_tensor(raw) or raw.shape != (end, dim // 2)):
            yield shape_finding(raw, dim, end)
            return
        cells = read_table(form or COMPLEX, raw)  # one real number in each place is a complex one without sine
        if given == BASE:
            conventions.table = form
            wrong = number_finding(cells)
            if wrong:
                yield wrong
                if wrong.fault != "LENGTH":
                    return
        table[given] = unwrapped(cells.angle())
    yield from list(angle_findings(table)) or other_findings(table)
    yield from default_finding(call, form)


def shape_finding(raw: Any, dim: int, end: int) -> Finding:
    parts = raw if isinstance(raw, tuple | list) else [raw]
    shapes = [tuple(part.shape) for part in parts if torch.is_tensor(part)]
    named = [
        ("NOT_RETURNED", raw is None),
        ("NUMPY", not shapes and isinstance(raw, tuple | list | np.ndarray)),
        ("FREQUENCIES", (dim // 2,) in shapes),
        ("TRANSPOSED_TABLE", (dim // 2, end) in shapes),
        ("STACKED", torch.is_tensor(raw) and not raw.is_complex() and raw.numel() == end * dim),
        ("CHANNELS", (end, dim) in shapes),
        ("ROWS", any(len(shape) == 2 and shape[1] == dim // 2 for shape in shapes)),
        ("COLUMNS", any(len(shape) == 2 and shape[0] == end for shape in shapes)),
    ]
    expected = f"({end}, {dim // 2}), complex, or the tuple (cos, sin)"
    return Finding(f"The table for dim {dim} and end {end}; its shape", kind(raw), expected, first(named))


def number_finding(table: Tensor) -> Finding | None:
    """Whether the numbers are the cosine and the sine of one angle, so that each has the length 1."""
    for yours, fault, formula in NUMBERS:
        if close(table, formula(RIGHT), 1e-2):
            return Finding("The numbers of the table at the angle a are", yours, "cos a + j sin a", fault)
    if close(table[0], torch.full_like(table[0], 1j)):
        return Finding("Row 0 of the table, position 0", "0 + 1j", "1 + 0j", "SWAPPED")
    length = table.abs()
    if close(length, torch.ones_like(length), 2 * TOLERANCE):
        return None
    if not table.imag.any():
        sentence = "The table has one real number for each position and pair; row 1"
        return Finding(sentence, numbers(table.real[1]), "a cosine and a sine", "REAL")
    turns = unwrapped(table.angle())[1:].diff(dim=0)
    fault = "LENGTH" if (turns - turns[0]).abs().max() < 1e-3 else ""
    return Finding("Every number has the length 1; the lengths of row 2", numbers(length[2]), "1, 1, 1, 1", fault)


def unwrapped(angle: Tensor) -> Tensor:
    """Angles (end, dim/2) plus full turns, so that no step from a row to the next exceeds half a turn."""
    full_turns = (angle.diff(dim=0) / (2 * math.pi)).round().cumsum(0)
    return torch.cat((angle[:1], angle[1:] - 2 * math.pi * full_turns))


def same(angle: Tensor, right: Tensor, tolerance: float = 2e-2) -> bool:
    """Whether angles are equal up to full turns."""
    return close(unit(angle), unit(right), tolerance)


def angle_findings(table: dict[tuple[int, int, float], Tensor]) -> Iterator[Finding]:
    """Positions and exponents: the angles are (start + p) times theta^(-e), of which start is 0 and e is 2i/dim."""
    found = table[BASE]
    if same(found, RIGHT, TOLERANCE):
        return
    factor = next((factor for factor in FACTORS if same(found, factor * RIGHT)), None)
    if factor is not None:
        yield Finding("All angles are the expected ones times a factor", f"{factor:.4g}", "1", FACTORS[factor])
        return
    step = {given: angle.diff(dim=0).mean(0) for given, angle in table.items()}  # (dim/2,)
    start = next((k for k in (0, *range(1, 7), *range(-1, -7, -1)) if same(found[0], k * step[BASE])), None)
    is_even = bool((found.diff(dim=0) - step[BASE]).abs().max() < 2e-2 and step[BASE].abs().max() > 1e-3)
    if start != 0 or not is_even:
        pair = int(((found - RIGHT).abs() > 1e-2).any(0).nonzero()[0])
        sentence = f"The angles of pair {pair} at positions 0, 1, 2 .. (dim 8, theta 3)"
        yield Finding(sentence, numbers(found[:, pair]), numbers(RIGHT[:, pair]), position_fault(found, start, is_even))
    if start not in (None, -6) and is_even and not close(step[BASE], RIGHT[1], 1e-2):
        yield frequency_finding(step)


def position_fault(found: Tensor, start: int | None, is_even: bool) -> str:
    """The fault of angles (end, dim/2) that are not 0, 1, 2 .. times the same, but ``start`` times it in row 0."""
    steps = found.diff(dim=0)
    is_sum = close(found[0].abs(), RIGHT[1], 1e-2) and close(steps, torch.ones_like(steps), 1e-2)
    is_power = close(found[4], found[2] ** 2, 1e-2) and found[4].any()
    if is_sum or is_power:
        return "ADDED_ANGLES"
    if start == -6 or not is_even:
        return "POSITIONS"
    return "SHIFTED" if start else ""


def frequency_finding(step: dict[tuple[int, int, float], Tensor]) -> Finding:
    """A factor of all angles, or the exponents of theta, from the radians per position for each probe, (dim/2,)."""
    found, other, longer = (step[given] for given in (BASE, OTHER_THETA, LONGER))
    exponents = torch.arange(4) / 4
    factor, long_factor = float(found[0]), float(longer[0])
    if close(found, factor * 3**-exponents) and close(other, factor * 2**-exponents):
        fault = "FACTOR" if abs(factor - long_factor) < 5e-3 * abs(factor) else "POSITIONS"
        sentence = "All angles are the expected ones times a factor; for end 7 and 11 it is"
        return Finding(sentence, f"{factor:.4g} and {long_factor:.4g}", "1 and 1", fault)
    yours, others = (-x.abs().log() / math.log(theta) for x, theta in ((found, 3), (other, 2)))
    if not close(yours, others, 2e-2):
        base = (-found[1:].abs().log() / exponents[1:]).exp()
        is_fixed = close(found, other, 1e-3) and close(base / base[0], torch.ones_like(base), 2e-2)
        if is_fixed and abs(base[0] - math.e) > 1e-2:
            sentence = "The table does not depend on theta; for theta 3 and 2 it has the angles of theta"
            return Finding(sentence, f"{float(base.mean()):.4g}", "3 and 2", "UNUSED")
        return Finding("The frequencies for dim 8 and theta 3", numbers(found), numbers(RIGHT[1]), "NOT_A_POWER")
    named = [
        ("END_FOR_DIM", not close(found, longer, 1e-3)),
        ("INVERTED", close(yours, -exponents, 1e-2)),
        ("REVERSED", (yours.diff() < -1e-3).all() and (yours > -1e-3).all()),
        ("EXPONENT", True),
    ]
    sentence = "The exponents e of the frequencies theta^(-e) for dim 8"
    return Finding(sentence, fractions(yours), fractions(exponents), first(named))


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
            fault = "ROUNDED" if given == FAR and starts_right else ""
            yield Finding(sentence, f"{yours:.4f}", f"{expected:.4f}", fault)
            return


def default_finding(call: Caller, form: str) -> Iterator[Finding]:
    given, default = call(8, 7, 10000.0), call.attempt(8, 7)
    yours = str(default)  # of an exception
    if not isinstance(default, Raised):
        (right, angle) = (float(read_table(form, raw)[1, 1].angle()) for raw in (given, default))
        if abs(right - angle) < 1e-3:
            return
        yours = f"{angle:.4g}"
    yield Finding(
        "Without theta, the angle of pair 1 of dim 8 at position 1 is 10000^(-2/8)", yours, "0.1", "DEFAULT_THETA"
    )


def fractions(x: Tensor) -> str:
    """The numbers as fractions of small denominators where they are, ``0, 1/4, 1/2``."""
    texts = []
    for value in x.tolist():
        fraction = Fraction(value).limit_denominator(64) if math.isfinite(value) else Fraction(1, 65)
        texts.append(str(fraction) if abs(fraction - value) < 2e-4 else f"{value:.4g}")
    return ", ".join(texts)
