"""Wrong versions of each function, made of named parts: a right recipe, and mistakes that replace one part of it.

``planted()`` yields them as functions that a reader could have written; tests/study/test_check.py checks that each is
answered with its own name.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

Recipe = dict[str, Callable[..., Any]]
Mistake = tuple[str, str, Callable[..., Any]]  # the name of the fault, the part, and its wrong version


def only_in(fault: str, tensor: str) -> str:
    return f"{fault}, in {tensor} only"


# The table.


def angles(dim: int, end: int, theta: float) -> Tensor:
    """float64 (end, dim/2): position times theta^(-2i/dim)."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    return torch.outer(torch.arange(end, dtype=torch.float64), theta ** (-2 * i / dim))


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


# The recipe: i is the index of a pair, (dim/2,), e its exponent, f its frequency, and p a position, (end,).


def positions(end: int) -> Tensor:
    return torch.arange(end, dtype=torch.float64)


TABLE: Recipe = {
    "exponents": lambda i, dim, end: 2 * i / dim,
    "frequencies": lambda theta, e: theta**-e,
    "positions": positions,
    "angle": lambda p, f: p[:, None] * f,
    "radians": lambda angle: angle,
    "result": lambda angle, f: unit(angle),
}


def table_of(parts: Recipe, dim: int, end: int, theta: float) -> tuple[Tensor, Tensor]:
    """The table of a recipe, complex (end, dim/2), and its angles."""
    i = torch.arange(dim // 2, dtype=torch.float64)
    f = parts["frequencies"](theta, parts["exponents"](i, dim, end))
    angle = parts["radians"](parts["angle"](parts["positions"](end), f))
    return parts["result"](angle, f), angle


def linspace(end: float, count: int) -> Tensor:
    return torch.linspace(0, end, count, dtype=torch.float64)


TABLE_MISTAKES: list[Mistake] = [
    ("SIGN", "radians", lambda angle: -angle),
    ("INVERTED", "frequencies", lambda theta, e: theta**e),
    ("EXPONENT", "exponents", lambda i, dim, end: 4 * i / dim),  # divided by dim // 2
    ("EXPONENT", "exponents", lambda i, dim, end: i / dim),  # arange(dim // 2)
    ("EXPONENT", "exponents", lambda i, dim, end: 2 * (i - 1) / dim),
    ("EXPONENT", "exponents", lambda i, dim, end: 2 * (i + 1) / dim),
    ("EXPONENT", "exponents", lambda i, dim, end: (2 * i + 1) / dim),  # arange(1, dim, 2)
    ("EXPONENT", "exponents", lambda i, dim, end: (i + 1) / dim),
    ("EXPONENT", "exponents", lambda i, dim, end: 2 * i / (dim + 1)),
    ("EXPONENT", "exponents", lambda i, dim, end: 2 * i / (dim - 1)),
    ("EXPONENT", "exponents", lambda i, dim, end: i / dim**0.5),
    ("EXPONENT", "exponents", lambda i, dim, end: 2 * i / dim**0.5),
    ("EXPONENT", "exponents", lambda i, dim, end: i),
    ("EXPONENT", "exponents", lambda i, dim, end: 2 * i),
    ("EXPONENT", "exponents", lambda i, dim, end: 0 * i),  # integer division
    ("LINSPACE", "exponents", lambda i, dim, end: linspace(1, len(i))),
    ("LINSPACE", "exponents", lambda i, dim, end: linspace(dim - 1, len(i)) / dim),
    ("LINSPACE", "exponents", lambda i, dim, end: linspace(2, len(i))),
    ("LINSPACE", "exponents", lambda i, dim, end: linspace(dim // 2, len(i)) / dim),
    ("END_FOR_DIM", "exponents", lambda i, dim, end: 2 * i / end),
    ("REVERSED", "exponents", lambda i, dim, end: 2 * i.flip(0) / dim),
    ("REVERSED", "exponents", lambda i, dim, end: 1 - 2 * i / dim),
    ("UNUSED", "frequencies", lambda theta, e: 10000.0**-e),
    ("UNUSED", "frequencies", lambda theta, e: 500000.0**-e),
    ("UNUSED", "frequencies", lambda theta, e: 1000000.0**-e),
    ("UNUSED", "frequencies", lambda theta, e: 1000.0**-e),
    ("UNUSED", "frequencies", lambda theta, e: 100.0**-e),
    ("UNUSED", "frequencies", lambda theta, e: 10.0**-e),
    ("UNUSED", "frequencies", lambda theta, e: 2.0**-e),
    ("NOT_A_POWER", "frequencies", lambda theta, e: (-e).exp()),
    ("NOT_A_POWER", "frequencies", lambda theta, e: theta * e),
    ("NOT_A_POWER", "frequencies", lambda theta, e: -theta * e),
    ("NOT_A_POWER", "frequencies", lambda theta, e: e / theta),
    ("NOT_A_POWER", "frequencies", lambda theta, e: 1 / (1 + theta**e)),
    ("EXPONENT", "frequencies", lambda theta, e: (1 / theta) * torch.ones_like(e)),
    ("NOT_A_POWER", "frequencies", lambda theta, e: e),
    ("NOT_A_POWER", "frequencies", lambda theta, e: math.log(theta) * e),
    ("NOT_A_POWER", "frequencies", lambda theta, e: -math.log(theta) * e),
    ("SHIFTED", "positions", lambda end: positions(end) + 1),
    ("SHIFTED", "positions", lambda end: positions(end) - 1),
    ("LINSPACE", "positions", lambda end: linspace(end, end)),
    ("LINSPACE", "positions", lambda end: linspace(1, end)),
    ("POSITIONS", "positions", lambda end: positions(end) / end),
    ("POSITIONS", "positions", lambda end: positions(end).flip(0)),
    ("FACTOR", "positions", lambda end: positions(end) * 2),
    ("FACTOR", "positions", lambda end: positions(end) / 2),
    ("POSITIONS", "positions", lambda end: positions(end) * 0),
    ("POSITIONS", "positions", lambda end: positions(end) * 0 + 1),
    ("POSITIONS", "positions", lambda end: positions(end).log1p()),
    ("ADDED_ANGLES", "angle", lambda p, f: p[:, None] + f),
    ("ADDED_ANGLES", "angle", lambda p, f: p[:, None] - f),
    ("ADDED_ANGLES", "angle", lambda p, f: p[:, None] ** f),
    ("DEGREES", "radians", torch.rad2deg),
    ("DEGREES", "radians", torch.deg2rad),
    ("CIRCLES", "radians", lambda angle: 2 * torch.pi * angle),
    ("CIRCLES", "radians", lambda angle: torch.pi * angle),
    ("CIRCLES", "radians", lambda angle: angle / (2 * torch.pi)),
    ("CIRCLES", "radians", lambda angle: angle / torch.pi),
    ("SWAPPED", "result", lambda angle, f: torch.complex(angle.sin(), angle.cos())),
    ("POLAR", "result", lambda angle, f: torch.polar(angle, torch.ones_like(angle))),
    ("LENGTH", "result", lambda angle, f: f * unit(angle)),
    ("LENGTH", "result", lambda angle, f: angle * unit(angle)),
    ("LENGTH", "result", lambda angle, f: 2 * unit(angle)),
    ("LENGTH", "result", lambda angle, f: unit(angle) / math.sqrt(2 * len(f))),
    ("REAL", "result", lambda angle, f: angle.cos() + 0j),
    ("ONLY_SINES", "result", lambda angle, f: 1j * angle.sin()),
    ("ONLY_SINES", "result", lambda angle, f: angle.sin() + 0j),
    ("TWO_OF_A_KIND", "result", lambda angle, f: torch.complex(angle.cos(), angle.cos())),
    ("TWO_OF_A_KIND", "result", lambda angle, f: torch.complex(angle.sin(), angle.sin())),
    ("ANGLES", "result", lambda angle, f: torch.complex(angle, angle)),
    ("ANGLES", "result", lambda angle, f: angle + 0j),
    ("ANGLES", "result", lambda angle, f: 1j * angle),
    ("NO_J", "result", lambda angle, f: angle.exp() + 0j),
]


# The rotation.


# The recipe: x is (B, T, H, D), the angles (T, D/2), and a and b the two numbers of each pair, (B, T, H, D/2). c and s
# are the cosine and sine of the angle of a, u and v those of the angle of b, which differ if layouts are mixed.


def split_neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., ::2], x[..., 1::2]


def split_halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return first, second


def interleaved(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((a, b), -1).flatten(-2)


def concatenated(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b), -1)


def recipe_of(split: Callable[[Tensor], tuple[Tensor, Tensor]], join: Callable[[Tensor, Tensor], Tensor]) -> Recipe:
    """The right recipe for the layout of these two functions."""
    return {
        "split": split,
        "pair_angles": lambda angle: split(join(angle, angle)),
        "broadcast": lambda angle, x: angle[None, :, None],
        "rotate_pair": lambda a, b, c, s, u, v: (a * c - b * s, a * v + b * u),
        "join": join,
        "apply": lambda rotation, x: rotation(x),
        "result": lambda x: x,
    }


ROTATIONS = {"neighbours": recipe_of(split_neighbours, interleaved), "halves": recipe_of(split_halves, concatenated)}


def rotate(x: Tensor, angle: Tensor, parts: Recipe) -> Tensor:
    """x (B, T, H, D), rotated by angle (T, D/2) with this recipe, in float64. A mistake may return another shape."""

    def rotation(x: Tensor) -> Tensor:
        a, b = parts["split"](x)
        first, second = parts["pair_angles"](parts["broadcast"](angle, x))
        a, b = parts["rotate_pair"](a, b, first.cos(), first.sin(), second.cos(), second.sin())
        return parts["join"](a, b)

    return parts["result"](parts["apply"](rotation, x.double()))


def only_first(axis: int, count: Callable[[int], int]) -> Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]:
    """Rotate only the first ``count`` indices of an axis; ``count`` is computed from its size."""

    def apply(rotation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        size = x.shape[axis]
        chosen = (torch.arange(size) < count(size)).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return torch.where(chosen, rotation(x), x)

    return apply


ROTATION_MISTAKES: list[Mistake] = [
    ("SIGN", "rotate_pair", lambda a, b, c, s, u, v: (a * c + b * s, b * u - a * v)),
    ("HEADS", "broadcast", lambda angle, x: angle[: x.shape[2]][None, None]),
    ("HEADS", "broadcast", lambda angle, x: angle[None, None]),  # one head is broadcast to T heads
    ("BATCH", "broadcast", lambda angle, x: angle[: x.shape[0]][:, None, None]),
    ("ONE_ROW", "broadcast", lambda angle, x: angle[:1][None, :, None]),
    ("ONE_ROW", "broadcast", lambda angle, x: angle[1:2][None, :, None]),
    ("ONE_ROW", "broadcast", lambda angle, x: angle[-1:][None, :, None]),
    ("ROW_ORDER", "broadcast", lambda angle, x: angle.flip(0)[None, :, None]),
    ("ROW_SHIFTED", "broadcast", lambda angle, x: angle.roll(1, 0)[None, :, None]),
    ("ROW_SHIFTED", "broadcast", lambda angle, x: angle.roll(-1, 0)[None, :, None]),
    ("COLUMN_ORDER", "broadcast", lambda angle, x: angle.flip(1)[None, :, None]),
    ("ONE_ANGLE", "broadcast", lambda angle, x: angle[:, :1].expand_as(angle)[None, :, None]),
    ("ONE_ANGLE", "broadcast", lambda angle, x: angle[:, -1:].expand_as(angle)[None, :, None]),
    ("REAL", "rotate_pair", lambda a, b, c, s, u, v: (a * c, b * u)),
    ("ONLY_SINES", "rotate_pair", lambda a, b, c, s, u, v: (a * s, b * v)),
    ("ONLY_SINES", "rotate_pair", lambda a, b, c, s, u, v: (-b * s, a * v)),
    ("SWAPPED", "rotate_pair", lambda a, b, c, s, u, v: (a * s - b * c, a * u + b * v)),
    ("OVERWRITTEN", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, (a * c - b * s) * v + b * u)),
    ("OVERWRITTEN", "rotate_pair", lambda a, b, c, s, u, v: (a * c - (a * v + b * u) * s, a * v + b * u)),
    ("ONE_SIGN", "rotate_pair", lambda a, b, c, s, u, v: (a * c + b * s, a * v + b * u)),
    ("ONE_SIGN", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, b * u - a * v)),
    ("ONE_SIGN", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, a * v - b * u)),
    ("ONE_SIGN", "rotate_pair", lambda a, b, c, s, u, v: (b * s - a * c, a * v + b * u)),
    ("ONE_SIGN", "rotate_pair", lambda a, b, c, s, u, v: (-a * c - b * s, a * v + b * u)),
    ("PARTNER", "rotate_pair", lambda a, b, c, s, u, v: (a * c - a * s, a * v + b * u)),
    ("PARTNER", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, b * v + b * u)),
    ("PARTNER", "rotate_pair", lambda a, b, c, s, u, v: (a * c - a * s, b * v + b * u)),
    ("PARTNER", "rotate_pair", lambda a, b, c, s, u, v: (a * c + a * s, b * v + b * u)),
    ("PARTNER", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, a * v + a * u)),
    ("PARTNER", "rotate_pair", lambda a, b, c, s, u, v: (b * c - b * s, a * v + b * u)),
    ("ONE_TRIG", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * c, a * u + b * u)),
    ("ONE_TRIG", "rotate_pair", lambda a, b, c, s, u, v: (a * s - b * s, a * v + b * v)),
    ("ONE_TRIG", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, a * u + b * v)),
    ("ONE_TRIG", "rotate_pair", lambda a, b, c, s, u, v: (a * s - b * c, a * v + b * u)),
    ("PRODUCT", "rotate_pair", lambda a, b, c, s, u, v: (a + c, b + v)),
    ("PRODUCT", "rotate_pair", lambda a, b, c, s, u, v: (a * c, b * v)),
    ("PRODUCT", "rotate_pair", lambda a, b, c, s, u, v: (a + a * c - b * s, b + a * v + b * u)),
    ("CONJUGATED", "rotate_pair", lambda a, b, c, s, u, v: (a * c + b * s, a * v - b * u)),
    ("NUMBERS_EXCHANGED", "rotate_pair", lambda a, b, c, s, u, v: (a * v + b * u, a * c - b * s)),
    ("NUMBERS_EXCHANGED", "rotate_pair", lambda a, b, c, s, u, v: (b * c - a * s, b * v + a * u)),
    ("NUMBERS_EXCHANGED", "rotate_pair", lambda a, b, c, s, u, v: (b * c - a * s, a * v + b * u)),
    ("NUMBERS_EXCHANGED", "rotate_pair", lambda a, b, c, s, u, v: (b, a)),
    ("ONE_NUMBER", "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, b)),
    ("ONE_NUMBER", "rotate_pair", lambda a, b, c, s, u, v: (a, a * v + b * u)),
    ("INPUT_RETURNED", "rotate_pair", lambda a, b, c, s, u, v: (a, b)),
    ("TWICE", "apply", lambda rotation, x: rotation(rotation(x))),
    ("SOME_BATCH", "apply", only_first(0, lambda B: 1)),
    ("SOME_HEADS", "apply", only_first(2, lambda H: 1)),
    ("SOME_TOKENS", "apply", only_first(1, lambda T: 1)),
    ("SOME_BATCH", "result", lambda x: x[:1]),
    ("SOME_BATCH", "result", lambda x: x[0]),
    ("SOME_HEADS", "result", lambda x: x[:, :, :1]),
    ("AXES", "result", lambda x: x.transpose(1, 2)),
    ("AXES", "result", lambda x: x.flatten(2)),
    ("VIEWED", "result", lambda x: x.transpose(1, 2).reshape(x.shape)),
    ("SCALED_X", "result", lambda x: x / x.shape[-1] ** 0.5),
    ("SCALED_X", "result", lambda x: x * 2),
    ("SCALED_X", "result", lambda x: x / x.norm(dim=-1, keepdim=True)),
    ("UNFLATTENED", "join", lambda a, b: torch.stack((a, b), -1)),
    ("UNFLATTENED", "join", lambda a, b: torch.stack((a, b), -2)),
    ("UNFLATTENED", "join", lambda a, b: torch.stack((a, b), -1).flatten(2, 3)),
    ("AXES", "join", lambda a, b: torch.stack((a, b), -1).flatten(2)),
    ("VIEWED", "join", lambda a, b: torch.stack((a, b), 0).reshape(*a.shape[:-1], -1)),
    ("VIEWED", "join", lambda a, b: torch.stack((a, b), 1).reshape(*a.shape[:-1], -1)),
    ("VIEWED", "join", lambda a, b: torch.stack((a, b), 2).reshape(*a.shape[:-1], -1)),
    ("VIEW_AS_REAL", "join", lambda a, b: torch.complex(a, b)),
    ("REAL_PART", "join", lambda a, b: a),
    ("REAL_PART", "join", lambda a, b: b),
    ("REAL_PART", "join", lambda a, b: interleaved(a, a)),
    ("REAL_PART", "join", lambda a, b: concatenated(a, a)),
    ("REAL_PART", "join", lambda a, b: interleaved(a, 0 * b)),
]


def rotation_mistakes(layout: str) -> list[Mistake]:
    """The known mistakes of a rotation in this layout, including those that mix it with the other layout."""
    if layout == "neighbours":
        split, other_join = split_neighbours, concatenated
    else:
        split, other_join = split_halves, interleaved
    some = "SOME_PAIRS" if layout == "neighbours" else "ONE_NUMBER"  # the first half is the first number of all pairs
    return [
        (some, "apply", only_first(3, lambda D: D // 2)),
        (some, "apply", only_first(3, lambda D: 2)),
        ("MIXED", "pair_angles", lambda angle: split(other_join(angle, angle))),
        ("MIXED", "join", other_join),
        *ROTATION_MISTAKES,
    ]


# The mask.


def visible(start_pos: int, T: int, diagonal: int = 0) -> Tensor:
    """The right mask, (T, S); with ``diagonal``, its diagonal is moved to the right."""
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos + diagonal)


MASK: Recipe = {"seen": visible, "result": lambda mask: mask}

MASK_MISTAKES: list[Mistake] = [
    ("CORNER", "seen", lambda start, T: visible(start, T, -start)),
    ("CORNER", "seen", lambda start, T: visible(start, T).roll(-start, 1)),  # cached keys after the new ones
    ("SQUARE", "seen", lambda start, T: visible(0, T)),
    ("ALL_ROWS", "seen", lambda start, T: visible(0, start + T)),
    ("DIAGONAL", "seen", lambda start, T: visible(start, T, -1)),
    ("DIAGONAL", "seen", lambda start, T: visible(start, T, 1)),
    ("DIAGONAL", "seen", lambda start, T: visible(start, T, 2)),
    ("DIAGONAL", "seen", lambda start, T: visible(start, T, -2)),
    ("INVERTED_MASK", "result", lambda mask: ~mask),
    ("NO_MASK", "seen", lambda start, T: visible(start, T, T)),
    ("CACHED_HIDDEN", "seen", lambda start, T: visible(start, T) & (torch.arange(start + T) >= start)),
    ("NOTHING_SEEN", "seen", lambda start, T: visible(start, T, -start - T)),
    ("ITSELF", "seen", lambda start, T: visible(start, T) & ~visible(start, T, -1)),
    ("TRANSPOSED_MASK", "result", lambda mask: mask.T),
    ("TRANSPOSED_MASK", "seen", lambda start, T: ~visible(start, T, -1)),  # triu instead of tril
    ("TRANSPOSED_MASK", "seen", lambda start, T: ~visible(start, T, -start - 1)),
    ("MIRRORED", "result", lambda mask: mask.flip(1)),
    ("MIRRORED", "result", lambda mask: mask.flip(0)),
    ("CORNER", "seen", lambda start, T: visible(start, T, T - start)),  # the diagonal is T
    ("CORNER", "seen", lambda start, T: visible(start, T, start)),  # start_pos twice
    ("CORNER", "seen", lambda start, T: visible(start, T, 1 - start)),
    ("CORNER", "seen", lambda start, T: visible(start, T, -1 - start)),
    ("WINDOW", "seen", lambda start, T: visible(start, T) & ~visible(start, T, -2)),
    ("WINDOW", "seen", lambda start, T: visible(start, T) & ~visible(start, T, -T)),
    ("WINDOW", "seen", lambda start, T: visible(start, T) & (torch.arange(start + T) > 0)),
    ("MASK_COLUMNS", "seen", lambda start, T: torch.ones(T, start + T + 1, dtype=torch.bool).tril(start)),
    ("MASK_COLUMNS", "seen", lambda start, T: torch.ones(T, start + T - 1, dtype=torch.bool).tril(start)),
    ("MASK_COLUMNS", "seen", lambda start, T: torch.ones(T, start, dtype=torch.bool).tril(start)),
    ("MASK_COLUMNS", "seen", lambda start, T: torch.ones(1, start + T, dtype=torch.bool)),
]


# The reshaping.

# The result of each mistake for the table (T, D/2) and x (B, T, H, D/2); leading axes of size 1 are not compared.
RESHAPE_MISTAKES: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("HEADS", lambda table, x: table),
    ("HEADS", lambda table, x: table[: x.shape[2]]),
    ("HEADS", lambda table, x: table.expand(x.shape)),
    ("BATCH", lambda table, x: table[:, None, None]),
    ("BROADCAST_AXES", lambda table, x: table.T),
    ("BROADCAST_AXES", lambda table, x: table.T[:, None]),
    ("BROADCAST_AXES", lambda table, x: table.T[None, :, None]),
    ("BROADCAST_AXES", lambda table, x: table.reshape(1, x.shape[3], 1, x.shape[1]).transpose(1, 3)),
    ("SIGN", lambda table, x: table.conj()[None, :, None]),
    ("REAL", lambda table, x: table.real[None, :, None]),
    ("X_RETURNED", lambda table, x: x),
    ("X_RETURNED", lambda table, x: x * table[None, :, None]),
    ("ONE_ROW", lambda table, x: table[:1, None]),
    ("BROADCAST_AXES", lambda table, x: table[..., None, None]),
    ("BROADCAST_AXES", lambda table, x: table[:, None, :, None]),
    ("BROADCAST_AXES", lambda table, x: table[:, :, None]),
]


# The cache.

# The recipe: ``new`` are the keys and values of a chunk, (2, B, K, T, D), and ``slots`` those of one layer,
# (2, B, K, max_seq_len, D).


def write(slots: Tensor, first: int, new: Tensor) -> None:
    """Write the chunk from slot ``first`` on. Raises ValueError if a mistake writes past the end."""
    if first < 0 or first + new.shape[3] > slots.shape[3]:
        raise ValueError("not enough slots")
    slots[:, :, :, first : first + new.shape[3]] = new


CACHE: Recipe = {
    "layer": lambda layer: layer,
    "count": lambda xk: xk.shape[2],
    "new": lambda new: new,
    "first": lambda start, T: start,
    "before": lambda slots: None,
    "write": write,
    "read": lambda slots, start, end: slots[:, :, :, :end],
    "result": lambda pair: (pair[0], pair[1]),
}


def write_sum(slots: Tensor, first: int, new: Tensor) -> None:
    slots.nan_to_num_()
    slots[:, :, :, first : first + new.shape[3]] += new


def write_some(select: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int, Tensor], None]:
    """Write only the part of the chunk that ``select`` returns, to the same part of the slots."""

    def write_part(slots: Tensor, first: int, new: Tensor) -> None:
        target = slots[:, :, :, first : first + new.shape[3]]
        select(target).copy_(select(new))

    return write_part


def write_first_row(slots: Tensor, first: int, new: Tensor) -> None:
    slots[:, :, :, first : first + new.shape[3]] = new[:, :1]


CACHE_MISTAKES: list[Mistake] = [
    ("SLOT_SHIFTED", "first", lambda start, T: start + 1),
    ("SLOT_SHIFTED", "first", lambda start, T: start - 1),
    ("SLOT_SHIFTED", "first", lambda start, T: max(start - 1, 0)),
    ("SLOT_SHIFTED", "read", lambda slots, start, end: slots[:, :, :, : end - 1]),
    ("SLOT_SHIFTED", "read", lambda slots, start, end: slots[:, :, :, 1:end]),
    ("SLOT_SHIFTED", "read", lambda slots, start, end: slots[:, :, :, 1 : end + 1]),
    ("WRONG_T", "count", lambda xk: xk.shape[1]),
    ("WRONG_T", "count", lambda xk: xk.shape[3]),
    ("WRONG_T", "count", lambda xk: xk.shape[0]),
    ("WRITTEN_AT_0", "first", lambda start, T: 0),
    ("LAYER", "layer", lambda layer: 0),
    ("EXCHANGED", "result", lambda pair: (pair[1], pair[0])),
    ("VALUES_ARE_KEYS", "new", lambda new: new[:1].expand_as(new)),
    ("KEYS_ARE_VALUES", "new", lambda new: new[1:].expand_as(new)),
    ("VALUES_ARE_KEYS", "result", lambda pair: (pair[0], pair[0])),
    ("KEYS_ARE_VALUES", "result", lambda pair: (pair[1], pair[1])),
    ("ONLY_NEW", "read", lambda slots, start, end: slots[:, :, :, start:end]),
    ("STALE", "read", lambda slots, start, end: slots),
    ("STALE", "read", lambda slots, start, end: slots[:, :, :, : end + 1]),
    ("OLD_ONLY", "read", lambda slots, start, end: slots[:, :, :, :start]),
    ("ONE_TOKEN", "read", lambda slots, start, end: slots[:, :, :, end - 1 : end]),
    ("ONE_TOKEN", "read", lambda slots, start, end: slots[:, :, :, : start + 1]),
    ("ONE_TEXT", "read", lambda slots, start, end: slots[:, :1, :, :end]),
    ("ONE_TEXT", "read", lambda slots, start, end: slots[:, 0, :, :end]),
    ("ONE_TEXT", "write", write_some(lambda x: x[:, :1])),
    ("ONE_TEXT", "write", write_some(lambda x: x[:, -1:])),
    ("ONE_TEXT", "write", write_first_row),
    ("ONE_HEAD", "write", write_some(lambda x: x[:, :, :1])),
    ("ONE_HEAD", "read", lambda slots, start, end: slots[:, :, :1, :end]),
    ("ONE_TOKEN", "write", write_some(lambda x: x[:, :, :, :1])),
    ("ONE_TOKEN", "write", write_some(lambda x: x[:, :, :, -1:])),
    ("ONE_TOKEN", "new", lambda new: new[:, :, :, :1].expand_as(new)),
    ("ONE_TOKEN", "new", lambda new: new[:, :, :, -1:].expand_as(new)),
    ("NOT_WRITTEN", "write", lambda slots, first, new: None),
    ("VALUES_NOT_WRITTEN", "write", write_some(lambda x: x[:1])),
    ("KEYS_NOT_WRITTEN", "write", write_some(lambda x: x[1:])),
    ("SUMMED", "write", write_sum),
    ("CLEARED", "before", lambda slots: slots.zero_()),
    ("CACHE_AXES", "result", lambda pair: (pair[0].transpose(1, 2), pair[1].transpose(1, 2))),
    ("CACHE_AXES", "result", lambda pair: (pair[0].transpose(-1, -2), pair[1].transpose(-1, -2))),
    ("CACHE_AXES", "result", lambda pair: (pair[0].transpose(0, 1), pair[1].transpose(0, 1))),
    ("CACHE_AXES", "result", lambda pair: (pair[0].flatten(0, 1), pair[1].flatten(0, 1))),
    ("ONE_RETURNED", "result", lambda pair: pair[0]),
    ("ONE_RETURNED", "result", lambda pair: pair[1]),
    ("SCALED", "new", lambda new: 2 * new),
    ("SCALED", "new", lambda new: -new),
    ("MIRRORED_SLOTS", "new", lambda new: new.flip(3)),
]


# Attention.


class Case(NamedTuple):
    xq: Tensor
    kv_heads: int
    angle: Tensor


# The recipe: q is (B, T, H, D), k and v (B, T, K, D). After ``group`` all have H heads, and after ``heads_first`` they
# are (B, H, T, D). Scores and weights are (B, H, T, S).


def repeated_heads(x: Tensor, groups: int) -> Tensor:
    return x.repeat_interleave(groups, 2)


def tiled_heads(x: Tensor, groups: int) -> Tensor:
    return x.repeat(1, 1, groups, 1)


def first_head(x: Tensor, groups: int) -> Tensor:
    return x[:, :, :1].repeat(1, 1, groups * x.shape[2], 1)


def reversed_heads(x: Tensor, groups: int) -> Tensor:
    return repeated_heads(x, groups).flip(2)


def averaged_heads(x: Tensor, groups: int) -> Tensor:
    return x.mean(2, keepdim=True).repeat(1, 1, groups * x.shape[2], 1)


def group(keys: Callable[[Tensor, int], Tensor], values: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """The part that assigns a key/value head to each query head."""
    return lambda k, v, groups: (keys(k, groups), values(v, groups))


def divided_by(scale: Callable[[Tensor], float]) -> Callable[[Tensor, Tensor], Tensor]:
    """The part that divides the scores by a number computed from q (B, H, T, D)."""
    return lambda scores, q: scores / scale(q)


def view(x: Tensor) -> Tensor:
    """Exchange the sizes of axes 1 and 2 and keep the order of the numbers in memory."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1], *x.shape[3:])


def attention_recipe(layout: str) -> Recipe:
    """The right recipe, with a rotation in this layout."""
    return {
        "rotate": lambda q, k, angle: (rotate(q, angle, ROTATIONS[layout]), rotate(k, angle, ROTATIONS[layout])),
        "values": lambda v, angle: v,
        "group": group(repeated_heads, repeated_heads),
        "heads_first": lambda x: x.transpose(1, 2),
        "scores": lambda q, k: q @ k.mT,
        "scale": divided_by(lambda q: math.sqrt(q.shape[-1])),
        "visible": lambda mask: mask,
        "mask": lambda scores, mask: scores.masked_fill(~mask, -torch.inf),
        "softmax": lambda scores: scores.softmax(-1),
        "weights": lambda masked, softmax, scores, mask: softmax(masked(scores, mask)),
        "sum": lambda weights, q, k, v: weights @ v,
        "tokens_first": lambda out: out.transpose(1, 2),
        "result": lambda out, case: out,
    }


def attention_mistakes(layout: str) -> list[Mistake]:
    """The mistakes of attention itself, of which two at once are tried too."""

    def rotated(x: Tensor, angle: Tensor) -> Tensor:
        return rotate(x, angle, ROTATIONS[layout])

    return [
        ("MASK_UNUSED", "mask", lambda scores, mask: scores),
        ("INVERTED_MASK", "visible", lambda mask: ~mask),
        ("TRANSPOSED_MASK", "visible", lambda mask: mask.T),
        ("OWN_MASK", "visible", lambda mask: torch.ones_like(mask).tril()),
        ("SELF_HIDDEN", "visible", lambda mask: mask & ~torch.eye(len(mask), dtype=torch.bool)),
        ("SELF_HIDDEN", "visible", lambda mask: mask.tril(-1)),
        ("OWN_MASK", "visible", lambda mask: mask.tril()),
        ("OWN_MASK", "visible", lambda mask: mask | torch.eye(len(mask), dtype=torch.bool)),
        ("OWN_MASK", "visible", lambda mask: torch.ones_like(mask).triu()),
        ("OWN_MASK", "visible", lambda mask: mask.triu()),
        ("OWN_MASK", "visible", lambda mask: mask[-1:].expand_as(mask)),
        ("OWN_MASK", "visible", lambda mask: mask[:1].expand_as(mask)),
        ("UNSCALED", "scale", divided_by(lambda q: 1.0)),
        ("SCALE", "scale", divided_by(lambda q: q.shape[-1])),
        ("SCALE", "scale", divided_by(lambda q: math.sqrt(q.shape[-1] * q.shape[1]))),
        ("SCALE", "scale", divided_by(lambda q: q.shape[-1] ** -0.5)),
        ("SCALE", "scale", divided_by(lambda q: q.shape[-1] ** 0.25)),
        ("SCALE", "scale", divided_by(lambda q: q.shape[-1] ** 2)),
        ("SCALE", "scale", divided_by(lambda q: q.shape[-1] ** -1.0)),
        ("SCALE", "scale", divided_by(lambda q: math.sqrt(q.shape[-1] / 2))),
        ("SCALE", "scale", divided_by(lambda q: q.shape[-1] / 2)),
        ("SCALE", "scale", divided_by(lambda q: math.sqrt(q.shape[1]))),
        ("SCALE", "scale", divided_by(lambda q: math.sqrt(q.shape[2]))),
        ("SCALE", "scale", divided_by(lambda q: q.shape[1])),
        ("SCALE", "scale", divided_by(lambda q: q.shape[2])),
        ("SCALE", "scale", divided_by(lambda q: math.log(q.shape[-1]))),
        ("NEGATED", "scale", divided_by(lambda q: -math.sqrt(q.shape[-1]))),
        ("MASK_ZERO", "mask", lambda scores, mask: scores.masked_fill(~mask, 0.0)),
        ("MASK_SMALL", "mask", lambda scores, mask: scores.masked_fill(~mask, -1.0)),
        ("MASK_SMALL", "mask", lambda scores, mask: scores.masked_fill(~mask, 1.0)),
        ("MASK_SMALL", "mask", lambda scores, mask: scores.masked_fill(~mask, -10.0)),
        ("MASK_ADDED", "mask", lambda scores, mask: scores + mask),
        ("MASK_ADDED", "mask", lambda scores, mask: scores - mask.double()),
        ("MASK_ADDED", "mask", lambda scores, mask: scores - (~mask).double()),
        ("MASK_ADDED", "mask", lambda scores, mask: scores + ~mask),
        ("MASK_AFTER", "weights", lambda masked, softmax, scores, mask: softmax(scores) * mask),
        ("MASK_AFTER", "weights", lambda masked, softmax, scores, mask: masked(softmax(scores), mask)),
        ("SOFTMAX", "softmax", lambda scores: scores.softmax(-2)),
        ("SOFTMAX", "softmax", lambda scores: scores.softmax(0)),
        ("SOFTMAX_HEADS", "softmax", lambda scores: scores.softmax(1)),
        ("NO_SOFTMAX", "softmax", lambda scores: scores),
        ("NO_SOFTMAX", "softmax", lambda scores: scores.masked_fill(scores.isinf(), 0)),
        ("NO_SOFTMAX", "softmax", lambda scores: scores.sigmoid()),
        ("NO_SOFTMAX", "softmax", lambda scores: scores.relu()),
        ("NO_SOFTMAX", "softmax", lambda scores: scores.tanh()),
        ("NO_SOFTMAX", "softmax", lambda scores: (scores == scores.amax(-1, keepdim=True)).double()),
        ("NO_SOFTMAX", "softmax", lambda scores: scores / scores.sum(-1, keepdim=True)),
        ("NOT_NORMALISED", "softmax", lambda scores: scores.exp()),
        ("NOT_NORMALISED", "softmax", lambda scores: (scores - scores.amax(-1, keepdim=True)).exp()),
        ("NOT_NORMALISED", "softmax", lambda scores: scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))),
        ("SOFTMAX_TWICE", "softmax", lambda scores: scores.softmax(-1).softmax(-1)),
        ("NEGATED", "softmax", lambda scores: (-scores).softmax(-1)),
        ("LOGARITHM", "softmax", lambda scores: scores.log_softmax(-1)),
        ("LOGARITHM", "softmax", lambda scores: scores.log_softmax(-1).nan_to_num(neginf=0)),
        # Tried before the next mistake, which gives the same numbers if H equals K
        ("SCORES_TRANSPOSED", "rotate", lambda q, k, angle: (rotated(k, angle), rotated(q, angle))),
        ("SCORES_TRANSPOSED", "scores", lambda q, k: k @ q.mT),
        ("WEIGHTS_TRANSPOSED", "weights", lambda masked, softmax, scores, mask: softmax(masked(scores, mask)).mT),
        ("SCORES_OF_ONE", "scores", lambda q, k: q @ q.mT),
        ("SCORES_OF_ONE", "scores", lambda q, k: k @ k.mT),
        ("COSINES", "scores", lambda q, k: unit_length(q) @ unit_length(k).mT),
        ("KEYS_MIXED", "sum", lambda weights, q, k, v: weights @ k),
        ("QUERIES_MIXED", "sum", lambda weights, q, k, v: weights @ q),
        ("WEIGHTS", "sum", lambda weights, q, k, v: weights),
        ("RESIDUAL", "result", lambda out, case: out + case.xq),
        ("RESIDUAL", "result", lambda out, case: out + rotated(case.xq.double(), case.angle)),
        ("MEAN", "sum", lambda weights, q, k, v: weights @ v / v.shape[2]),
        ("ONE_HEAD_RETURNED", "result", lambda out, case: out.mean(2, keepdim=True).expand_as(out)),
        ("ONE_HEAD_RETURNED", "result", lambda out, case: out.mean(2)),
        ("ONE_HEAD_RETURNED", "result", lambda out, case: out.sum(2)),
        ("SOME_BATCH", "result", lambda out, case: out[:1]),
        ("SOME_BATCH", "result", lambda out, case: out[0]),
        ("SOME_BATCH", "result", lambda out, case: out[:1].expand_as(out)),
        ("SOME_TOKENS", "result", lambda out, case: out[:, -1:]),
        ("SOME_TOKENS", "result", lambda out, case: out[:, -1]),
        ("REGROUPED", "result", regrouped),
        ("NOT_BACK", "tokens_first", lambda out: out),
        ("NOT_BACK", "tokens_first", lambda out: out.flatten(2)),
        ("VIEWED", "tokens_first", view),
        ("OVER_HEADS", "heads_first", lambda x: x),  # before the next: the same numbers if T equals H
        ("VIEWED", "heads_first", view),
        ("UNROTATED", "rotate", lambda q, k, angle: (q, k)),
        ("ONLY_Q_ROTATED", "rotate", lambda q, k, angle: (rotated(q, angle), k)),
        ("ONLY_K_ROTATED", "rotate", lambda q, k, angle: (q, rotated(k, angle))),
        ("TWICE", "rotate", lambda q, k, angle: (rotated(q, 2 * angle), rotated(k, 2 * angle))),
        (only_in("TWICE", "q"), "rotate", lambda q, k, angle: (rotated(q, 2 * angle), rotated(k, angle))),
        (only_in("TWICE", "k"), "rotate", lambda q, k, angle: (rotated(q, angle), rotated(k, 2 * angle))),
        ("OPPOSITE", "rotate", lambda q, k, angle: (rotated(q, angle), rotated(k, -angle))),
        ("OPPOSITE", "rotate", lambda q, k, angle: (rotated(q, -angle), rotated(k, angle))),
        (only_in("ROW_ORDER", "k"), "rotate", lambda q, k, angle: (rotated(q, angle), rotated(k, angle.flip(0)))),
        (only_in("ROW_ORDER", "q"), "rotate", lambda q, k, angle: (rotated(q, angle.flip(0)), rotated(k, angle))),
        ("VALUES", "values", rotated),
        ("OUTPUT", "result", lambda out, case: rotated(out, case.angle)),
        ("OUTPUT", "result", lambda out, case: rotated(out, -case.angle)),
        ("TILED", "group", group(tiled_heads, tiled_heads)),
        ("TILED_KEYS", "group", group(tiled_heads, repeated_heads)),
        ("TILED_VALUES", "group", group(repeated_heads, tiled_heads)),
        ("ONE_GROUP", "group", group(first_head, first_head)),
        ("ONE_GROUP", "group", group(averaged_heads, averaged_heads)),
        (only_in("ONE_GROUP", "k"), "group", group(first_head, repeated_heads)),
        (only_in("ONE_GROUP", "v"), "group", group(repeated_heads, first_head)),
        ("HEADS_REVERSED", "group", group(reversed_heads, reversed_heads)),
        (only_in("HEADS_REVERSED", "k"), "group", group(reversed_heads, repeated_heads)),
        (only_in("HEADS_REVERSED", "v"), "group", group(repeated_heads, reversed_heads)),
    ]


def unit_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def regrouped(out: Tensor, case: Case) -> Tensor:
    """Heads in the order of (H / K, K) instead of (K, H / K)."""
    groups = out.shape[2] // case.kv_heads
    return out.unflatten(2, (groups, -1)).transpose(2, 3).flatten(2, 3)


# The recipes as functions that a reader could have written.


def table_function(parts: Recipe) -> Callable[..., Any]:
    return lambda dim, end, theta=10000.0: table_of(parts, dim, end, theta)[0].to(torch.complex64)


def rotation_function(parts: Recipe) -> Callable[..., Any]:
    def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        angle = freqs_cis.angle().double()
        rotated = (rotate(xq, angle, parts), rotate(xk, angle, parts))
        return tuple(x if x.is_complex() else x.type_as(xq) for x in rotated)

    return apply_rotary_emb


def cache_class(parts: Recipe) -> type:
    """A class of the library's former form, with all layers in one object."""

    class KVCache:
        def __init__(self, args, batch_size=1):
            shape = (args.n_layers, 2, batch_size, args.n_kv_heads, args.max_seq_len, args.head_dim)
            self.slots = torch.zeros(shape)

        @torch.no_grad()
        def update(self, layer, start_pos, xk, xv):
            count = parts["count"](xk)
            new = torch.stack((xk, xv)).expand(-1, -1, -1, count, -1)
            if start_pos + xk.shape[2] > self.slots.shape[4]:
                raise ValueError("full")
            slots = self.slots[parts["layer"](layer)]
            parts["before"](slots)
            parts["write"](slots, parts["first"](start_pos, count), parts["new"](new))
            return parts["result"](parts["read"](slots, start_pos, start_pos + count).clone())

    return KVCache


def attention_function(parts: Recipe) -> Callable[..., Any]:
    def attention(xq: Tensor, xk: Tensor, xv: Tensor, freqs_cis: Tensor, mask: Tensor) -> Tensor:
        angle, visible = freqs_cis.angle().double(), parts["visible"](mask)
        case = Case(xq, xk.shape[2], angle)
        q, k = parts["rotate"](xq.double(), xk.double(), angle)
        v = parts["values"](xv.double(), angle)
        k, v = parts["group"](k, v, xq.shape[2] // xk.shape[2])
        q, k, v = (parts["heads_first"](x) for x in (q, k, v))
        scores = parts["scale"](parts["scores"](q, k), q)
        weights = parts["weights"](parts["mask"], parts["softmax"], scores, visible)
        return parts["result"](parts["tokens_first"](parts["sum"](weights, q, k, v)), case).type_as(xq)

    return attention


def planted() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """(function, fault, the wrong function), for each mistake."""
    for fault, part, wrong in TABLE_MISTAKES:
        yield "precompute_freqs_cis", fault, table_function(TABLE | {part: wrong})
    for fault, formula in RESHAPE_MISTAKES:
        yield "reshape_for_broadcast", fault, lambda freqs_cis, x, formula=formula: formula(freqs_cis, x)
    for layout, recipe in ROTATIONS.items():
        for fault, part, wrong in rotation_mistakes(layout):
            yield "apply_rotary_emb", fault, rotation_function(recipe | {part: wrong})
    for fault, part, wrong in MASK_MISTAKES:
        parts = MASK | {part: wrong}
        yield "causal_mask", fault, lambda start_pos, T, parts=parts: parts["result"](parts["seen"](start_pos, T))
    for fault, part, wrong in CACHE_MISTAKES:
        yield "KVCache", fault, cache_class(CACHE | {part: wrong})
    for fault, part, wrong in attention_mistakes("neighbours"):
        yield "attention", fault, attention_function(attention_recipe("neighbours") | {part: wrong})
