"""Judge ``precompute_freqs_cis``: the right table, the known mistakes, and the properties tested in order."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, error_count, first_problem, parameters
from .faults import Fault
from .forms import Conventions, read_table, widened
from .properties import Comparison, Property, Requirement, kind
from .recipe import Explanation, Mistake, Recipe, explain, matches, same
from .verdict import Verdict, in_other_order, with_requirements, wrong

FUNCTION = "precompute_freqs_cis"
HALF_PRECISION = (torch.float16, torch.bfloat16)

Probe = tuple[int, int, float]  # dim, end, theta
TABLES: tuple[Probe, ...] = ((4, 3, 10000.0), (8, 13, 10000.0), (6, 7, 500.0), (16, 2051, 10000.0))  # smallest first
LONG = len(TABLES) - 1
LARGE_DIFFERENCE = 0.5  # radians; a larger difference may be full turns, which a table does not show
LARGEST_ANGLE = 1e4  # larger angles are too inaccurate in float32 to be compared


def angles(dim: int, end: int, theta: float) -> Tensor:
    """float64 (end, dim/2): position times theta^(-2i/dim)."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    return torch.outer(torch.arange(end, dtype=torch.float64), theta ** (-2 * i / dim))


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


# The recipe: i is the index of a pair, (dim/2,), e its exponent, f its frequency, and p a position, (end,).


def positions(end: int) -> Tensor:
    return torch.arange(end, dtype=torch.float64)


RECIPE: Recipe = {
    "exponents": lambda i, dim, end: 2 * i / dim,
    "frequencies": lambda theta, e: theta**-e,
    "positions": positions,
    "angle": lambda p, f: p[:, None] * f,
    "radians": lambda angle: angle,
    "result": lambda angle, f: unit(angle),
}


def compute(parts: Recipe, dim: int, end: int, theta: float) -> tuple[Tensor, Tensor]:
    """The table of a recipe, complex (end, dim/2), and its angles."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    f = parts["frequencies"](theta, parts["exponents"](i, dim, end))
    angle = parts["radians"](parts["angle"](parts["positions"](end), f))
    return parts["result"](angle, f), angle


def linspace(end: float, count: int) -> Tensor:
    return torch.linspace(0, end, count, dtype=torch.float64)


MISTAKES = [
    Mistake(known.SIGN, "radians", lambda angle: -angle),
    Mistake(known.INVERTED, "frequencies", lambda theta, e: theta**e),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 4 * i / dim),  # divided by dim // 2
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: i / dim),  # arange(dim // 2)
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 2 * (i - 1) / dim),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 2 * (i + 1) / dim),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: (2 * i + 1) / dim),  # arange(1, dim, 2)
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: (i + 1) / dim),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 2 * i / (dim + 1)),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 2 * i / (dim - 1)),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: i / dim**0.5),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 2 * i / dim**0.5),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: i),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 2 * i),
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 0 * i),  # integer division
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: linspace(1, len(i))),
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: linspace(dim - 1, len(i)) / dim),
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: linspace(2, len(i))),
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: linspace(dim // 2, len(i)) / dim),
    Mistake(known.END_FOR_DIM, "exponents", lambda i, dim, end: 2 * i / end),
    Mistake(known.REVERSED, "exponents", lambda i, dim, end: 2 * i.flip(0) / dim),
    Mistake(known.REVERSED, "exponents", lambda i, dim, end: 1 - 2 * i / dim),
    Mistake(known.UNUSED, "frequencies", lambda theta, e: 10000.0**-e),
    Mistake(known.UNUSED, "frequencies", lambda theta, e: 500000.0**-e),
    Mistake(known.UNUSED, "frequencies", lambda theta, e: 1000000.0**-e),
    Mistake(known.UNUSED, "frequencies", lambda theta, e: 1000.0**-e),
    Mistake(known.UNUSED, "frequencies", lambda theta, e: 100.0**-e),
    Mistake(known.UNUSED, "frequencies", lambda theta, e: 10.0**-e),
    Mistake(known.UNUSED, "frequencies", lambda theta, e: 2.0**-e),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: (-e).exp()),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: theta * e),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: -theta * e),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: e / theta),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: 1 / (1 + theta**e)),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: (1 / theta) * torch.ones_like(e)),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: e),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: math.log(theta) * e),
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: -math.log(theta) * e),
    Mistake(known.SHIFTED, "positions", lambda end: positions(end) + 1),
    Mistake(known.SHIFTED, "positions", lambda end: positions(end) - 1),
    Mistake(known.LINSPACE, "positions", lambda end: linspace(end, end)),
    Mistake(known.LINSPACE, "positions", lambda end: linspace(1, end)),
    Mistake(known.POSITIONS, "positions", lambda end: positions(end) / end),
    Mistake(known.POSITIONS, "positions", lambda end: positions(end).flip(0)),
    Mistake(known.POSITIONS, "positions", lambda end: positions(end) * 2),
    Mistake(known.POSITIONS, "positions", lambda end: positions(end) / 2),
    Mistake(known.POSITIONS, "positions", lambda end: positions(end) * 0),
    Mistake(known.POSITIONS, "positions", lambda end: positions(end) * 0 + 1),
    Mistake(known.POSITIONS, "positions", lambda end: positions(end).log1p()),
    Mistake(known.ADDED_ANGLES, "angle", lambda p, f: p[:, None] + f),
    Mistake(known.ADDED_ANGLES, "angle", lambda p, f: p[:, None] - f),
    Mistake(known.ADDED_ANGLES, "angle", lambda p, f: p[:, None] ** f),
    Mistake(known.DEGREES, "radians", torch.rad2deg),
    Mistake(known.DEGREES, "radians", torch.deg2rad),
    Mistake(known.CIRCLES, "radians", lambda angle: 2 * torch.pi * angle),
    Mistake(known.CIRCLES, "radians", lambda angle: torch.pi * angle),
    Mistake(known.CIRCLES, "radians", lambda angle: angle / (2 * torch.pi)),
    Mistake(known.CIRCLES, "radians", lambda angle: angle / torch.pi),
    Mistake(known.SWAPPED, "result", lambda angle, f: torch.complex(angle.sin(), angle.cos())),
    Mistake(known.POLAR, "result", lambda angle, f: torch.polar(angle, torch.ones_like(angle))),
    Mistake(known.LENGTH, "result", lambda angle, f: f * unit(angle)),
    Mistake(known.LENGTH, "result", lambda angle, f: angle * unit(angle)),
    Mistake(known.LENGTH, "result", lambda angle, f: 2 * unit(angle)),
    Mistake(known.LENGTH, "result", lambda angle, f: unit(angle) / math.sqrt(2 * len(f))),
    Mistake(known.REAL, "result", lambda angle, f: angle.cos() + 0j),
    Mistake(known.ONLY_SINES, "result", lambda angle, f: 1j * angle.sin()),
    Mistake(known.ONLY_SINES, "result", lambda angle, f: angle.sin() + 0j),
    Mistake(known.TWO_OF_A_KIND, "result", lambda angle, f: torch.complex(angle.cos(), angle.cos())),
    Mistake(known.TWO_OF_A_KIND, "result", lambda angle, f: torch.complex(angle.sin(), angle.sin())),
    Mistake(known.ANGLES, "result", lambda angle, f: torch.complex(angle, angle)),
    Mistake(known.ANGLES, "result", lambda angle, f: angle + 0j),
    Mistake(known.ANGLES, "result", lambda angle, f: 1j * angle),
    Mistake(known.NO_J, "result", lambda angle, f: angle.exp() + 0j),
]


def as_tensor(x: Any) -> Any:
    """NumPy arrays and nested lists as tensors; any other value unchanged."""
    if isinstance(x, tuple) and len(x) == 2:
        return tuple(as_tensor(part) for part in x)
    if isinstance(x, np.ndarray | list):
        try:
            return torch.as_tensor(np.asarray(x))
        except (TypeError, ValueError):
            return x
    return x


def transposed(raw: Any, dim: int, end: int) -> Any:
    if isinstance(raw, tuple):
        return tuple(transposed(part, dim, end) for part in raw)
    return raw.T if isinstance(raw, Tensor) and raw.ndim == 2 and raw.shape[1] == end else None


def halved(raw: Any, dim: int, end: int) -> Any:
    return raw.chunk(2, -1) if isinstance(raw, Tensor) and raw.shape == (end, dim) and not raw.is_complex() else None


def paired(raw: Any, dim: int, end: int) -> Any:
    return raw.unflatten(-1, (-1, 2)) if halved(raw, dim, end) is not None else None


def unstacked(raw: Any, dim: int, end: int) -> Any:
    return raw.unbind(1) if isinstance(raw, Tensor) and raw.shape == (end, 2, dim // 2) else None


# Faults of the form of a table, and functions that undo each; for a table without the fault they return None, or the
# table unchanged (NUMPY).
FORM_FAULTS: list[tuple[Fault, Callable[[Any, int, int], Any]]] = [
    (known.NUMPY, lambda raw, dim, end: as_tensor(raw)),
    (known.TRANSPOSED_TABLE, transposed),
    (known.STACKED, unstacked),
    (known.STACKED, halved),
    (known.STACKED, paired),
]


def readings(raws: list[Any]) -> Iterator[tuple[list[Any], Explanation]]:
    """The tables in complex form, and the fault of their form; nothing if their form is unknown."""
    tables = [read_table(raw, dim, end)[0] for raw, (dim, end, _) in zip(raws, TABLES)]
    if all(table is not None for table in tables):
        yield tables, ()
        return
    for fault, undo in FORM_FAULTS:
        tables = [read_table(undo(raw, dim, end), dim, end)[0] for raw, (dim, end, _) in zip(raws, TABLES)]
        if all(table is not None for table in tables):
            yield tables, (fault,)


def fits_tables(tables: list[Any], probes: Sequence[Probe], parts: Recipe) -> bool:
    """Whether all tables are those of a recipe; angles too large for float32 are not compared."""

    def results() -> Iterator[tuple[Any, Any, Any]]:
        for table, probe in zip(tables, probes):
            computed, angle = compute(parts, *probe)
            comparable = (angle.abs() <= LARGEST_ANGLE) & ~computed.isnan()
            right = unit(angles(*probe))
            yield table[comparable], computed[comparable], right[comparable]

    return matches(results())


# Results that are not rotations: the fault, its formula, and whether each number may also be there twice.
NOT_ROTATIONS: list[tuple[Fault, Callable[[Tensor], Any], bool]] = [
    (known.ANGLES, lambda angle: angle, True),
    (known.REAL, torch.cos, True),
    (known.ONLY_SINES, torch.sin, True),
    (known.NO_J, torch.exp, True),
    (known.FREQUENCIES, lambda angle: angle[1], False),
    (known.FREQUENCIES, lambda angle: unit(angle[1]), False),
    (known.TWO_OF_A_KIND, lambda angle: (angle.cos(), angle.cos()), False),
]


def not_rotations(raws: list[Any], probes: Sequence[Probe]) -> Explanation | None:
    """The fault of results that are not rotations."""
    if all(raw is None for raw in raws):
        return (known.NOT_RETURNED,)
    raws = [raw.squeeze() if isinstance(raw, Tensor) else raw for raw in raws]
    for fault, formula, may_be_wide in NOT_ROTATIONS:
        computed = [formula(angles(*probe)) for probe in probes]
        if all(same(raw, x, 8e-3) for raw, x in zip(raws, computed)):
            return (fault,)
        for width in ("halves", "neighbours") if may_be_wide else ():
            if all(same(raw, widened(x, width), 8e-3) for raw, x in zip(raws, computed)):
                return (fault,)
    return None


def other_shapes(raws: list[Any], probes: Sequence[Probe]) -> Explanation | None:
    """The fault of results of another shape, whose numbers are not explained."""
    faults = [known.CHANNELS, known.ROWS, known.COLUMNS]
    for raw, (dim, end, _) in zip(raws, probes):
        parts = raw if isinstance(raw, tuple | list) else [raw]
        shapes = [tuple(part.shape) for part in parts if isinstance(part, Tensor) and part.ndim == 2]
        fitting = {
            known.CHANNELS: (end, dim) in shapes,
            known.ROWS: any(columns == dim // 2 and rows != end for rows, columns in shapes),
            known.COLUMNS: any(rows == end and columns != dim // 2 for rows, columns in shapes),
        }
        faults = [fault for fault in faults if fitting[fault]]
    return tuple(faults[:1]) or None


def rounded(table: Tensor, dim: int, end: int, theta: float) -> bool:
    """Whether the long table was computed with 16-bit positions, frequencies or angles.

    The frequencies are also read from row 1 of the table, because they may have been rounded in different ways.
    """
    right = angles(dim, end, theta)
    if same(table, unit(right), 5e-3):
        return False
    freqs = table[1].angle()  # (dim/2,) radians per position
    if not ((freqs - right[1]).abs() <= 0.05 * right[1]).all():
        return False
    p = positions(end)
    for dtype in HALF_PRECISION:
        possible_freqs = [right[1], right[1].to(dtype).double()]
        rounded_freqs = freqs.to(dtype).double()
        if (rounded_freqs - freqs).abs().max() < 1e-6:
            possible_freqs.append(rounded_freqs)
        for q, f, angle_dtype in product((p, p.to(dtype).double()), possible_freqs, (torch.float64, dtype)):
            angle = torch.outer(q, f).to(angle_dtype).double()
            if ((table - unit(angle)).abs() <= 1e-2).double().mean() >= 0.99:
                return True
    return False


LOOK_SHAPE = "Look at the shapes: torch.outer(positions, freqs) is (end, dim/2), and so are its cosine and its sine."
LOOK_LENGTH = "Look at the step from angle to rotation: torch.polar(torch.ones_like(angles), angles), or (cos, sin)."
LOOK_POSITION = "Look at the positions: torch.arange(end), from 0."
LOOK_FREQUENCY = "Look at the frequencies: theta ** -(torch.arange(0, dim, 2) / dim)."
LOOK_ANGLE = "Look at the angle: position times frequency, in float32 or float64."


def table_properties(tables: list[Any], raws: list[Any]) -> Iterator[Property]:
    for (dim, end, theta), table, raw in zip(TABLES, tables, raws):
        if table is None:
            sentence = f"dim {dim} and end {end} give a complex number for each position and pair; the shape"
            yield Property(sentence, kind(raw), f"({end}, {dim // 2})", LOOK_SHAPE)
            found = f"{raw.flatten(1)[1, 0].item():.4f}" if isinstance(raw, Tensor) and raw.ndim > 1 else kind(raw)
            yield Property("Row 1, column 0 is exp(j) = cos 1 + j sin 1", found, "0.5403+0.8415j", LOOK_LENGTH)
            return
        of = f"(dim {dim}, theta {theta:g})"
        right = unit(angles(dim, end, theta))
        sentence = "A rotation keeps lengths; the modulus of row 1, column 0"
        yield Property(sentence, float(table[1, 0].abs()), 1.0, LOOK_LENGTH, tolerance=5e-3)
        at_0 = float(table[0, 0].angle())
        yield Property(f"Position 0 is not rotated {of}; the angle of pair 0", at_0, 0.0, LOOK_POSITION)
        for i in range(dim // 2):
            expected = float(right[1, i].angle())
            at_1 = float(table[1, i].angle())
            turns = ", up to multiples of 2 pi" if abs(at_1 - expected) > LARGE_DIFFERENCE else ""
            sentence = f"Pair {i} rotates by theta^(-2*{i}/dim) radians per position {of}; at position 1{turns}"
            yield Property(sentence, at_1, expected, LOOK_FREQUENCY, tolerance=3e-3 * expected)
        p, i = divmod(int((table - right).abs().argmax()), dim // 2)
        sentence = f"At position {p} pair {i} is rotated by {p} theta^(-2*{i}/dim) {of}"
        yield Property(f"{sentence}; the cosine", float(table[p, i].real), float(right[p, i].real), LOOK_ANGLE)
        yield Property(f"{sentence}; the sine", float(table[p, i].imag), float(right[p, i].imag), LOOK_ANGLE)


def comparisons(raws: list[Any], tables: list[Any]) -> Iterator[Comparison]:
    for (dim, end, theta), raw, table in zip(TABLES, raws, tables):
        yours = raw if table is None else table
        yield Comparison(f"{FUNCTION}({dim}, {end}, {theta:g})", [("table", yours, unit(angles(dim, end, theta)))])


def judge_table(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function = names[FUNCTION]
    trials = caller.trials(function, TABLES, parameters(FUNCTION))
    raws = [trial.value for trial in trials]
    read = [read_table(raw, dim, end) for raw, (dim, end, _) in zip(raws, TABLES)]
    tables = [table for table, _ in read]
    if all(form == read[0][1] for _, form in read):
        conventions.table = read[0][1]
    tolerance = 1e-2 if is_half(raws) else 5e-3
    if all(is_right(raw, number, tolerance) for number, raw in enumerate(raws)):
        verdict = with_requirements(FUNCTION, table_requirements(function, caller), "right")
        if is_half(raws):
            verdict.remarks.append("The table is rounded to 16 bits: keep it in float32, because it is small.")
        return verdict
    order = caller.other_order(lambda: function, TABLES[1:3], lambda value, number: is_right(value, 1 + number, 5e-3))
    if order:
        return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    if error_count(trials):
        return Verdict(FUNCTION, "raised", first_problem(trials))
    return wrong(FUNCTION, table_explanation(raws), table_properties(tables, raws), comparisons(raws, tables), 4)


def is_right(value: Any, number: int, tolerance: float) -> bool:
    """Whether the value is the table of ``TABLES[number]``."""
    dim, end, theta = TABLES[number]
    table, _ = read_table(value, dim, end)
    return table is not None and same(table, unit(angles(dim, end, theta)), tolerance)


def table_explanation(raws: list[Any]) -> Explanation | None:
    read = list(readings(raws))
    for tables, form_fault in read:
        if form_fault and all(same(table, unit(angles(*probe)), 1e-2) for table, probe in zip(tables, TABLES)):
            return form_fault
        if rounded(tables[LONG], *TABLES[LONG]):
            return (*form_fault, known.ROUNDED)
    # The other mistakes show in the short tables, and the long one takes time. The smallest has too few pairs.
    short = TABLES[1:LONG]
    explanation = not_rotations(raws[1:LONG], short)
    if explanation is not None:
        return explanation
    for tables, form_fault in read:
        explanation = explain(RECIPE, MISTAKES, partial(fits_tables, tables[1:LONG], short))
        if explanation is not None:
            return (*form_fault, *explanation)
    return other_shapes(raws[1:LONG], short)


def table_requirements(function: Callable[..., Any], caller: Caller) -> Iterator[Requirement]:
    default = caller.trial(function, (8, 3))
    table, _ = read_table(default.value, 8, 3)
    measured: float | str = default.problem or kind(default.value)
    if table is not None:
        measured = float(table[1, 1].angle())
    yield known.DEFAULT_THETA, Property("Without theta pair 1 of dim 8 rotates by 10000^(-2/8) radians", measured, 0.1)


def is_half(raws: list[Any]) -> bool:
    parts: list[Any] = []
    for raw in raws:
        parts += raw if isinstance(raw, tuple) else [raw]
    return any(isinstance(part, Tensor) and part.dtype in HALF_PRECISION for part in parts)
