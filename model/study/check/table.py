"""``precompute_freqs_cis``: what it must give, and what known mistakes make of it."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, parameters
from .faults import Fault
from .forms import Conventions, read_table, widened
from .recipe import Explanation, Mistake, Recipe, explain, matches, same
from .verdict import Comparison, Property, Verdict, demanded, in_other_order, kind, wrong

FUNCTION = "precompute_freqs_cis"
HALF_PRECISION = (torch.float16, torch.bfloat16)
WIDTHS = ("single", "halves", "neighbours")
TABLES = ((4, 3, 10000.0), (8, 13, 10000.0), (6, 7, 500.0), (16, 2051, 10000.0))  # dim, end, theta; smallest first
LONG = len(TABLES) - 1
LARGE_TURN = 0.5  # radians of difference, from which an angle may as well have gone round
LARGEST_ANGLE = 1e4  # above it float32 does not hold an angle well enough to be compared


def angles(dim: int, end: int, theta: float) -> Tensor:
    """float64 (end, dim/2): position times theta^(-2i/dim)."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    return torch.outer(torch.arange(end, dtype=torch.float64), theta ** (-2 * i / dim))


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


# The recipe. In all of it i is the number of a pair, (dim/2,), p a position, (end,), and f a frequency, (dim/2,).


def exponents(i: Tensor, dim: int, end: int) -> Tensor:
    return 2 * i / dim


def frequencies(theta: float, exponent: Tensor) -> Tensor:
    return theta**-exponent


def positions(end: int) -> Tensor:
    return torch.arange(end, dtype=torch.float64)


def angle_of(p: Tensor, f: Tensor) -> Tensor:
    return p[:, None] * f


def turned(angle: Tensor) -> Tensor:
    return angle


def written(angle: Tensor, f: Tensor) -> Tensor:
    return unit(angle)


RECIPE: Recipe = {
    "exponents": exponents,
    "frequencies": frequencies,
    "positions": positions,
    "angle": angle_of,
    "turned": turned,
    "written": written,
}


def compute(parts: Recipe, dim: int, end: int, theta: float) -> tuple[Tensor, Tensor]:
    """The table of a recipe, complex (end, dim/2), and its angles."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    f = parts["frequencies"](theta, parts["exponents"](i, dim, end))
    angle = parts["turned"](parts["angle"](parts["positions"](end), f))
    return parts["written"](angle, f), angle


def steps(count: int, last: float) -> Tensor:
    """torch.linspace(0, last, count)."""
    return torch.linspace(0, last, count, dtype=torch.float64)


MISTAKES = [
    Mistake(known.SIGN, "turned", lambda angle: -angle),
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
    Mistake(known.EXPONENT, "exponents", lambda i, dim, end: 0 * i),  # divided as whole numbers
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: steps(len(i), 1)),
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: steps(len(i), dim - 1) / dim),
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: 2 * steps(len(i), 1)),
    Mistake(known.LINSPACE, "exponents", lambda i, dim, end: steps(len(i), dim // 2) / dim),
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
    Mistake(known.NOT_A_POWER, "frequencies", lambda theta, e: e**-theta),
    Mistake(known.SHIFTED, "positions", lambda end: positions(end) + 1),
    Mistake(known.SHIFTED, "positions", lambda end: positions(end) - 1),
    Mistake(known.LINSPACE, "positions", lambda end: steps(end, end)),
    Mistake(known.LINSPACE, "positions", lambda end: steps(end, 1)),
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
    Mistake(known.DEGREES, "turned", torch.rad2deg),
    Mistake(known.DEGREES, "turned", torch.deg2rad),
    Mistake(known.CIRCLES, "turned", lambda angle: 2 * torch.pi * angle),
    Mistake(known.CIRCLES, "turned", lambda angle: torch.pi * angle),
    Mistake(known.CIRCLES, "turned", lambda angle: angle / (2 * torch.pi)),
    Mistake(known.CIRCLES, "turned", lambda angle: angle / torch.pi),
    Mistake(known.SWAPPED, "written", lambda angle, f: torch.complex(angle.sin(), angle.cos())),
    Mistake(known.POLAR, "written", lambda angle, f: torch.polar(angle, torch.ones_like(angle))),
    Mistake(known.LENGTH, "written", lambda angle, f: f * unit(angle)),
    Mistake(known.LENGTH, "written", lambda angle, f: angle * unit(angle)),
    Mistake(known.LENGTH, "written", lambda angle, f: 2 * unit(angle)),
    Mistake(known.LENGTH, "written", lambda angle, f: unit(angle) / math.sqrt(2 * len(f))),
    Mistake(known.REAL, "written", lambda angle, f: angle.cos() + 0j),
    Mistake(known.ONLY_SINES, "written", lambda angle, f: 1j * angle.sin()),
    Mistake(known.ONLY_SINES, "written", lambda angle, f: angle.sin() + 0j),
    Mistake(known.TWO_OF_A_KIND, "written", lambda angle, f: torch.complex(angle.cos(), angle.cos())),
    Mistake(known.TWO_OF_A_KIND, "written", lambda angle, f: torch.complex(angle.sin(), angle.sin())),
    Mistake(known.ANGLES, "written", lambda angle, f: torch.complex(angle, angle)),
    Mistake(known.ANGLES, "written", lambda angle, f: angle + 0j),
    Mistake(known.ANGLES, "written", lambda angle, f: 1j * angle),
    Mistake(known.NO_J, "written", lambda angle, f: angle.exp() + 0j),
]


def as_list(x: Any) -> Any:
    """A NumPy array or nested lists, of numbers, as a tensor; anything else as it is."""
    if isinstance(x, tuple) and len(x) == 2:
        return tuple(as_list(part) for part in x)
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


# Tables that cannot be used as they are, and how they would be read: None where it is not that mistake.
MISWRITTEN: list[tuple[Fault, Callable[[Any, int, int], Any]]] = [
    (known.NUMPY, lambda raw, dim, end: as_list(raw)),
    (known.TRANSPOSED_TABLE, transposed),
    (known.STACKED, unstacked),
    (known.STACKED, halved),
    (known.STACKED, paired),
]


def readings(raws: list[Any]) -> Iterator[tuple[list[Any], Explanation]]:
    """The tables as they can be read, and why they cannot be used as they are; nothing if they cannot be read."""
    tables = [read_table(raw, dim, end)[0] for raw, (dim, end, _) in zip(raws, TABLES)]
    if all(table is not None for table in tables):
        yield tables, ()
        return
    for fault, read in MISWRITTEN:
        tables = []
        for raw, (dim, end, _) in zip(raws, TABLES):
            found = read(raw, dim, end)
            tables.append(None if found is None else read_table(found, dim, end)[0])
        if all(table is not None for table in tables):
            yield tables, (fault,)


def table_gives(tables: list[Any], probes: list[tuple[int, int, float]], parts: Recipe) -> bool:
    """Whether all tables are those of a recipe; angles too large for float32 are not compared."""

    def compared() -> Iterator[tuple[Any, Any, Any]]:
        for table, probe in zip(tables, probes):
            computed, angle = compute(parts, *probe)
            comparable = (angle.abs() <= LARGEST_ANGLE) & ~computed.isnan()
            right = unit(angles(*probe))
            yield table[comparable], computed[comparable], right[comparable]

    return matches(compared())


def odd_tables(raws: list[Any], probes: list[tuple[int, int, float]]) -> Iterator[tuple[Fault, bool]]:
    """Results that are no table of rotations at all: each fault, and whether it is that."""
    plain = [angles(*probe) for probe in probes]
    flat = [raw.squeeze() if isinstance(raw, Tensor) else raw for raw in raws]

    def all_are(made: Callable[[Tensor], Any]) -> bool:
        return all(same(raw, made(angle), 8e-3) for raw, angle in zip(flat, plain))

    def are_wide(made: Callable[[Tensor], Tensor]) -> bool:
        """The same, with every number once or twice in a row."""
        return any(
            all(same(raw, widened(made(angle), width), 8e-3) for raw, angle in zip(flat, plain)) for width in WIDTHS
        )

    yield known.NOT_RETURNED, all(raw is None for raw in raws)
    yield known.ANGLES, are_wide(turned)
    yield known.REAL, are_wide(torch.cos)
    yield known.ONLY_SINES, are_wide(torch.sin)
    yield known.NO_J, are_wide(torch.exp)
    yield known.FREQUENCIES, all_are(lambda a: a[1])
    yield known.FREQUENCIES, all_are(lambda a: unit(a[1]))
    yield known.TWO_OF_A_KIND, all_are(lambda a: (a.cos(), a.cos()))


def odd_shapes(raws: list[Any], probes: list[tuple[int, int, float]]) -> Iterator[tuple[Fault, bool]]:
    """Results of another shape whose numbers say nothing more: each fault, and whether it is that."""
    shapes = []
    for raw in raws:
        parts = raw if isinstance(raw, tuple | list) else [raw]
        shapes.append([tuple(part.shape) for part in parts if isinstance(part, Tensor) and part.ndim == 2])
    yield known.CHANNELS, all((end, dim) in found for found, (dim, end, _) in zip(shapes, probes))
    yield (
        known.ROWS,
        all(
            any(width == dim // 2 and rows != end for rows, width in found)
            for found, (dim, end, _) in zip(shapes, probes)
        ),
    )
    yield (
        known.COLUMNS,
        all(
            any(rows == end and width != dim // 2 for rows, width in found)
            for found, (dim, end, _) in zip(shapes, probes)
        ),
    )


def rounded(table: Tensor, dim: int, end: int, theta: float) -> bool:
    """Whether the long table is what 16-bit positions, frequencies or angles give.

    The frequencies are taken from its own row 1, so that it does not matter how they came to be rounded.
    """
    right = angles(dim, end, theta)
    if same(table, unit(right), 5e-3):
        return False
    found = table[1].angle()  # (dim/2,) radians per position
    if not ((found - right[1]).abs() <= 0.05 * right[1]).all():
        return False
    for dtype in HALF_PRECISION:
        rates = [right[1], right[1].to(dtype).double()]
        snapped = found.to(dtype).double()
        if (snapped - found).abs().max() < 1e-6:
            rates.append(snapped)
        p = positions(end)
        for steps_of, freqs, cast in product((p, p.to(dtype).double()), rates, (torch.float64, dtype)):
            angle = torch.outer(steps_of, freqs).to(cast).double()
            if ((table - unit(angle)).abs() <= 1e-2).double().mean() >= 0.99:
                return True
    return False


LOOK_SHAPE = "Look at the shapes: torch.outer(positions, freqs) is (end, dim/2), and so are its cosine and its sine."
LOOK_LENGTH = "Look at how the angle becomes a rotation: torch.polar(torch.ones_like(angles), angles), or (cos, sin)."
LOOK_POSITION = "Look at the positions: torch.arange(end), from 0."
LOOK_FREQUENCY = "Look at the frequencies: theta ** -(torch.arange(0, dim, 2) / dim)."
LOOK_ANGLE = (
    "Look at the dtype and the factors of the angle: positions and frequencies multiplied, in float32 or float64."
)


def table_properties(tables: list[Any], raws: list[Any]) -> Iterator[Property]:
    for (dim, end, theta), table, raw in zip(TABLES, tables, raws):
        if table is None:
            sentence = f"dim {dim} and end {end} give one complex number for each position and pair; the shape"
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
            circles = ", up to multiples of 2 pi" if abs(at_1 - expected) > LARGE_TURN else ""
            sentence = f"Pair {i} rotates by theta^(-2*{i}/dim) radians a position {of}; at position 1{circles}"
            yield Property(sentence, at_1, expected, LOOK_FREQUENCY, tolerance=3e-3 * expected)
        p, i = divmod(int((table - right).abs().argmax()), dim // 2)
        sentence = f"At position {p} pair {i} has rotated by {p} theta^(-2*{i}/dim) {of}"
        yield Property(f"{sentence}; the cosine", float(table[p, i].real), float(right[p, i].real), LOOK_ANGLE)
        yield Property(f"{sentence}; the sine", float(table[p, i].imag), float(right[p, i].imag), LOOK_ANGLE)


def comparisons(raws: list[Any], tables: list[Any]) -> Iterator[Comparison]:
    for probe, raw, table in zip(TABLES, raws, tables):
        dim, end, theta = probe
        yield Comparison(
            f"{FUNCTION}({dim}, {end}, {theta:g})",
            [("table", raw if table is None else table, unit(angles(*probe)))],
        )


def judge_table(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function = names[FUNCTION]
    trials = caller.trials(function, TABLES, parameters(FUNCTION))
    ran = [trial.error is None for trial in trials]
    raws = [trial.value for trial in trials]
    read = [read_table(raw, dim, end) for raw, (dim, end, _) in zip(raws, TABLES)]
    tables = [table for table, _ in read]
    if all(form == read[0][1] for _, form in read):
        conventions.table = read[0][1]
    tolerance = 1e-2 if is_half(raws) else 5e-3
    right = all(
        table is not None and same(table, unit(angles(*probe)), tolerance) for table, probe in zip(tables, TABLES)
    )
    if right:
        verdict = demanded(FUNCTION, table_demands(function, caller), "right")
        if is_half(raws):
            verdict.remarks.append("The table itself is rounded to 16 bits: keep it in float32, it is small.")
        return verdict
    problem = next((trial.problem for trial in trials if trial.problem), "")
    order = caller.other_order(function, TABLES[1:3], is_right)
    if order:
        return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    if all(ran):
        explanation = table_explanation(raws)
        return wrong(FUNCTION, explanation, table_properties(tables, raws), comparisons(raws, tables), 4)
    return wrong(FUNCTION, None, (), (), 4, problem)


def is_right(value: Any, number: int) -> bool:
    """Whether it is the table of ``TABLES[1 + number]``."""
    dim, end, theta = TABLES[1 + number]
    table, _ = read_table(value, dim, end)
    return table is not None and same(table, unit(angles(dim, end, theta)), 5e-3)


def table_explanation(raws: list[Any]) -> Explanation | None:
    read = list(readings(raws))
    for tables, miswritten in read:
        if miswritten and all(same(table, unit(angles(*probe)), 1e-2) for table, probe in zip(tables, TABLES)):
            return miswritten
        if rounded(tables[LONG], *TABLES[LONG]):
            return (*miswritten, known.ROUNDED)
    short = list(TABLES[1:LONG])
    odd = next(((fault,) for fault, matching in odd_tables(raws[1:LONG], short) if matching), None)
    if odd is not None:
        return odd
    # The short tables show every mistake that is left; the long one only costs time. The smallest has too few pairs.
    for tables, miswritten in read:
        found = explain(RECIPE, MISTAKES, partial(table_gives, tables[1:LONG], short))
        if found is not None:
            return (*miswritten, *found)
    return next(((fault,) for fault, matching in odd_shapes(raws[1:LONG], short) if matching), None)


def table_demands(function: Callable[..., Any], caller: Caller) -> Iterator[tuple[Fault, Property]]:
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
