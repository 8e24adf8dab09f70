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
def mistakes(call: Call, _: str) -> Iterator[Mistake]:
    z, table, freqs = read(call, DIM, END, THETA), right(DIM, END), frequencies(DIM, THETA)
    if not torch.is_tensor(z):
        yield Mistake(
            "no torch tensor: return a complex tensor, or the tuple (cos, sin)",
            "不是 torch 张量：应返回复数张量，或者元组 (cos, sin)")
    elif z.is_complex() and z.shape == table.shape and near(z.abs(), table.abs()):
        yield from angle_mistakes(call, z, freqs)
    else:
        angles = torch.outer(torch.arange(END).double(), freqs)
        x, y = (z.real, z.imag) if z.is_complex() else (z, torch.zeros_like(z))
        numbers, one = torch.view_as_real(table).flatten(), table.abs()
        yield from first(
            (near(z, table.T),
             "the table is transposed: a row for each position, a column for each pair",
             "表转置了：每个位置一行，每组一列"),
            (near(z.flatten().abs().sort()[0], numbers.abs().sort()[0]),
             "cosines and sines in one tensor: return two, or a complex one",
             "cos 和 sin 挤在一个张量里：应分成两个，或用复数"),
            (z.shape == freqs.shape or near(x, freqs.expand(END, -1)),
             "frequencies only: the angle is position times frequency, torch.outer",
             "只有频率：角度是位置乘频率，torch.outer"),
            (bool(z.isnan().any()), "", ""),
            (z.shape == (DIM, END // 2),
             "dim and end exchanged: dim is the first argument", "dim 与 end 颠倒了：先 dim"),
            (z.ndim == 2 and len(z) != END,
             "the number of positions: a row for each of 0 .. end - 1", "位置数：0 到 end - 1 各一行"),
            (z.shape != table.shape,
             "the columns: one for each pair, dim/2; or dim, each angle twice, in the same order for cosines and sines",
             "列：每组一列，共 dim/2 列；或 dim 列，每个角度出现两次，cos 与 sin 的顺序一致"),
            (near(x, angles) or near(y, angles),
             "angles: return their cosines and sines, torch.polar(ones, angles)",
             "是角度：应返回它们的 cos 和 sin，torch.polar(ones, angles)"),
            (near(y, 0 * one) and near(x, angles.exp(), 0.1),
             "exp without j: exp(j angle)", "exp 少了 j：应为 exp(j 角度)"),
            (near(y, 0 * one) or near(x, 0 * one) or near(x, y),
             "cosine or sine is missing: a rotation has both, cos a + j sin a",
             "少了 cos 或 sin：旋转两者都要，cos a + j sin a"),
            (near(z, torch.polar(angles, one)),
             "polar's arguments exchanged: first the length, 1, then the angle",
             "polar 的参数颠倒了：先长度 1，再角度"),
            (True, "the length is not 1: cos² + sin² is 1", "长度不是 1：cos² + sin² 应为 1"),
        )


def angle_mistakes(call: Call, z: Tensor, freqs: Tensor) -> Iterator[Mistake]:
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
    if start is not None and near(z[1:], z[:-1] * step, 0.03):
        if start:
            found.append(Mistake(
                f"off by one position: row 0 is position 0; here it is position {start}",
                f"差了一个位置：第 0 行是位置 0；这里是位置 {start}"
            ))
        found += step_mistakes(call, step, freqs)
        found = found or list(rounding_mistakes(call, freqs))
    yield from found


def start_of(z: Tensor) -> tuple[Tensor, int | None]:
    """How much each pair turns between two positions, and the position of row 0, None if it is no whole number."""
    step = z[1] / z[0]
    return step, next((n for n in (0, 1, -1, 2) if near(z[0], step**n, 0.002)), None)


def step_mistakes(call: Call, step: Tensor, freqs: Tensor) -> Iterator[Mistake]:
    """From the rotation of each pair between two positions."""
    i = torch.arange(DIM // 2).double()
    exponents = {
        "2i/D": 2 * i / DIM, "i/D": i / DIM, "2i/(D/2)": 4 * i / DIM, "2(i - 1)/D": 2 * (i - 1) / DIM, "2i/(D - 2)": 2 * i / (DIM - 2),
        "2(i + 1)/D": 2 * (i + 1) / DIM, "(2i + 1)/D": (2 * i + 1) / DIM, "2i/(D - 1)": 2 * i / (DIM - 1),
        "2i": 2 * i, "i": i, "(2i // D)": 2 * i // DIM, "2i/end": 2 * i / END, "i/end": i / END,
    }
    reverse = {f"{name}, in reverse order": exponent.flip(0) for name, exponent in exponents.items()}
    minus = {f"-{name}": -exponent for name, exponent in exponents.items()}
    for name, exponent in (exponents | reverse | minus).items():
        for turned in (step, step.conj()):
            if near(turned, rotation(THETA**-exponent), 0.003 if name != "2i/D" else 0.01):
                if name == "2i/D":
                    yield from base_mistakes(call)
                else:
                    yield exponent_mistake(name)
                if turned is not step:
                    yield SIGN
                return
    factor = float(step[-1].angle() / freqs[-1])
    if near(step, rotation(factor * freqs)):
        later = steps(call, 2 * END, THETA)[-1] / freqs[-1]
        yield from first(
            (near(step, torch.ones_like(step), 1e-6),
             "all rows are the same: row p turns by p times the frequency", "每一行都一样：第 p 行转 p 乘频率"),
            (abs(factor / 57.2958 - 1) < 0.01 or abs(factor * 57.2958 - 1) < 0.01,
             "degrees: angles are in radians", "用了角度制：角的单位是弧度"),
            (abs(later - factor) > abs(factor) / 4,
             "the positions: they are 0, 1 .. end - 1, not divided by their number",
             "位置：是 0、1 … end - 1，不除以总数"),
            (True,
             f"a factor of the angles: they are {factor:.4g} times p theta^(-2i/D)",
             f"角度多了系数：是 p θ^(-2i/D) 的 {factor:.4g} 倍"),
        )
    else:
        yield from base_mistakes(call)


def exponent_mistake(name: str) -> Mistake:
    if name[0] == "-":
        return Mistake(
            "theta is inverted: theta^(-2i/D) has a minus sign, so that pair 0 is the fastest",
            "θ 颠倒了：θ^(-2i/D) 有负号，第 0 组最快")
    return Mistake(
        f"the exponent: pair i turns by theta^(-2i/D); here by theta^-({name})",
        f"指数：第 i 组转 θ^(-2i/D)；这里是 θ^-({name})")


def steps(call: Call, end: int, theta: float) -> Tensor:
    """The angle of each pair from one position to the next."""
    z: Tensor = read(call, DIM, end, theta)
    return (z[2] / z[1]).angle()


def base_mistakes(call: Call) -> Iterator[Mistake]:
    """Of frequencies that are powers of another number than theta, or no powers."""
    turns = [steps(call, END, theta).abs() for theta in (THETA, 500.0)]
    logs = [-turn[1:].log() * DIM / torch.arange(2, DIM, 2) for turn in turns]  # of the base, from each pair
    a, b = (float(log.mean()) for log in logs)
    ratio = a / math.log(THETA)
    if near(turns[0][0], torch.tensor(1.0).double()) and all(near(log, log.mean().expand(DIM // 2 - 1)) for log in logs):
        yield from first(
            (abs(ratio - 1) < 0.01 and abs(b / math.log(500) - 1) < 0.01, "", ""),
            (abs(a - b) < 0.01,
             f"theta is not used: the base is {math.exp(a):.4g} for any theta",
             f"没有用 θ：不管 θ 是多少，底数都是 {math.exp(a):.4g}"),
            (abs(ratio - b / math.log(500)) < 0.01, *exponent_mistake(f"{ratio:.3g} × 2i/D")[:2]),
            (True,
             f"the base: it is theta; here {math.exp(a):.6g} for 10000",
             f"底数：应为 θ；θ = 10000 时这里是 {math.exp(a):.6g}"),
        )
    else:
        values = ", ".join(f"{x:.3g}" for x in turns[0].tolist()[:3])
        yield Mistake(
            f"the frequencies: theta^(-2i/D) is 1, 0.215, 0.0464 .. for theta 10000, D 12; here {values} ..",
            f"频率：θ = 10000、D = 12 时，θ^(-2i/D) 是 1、0.215、0.0464 …；这里是 {values} …",
        )


def rounding_mistakes(call: Call, freqs: Tensor) -> Iterator[Mistake]:
    """Of angles that are right, but not precise: what was rounded to fewer digits, by how the error grows."""
    z, table = read(call, DIM, 3001, THETA), right(DIM, 3001)
    if near(z, table, 2e-3) and near(z[:100], table[:100], 5e-5):
        yield from first((not near(read(call, 4, 3), right(4, 3)),
            "the default of theta: it is 10000", "θ 的默认值：应为 10000"))
        return
    numbers = torch.view_as_real(z[:100]).float()
    p = torch.arange(1, 129).double()  # without rounding in both formats
    shown = freqs + (z[1:129] / table[1:129]).angle() / p[:, None]  # the frequency that each row shows
    is_table = any(torch.equal(numbers, numbers.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16))
    is_product = not is_table and not near(shown[:, 1:], shown[:1, 1:].expand(128, -1), 2e-5)
    parts = {
        Both("frequencies", "频率"): not is_table and bool(((shown.mean(0) / freqs - 1).abs() > 4e-4).any()),
        Both("positions", "位置"): any(torch.equal(z[n], z[n + 1]) for n in (256, 257, 2048, 2049)),
        Both("products", "乘积"): is_product,
        Both("cosines and sines", "cos 和 sin"): is_table,
    }
    en, zh = (mark.join(each[n] for each, is_rounded in parts.items() if is_rounded) for n, mark in enumerate((
        ", ", "、")))
    if en:
        yield Mistake(
            f"half precision ({en}): bfloat16 has 8 bits, float16 11; use float32 or float64",
            f"半精度（{zh}）：bfloat16 只有 8 位，float16 只有 11 位；应用 float32 或 float64", 12)


SIGN = Mistake(
    "the sign of the angle: (x, y) becomes (x cos a - y sin a, x sin a + y cos a)",
    "角度的符号：(x, y) 应变为 (x cos a - y sin a, x sin a + y cos a)", 1)
# fmt: on
EXERCISE = Exercise(5, ("dim", "end", "theta"), lambda _: right, PROBES, AXES, (), mistakes)
