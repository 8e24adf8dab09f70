"""precompute_freqs_cis: its probes, and its usual mistakes by the angle of each pair from one position to the next."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import Both, Exercise, Mistake, Probe, first, near, plain, read_table, rotation, same

AXES = (Both("position", "位置"), Both("pair", "组"))
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


# fmt: off
SIGN = Mistake(
    "the sign of the angle: x cos a - y sin a, x sin a + y cos a",
    "角度的符号：x cos a - y sin a, x sin a + y cos a", 1)


def mistakes(call: Call, _: str) -> Iterator[Mistake]:
    z, table = read(call, DIM, END, THETA), right(DIM, END)
    if not torch.is_tensor(z):
        yield Mistake(
            "no torch tensor: return a complex tensor or (cos, sin)", "不是 torch 张量：应返回复数张量或 (cos, sin)")
    elif z.is_complex() and z.shape == table.shape and near(z.abs(), table.abs()):
        yield from angle_mistakes(call, z)
    else:
        yield from value_mistakes(z, table, torch.outer(torch.arange(END).double(), frequencies(DIM, THETA)))


def value_mistakes(z: Tensor, table: Tensor, angles: Tensor) -> list[Mistake]:
    """Of what is no table of rotations."""
    x, y = (z.real, z.imag) if z.is_complex() else (z, torch.zeros_like(z))
    numbers, zero = torch.view_as_real(table).flatten(), torch.zeros_like(angles)
    return first(
        (near(z, table.T), "the table is transposed: (end, dim/2)", "表转置了：应为 (end, dim/2)"),
        (near(z.flatten().abs().sort()[0], numbers.abs().sort()[0]),
         "cosines and sines in one tensor: return (cos, sin), or complex",
         "cos 和 sin 挤在一个张量里：应为 (cos, sin) 或复数"),
        (z.shape == angles[1].shape or near(x, angles[1].expand(END, -1)),
         "frequencies only: multiply them by the positions, torch.outer", "只有频率：还要乘位置，torch.outer"),
        (z.isnan().any(), "", ""),
        (z.shape == (DIM, END // 2), "dim and end exchanged: dim is the first argument", "dim 与 end 颠倒了：先 dim"),
        (z.ndim == 2 and len(z) != END, "the number of positions: 0 .. end - 1", "位置数：0 到 end - 1"),
        (z.shape != table.shape, "the columns: dim/2, one a pair; or dim, each angle twice, in the same order in both",
         "列：dim/2，每组一列；或 dim，每个角度两次，cos 与 sin 顺序相同"),
        (near(x, angles) or near(y, angles),
         "angles: return their cosines and sines", "是角度：应返回它们的 cos 和 sin"),
        (near(y, zero) and near(x, angles.exp(), 0.1), "exp without j: exp(j angle)", "exp 少了 j：exp(j 角度)"),
        (near(y, zero) or near(x, zero) or near(x, y),
         "cosine or sine is missing: cos a + j sin a", "少了 cos 或 sin：cos a + j sin a"),
        (near(z, torch.polar(angles, zero + 1)),
         "polar's arguments exchanged: length, angle", "polar 的参数颠倒了：先长度后角度"),
        (True, "the length is not 1: cos² + sin² = 1", "长度不是 1：cos² + sin² = 1"),
    )


def angle_mistakes(call: Call, z: Tensor) -> Iterator[Mistake]:
    """Of rotations, of which row p should turn pair i by p times its frequency."""
    found = []
    if near(z.flip(0), right(DIM, END)):
        found.append(Mistake(
            "the positions are in reverse order: row p is position p", "位置的顺序反了：第 p 行是位置 p"))
        z = z.flip(0)
    step, start = start_of(z)
    if start is None:
        z = torch.complex(z.imag, z.real)
        step, start = start_of(z)
        found += first((start is not None,
            "cosine and sine exchanged: cos a + j sin a", "cos 与 sin 颠倒了：cos a + j sin a", 1))
    if start is None or not near(z[1:], z[:-1] * step, 0.03):
        return
    found += first((start,
        f"off by one position: row 0 is 0, here {start}", f"差了一个位置：第 0 行是 0，这里是 {start}"))
    found += step_mistakes(call, step)
    yield from found or rounding_mistakes(call)


def start_of(z: Tensor) -> tuple[Tensor, int | None]:
    """How much each pair turns between two positions, and the position of row 0, None if it is no whole number."""
    step = z[1] / z[0]
    return step, next((n for n in (0, 1, -1, 2) if near(z[0], step**n, 0.002)), None)


def step_mistakes(call: Call, step: Tensor) -> list[Mistake]:
    """From the rotation of each pair between two positions."""
    i, freqs = torch.arange(DIM // 2).double(), frequencies(DIM, THETA)
    exponents = {
        "i/D": i / DIM, "2i/(D/2)": 4 * i / DIM, "2(i - 1)/D": 2 * (i - 1) / DIM, "2(i + 1)/D": 2 * (i + 1) / DIM,
        "(2i + 1)/D": (2 * i + 1) / DIM, "2i/(D - 1)": 2 * i / (DIM - 1), "2i/(D - 2)": 2 * i / (DIM - 2), "2i": 2 * i,
        "i": i, "(2i // D)": 2 * i // DIM, "2i/end": 2 * i / END, "i/end": i / END,
        "(D - 2 - 2i)/D": 2 * i.flip(0) / DIM,
    }
    for turned, sign in ((step, []), (step.conj(), [SIGN])):
        if turns_by(turned, freqs):
            return [*base_mistakes(call), *sign]
        for name, exponent in exponents.items():
            if turns_by(turned, THETA**-exponent):
                return [exponent_mistake(name), *sign]
        if turns_by(turned, 1 / freqs):
            return [Mistake(
                "theta is inverted: theta^(-2i/D), with a minus sign", "θ 颠倒了：θ^(-2i/D)，有负号"), *sign]
    factor, later = (float(angle[-1] / freqs[-1]) for angle in (step.angle(), steps(call, 2 * END, THETA)))
    if not turns_by(step, factor * freqs):
        return base_mistakes(call)
    return first(
        (near(step, torch.ones_like(step), 1e-6),
         "all rows are the same: row p turns by p", "每一行都一样：第 p 行转 p 倍"),
        (abs(factor / 57.2958 - 1) < 0.01 or abs(factor * 57.2958 - 1) < 0.01,
         "degrees: use radians", "用了角度制：应为弧度"),
        (abs(later - factor) > abs(factor) / 4,
         "the positions: 0, 1 .. end - 1, not divided by end", "位置：0、1 … end - 1，不除以 end"),
        (True,
         f"a factor of the angles: {factor:.4g} times p theta^(-2i/D)",
         f"角度多了系数：p θ^(-2i/D) 的 {factor:.4g} 倍"),
    )


def turns_by(step: Tensor, angles: Tensor) -> bool:
    """Whether these are the rotations, also relative to small angles."""
    is_small = angles.abs() < 3
    return near(step, rotation(angles)) and torch.allclose(step.angle()[is_small], angles[is_small], rtol=0.01, atol=0)


def exponent_mistake(name: str) -> Mistake:
    return Mistake(f"the exponent: theta^-(2i/D), here theta^-({name})", f"指数：θ^-(2i/D)，这里是 θ^-({name})")


def steps(call: Call, end: int, theta: float) -> Tensor:
    """The angle of each pair from one position to the next."""
    z: Tensor = read(call, DIM, end, theta)
    return (z[2] / z[1]).angle()


def base_mistakes(call: Call) -> list[Mistake]:
    """Of frequencies that are powers of theta, of another number, or no powers."""
    turns = [steps(call, END, theta).abs() for theta in (THETA, 500.0)]
    logs = [-turn[1:].log() * DIM / torch.arange(2, DIM, 2) for turn in turns]  # of the base, from each pair
    a, b = (float(log.mean()) for log in logs)
    ratio, ratio_b = a / math.log(THETA), b / math.log(500)
    is_power = abs(turns[0][0] - 1) < 0.02 and all(near(log, log.mean().expand(DIM // 2 - 1)) for log in logs)
    values = ", ".join(f"{x:.3g}" for x in turns[0].tolist()[:3])
    return first(
        (not is_power, f"the frequencies: theta^(-2i/D), 1, 0.215, 0.0464 .. for D = 12; here {values} ..",
         f"频率：θ^(-2i/D)，D = 12 时为 1、0.215、0.0464 …；这里是 {values} …"),
        (abs(ratio - 1) < 0.01 and abs(ratio_b - 1) < 0.01, "", ""),
        (abs(a - b) < 0.01,
         f"theta is not used: the base is always {math.exp(a):.4g}", f"没有用 θ：底数总是 {math.exp(a):.4g}"),
        (abs(ratio - ratio_b) < 0.01, *exponent_mistake(f"{ratio:.3g} × 2i/D")),
        (True, f"the base: theta, 10000, here {math.exp(a):.6g}", f"底数：θ，即 10000，这里是 {math.exp(a):.6g}"),
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


EXERCISE = Exercise(5, ("dim", "end", "theta"), lambda _: right, PROBES, AXES, (), mistakes)
