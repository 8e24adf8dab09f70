"""Measure ``precompute_freqs_cis``: its form, the lengths of its numbers, its positions and its exponents.

Each probe changes one argument. The base of the probes is small, so that no angle between two rows exceeds half a
turn and the frequencies can be read from the table.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import faults
from .calls import Caller, kind
from .faults import Fault
from .forms import Conventions, Reading, angles, close, read_table, unit
from .verdict import Finding

ARGUMENTS = ("dim", "end", "theta")
END, OTHER_END = 7, 11
THETA, OTHER_THETA = 3.0, 2.0
SLOW = 1000.0  # a base whose slow pairs show a factor of up to 57
LONG = (16, 2051, 10000.0)
OTHERS = ((4, 3, 10000.0), (6, 7, 500.0), (8, 13, 10000.0))
HALF = (torch.float16, torch.bfloat16)
TOLERANCE = 5e-3

# What each part of the table may hold, as a function of the right angles (end, dim/2).
PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "0": torch.zeros_like,
    "1": torch.ones_like,
    "cos a": torch.cos,
    "sin a": torch.sin,
    "-sin a": lambda angle: -angle.sin(),
    "a": lambda angle: angle,
    "exp a": torch.exp,
    "tan a": torch.tan,
    "theta^(-2i/dim)": lambda angle: angle[1:2].expand_as(angle),
    "cos theta^(-2i/dim)": lambda angle: angle[1:2].cos().expand_as(angle),
    "sin theta^(-2i/dim)": lambda angle: angle[1:2].sin().expand_as(angle),
}
FAULTS_OF_PARTS: dict[tuple[str, ...], Fault] = {
    ("cos a",): faults.REAL,
    ("cos a", "0"): faults.REAL,
    ("sin a",): faults.ONLY_SINES,
    ("sin a", "0"): faults.ONLY_SINES,
    ("0", "sin a"): faults.ONLY_SINES,
    ("sin a", "cos a"): faults.SWAPPED,
    ("cos a", "cos a"): faults.TWO_OF_A_KIND,
    ("sin a", "sin a"): faults.TWO_OF_A_KIND,
    ("a",): faults.ANGLES,
    ("a", "a"): faults.ANGLES,
    ("a", "0"): faults.ANGLES,
    ("0", "a"): faults.ANGLES,
    ("exp a",): faults.NO_J,
    ("exp a", "0"): faults.NO_J,
    ("theta^(-2i/dim)",): faults.FREQUENCIES,
}
FACTORS: list[tuple[float, Fault]] = [
    (-1.0, faults.SIGN),
    (180 / math.pi, faults.DEGREES),
    (math.pi / 180, faults.DEGREES),
    *((factor, faults.CIRCLES) for factor in (2 * math.pi, math.pi, 1 / math.pi, 1 / (2 * math.pi))),
]


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    yield from call.order_finding("precompute_freqs_cis")
    raw = call(8, END, THETA)
    read = read_table(raw, 8, END)
    if read is None:
        yield shape_finding(raw, 8, END)
        return
    if read.fault:
        yield Finding("The form of the table for dim 8 and end 7", kind(raw), "(7, 4), a complex tensor", read.fault)
    conventions.table = read.form
    table = Table(call, read)
    found = list(length_findings(read))
    yield from found
    if found and found[-1].fault not in (faults.LENGTH, faults.SWAPPED):
        return
    found = list(angle_findings(table))
    yield from found
    if not found:
        yield from other_findings(table)
    yield from default_finding(table)


class Table:
    """The reader's table as complex numbers of length 1, for any arguments."""

    def __init__(self, call: Caller, read: Reading) -> None:
        self.call = call
        self.count = len(read.parts)
        self.swapped = self.count == 2 and is_swapped(read)

    def __call__(self, *given: Any) -> Tensor:
        """complex128 (end, dim/2). Raises ShapeError if the form differs from that of the first table."""
        raw = self.call(*given)
        read = read_table(raw, given[0], given[1])
        if read is None or len(read.parts) != self.count:
            raise ShapeError(shape_finding(raw, given[0], given[1]))
        table = read.rotations()
        table = 1j * table.conj() if self.swapped else table
        length = table.abs()
        return torch.where(length > 1e-9, table / length, torch.ones_like(table))


class ShapeError(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


def shape_finding(raw: Any, dim: int, end: int) -> Finding:
    shapes = [tuple(part.shape) for part in (raw if isinstance(raw, tuple | list) else [raw]) if torch.is_tensor(part)]
    fault = None
    if raw is None:
        fault = faults.NOT_RETURNED
    elif any(shape[-1:] == (dim // 2,) and shape[:1] != (end,) for shape in shapes):
        fault = faults.ROWS
    elif any(shape == (end, dim) for shape in shapes):
        fault = faults.CHANNELS
    elif any(len(shape) == 2 and shape[0] == end for shape in shapes):
        fault = faults.COLUMNS
    expected = f"({end}, {dim // 2}), complex, or the tuple (cos, sin)"
    if fault is faults.ROWS and any(shape == (dim // 2,) for shape in shapes):
        fault = faults.FREQUENCIES
    return Finding(f"The table for dim {dim} and end {end}; its shape", kind(raw), expected, fault)


def is_swapped(read: Reading) -> bool:
    return bool(read.form and read.form.container == "complex") and close(
        read.rotations()[0] - 1j, torch.zeros(1).expand(4)
    )


def part_names(parts: list[Tensor]) -> tuple[str, ...]:
    """What each part holds, by its numbers; empty for a part that holds none of PARTS."""
    right = angles(8, END, THETA)
    names = []
    for part in parts:
        names.append(next((name for name, formula in PARTS.items() if close(part, formula(right), 1e-2)), ""))
    return tuple(names)


def length_findings(read: Reading) -> Iterator[Finding]:
    """Whether the two parts are the cosine and the sine of one angle, so that every number has the length 1."""
    names = part_names(read.parts)
    fault = FAULTS_OF_PARTS.get(names)
    expected = "cos a and sin a"
    if fault:
        yield Finding("The numbers of the table at the angle a hold", " and ".join(names), expected, fault)
        return
    if len(read.parts) == 1:
        sentence = "The table has one real number for each position and pair; row 1"
        yield Finding(sentence, numbers(read.parts[0][1]), "a cosine and a sine", faults.REAL)
        return
    if is_swapped(read):
        yield Finding("Row 0 of the table, position 0", "0 + 1j", "1 + 0j", faults.SWAPPED)
        return
    table = read.rotations()
    length = table.abs()
    if close(length, torch.ones_like(length), TOLERANCE * 2):
        return
    if all(names):
        yield Finding("The numbers of the table at the angle a hold", " and ".join(names), expected)
        return
    known = length > 1e-6
    fault = None
    if (table[known].angle() - 1).abs().max() < 1e-3:
        fault = faults.POLAR
    elif (length - length.mean()).abs().max() < 1e-3 or is_turning(table, length):
        fault = faults.LENGTH
    yield Finding("Every number has the length 1; the lengths of row 2", numbers(length[2]), "1, 1, 1, 1", fault)


def is_turning(table: Tensor, length: Tensor) -> bool:
    """Whether the directions of the numbers turn steadily from row to row, whatever their lengths."""
    if (length[1:] < 1e-6).any():
        return False
    steps = turns(table[1:] / length[1:])
    return bool((steps - steps[:1]).abs().max() < 1e-3)


def turns(table: Tensor) -> Tensor:
    """The angles from each row to the next, between -pi and pi: (end - 1, dim/2)."""
    return (table[1:] * table[:-1].conj()).angle()


def frequencies(table: Tensor) -> Tensor:
    """Radians per position of each pair, from the whole table, because one step may be rounded: (dim/2,)."""
    return turns(table).mean(0)


def angle_findings(table: Table) -> Iterator[Finding]:
    """Positions and exponents, where the first table that is wrong shows them."""
    for dim in (8, 6):
        try:
            found = table(dim, END, THETA)
        except ShapeError as error:
            yield error.finding
            return
        if close(found, unit(angles(dim, END, THETA)), TOLERANCE):
            continue
        steps = turns(found)
        if (steps - steps[:1]).abs().max() > 2e-2:
            yield uneven_finding(found, dim)
            return
        starts = list(start_finding(found, dim))
        yield from starts
        if starts and starts[0].fault in (faults.ADDED_ANGLES, faults.POSITIONS):
            return
        yield from frequency_findings(table, dim)
        return


def uneven_finding(found: Tensor, dim: int) -> Finding:
    """The angle does not grow by the same amount from each position to the next."""
    grown = found[0].angle() + torch.cat((torch.zeros(1, dim // 2), turns(found).cumsum(0)))  # (end, dim/2)
    if close(grown[4], grown[2] ** 2, 1e-2):  # p^f
        sentence = "The angles at position 2 are the product of 2 and the frequencies"
        return Finding(sentence, numbers(grown[2]), numbers(angles(dim, END, THETA)[2]), faults.ADDED_ANGLES)
    right = angles(dim, END, THETA)
    pair = int(((grown - right).abs() > 1e-2).any(0).nonzero()[0])
    sentence = f"The angles of pair {pair} at positions 0, 1, 2 .. (dim {dim}, theta {THETA:g})"
    return Finding(sentence, numbers(grown[:, pair]), numbers(right[:, pair]), faults.POSITIONS)


def start_finding(found: Tensor, dim: int) -> Iterator[Finding]:
    """The angles of row 0, which are 0; otherwise the position from which the rows count."""
    first = found[0].angle()
    steps = frequencies(found)
    if close(first, torch.zeros_like(first), TOLERANCE):
        return
    right = angles(dim, END, THETA)[1]
    fault = None
    start = next((k for k in (1, -1, *range(2, END), -2) if close(unit(k * steps), found[0], 2e-2)), None)
    if steps.abs().max() < 1e-3:
        sentence, yours, expected = "The angles of all rows are the same", numbers(first), "0, then 1, 2 .. times those"
        yield Finding(sentence, yours, expected, faults.POSITIONS)
        return
    if close(first.abs(), right, TOLERANCE) and close(steps, torch.ones_like(steps), TOLERANCE):
        fault = faults.ADDED_ANGLES
    elif close(unit((END - 1) * right), found[0], 2e-2) and close(steps, -right, 2e-2):
        yield Finding("The positions of rows 0, 1, 2 ..", "6, 5, 4", "0, 1, 2", faults.POSITIONS)
        return
    elif start is not None:
        rows = f"{start}, {start + 1}, {start + 2}"
        yield Finding("The positions of rows 0, 1, 2 ..", rows, "0, 1, 2", faults.SHIFTED)
        return
    yield Finding("Position 0 is not rotated; the angles of row 0", numbers(first), "0", fault)


def frequency_findings(table: Table, dim: int) -> Iterator[Finding]:
    """A factor of all angles, or the exponents of theta."""
    steps = frequencies(table(dim, END, THETA))
    right = angles(dim, END, THETA)[1]
    if close(steps, right):
        return
    if close(steps, right, 1e-2):
        yield Finding("The frequencies of dim 8, theta 3", numbers(steps, 6), numbers(right, 6), faults.ROUNDED)
        return
    if steps.abs().max() < 1e-3:
        yield Finding("The angles of position 1", numbers(steps), numbers(right), faults.POSITIONS)
        return
    found = factor_finding(table, dim)
    if found is not None:
        yield found
        return
    if (steps < 0).all():
        sentence = "Pair 0 rotates by one radian per position; its angle at position 1"
        yield Finding(sentence, numbers(steps[:1]), "1", faults.SIGN)
    yield exponent_finding(table, dim)


def factor_finding(table: Table, dim: int) -> Finding | None:
    """A finding if all angles are those expected, times one factor."""
    slow = frequencies(table(16, END, SLOW))
    right = angles(16, END, SLOW)[1]
    ratios = slow[5:] / right[5:]
    factor = float(ratios.mean())
    if (ratios - factor).abs().max() > 5e-3 * abs(factor) or abs(factor) < 1e-6:
        return None
    for width, base, step in ((16, SLOW, slow), (dim, THETA, frequencies(table(dim, END, THETA)))):
        if not close(unit(angles(width, END, base)[1] * factor), unit(step), 2e-2):
            return None
    fault = next((fault for number, fault in FACTORS if abs(factor - number) < 5e-3 * abs(number)), faults.FACTOR)
    sentence = "All angles are the expected ones times a factor"
    other = float(frequencies(table(16, OTHER_END, SLOW))[-1] / right[-1])
    if abs(other - factor) > 5e-3 * abs(factor):
        sentence += f", which depends on end (for end {END} and {OTHER_END})"
        includes_end = abs(factor * (END - 1) - other * (OTHER_END - 1)) < 1e-2 * abs(factor)
        is_longer = abs(factor * (END - 1) / END - other * (OTHER_END - 1) / OTHER_END) < 1e-2 * abs(factor)
        fault = faults.LINSPACE if includes_end or is_longer else faults.POSITIONS
        return Finding(sentence, f"{factor:.4g} and {other:.4g}", "1", fault)
    return Finding(sentence, f"{factor:.4g}", "1", fault)


def exponent_finding(table: Table, dim: int) -> Finding:
    """The exponents e_i of the frequencies theta^(-e_i), from two values of theta."""
    steps = frequencies(table(dim, END, THETA)).abs()
    other = frequencies(table(dim, END, OTHER_THETA)).abs()
    longer = frequencies(table(dim, OTHER_END, THETA)).abs()
    right = torch.arange(0, dim, 2) / dim
    exponents, others = -steps.log() / math.log(THETA), -other.log() / math.log(OTHER_THETA)
    rates = f"The frequencies for dim {dim} and theta {THETA:g}"
    if close(steps, other, 1e-3) and (steps - 1).abs().max() > 1e-2:
        bases = (-steps[1:].log() / right[1:]).exp()
        if not steps.isfinite().all() or (bases / bases[0] - 1).abs().max() > 2e-2 or abs(bases[0] - math.e) < 1e-2:
            return Finding(rates, numbers(steps), numbers(THETA**-right), faults.NOT_A_POWER)
        sentence = "The table does not depend on theta; for theta 3 and 2 it has the angles of theta"
        return Finding(sentence, f"{float(bases.mean()):.4g}", "3 and 2", faults.UNUSED)
    if not close(exponents, others, 2e-2):
        return Finding(rates, numbers(steps), numbers(THETA**-right), faults.NOT_A_POWER)
    fault = faults.EXPONENT
    if not close(steps, longer, 1e-3):
        fault = faults.END_FOR_DIM
    elif close(exponents, -right, 1e-2):
        fault = faults.INVERTED
    elif (exponents.diff() < -1e-3).all() and (exponents > -1e-3).all():
        fault = faults.REVERSED
    elif has_last(table, dim, exponents):
        fault = faults.LINSPACE
    sentence = f"The exponents e of the frequencies theta^(-e) for dim {dim}"
    return Finding(sentence, fractions(exponents), fractions(right), fault)


def has_last(table: Table, dim: int, exponents: Tensor) -> bool:
    """Whether the exponents end at the same number, or at (dim - 1)/dim, for any dim: linspace includes its end."""
    if (exponents.diff().diff().abs() > 1e-2).any() or exponents[0].abs() > 1e-2 or exponents[-1] < 1e-2:
        return False
    narrow = -frequencies(table(dim - 2, END, THETA)).abs().log() / math.log(THETA)
    lasts = [(float(exponents[-1]), dim), (float(narrow[-1]), dim - 2)]
    ends = (lambda dim: lasts[0][0], lambda dim: (dim - 1) / dim)
    return any(all(abs(last - end(width)) < 1e-2 for last, width in lasts) for end in ends)


def other_findings(table: Table) -> Iterator[Finding]:
    """Other sizes and bases, and positions far away, where 16 bits are not enough."""
    tolerance = TOLERANCE
    for given in (*OTHERS, LONG):
        dim, end, theta = given
        try:
            found = table(*given)
        except ShapeError as error:
            yield error.finding
            return
        right = angles(*given)
        wrong = (found - unit(right)).abs() > 2 * tolerance
        if wrong.any():
            p, i = (int(index) for index in wrong.nonzero()[0])
            sentence = f"The angle of pair {i} at position {p} (dim {dim}, end {end}, theta {theta:g}), modulo 2 pi"
            yours, expected = (float(x[p, i].angle()) for x in (found, unit(right)))
            fault = faults.ROUNDED if given == LONG and is_rounded(found, right) else None
            yield Finding(sentence, f"{yours:.4f}", f"{expected:.4f}", fault)
            return


def is_rounded(table: Tensor, right: Tensor) -> bool:
    """Whether positions, frequencies or angles were rounded to 16 bits, or the first rows are right and drift away."""
    early = slice(0, 100)
    if close(table[early], unit(right[early]), 2e-2):
        return True
    step = frequencies(table[:3])
    p = torch.arange(len(table), dtype=torch.float64)
    for dtype, row in product(HALF, (step, right[1])):
        rounded = unit(torch.outer(p.to(dtype).double(), row.to(dtype).double()))
        if (table - rounded).abs().median() < 2e-2:
            return True
    return bool(((step - right[1]).abs() < 1e-2 * right[1]).all())


def default_finding(table: Table) -> Iterator[Finding]:
    found = table.call.attempt(8, 3)
    sentence = "Without theta, the angle of pair 1 of dim 8 at position 1 is 10000^(-2/8)"
    right = table.call.attempt(8, 3, 10000.0)
    read = None if isinstance(found, Exception) else read_table(found, 8, 3)
    if isinstance(found, Exception):
        yield Finding(sentence, str(found), "0.1", faults.DEFAULT_THETA)
    elif read is not None and len(read.parts) == 2:
        default, given = (read_table(x, 8, 3) for x in (found, right))
        if default and given and not close(default.rotations(), given.rotations()):
            yours = float(default.rotations()[1, 1].angle())
            yield Finding(sentence, f"{yours:.4g}", "0.1", faults.DEFAULT_THETA)


def remarks(call: Caller) -> Iterator[str]:
    raw = call.attempt(8, END, THETA)
    for part in raw if isinstance(raw, tuple) else [raw]:
        if isinstance(part, Tensor) and part.dtype in HALF:
            yield "The table is rounded to 16 bits: keep it in float32, because it is small."
            return


def numbers(x: Tensor, digits: int = 4) -> str:
    return ", ".join(f"{float(value) + 0.0:.{digits}g}" for value in x)


def fractions(x: Tensor) -> str:
    """The numbers as fractions of small denominators where they are, ``0, 1/4, 1/2``."""
    texts = []
    for value in x.tolist():
        fraction = Fraction(value).limit_denominator(64) if math.isfinite(value) else Fraction(1, 65)
        texts.append(str(fraction) if abs(fraction - value) < 2e-4 else f"{value:.4g}")
    return ", ".join(texts)
