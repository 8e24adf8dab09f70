"""precompute_freqs_cis: its probes, and its usual mistakes by the rotation that each row and column has."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import Both, Mistake, Probe, near, plain, read_table, rotation

AXES = (Both("position", "位置"), Both("pair", "组"))
DIM, END, THETA = 12, 40, 10000.0
Call = Callable[..., Any]


def right(dim: int, end: int, theta: float = THETA) -> Tensor:
    """The table: complex128 (end, dim / 2)."""
    return rotation(torch.outer(torch.arange(end).double(), frequencies(dim, theta)))


def frequencies(dim: int, theta: float) -> Tensor:
    return theta ** -(torch.arange(0, dim, 2).double() / dim)


def probe(*arguments: Any, tolerance: float = 5e-5) -> Probe:
    text = ", ".join(f"{name} {value:g}" for name, value in zip(("dim", "end", "theta"), arguments))
    return Probe(Both(text, text), lambda call: read_table(call(*arguments), arguments[0] // 2)[1], tolerance)


# The last one is beyond 2048, where float16 has only even numbers; float32 is wrong by 0.0003 there.
PROBES = (probe(8, 7, 3.0), probe(4, 3), probe(6, 13, 500.0), probe(DIM, 3001, THETA, tolerance=2e-3))


def mistakes(call: Call) -> Iterator[Mistake]:
    raw = call(DIM, END, THETA)
    z = plain(read_table(raw, DIM // 2)[1])
    freqs = frequencies(DIM, THETA)
    if not torch.is_tensor(z):
        yield Mistake(
            5,
            "not a torch tensor: the callers need a tensor, or the tuple (cos, sin).",
            "不是 torch 张量：应返回张量，或者元组 (cos, sin)。",
        )
    elif z.shape != (END, DIM // 2):
        yield from shape_mistakes(z, freqs)
    elif not z.is_complex() or not near(z.abs(), torch.ones(z.shape).double()):
        yield from value_mistakes(z if z.is_complex() else z + 0j, freqs)
    else:
        yield from angle_mistakes(call, z, freqs)


def shape_mistakes(z: Tensor, freqs: Tensor) -> Iterator[Mistake]:
    table = right(DIM, END)
    if near(z, table.T):
        yield Mistake(
            5,
            "the table is transposed: it has a row for each position and a column for each pair, (end, dim/2).",
            "表转置了：每个位置一行，每组一列，即 (end, dim/2)。",
        )
    elif not z.is_complex() and z.numel() == 2 * table.numel() and near(ordered(z), ordered(torch.view_as_real(table))):
        yield Mistake(
            3,
            "cosines and sines in one tensor: return a complex table or the tuple (cos, sin), each (end, dim/2).",
            "cos 和 sin 挤在一个张量里：应返回复数表，或者元组 (cos, sin)，各为 (end, dim/2)。",
        )
    elif z.shape == freqs.shape:
        yield Mistake(
            5,
            "the table holds frequencies: multiply them by all positions, torch.outer(torch.arange(end), freqs).",
            "表里只有频率：还要乘上每个位置，torch.outer(torch.arange(end), freqs)。",
        )
    elif z.shape == (DIM, END // 2):
        yield Mistake(5, "dim and end exchanged: dim is the first argument.", "dim 与 end 颠倒了：第一个参数是 dim。")
    elif z.ndim == 2 and z.shape[1] != DIM // 2:
        yield Mistake(
            5,
            "the number of columns: the two channels of a pair share an angle, so there are dim/2.",
            "列数：一组的两个分量共用一个角度，所以是 dim/2 列。",
        )
    elif z.ndim == 2:
        yield Mistake(
            5,
            "the number of positions: the table has end rows, one for each of 0 .. end - 1.",
            "位置数：表有 end 行，位置 0 到 end - 1 各一行。",
        )


def ordered(x: Tensor) -> Tensor:
    return x.flatten().sort().values


def value_mistakes(z: Tensor, freqs: Tensor) -> Iterator[Mistake]:
    """Of numbers whose length is not 1."""
    angles = torch.outer(torch.arange(END).double(), freqs)
    real, imag, zero = z.real, z.imag, torch.zeros_like(z.real)
    if near(real, angles) or near(imag, angles):
        yield Mistake(
            5,
            "the table holds angles: return their rotations, torch.polar(ones, angles), or their cosines and sines.",
            "表里是角度：应返回旋转 torch.polar(ones, angles)，或者角度的 cos 和 sin。",
        )
    elif near(imag, zero) and near(real, angles.exp(), 0.1):
        yield Mistake(
            5, "exp without j: the rotation is exp(j angle), torch.polar(1, angle).", "exp 少了 j：旋转是 exp(j 角度)。"
        )
    elif near(real, freqs.expand(END, -1)):
        yield Mistake(
            5,
            "the table holds frequencies: multiply them by all positions, torch.outer(torch.arange(end), freqs).",
            "表里只有频率：还要乘上每个位置，torch.outer(torch.arange(end), freqs)。",
        )
    elif near(imag, zero) and float(real.abs().max()) < 1.01:
        yield Mistake(
            5,
            "the sines are missing: the table is real; a rotation needs both cos and sin of each angle.",
            "少了 sin：表是实数；旋转既要 cos，也要 sin。",
        )
    elif near(real, zero) and float(imag.abs().max()) < 1.01:
        yield Mistake(
            1,
            "the cosines are missing: a rotation needs both cos and sin of each angle.",
            "少了 cos：旋转既要 cos，也要 sin。",
        )
    elif near(real, imag):
        yield Mistake(
            1,
            "cosine and sine are the same: the first is cos a, the second sin a.",
            "cos 和 sin 一样：前者是 cos a，后者是 sin a。",
        )
    elif near(z, torch.polar(angles, torch.ones_like(angles))):
        yield Mistake(
            5,
            "polar's arguments exchanged: torch.polar takes the length first, which is 1, then the angle.",
            "polar 的参数颠倒了：torch.polar 先取长度（1），再取角度。",
        )
    else:
        yield Mistake(5, "the length is not 1: cos² + sin² must be 1.", "长度不是 1：应有 cos² + sin² = 1。")


def angle_mistakes(call: Call, z: Tensor, freqs: Tensor) -> Iterator[Mistake]:
    """Of rotations: where they begin, and by how much each pair turns from one position to the next."""
    if near(z[0], torch.full_like(z[0], 1j)):
        yield Mistake(
            1,
            "cosine and sine exchanged: cosine first, because exp(ja) = cos a + j sin a.",
            "cos 与 sin 颠倒了：先 cos 后 sin。",
        )
        z = torch.complex(z.imag, z.real)
    if near(z.flip(0), right(DIM, END)):
        yield Mistake(
            5, "the positions are in reverse order: row p is position p.", "位置的顺序反了：第 p 行是位置 p。"
        )
        return
    step = z[1] / z[0]  # (D/2,)
    if near(z[0], rotation(freqs)) and near(step, rotation(torch.ones_like(freqs))):
        yield Mistake(
            5, "added instead of multiplied: the angle is position times frequency.", "写成了相加：角度是位置乘频率。"
        )
        return
    if not near(z[1:], z[:-1] * step, 0.03):
        return
    if near(step, torch.ones_like(step), 1e-6):
        yield Mistake(
            5, "all rows are the same: row p is the rotation of position p.", "每一行都一样：第 p 行是位置 p 的旋转。"
        )
        return
    if not near(z[0], torch.ones_like(step)):
        shift = next((n for n in (1, -1, 2) if near(z[0], step**n)), None)
        if shift is None:
            return
        yield Mistake(
            5,
            f"off by one position: positions begin at 0; row 0 of yours is position {shift}.",
            f"差了一个位置：位置从 0 开始，你的第 0 行是位置 {shift}。",
        )
    yield from step_mistakes(call, step, freqs)
    if near(step, rotation(freqs)):
        yield from rounding_mistakes(call, freqs)


def steps(call: Call, end: int, theta: float) -> Tensor:
    """The angle of each pair from one position to the next."""
    z: Tensor = plain(read_table(call(DIM, end, theta), DIM // 2)[1])
    return (z[2] / z[1]).angle()


def step_mistakes(call: Call, step: Tensor, freqs: Tensor) -> Iterator[Mistake]:
    i = torch.arange(DIM // 2).double()
    exponents = {
        "i/D": i / DIM, "4i/D = 2i/(D/2)": 4 * i / DIM, "2(i - 1)/D": 2 * (i - 1) / DIM, "2(i + 1)/D": 2 * (i + 1) / DIM,
        "(2i + 1)/D": (2 * i + 1) / DIM, "2i/(D - 1)": 2 * i / (DIM - 1), "2i/(D - 2)": 2 * i / (DIM - 2), "2i": 2 * i,
        "i": i, "2i // D": 2 * i // DIM, "2i/end": 2 * i / END, "i/end": i / END, "1 - 2i/D": 1 - 2 * i / DIM,
        "1 - 2(i + 1)/D": 1 - 2 * (i + 1) / DIM, "-2i/D": -2 * i / DIM, "-i/D": -i / DIM, "-4i/D": -4 * i / DIM,
    }  # fmt: skip
    sign = Mistake(
        1,
        "the sign of the angle: the pairs turn backwards; (x, y) becomes (x cos a - y sin a, x sin a + y cos a).",
        "角度的符号：转反了；(x, y) 应变为 (x cos a - y sin a, x sin a + y cos a)。",
    )
    factor = float(step[-1].angle() / freqs[-1])
    if near(step, rotation(freqs), 2e-3):
        return
    if near(step, rotation(-freqs)):
        yield sign
    elif abs(factor) > 1e-3 and near(step, rotation(factor * freqs)):
        yield from factor_mistakes(call, factor, freqs)
    else:
        for name, exponent in exponents.items():
            for each in (step, step.conj()):
                if near(each, rotation(THETA**-exponent)):
                    yield exponent_mistake(name)
                    if each is not step:
                        yield sign
                    return
        yield from base_mistakes(call, step, i)


def exponent_mistake(name: str) -> Mistake:
    if name.startswith("-"):
        return Mistake(
            5,
            "theta is inverted: theta^(-2i/D) has a minus sign, so that pair 0 is the fastest.",
            "theta 的指数少了负号：θ^(-2i/D)，第 0 组转得最快。",
        )
    if name.startswith("1 - "):
        return Mistake(5, "the pairs are in reverse order: pair 0 is the fastest.", "各组的顺序反了：第 0 组转得最快。")
    return Mistake(
        5,
        f"the exponent: pair i turns by theta^(-2i/D) per position; yours by theta^-({name}).",
        f"指数：每过一个位置，第 i 组转 θ^(-2i/D)；你的是 θ^-({name})。",
    )


def factor_mistakes(call: Call, factor: float, freqs: Tensor) -> Iterator[Mistake]:
    """Of angles that are all multiplied by the same number."""
    if abs(abs(factor) - 180 / math.pi) < 0.1 or abs(abs(factor) - math.pi / 180) < 1e-4:
        yield Mistake(
            5,
            "degrees: angles are in radians; position 1 turns pair 0 by 1.",
            "用了角度制：角的单位是弧度，位置 1 把第 0 组转 1 弧度。",
        )
    elif abs(steps(call, 2 * END, THETA)[-1] / freqs[-1] - factor) > abs(factor) / 4:
        yield Mistake(
            5,
            "the positions: they are 0, 1, 2 .. end - 1, and not divided by their number.",
            "位置：是 0、1、2 … end - 1，不除以总数。",
        )
    else:
        yield Mistake(
            5,
            f"a factor of the angles: the angle is p theta^(-2i/D); yours is {factor:.4g} times that.",
            f"角度多了一个系数：应为 p θ^(-2i/D)，你的是它的 {factor:.4g} 倍。",
        )


def base_mistakes(call: Call, step: Tensor, i: Tensor) -> Iterator[Mistake]:
    """Of frequencies that are powers of another number than theta, or no powers."""
    bases = [steps(call, END, theta).abs()[1:] ** (-DIM / (2 * i[1:])) for theta in (THETA, 500.0)]
    if near(step[0], rotation(torch.ones(1).double())[0]) and all(
        near(b.log(), b.log().mean().expand(5)) for b in bases
    ):
        first, second = (float(base.log().mean()) for base in bases)
        if abs(first - second) < 0.01:
            yield Mistake(
                5,
                f"theta is not used: the base is {math.exp(first):.6g} whatever theta is.",
                f"没有用 theta：不管 theta 是多少，底数都是 {math.exp(first):.6g}。",
            )
        elif abs(first / math.log(THETA) - second / math.log(500)) < 0.01:
            name = f"{first / math.log(THETA):.3g} × 2i/D"
            yield exponent_mistake(name)
        else:
            yield Mistake(
                5,
                f"the base: it is theta; for theta = 10000 yours is {math.exp(first):.6g}.",
                f"底数：应为 θ；θ = 10000 时你的底数是 {math.exp(first):.6g}。",
            )
    else:
        values = ", ".join(f"{x:.3g}" for x in step.angle().tolist()[:4])
        yield Mistake(
            5,
            f"the frequencies: pair i turns by theta^(-2i/D) per position, 1, 0.215, 0.0464 ..; yours by {values} ..",
            f"频率：每过一个位置，第 i 组转 θ^(-2i/D)，即 1、0.215、0.0464 …；你的是 {values} …",
        )


def rounding_mistakes(call: Call, freqs: Tensor) -> Iterator[Mistake]:
    """Of angles that are right, but not precise: what was rounded to a format of fewer digits."""
    z: Tensor = plain(read_table(call(DIM, 3001, THETA), DIM // 2)[1])
    if near(z, right(DIM, 3001), PROBES[-1].tolerance) and near(z[:100], right(DIM, 100), PROBES[0].tolerance):
        if not near(plain(read_table(call(4, 3), 2)[1]), right(4, 3), PROBES[1].tolerance):
            yield Mistake(5, "the default of theta: it is 10000.", "theta 的默认值：应为 10000。")
        return
    parts = torch.view_as_real(z[:100]).float()
    rounded = []
    if any(torch.equal(parts, parts.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16)):
        rounded.append(Both("cosines and sines", "cos 和 sin"))
    else:
        p = torch.arange(1, 129).double()
        found = (
            right_turns(z[1:129], freqs, p) / p[:, None]
        )  # the frequency that each row shows, if only they are rounded
        if not near(found[:, 1:], found[:1, 1:].expand(128, -1), 2e-5):
            rounded.append(Both("products", "乘积"))
            found = found.mean(0, keepdim=True)
        if ((found[0] / freqs - 1).abs() > 4e-4).any():
            rounded.insert(0, Both("frequencies", "频率"))
    if any(torch.equal(z[p], z[p + 1]) for p in (256, 257, 2048, 2049)):
        rounded.append(Both("positions", "位置"))
    if rounded:
        en, zh = (text.join(each[n] for each in rounded) for n, text in enumerate((", ", "、")))
        yield Mistake(
            12,
            f"rounded in half precision ({en}): bfloat16 has 8 bits, float16 11; compute the table in float32 or float64.",
            f"半精度舍入（{zh}）：bfloat16 只有 8 位，float16 只有 11 位；请用 float32 或 float64 计算整张表。",
        )


def right_turns(z: Tensor, freqs: Tensor, p: Tensor) -> Tensor:
    """The angles of rows p, with the number of full turns that the right ones have."""
    angles = torch.outer(p, freqs)
    return angles + (z / rotation(angles)).angle()
