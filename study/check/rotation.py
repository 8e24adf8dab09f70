"""apply_rotary_emb and reshape_for_broadcast: their probes, and usual mistakes by what becomes of each channel."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .compare import (
    HALVES,
    NEIGHBOURS,
    Both,
    Mistake,
    Probe,
    near,
    pairs_of,
    plain,
    random,
    random_table,
    rotate,
    rotation,
)

AXES = (Both("row of the batch", "batch 第几行"), Both("token", "token"), Both("head", "head"), Both("channel", "分量"))
D = 8
SIZES = ((2, 5, 4, 2), (3, 3, 3, 3))  # B, T, H, K; all differ, then all are equal, where a wrong axis raises nothing
Apply = Callable[..., Any]


def right(layout: str) -> Apply:
    return lambda xq, xk, table: (rotate(xq, table, layout), rotate(xk, table, layout))


def vectors(B: int, T: int, H: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(B, T, H, D), random(B, T, K, D, seed=2), random_table(T, D // 2)


def in_bfloat16(apply: Apply) -> Any:
    xq, xk, table = vectors(2, 5, 4, 2)
    return apply(xq.bfloat16(), xk.bfloat16(), table)


def is_float32(apply: Apply) -> str:
    """Whether vectors in bfloat16 are rotated in float32, and then rounded."""
    xq, xk, table = vectors(2, 5, 4, 2)
    expected = apply(xq.bfloat16().float(), xk.bfloat16().float(), table)
    # Single numbers may lie between two of bfloat16.
    is_rounded = any(bool((x != y.bfloat16()).float().mean() > 0.05) for x, y in zip(in_bfloat16(apply), expected))
    return "bfloat16" if is_rounded else "float32"


def has_gradient(apply: Apply) -> str:
    xq, xk, table = vectors(2, 5, 4, 2)
    return " and ".join(str(x.requires_grad) for x in apply(1 * xq.requires_grad_(), 1 * xk.requires_grad_(), table))


PROBES = (
    *(
        Probe(
            Both(*2 * (f"xq {(*size[:3], D)}, xk {(*size[:2], size[3], D)}",)),
            lambda apply, size=size: apply(*vectors(*size)),
        )
        for size in ((1, 2, 1, 1), *SIZES, (2, 1, 4, 2))
    ),
    Probe(
        Both("the dtypes for bfloat16", "输入为 bfloat16 时的 dtype"),
        lambda apply: " and ".join(str(x.dtype)[6:] for x in in_bfloat16(apply)),
    ),
    Probe(Both("vectors in bfloat16 are rotated in", "bfloat16 的向量旋转时用的精度"), is_float32),
    Probe(Both("the results have a gradient", "结果有没有梯度"), has_gradient),
)


def matrices(apply: Apply, table: Tensor, B: int, T: int, H: int, K: int) -> list[Tensor]:
    """What q and k become if they are 1 in one channel: (B, T, heads, channels of the result, channels of x)."""
    columns = []
    for channel in range(D):
        xq, xk = torch.zeros(B, T, H, D), torch.zeros(B, T, K, D)
        xq[..., channel] = xk[..., channel] = 1
        columns.append(plain(apply(xq, xk, table)))
    return [torch.stack(parts, -1) for parts in zip(*columns)]


def layout_of(apply: Apply) -> str:
    """The layout whose pairs keep most of their numbers in the pair."""
    size = next(size for number, size in enumerate(SIZES) if isinstance(PROBES[1 + number].of(apply), tuple))
    m = torch.cat(matrices(apply, random_table(size[1], D // 2), *size), 2)
    return max((NEIGHBOURS, HALVES), key=lambda layout: float(blocks(m, layout, layout).square().sum()))


def mistakes(apply: Apply, layout: str) -> Iterator[Mistake]:
    for probe in PROBES[-3:]:
        expected, found = probe.of(right(layout)), probe.of(apply)
        if isinstance(found, str) and found != expected:
            yield PROPERTY_MISTAKES[PROBES.index(probe) - len(PROBES)]
    size = next(size for size in SIZES if isinstance(PROBES[1 + SIZES.index(size)].of(apply), tuple))
    xq, xk, table = vectors(*size)
    results = plain(apply(xq, xk, table))
    if [x.shape for x in results] != [xq.shape, xk.shape]:
        yield from shape_mistakes(results, xq)
        return
    if near(results[0], results[1]) or (
        size[2] == size[3] and near(results[0], plain(right(layout)(xk, xq, table)[0]))
    ):
        yield Mistake(
            4,
            "q and k mixed up: the first result is that of xq, the second that of xk.",
            "q 与 k 弄混了：先返回 xq 的结果，再返回 xk 的。",
        )
        return
    if any(x.abs().max() > 1e-4 for x in plain(apply(0 * xq, 0 * xk, table))):
        yield Mistake(1, "added: a rotation multiplies, and leaves 0 at 0.", "写成了相加：旋转是相乘，0 还是 0。")
        return
    if not near(plain(apply(2 * xq, 2 * xk, table))[0], 2 * results[0]):
        yield Mistake(
            1,
            "normalized: a rotation keeps every length, so vectors twice as long stay so.",
            "归一化了：旋转不改变长度，向量加倍，结果也加倍。",
        )
        return
    found = [list(part_mistakes(m, apply, table, layout)) for m in matrices(apply, table, *size)]
    for mistake in dict.fromkeys([*found[0], *found[1]]):
        only = [name for name, part in zip("qk", found) if mistake in part]
        if len(only) == 2:
            yield mistake
        else:
            yield in_only(mistake, only[0])


def in_only(mistake: Mistake, name: str) -> Mistake:
    (en, en_why), (zh, zh_why) = mistake.en.split(":", 1), mistake.zh.split("：", 1)
    return Mistake(mistake.step, f"{en}, in {name} only:{en_why}", f"{zh}（只在 {name} 里）：{zh_why}")


def part_mistakes(m: Tensor, apply: Apply, table: Tensor, layout: str) -> Iterator[Mistake]:
    """Of q or k, from its matrices."""
    mixed = Mistake(
        3,
        "layouts mixed: pairs are neighbours (2i, 2i + 1) or halves (i, i + D/2), with their angles and results.",
        "布局弄混了：一组是相邻分量 (2i, 2i + 1) 或前后两半 (i, i + D/2)，角度和结果也一样。",
    )
    other = HALVES if layout == NEIGHBOURS else NEIGHBOURS
    expected = torch.stack([rotate(x.expand(1, len(table), 1, D).double(), table, layout) for x in torch.eye(D)], -1)
    if near(m, expected.expand(m.shape)):
        return
    if near(m, torch.eye(D).double().expand(m.shape)):
        yield Mistake(
            2,
            "not rotated: rotate q and k, because only then the score depends on the distance.",
            "没有旋转：q 和 k 都要旋转，得分才只依赖距离。",
        )
        return
    fitting = [
        (out, into)
        for out, into in product((layout, other), repeat=2)
        if near(blocks(m, out, into).square().sum((-1, -2, -3)), m.square().sum((-1, -2)), 1e-3)
    ]
    if not fitting:
        used = (m.abs().amax((0, 1, 2)) > 1e-4).double()
        partners = torch.eye(D) + sum(swap(each) for each in (NEIGHBOURS, HALVES))
        if bool((used <= partners).all()):
            yield mixed
        elif bool((used.sum(1) <= 2).all()):
            channels = " and ".join(map(str, used[0].nonzero()[:, 0].tolist()))
            yield Mistake(
                3,
                f"the pairs: neighbours (2i, 2i + 1) or halves (i, i + D/2); channel 0 of yours has channels {channels}.",
                f"分组：应为 (2i, 2i + 1) 或 (i, i + D/2)；你的第 0 个分量由 {channels} 算出。",
            )
        return
    if fitting[0] != (layout, layout):
        yield mixed
        return
    yield from block_mistakes(blocks(m, layout, layout), apply, table, layout, mixed)


def swap(layout: str) -> Tensor:
    """The matrix that exchanges the two channels of each pair."""
    return torch.eye(D)[pairs_of(layout, D).flip(1).flatten()[pairs_of(layout, D).flatten().argsort()]]


def blocks(m: Tensor, out: str, into: str) -> Tensor:
    """The 2 x 2 matrix of each pair: (B, T, heads, D/2, 2, 2)."""
    return m[..., pairs_of(out, D)[:, :, None], pairs_of(into, D)[:, None]]


def matrix(z: Tensor) -> Tensor:
    """The 2 x 2 matrices of complex numbers."""
    return torch.stack((z.real, -z.imag, z.imag, z.real), -1).unflatten(-1, (2, 2))


def block_mistakes(m: Tensor, apply: Apply, table: Tensor, layout: str, mixed: Mistake) -> Iterator[Mistake]:
    B, T, heads = m.shape[:3]
    z = torch.complex(m[..., 0, 0], m[..., 1, 0])  # (B, T, heads, D/2): what (1, 0) becomes
    whole = table[None, :, None].expand(z.shape)
    c, s = whole.real, whole.imag
    columns = torch.arange(D) % (D // 2) if layout == NEIGHBOURS else torch.arange(D) // 2  # of the other layout
    crossed = matrix(table[:, columns[pairs_of(layout, D)]])  # (T, D/2, channel of the pair, 2, 2)
    crossed = torch.stack((crossed[:, :, 0, 0], crossed[:, :, 1, 1]), -2)[None, :, None].expand(m.shape)
    rows = matrix(whole)
    if near(m, crossed):
        yield mixed
    elif not near(m, matrix(z)):
        yield from formula_mistakes(m, rows, c, s)
    elif near(
        matrices(apply, rotation(2.0 + 0 * table.real), B, T, *2 * (heads,))[0],
        matrices(apply, table, B, T, *2 * (heads,))[0],
    ):
        yield Mistake(
            8,
            "the table is not used: its rows have the positions, which begin at start_pos, and the model's base.",
            "没有用传入的表：它的行对应从 start_pos 开始的位置，底数也是模型的。",
        )
    elif near(z, torch.complex(s, c)):
        yield Mistake(
            1,
            "cosine and sine exchanged: x cos a - y sin a, x sin a + y cos a.",
            "cos 与 sin 颠倒了：x cos a - y sin a, x sin a + y cos a。",
        )
    elif near(z.imag, 0 * s) or near(z.real, 0 * c) or near(z.real, z.imag):
        yield Mistake(
            1,
            "cosine or sine is missing: a rotation needs both, x cos a - y sin a, x sin a + y cos a.",
            "少了 cos 或 sin：旋转两者都要，x cos a - y sin a, x sin a + y cos a。",
        )
    elif not near(z.abs(), torch.ones_like(c)):
        yield Mistake(
            1,
            f"scaled: a rotation keeps lengths; 1 becomes {z.abs().flatten()[0]:.4g}.",
            f"改变了长度：旋转不改变长度，长度 1 变成了 {z.abs().flatten()[0]:.4g}。",
        )
    else:
        yield from turn_mistakes(z, table, whole)


def formula_mistakes(m: Tensor, rows: Tensor, c: Tensor, s: Tensor) -> Iterator[Mistake]:
    """Of pairs that are not rotated by any angle."""
    first, second = m[..., 0, :], m[..., 1, :]
    x, y = torch.tensor([1.0, 0.0]).double().expand(first.shape), torch.tensor([0.0, 1.0]).double().expand(first.shape)
    c, s = c[..., None], s[..., None]
    if near(first, x) or near(second, y):
        yield Mistake(1, "only one number of each pair is rotated: both change.", "每组只转了一个数：两个都要变。")
    elif (near(first, rows[..., 0, :]) and near(second, s * first + c * y)) or (
        near(second, rows[..., 1, :]) and near(first, c * x - s * second)
    ):
        yield Mistake(
            1,
            "a number is overwritten while it is still needed: compute both before you write to x.",
            "还要用的数先被覆盖了：两个数都算好再写回 x。",
        )
    elif near(m, rows.flip(-2)):
        yield Mistake(
            1,
            "the two numbers of each pair exchanged: first x cos a - y sin a.",
            "一组的两个数颠倒了：先是 x cos a - y sin a。",
        )
    elif near(m.abs(), rows.abs()):
        yield Mistake(
            1,
            "the minus signs: one of the four products has one, x cos a - y sin a, x sin a + y cos a.",
            "负号：四个乘积里只有一个带负号，x cos a - y sin a, x sin a + y cos a。",
        )
    else:
        yield Mistake(
            1,
            "the formula: (x, y) becomes (x cos a - y sin a, x sin a + y cos a), a rotation.",
            "公式：(x, y) 应变为 (x cos a - y sin a, x sin a + y cos a)，是旋转。",
        )


def turn_mistakes(z: Tensor, table: Tensor, whole: Tensor) -> Iterator[Mistake]:
    """Of pairs that are rotated, but not by the angles of the table: which angles, and in which order."""
    B, T, heads, pairs = z.shape
    one = torch.ones_like(z)
    turned = {None: z, SIGN: z.conj(), TWICE: None}
    orders = {
        None: whole,
        HEADS: table[None, None].expand(1, 1, -1, -1)[:, :, :heads].expand(z.shape) if heads <= T else whole,
        BATCH: table[:B, None, None].expand(z.shape),
        REVERSED_PAIRS: whole.flip(-1),
        ONE_PAIR: whole[..., :1].expand(z.shape),
    }  # fmt: skip
    for (turn, _), (order, expected) in product(turned.items(), orders.items()):
        if near(z, {None: expected, SIGN: expected.conj(), TWICE: expected**2}[turn]):
            yield from filter(None, (turn, order))
            return
    is_row = torch.stack([(z - row).abs().amax(-1) < 0.01 for row in table], -1)  # (B, T, heads, T)
    if bool(is_row.any(-1).all()):
        is_same = bool((is_row == is_row[:, :1]).all())
        yield ONE_ROW if is_same else ORDER
        return
    kept = (z - one).abs() < 1e-4
    if bool((kept | ((z - whole).abs() < 0.01)).all()):
        names = {"batch": 0, "token": 1, "head": 2, "pair": 3}
        parts = [
            name for name, axis in names.items() if bool((kept == kept.select(axis, 0).unsqueeze(axis)).all()) is False
        ]
        yield Mistake(
            3,
            f"not all are rotated: some keep their numbers ({', '.join(parts)}).",
            f"没有全部旋转：有的没有变（{', '.join(parts)}）。",
        )
        return
    yield Mistake(
        1,
        f"the angle: token 1, pair 0 turns by {z[0, 1, 0, 0].angle():.4g}, not by that of its row, {table[1, 0].angle():.4g}.",
        f"角度：token 1 的第 0 组转了 {z[0, 1, 0, 0].angle():.4g}，表里是 {table[1, 0].angle():.4g}。",
    )


SIGN = Mistake(
    1,
    "the sign of the angle: (x, y) becomes (x cos a - y sin a, x sin a + y cos a).",
    "角度的符号：(x, y) 应变为 (x cos a - y sin a, x sin a + y cos a)。",
)
TWICE = Mistake(4, "rotated twice: a token at p is turned to 2p.", "转了两次：位置 p 的 token 转到了 2p。")
HEADS = Mistake(
    4,
    "rotation along the head axis: x is (B, T, H, D), so reshape the table to (1, T, 1, D/2).",
    "沿 head 轴旋转：x 是 (B, T, H, D)，表应变形为 (1, T, 1, D/2)。",
)
BATCH = Mistake(
    4,
    "rotation along the batch axis: x is (B, T, H, D), so reshape the table to (1, T, 1, D/2).",
    "沿 batch 轴旋转：x 是 (B, T, H, D)，表应变形为 (1, T, 1, D/2)。",
)
REVERSED_PAIRS = Mistake(
    3, "the columns of the table in reverse order: pair i has column i.", "表的列反了：第 i 组用第 i 列。"
)
ONE_PAIR = Mistake(3, "one angle for all pairs: pair i has column i.", "各组用了同一个角度：第 i 组用第 i 列。")
ONE_ROW = Mistake(
    4, "one row of the table for all tokens: token t has row t.", "所有 token 用了表的同一行：token t 用第 t 行。"
)
ORDER = Mistake(4, "the rows of the table in another order: token t has row t.", "表的行乱了：token t 用第 t 行。")
PROPERTY_MISTAKES = (
    Mistake(
        4,
        "the dtype changes: compute in float32, and end with .type_as(x).",
        "dtype 变了：用 float32 计算，最后 .type_as(x)。",
    ),
    Mistake(
        4,
        "rotated in half precision: cast x to float32 first, and the result back with .type_as(x).",
        "用半精度旋转：先把 x 转成 float32，结果再 .type_as(x)。",
    ),
    Mistake(
        4,
        "no gradient reaches the vectors, so W_q and W_k cannot learn: leave out detach, no_grad and .data.",
        "梯度断了，W_q 和 W_k 学不到东西：不要用 detach、no_grad 和 .data。",
    ),
)


def shape_mistakes(results: Any, xq: Tensor) -> Iterator[Mistake]:
    q = results[0]
    B, T, H, _ = xq.shape
    if q.is_complex():
        yield Mistake(3, "view_as_real is missing: the result is still complex.", "少了 view_as_real：结果还是复数。")
    elif q.shape in ((B, T, H, D // 2, 2), (B, T, H, 2, D // 2)):
        yield Mistake(
            3, "flatten is missing: the pairs are still an axis of size 2.", "少了 flatten：一组的两个数还是单独的轴。"
        )
    elif q.shape == (B, T, H * D):
        yield Mistake(
            4,
            "the heads are flattened: end with .flatten(3), which joins the pairs only.",
            "head 也被合并了：应为 .flatten(3)，只合并组。",
        )
    elif q.shape == (B, T, H, D // 2):
        yield Mistake(
            3, "only one number of each pair is returned: there are D channels.", "每组只返回了一个数：应有 D 个分量。"
        )
    elif q.shape == (B, H, T, D):
        yield Mistake(
            4, "the axes are in another order: transpose back to (B, T, H, D).", "轴的顺序不对：应转置回 (B, T, H, D)。"
        )


# reshape_for_broadcast


def reshaped(found: Any, x: Tensor) -> Any:
    """The table as it is broadcast to x; with four axes in any case."""
    if not torch.is_tensor(found):
        return found
    try:
        table = found.expand(x.shape)
    except RuntimeError:
        return found[(None,) * (4 - found.ndim)]
    return table[:1, :, :1] if bool((table == table[:1, :, :1]).all()) else table


def reshape_probe(size: tuple[int, ...]) -> Probe:
    x = torch.complex(random(*size), random(*size, seed=2))
    text = f"x {size}"
    return Probe(Both(text, text), lambda reshape: reshaped(reshape(random_table(size[1], size[3]), x), x))


def refuses(reshape: Apply) -> str:
    """Whether tables that do not fit x are all refused, by a ValueError, by an assertion, or by view."""
    table, x = random_table(5, 6), torch.zeros(2, 5, 4, 6, dtype=torch.complex64)
    refused = 0
    for wrong in (table[:1], torch.cat((table, table)), table[:, :1]):
        try:
            reshape(wrong, x)
        except Exception:
            refused += 1
    return f"{refused} of 3"


RESHAPE_PROBES = (
    reshape_probe((2, 5, 4, 6)),
    reshape_probe((3, 3, 3, 3)),
    Probe(Both("tables that do not fit x are refused", "大小不合的表会被拒绝"), refuses),
)


def reshape_right(table: Tensor, x: Tensor) -> Tensor:
    if table.shape != (x.shape[1], x.shape[3]):
        raise ValueError
    return table[None, :, None]


def reshape_mistakes(reshape: Apply) -> Iterator[Mistake]:
    if refuses(reshape) != "3 of 3":
        yield Mistake(
            4,
            "no ValueError for a table of another shape: one row would be broadcast over all tokens.",
            "大小不合的表没有报 ValueError：只有一行的表会被广播到所有 token。",
        )
    B, T, H, P = 2, 5, 4, 6
    table, x = random_table(T, P), torch.complex(random(B, T, H, P), random(B, T, H, P, seed=2))
    found = plain(reshape(table, x))
    if found.numel() == table.numel() and found.is_complex():
        found = found[(None,) * (4 - found.ndim)]
        if near(found, table[None, None]):
            yield HEADS
        elif near(found, table[:, None, None]):
            yield BATCH
        elif near(found, table.conj()[None, :, None]):
            yield SIGN
        elif near(found.flatten(), table.flip(0).flatten()):
            yield ORDER
        elif not near(found, table[None, :, None]) and near(found.abs(), torch.ones_like(found.real)):
            yield Mistake(
                4,
                "the table is along the wrong axes: positions are axis 1, pairs the last, (1, T, 1, D/2).",
                "表的轴不对：位置是第 1 轴，组是最后一轴，(1, T, 1, D/2)。",
            )
        elif not near(found, table[None, :, None]):
            yield Mistake(1, "scaled: the function only reshapes the table.", "改变了数值：这个函数只改变表的形状。")
    elif near(found, table.real[None, :, None]):
        yield Mistake(5, "the table is cast to real: the sines are lost.", "表变成了实数：sin 丢了。")
    elif found.shape == x.shape:
        yield Mistake(
            4, "x is returned instead of the table: return the reshaped table.", "返回了 x 而不是表：应返回变形后的表。"
        )
    elif found.numel() == P:
        yield ONE_ROW
