"""precompute_freqs_cis: its probes, and its usual mistakes by the angle of each pair from one position to the next."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..topic import Both
from .compare import Exercise, Mistake, Probe, first, same
from .tensors import near, plain, read_table, rotation

DIM, END, THETA = 12, 40, 10000.0
Call = Callable[..., Any]


def right(dim: int, end: int, theta: float = THETA) -> Tensor:
    """The table: complex128 (end, dim / 2)."""
    return rotation(torch.outer(torch.arange(end).double(), frequencies(dim, theta)))


def frequencies(dim: int, theta: float) -> Tensor:
    return theta ** -(torch.arange(0, dim, 2).double() / dim)


def read(call: Call, dim: int, end: int, *theta: float) -> Any:
    return plain(read_table(call(dim, end, *theta), dim // 2)[1])


def probe(*arguments: Any, tolerance: float = 5e-5) -> Probe:
    text = ", ".join(f"{name} {value:g}" for name, value in zip(("dim", "end", "theta"), arguments))
    return Probe(same(text), lambda call: read(call, *arguments), tolerance)


# The last one is beyond 2048, where float16 has only even numbers; float32 is wrong by 0.0003 there.
PROBES = (probe(8, 7, 3.0), probe(4, 3), probe(6, 13, 500.0), probe(DIM, 3001, THETA, tolerance=2e-3))
SIGN = Mistake("the sign of the angle: exp(j a), x cos a - y sin a", "角度的符号：exp(j a)，x cos a - y sin a", 1)


# fmt: off
def mistakes(call: Call, _: str) -> Iterator[Mistake]:
    z, table = read(call, DIM, END, THETA), right(DIM, END)
    if torch.is_tensor(z) and z.is_complex() and z.shape == table.shape and near(z.abs(), table.abs()):
        yield from angle_mistakes(call, z)
    elif torch.is_tensor(z):
        yield from value_mistakes(z, table, torch.outer(torch.arange(END).double(), frequencies(DIM, THETA)))


def value_mistakes(z: Tensor, table: Tensor, angles: Tensor) -> list[Mistake]:
    """Name what is wrong with numbers that are no rotations."""
    x, y = (z.real, z.imag) if z.is_complex() else (z, torch.zeros_like(z))
    zero = torch.zeros_like(angles)
    return first(
        (near(z, table.T), "the table is transposed: (end, dim/2)", "表转置了：应为 (end, dim/2)"),
        (z.shape == angles[1].shape, "frequencies only: torch.outer(positions, freqs)", "只有频率：还要 torch.outer"),
        (z.shape != table.shape, "", ""),
        (near(x, angles) or near(y, angles), "angles: return their cos and sin", "是角度：应返回它们的 cos 和 sin"),
        (near(y, zero) or near(x, zero) or near(x, y), "cosine or sine is missing: cos a + j sin a", "少了 cos 或 sin"),
        (near(z, torch.polar(angles, zero + 1)), "polar's arguments exchanged: length, angle", "polar 的参数颠倒了"),
        (True, "the length is not 1: cos² + sin² = 1", "长度不是 1：cos² + sin² = 1"),
    )


def angle_mistakes(call: Call, z: Tensor) -> Iterator[Mistake]:
    """Of rotations, of which row p should turn pair i by p times its frequency."""
    is_exchanged = start_of(z) is None
    if is_exchanged:
        z = torch.complex(z.imag, z.real)
    start = start_of(z)
    if start is None or not near(z[1:], z[:-1] * z[1] / z[0], 0.03):
        return
    found = first(
        (is_exchanged, "cosine and sine exchanged: cos a + j sin a", "cos 与 sin 颠倒了：cos a + j sin a", 1),
        (start, f"off by one position: row 0 is 0, here {start}", f"差了一个位置：第 0 行是 0，这里是 {start}"),
    ) + [each for each in frequency_mistakes(call) if each != SIGN or not is_exchanged]
    yield from found or rounding_mistakes(call)


def start_of(z: Tensor) -> int | None:
    """The position of row 0, None if it is no whole number."""
    return next((n for n in (0, 1, -1, 2) if near(z[0], (z[1] / z[0]) ** n, 0.002)), None)


def step(call: Call, end: int, theta: float) -> Tensor:
    """The angle of each pair from one position to the next."""
    z: Tensor = read(call, DIM, end, theta)
    return (z[2] / z[1]).angle()


def frequency_mistakes(call: Call) -> list[Mistake]:
    """From the frequencies for two small values of theta, which gives their exponents whatever else they contain."""
    i, right = torch.arange(DIM // 2).double(), frequencies(DIM, 3.0)
    angles, other, later = step(call, END, 3.0), step(call, END, 1.2), step(call, 2 * END, 3.0)
    of_large = step(call, END, 30.0).abs() / frequencies(DIM, 30.0)
    sign = first((angles[-1] < 0, *SIGN))
    angles, other = (each * each[-1].sign() for each in (angles, other))
    factors = angles / right
    factor = float(factors[-1])
    if near(rotation(angles), rotation(factor * right)) and abs(float(of_large[-1]) / factor - 1) < 0.02:
        return sign + first(
            (abs(factor - 1) < 0.01, "", ""),
            (abs(later[-1]) < 0.8 * angles[-1], "the positions: 0, 1 .. end - 1", "位置：0、1 … end - 1"),
            (True, f"a factor of the angles: {factor:.4g} times p theta^(-2i/D)", f"角度多了系数：{factor:.4g} 倍"),
        )
    exponents = (other / angles).log() / math.log(3 / 1.2)
    usual = {
        "i/D": i / DIM, "2i/(D/2)": 4 * i / DIM, "2(i - 1)/D": 2 * (i - 1) / DIM, "2(i + 1)/D": 2 * (i + 1) / DIM,
        "(2i + 1)/D": (2 * i + 1) / DIM, "2i": 2 * i, "i": i,
    }
    shown = ", ".join(f"{value:.3g}" for value in exponents[:3].tolist())
    name = next((name for name, values in usual.items() if near(exponents, values, 0.02)), f"{shown} ..")
    base = factors[1:].log() * -DIM / (2 * i[1:])  # the logarithm of a factor of theta
    return sign + first(
        (near(exponents, 0 * i, 0.02), "theta is not used: theta^(-2i/D)", "没有用 θ：θ^(-2i/D)"),
        (near(exponents, -2 * i / DIM, 0.02), "theta is inverted: theta^(-2i/D)", "θ 颠倒了：θ^(-2i/D)，有负号"),
        (near(exponents, 2 * i / DIM, 0.02) and near(base, base.mean().expand(DIM // 2 - 1)),
         f"the base: theta, here {base.mean().exp():.4g} theta", f"底数：θ，这里是 {base.mean().exp():.4g} θ"),
        (near(exponents.diff(), exponents.diff().mean().expand(DIM // 2 - 1), 0.02),
         f"the exponent: theta^-(2i/D), here theta^-({name})", f"指数：θ^-(2i/D)，这里是 θ^-({name})"),
        (True, "the frequencies: theta^(-2i/D)", "频率：θ^(-2i/D)"),
    )


def rounding_mistakes(call: Call) -> list[Mistake]:
    """Of angles that are right, but not precise: what was rounded to fewer digits, by how the error grows."""
    z, table, freqs = read(call, DIM, 3001, THETA), right(DIM, 3001), frequencies(DIM, THETA)
    if near(z, table, 2e-3) and near(z[:100], table[:100], 5e-5):
        return first((not near(read(call, 4, 3), right(4, 3)), "the default of theta: 10000", "θ 的默认值：10000"))
    numbers = torch.view_as_real(z[:100]).float()
    shown = freqs + (z[1:129] / table[1:129]).angle() / torch.arange(1, 129)[:, None]  # the frequencies by each row
    is_table = any(torch.equal(numbers, numbers.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16))
    is_product = not near(shown[:, 1:], shown[:1, 1:].expand(128, -1), 2e-5)
    error = float((shown.mean(0) / freqs - 1).abs().max())
    parts = {
        Both("frequencies", "频率"): not is_table and error > (4e-4 if is_product else 5e-5),
        Both("positions", "位置"): any(torch.equal(z[n], z[n + 1]) for n in (256, 257, 2048, 2049)),
        Both("products", "乘积"): not is_table and is_product,
        Both("cosines and sines", "cos 和 sin"): is_table,
    }
    en, zh = (", ".join(part[n] for part, is_rounded in parts.items() if is_rounded) for n in (0, 1))
    return first((en, f"half precision ({en}): use float32 or float64", f"半精度（{zh}）：应用 float32 或 float64", 12))
# fmt: on


EXERCISE = Exercise(5, ("dim", "end", "theta"), lambda _: right, PROBES, ("position", "pair"), (), mistakes)
