"""The exercises of rope.py: probes, and usual mistakes by the angles of a table and by how vectors are rotated."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from model.rope import reshape_for_broadcast

from .compare import Exercise, Mistake, View, dtypes, first, near, of_parts, plain, random, refusal

NEIGHBOURS, HALVES = "neighbours", "halves"  # the layouts
COMPLEX, BATCH_FORM, HEADS_FIRST = "complex", "batch", "heads first"
# The forms of a table: complex, or cosines and sines (T, D/2), also with each angle twice, or with a batch axis. With
# the last one, the vectors are (B, H, T, D), as in transformers.
FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    COMPLEX: torch.complex,
    "tuple": lambda cos, sin: (cos, sin),
    HALVES: lambda cos, sin: (cos.repeat(1, 2), sin.repeat(1, 2)),
    NEIGHBOURS: lambda cos, sin: (cos.repeat_interleave(2, 1), sin.repeat_interleave(2, 1)),
    "last axis of 2": lambda cos, sin: torch.stack((cos, sin), -1),
    BATCH_FORM: lambda cos, sin: (cos.repeat(1, 2)[None], sin.repeat(1, 2)[None]),
    HEADS_FIRST: lambda cos, sin: (cos.repeat(1, 2)[None], sin.repeat(1, 2)[None]),
}


def read_table(raw: Any, pairs: int) -> tuple[str, Any]:
    """The form of a table and its complex numbers, or "" and what it is if it has none of the forms."""
    if torch.is_tensor(raw):
        if raw.ndim == 3 and raw.shape[2] == 2:
            return "last axis of 2", torch.complex(*raw.double().unbind(2))
        return COMPLEX if raw.is_complex() else "", raw
    is_pair = isinstance(raw, tuple | list) and len(raw) == 2 and all(map(torch.is_tensor, raw))
    if not is_pair or raw[0].shape != raw[1].shape or raw[0].is_complex():
        return "", type(raw).__name__
    z: Tensor = torch.complex(*(part.double() for part in raw))
    if z.ndim == 3 and len(z) == 1:
        return BATCH_FORM, z[0, :, :pairs]
    if z.shape[-1:] == (2 * pairs,):
        for form, parts in ((HALVES, z.chunk(2, -1)), (NEIGHBOURS, (z[..., ::2], z[..., 1::2]))):
            if torch.equal(*parts):
                return form, parts[0]
    return "tuple", z


# precompute_freqs_cis

DIM, END, LONG = 12, 40, 3001


def rotation(angles: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angles), angles)


def right_angles(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    """float64 (end, dim / 2)."""
    return torch.outer(torch.arange(end).double(), theta ** -(torch.arange(0, dim, 2).double() / dim))


def right_table(*arguments: Any) -> Tensor:
    return rotation(right_angles(*arguments))


def table_probes(table: View) -> Iterator[tuple[str, Any]]:
    # float16 has only even numbers beyond 2048.
    for given in ((8, 7, 3.0), (4, 3), (6, 13, 500.0), (DIM, LONG, 10000.0)):
        z = table(*given)
        # In float32, the product of a large position and a frequency is wrong by 0.0003.
        is_near = given[1] == LONG and near(z, right_table(*given), 2e-3)
        label = ", ".join(f"{name} {value:g}" for name, value in zip(("dim", "end", "theta"), given))
        yield label, right_table(*given) if is_near else z


SIGN = Mistake("the sign of the angle: exp(j a), x cos a - y sin a", 1)


# fmt: off
def table_mistakes(table: View, _: str) -> Iterator[Mistake]:
    z, expected = plain(table(DIM, END, 10000.0)), right_table(DIM, END)
    if not torch.is_tensor(z):
        return
    if not z.is_complex() or z.shape != expected.shape or not near(z.abs(), expected.abs()):
        yield from value_mistakes(z, expected)
        return
    is_exchanged = start_of(z) is None
    start = start_of(torch.complex(z.imag, z.real) if is_exchanged else z)
    if start is None or not near(z[1:], z[:-1] * z[1] / z[0], 0.03):
        return
    found = first(
        (is_exchanged, "cosine and sine exchanged: cos a + j sin a", 1),
        (start, f"off by one position: row 0 is 0, here {start}"),
    ) + [each for each in frequency_mistakes(table) if not is_exchanged or each != SIGN]
    yield from found or rounding_mistakes(table)


def value_mistakes(z: Tensor, expected: Tensor) -> list[Mistake]:
    """Name what is wrong with numbers that are no rotations."""
    angles = right_angles(DIM, END)
    x, y = (z.real, z.imag) if z.is_complex() else (z, torch.zeros_like(z))
    return first(
        (near(z, expected.T), "the table is transposed: (end, dim/2)"),
        (z.shape == angles[1].shape, "frequencies only: torch.outer(positions, freqs)"),
        (z.shape != expected.shape, ""),
        (near(x, angles) or near(y, angles), "angles: return their cos and sin"),
        (near(x, y) or not x.any() or not y.any(), "cosine or sine is missing: cos a + j sin a"),
        (near(z, torch.polar(angles, torch.ones_like(angles))), "polar's arguments exchanged: length, angle"),
        (True, "the length is not 1: cos² + sin² = 1"),
    )


def start_of(z: Tensor) -> int | None:
    """The position of row 0, None if it is no whole number."""
    return next((n for n in (0, 1, -1, 2) if near(z[0], (z[1] / z[0]) ** n, 0.002)), None)


def frequency_mistakes(table: View) -> list[Mistake]:
    """From the angle of each pair from one position to the next, for two small values of theta."""
    steps = [(z[2] / z[1]).angle() for z in (plain(table(DIM, END, theta)) for theta in (3.0, 1.2))]
    factors, exponents = steps[0] / right_angles(DIM, END, 3.0)[1], (steps[1] / steps[0]).log() / math.log(3.0 / 1.2)
    slope = float(exponents.diff().mean())
    shown = f"{slope * DIM:.3g} i/D" + (f" {exponents[0]:+.3g}" if abs(exponents[0]) > 0.01 else "")
    sign = first((steps[0][-1] < 0, *SIGN))
    if near(factors, factors[-1].expand(DIM // 2), 0.02) and abs(exponents[0]) < 0.02:
        factor = abs(float(factors[-1]))
        return sign + first((abs(factor - 1) > 0.03, f"a factor of the angles: {factor:.4g} times p theta^(-2i/D)"))
    if near(steps[0], right_angles(DIM, END, 3.0)[1].flip(0)):
        return first((True, "slowest first: pair 0 has the highest frequency"))
    if near(steps[0].abs(), 3.0 ** -(exponents[0] + slope * torch.arange(DIM // 2))):
        return sign + first((True, f"the exponent: theta^-(2 i/D), here theta^-({shown})"))
    return first(
        (near(steps[0], steps[1]), "theta is not used: theta^(-2i/D)"),
        (True, "the frequencies: theta^(-2i/D)"),
    )


def rounding_mistakes(table: View) -> list[Mistake]:
    """Of angles that are right, but not precise: what was rounded to fewer digits."""
    z, angles = plain(table(DIM, LONG, 10000.0)), right_angles(DIM, LONG)
    if near(z, rotation(angles), 2e-3) and near(z[:100], rotation(angles)[:100], 5e-5):
        is_default = near(plain(table(4, 3)), right_table(4, 3), 5e-5)
        return first((not is_default, "the default of theta: 10000"))
    numbers, errors = torch.view_as_real(z[:100]).float(), (z / rotation(angles)).angle() / angles
    is_table = any(torch.equal(numbers, numbers.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16))
    is_linear = near(errors[1:100], errors[1].expand(99, -1), 5e-4)
    are_equal = any(torch.equal(z[n], z[n + 1]) for n in (256, 257, 2048, 2049))
    return first(
        (is_table, "half precision in cosines and sines: use float32", 12),
        (not is_linear, "half precision in the products: use float32", 12),
        (are_equal, "half precision in the positions: use float32", 12),
        (True, "half precision in the exponents: use float32", 12),
    )
# fmt: on


# apply_rotary_emb

AXES = ("batch", "token", "head", "channel")
D = 8
QUARTER = torch.tensor(1j)  # a turn by 90 degrees
EQUAL = (3, 3, 3, 3)  # B, T, H, K; then a wrong axis raises nothing


def random_table(T: int, pairs: int) -> Tensor:
    """Rotations by angles from 0.3 to 2.8: complex128 (T, D/2)."""
    return rotation(0.3 + 2.5 * torch.rand(T, pairs, generator=torch.Generator().manual_seed(T), dtype=torch.float64))


def pairs_of(layout: str, D: int) -> Tensor:
    """The channels of each pair, (D/2, 2)."""
    return torch.arange(D).view(-1, 2) if layout == NEIGHBOURS else torch.arange(D).view(2, -1).T


def rotate(x: Tensor, table: Tensor, layout: str, written: str = "") -> Tensor:
    """Rotate (B, T, H, D) by a table that broadcasts to (B, T, H, D/2); the result may have the other layout."""
    D = x.shape[-1]
    z = torch.complex(*x[..., pairs_of(layout, D)].double().unbind(-1)) * table
    return torch.view_as_real(z).flatten(3)[..., pairs_of(written or layout, D).flatten().argsort()].to(x.dtype)


def right(layout: str) -> View:
    return lambda xq, xk, table: (rotate(xq, table[:, None], layout), rotate(xk, table[:, None], layout))


def vectors(B: int, T: int, H: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(B, T, H, D), random(B, T, K, D, seed=2), random_table(T, D // 2)


def probes(apply: View) -> Iterator[tuple[str, Any]]:
    for size in (EQUAL, (2, 5, 4, 2), (2, 1, 4, 2)):
        xq, xk, table = vectors(*size)
        yield f"xq {tuple(xq.shape)}, xk {tuple(xk.shape)}", apply(xq, xk, table)
    yield "the dtypes for bfloat16", dtypes_of(apply)


def dtypes_of(apply: View) -> str:
    xq, xk, table = vectors(*EQUAL)
    return dtypes(apply(xq.bfloat16(), xk.bfloat16(), table))


def layout_of(results: Any) -> str:
    """The layout in which a rotation of equal sizes, whose results these are, has kept the lengths of the pairs."""
    shape = (*EQUAL[:3], D)
    if not isinstance(results, tuple) or not all(torch.is_tensor(x) and x.shape == shape for x in results):
        return NEIGHBOURS

    def change(layout: str) -> float:
        pairs, given = pairs_of(layout, D), vectors(*EQUAL)[:2]
        changes = [
            [(x[..., pairs].norm(dim=-1) - y[..., pairs].norm(dim=-1)).abs().sum() for x in given] for y in results
        ]
        return float(sum(map(min, changes)))

    return min((NEIGHBOURS, HALVES), key=change)


# fmt: off
LAYOUT = Mistake("layouts mixed: pairs are (2i, 2i + 1) or (i, i + D/2), for angles and results too", 3)
MIXED_UP = Mistake("q and k mixed up: return xq, then xk, both rotated", 4)
UNROTATED = Mistake("not rotated: rotate q and k", 2)
TWICE = Mistake("rotated twice: a token at p is turned to 2p", 4)
EXCHANGED = Mistake("cosine and sine exchanged: x cos a - y sin a", 1)
HEADS = Mistake("rotation along the head axis: (1, T, 1, D/2)", 4)
BATCH = Mistake("rotation along the batch axis: (1, T, 1, D/2)", 4)


def mistakes(apply: View, layout: str) -> Iterator[Mistake]:
    xq, xk, table = vectors(*EQUAL)
    q, k = plain(apply(xq, xk, table))
    expected, other = (rotate(x.double(), table[:, None], layout) for x in (xq, xk))
    found = first(
        (near(q, k) or near(q, other), *MIXED_UP),
        (q.shape != expected.shape or k.shape != other.shape, "the shape: .flatten(3)", 4),
    ) or of_parts("qk", [part_mistakes(x.double(), y, table, layout) for x, y in ((xq, q), (xk, k))])
    is_cast = dtypes_of(apply) in ("float32 and float32", "bfloat16 and float32", "float32 and bfloat16")
    is_rounded = near(q, expected, 0.02) and not near(q, expected, 1e-4)
    yield from found or first((is_rounded, "rotated in half precision: x.float() first", 4))
    yield from first((is_cast, "the dtype changes: end with .type_as(x)", 4))


def part_mistakes(x: Tensor, y: Tensor, table: Tensor, layout: str) -> list[Mistake]:
    """Of q or k, x, and what becomes of it, y."""
    rows = table[None, :, None]  # (1, T, 1, D/2)
    if near(y, x):
        return [UNROTATED]
    for axis, w in ((None, rows), (HEADS, table[None, None]), (BATCH, table[:, None, None]), (TWICE, rows**2)):
        for formula, factors in ((None, w), (SIGN, w.conj()), (EXCHANGED, 1j * w.conj())):
            if near(y, rotate(x, factors, layout)):
                return [each for each in (formula, axis) if each]
    ways = list(product((NEIGHBOURS, HALVES), repeat=2))
    of_channels = [rows[..., pairs_of(each, D).flatten().argsort() // 2] for each in (NEIGHBOURS, HALVES)]
    mixed = [rotate(x, rows, *way) for way in ways]
    mixed += [x * w.real + rotate(x, QUARTER, *way) * w.imag for w in of_channels for way in ways]
    turned = [rotate(x, row, layout) for row in table]
    a, b, expected_a = (each[..., pairs_of(layout, D)] for each in (x, y, rotate(x, rows, layout)))
    return first(
        (any(near(y, each) for each in mixed), *LAYOUT),
        (near(b[..., 0], expected_a[..., 0]) and near(b[..., 1], b[..., 0] * rows.imag + a[..., 1] * rows.real),
         "a number is overwritten while it is still needed", 1),
        (all(any(near(y[:, t], each[:, t]) for each in turned) for t in range(len(table))),
         "the rows of the table: token t has row t", 4),
        (not near(y.norm(dim=-1), x.norm(dim=-1)), "the formula: x cos a - y sin a, x sin a + y cos a", 1),
    )


# reshape_for_broadcast is judged by its result when it is broadcast.


def reshape_probes(reshape: View) -> Iterator[tuple[str, Any]]:
    for size in (EQUAL, (2, 5, 4, 6)):
        yield f"x {size}", broadcast(reshape, *size)
    yield "a table of one row", refusal(lambda: reshape(random_table(1, 6), torch.zeros(2, 5, 4, 6) + 0j))


def broadcast(reshape: View, *size: int) -> Tensor:
    x = torch.ones(size, dtype=torch.complex128)
    return x * reshape(random_table(size[1], size[3]), x)


def reshape_mistakes(reshape: View, _: str) -> list[Mistake]:
    found, table = plain(broadcast(reshape, *EQUAL)), random_table(3, 3)
    return first(
        (near(found, table.expand(EQUAL)), *HEADS),
        (near(found, table[:, None, None].expand(EQUAL)), *BATCH),
    )
# fmt: on


TABLE = Exercise(
    5, ("dim", "end", "theta"), lambda _: right_table, table_probes, ("position", "pair"), (), table_mistakes
)
ROTATE = Exercise(3, ("xq", "xk", "freqs_cis"), right, probes, AXES, ("q", "k"), mistakes)
RESHAPE = Exercise(
    4, ("freqs_cis", "x"), lambda _: reshape_for_broadcast, reshape_probes, (*AXES[:3], "pair"), (), reshape_mistakes
)
