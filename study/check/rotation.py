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
    Exercise,
    Mistake,
    Probe,
    first,
    near,
    of_parts,
    pairs_of,
    plain,
    random,
    random_table,
    rotate,
    same,
)
from .reader import Raised
from .table import AXES as TABLE_AXES
from .table import SIGN

AXES = (Both("row of the batch", "batch 第几行"), Both("token", "token"), Both("head", "head"), Both("channel", "分量"))
D = 8
SIZES = ((2, 5, 4, 2), (3, 3, 3, 3))  # B, T, H, K; all differ, then all are equal, where a wrong axis raises nothing
Apply = Callable[..., Any]


def right(layout: str) -> Apply:
    return lambda xq, xk, table: (rotate(xq, table, layout), rotate(xk, table, layout))


def vectors(B: int, T: int, H: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(B, T, H, D), random(B, T, K, D, seed=2), random_table(T, D // 2)


def vectors_probe(*size: int) -> Probe:
    text = " ".join(f"{name} {tuple(x.shape)}" for name, x in zip(("xq", "xk"), vectors(*size)))
    return Probe(same(text), lambda apply: apply(*vectors(*size)))


def in_bfloat16(apply: Apply) -> Any:
    xq, xk, table = vectors(2, 5, 4, 2)
    return apply(xq.bfloat16(), xk.bfloat16(), table)


def precision(apply: Apply) -> str:
    """Whether vectors in bfloat16 are rotated in float32, and then rounded."""
    xq, xk, table = vectors(2, 5, 4, 2)
    expected = apply(xq.bfloat16().float(), xk.bfloat16().float(), table)
    # Single numbers may lie between two of bfloat16.
    is_rounded = any(
        bool((x.bfloat16() != y.bfloat16()).float().mean() > 0.05) for x, y in zip(in_bfloat16(apply), expected)
    )
    return "bfloat16" if is_rounded else "float32"


def gradients(apply: Apply) -> str:
    xq, xk, table = vectors(2, 5, 4, 2)
    return " and ".join(str(x.requires_grad) for x in apply(1 * xq.requires_grad_(), 1 * xk.requires_grad_(), table))


PROPERTIES = (
    Probe(
        Both("the dtypes for bfloat16", "输入为 bfloat16 时的 dtype"),
        lambda apply: " and ".join(str(x.dtype)[6:] for x in in_bfloat16(apply)),
    ),
    Probe(Both("vectors in bfloat16 are rotated in", "bfloat16 的向量旋转时用的精度"), precision),
    Probe(Both("the results have a gradient", "结果有没有梯度"), gradients),
)
PROBES = (
    vectors_probe(1, 2, 1, 1),
    *(vectors_probe(*size) for size in SIZES),
    vectors_probe(2, 1, 4, 2),
    *PROPERTIES,
)


def matrices(apply: Apply, table: Tensor, B: int, T: int, H: int, K: int) -> list[Tensor]:
    """What q and k become if they are 1 in one channel: (B, T, heads, channels of the result, channels of x)."""
    columns = []
    for channel in torch.eye(D):
        columns.append(plain(apply(channel.repeat(B, T, H, 1), channel.repeat(B, T, K, 1), table)))
    return [torch.stack(parts, -1) for parts in zip(*columns)]


def blocks(m: Tensor, out: str, into: str) -> Tensor:
    """The 2 x 2 matrix of each pair of channels of the result and of x: (B, T, heads, D/2, 2, 2)."""
    return m[..., pairs_of(out, D)[:, :, None], pairs_of(into, D)[:, None]]


def size_that_runs(apply: Apply) -> tuple[int, int, int, int]:
    return next(size for size in SIZES if isinstance(vectors_probe(*size).of(apply), tuple))


def layout_of(apply: Apply) -> str:
    """The layout in whose pairs the numbers stay; of a result of another shape, any."""
    size = next((size for size in SIZES if isinstance(vectors_probe(*size).of(apply), tuple)), SIZES[0])
    found = Probe(same(""), lambda apply: matrices(apply, random_table(size[1], D // 2), *size)).of(apply)
    if not isinstance(found, tuple) or found[0].shape[-2:] != (D, D):
        return NEIGHBOURS
    return max(
        (NEIGHBOURS, HALVES), key=lambda layout: sum(float(blocks(m, layout, layout).square().sum()) for m in found)
    )


def is_wrong(probe: Probe, apply: Apply, layout: str) -> bool:
    found = probe.of(apply)
    return not isinstance(found, Raised) and found != probe.of(right(layout))


# fmt: off
def mistakes(apply: Apply, layout: str) -> Iterator[Mistake]:
    size = size_that_runs(apply)
    xq, xk, table = vectors(*size)
    q, k = plain(apply(xq, xk, table))
    if {q.shape, k.shape} <= {xq.shape, xk.shape} and (q.shape, k.shape) != (xq.shape, xk.shape):
        yield MIXED_UP
        return
    if (q.shape, k.shape) != (xq.shape, xk.shape):
        yield Mistake(
            "the shape: end with torch.view_as_real(..).flatten(3), which joins pairs only, and keep (B, T, H, D)",
            "形状：最后用 torch.view_as_real(..).flatten(3)，只合并组，仍是 (B, T, H, D)", 4)
        return
    found = list(first(
        (near(q, k) or near(q, plain(right(layout)(xk, xq, table)[0])), *MIXED_UP),
        (any(bool((x.abs() > 1e-4).any()) for x in plain(apply(0 * xq, 0 * xk, table))),
         "added: a rotation multiplies, and leaves 0 at 0", "写成了相加：旋转是相乘，0 还是 0", 1),
        (not near(plain(apply(2 * xq, 2 * xk, table))[0], 2 * q),
         "normalized: a rotation keeps lengths, and doubles with x", "归一化了：旋转不改变长度，x 加倍，结果也加倍", 1),
    ))
    if not found:
        parts = [list(part_mistakes(m, apply, table, layout)) for m in matrices(apply, table, *size)]
        found = of_parts(("q", "k"), parts)
    dtypes, rounding, gradient = (is_wrong(each, apply, layout) for each in PROPERTIES)
    expected = plain(right(layout)(xq, xk, table))[0]
    rounding |= near(q, expected, 0.02) and not near(q, expected, 1e-4)
    yield from found
    yield from first((dtypes,
        "the dtype changes: compute in float32, then .type_as(x)", "dtype 变了：用 float32 计算，最后 .type_as(x)", 4))
    yield from first((gradient,
        "no gradient reaches the vectors: leave out detach and no_grad", "梯度断了：不要用 detach 和 no_grad", 4))
    yield from first((rounding and not dtypes and not found,
                      "rotated in half precision: cast x to float32 first, the result back with .type_as(x)",
                      "用半精度旋转：先把 x 转成 float32，结果再 .type_as(x)", 4))


LAYOUT = Mistake(
    "layouts mixed: use neighbours (2i, 2i + 1) or halves (i, i + D/2) for pairs, angles and results alike",
    "布局弄混了：分组、角度和结果都用相邻 (2i, 2i + 1)，或都用前后两半 (i, i + D/2)", 3)
MIXED_UP = Mistake(
    "q and k mixed up: first the rotated xq, then the rotated xk", "q 与 k 弄混了：先返回旋转后的 xq，再返回 xk", 4)
UNROTATED = Mistake(
    "not rotated: a score depends on the distance only if q and k both are",
    "没有旋转：q 和 k 都旋转，得分才只依赖距离", 2)


def part_mistakes(m: Tensor, apply: Apply, table: Tensor, layout: str) -> Iterator[Mistake]:
    """Of q or k, from its matrices."""
    other = HALVES if layout == NEIGHBOURS else NEIGHBOURS
    used = (m.abs().amax((0, 1, 2)) > 1e-4).double()  # the channels of x in each channel of the result
    fitting = [
        pair for pair in product((layout, other), repeat=2)
        if near(blocks(m, *pair).square().sum((-1, -2, -3)), m.square().sum((-1, -2)), 1e-3)
    ]
    if near(m, torch.eye(D).double().expand(m.shape)):
        yield UNROTATED
    elif (layout, layout) in fitting:
        yield from block_mistakes(blocks(m, layout, layout), apply, table, layout)
    elif fitting or bool((used <= partners()).all()):
        yield LAYOUT
    elif bool((used.sum(1) <= 2).all()):
        channel = int((used > partners()).any(1).nonzero()[0])
        others = " and ".join(map(str, used[channel].nonzero()[:, 0].tolist()))
        yield Mistake(
            f"the pairs: (2i, 2i + 1) or (i, i + D/2); here channel {channel} is computed from {others}",
            f"分组：应为 (2i, 2i + 1) 或 (i, i + D/2)；这里的分量 {channel} 由 {others} 算出", 3)


def partners() -> Tensor:
    """1 for each channel and itself, and those with which it makes a pair in one of the layouts."""
    found = torch.eye(D)
    for layout in (NEIGHBOURS, HALVES):
        first_ones, second_ones = pairs_of(layout, D).unbind(1)
        found[first_ones, second_ones] = found[second_ones, first_ones] = 1
    return found


def matrix(z: Tensor) -> Tensor:
    """The 2 x 2 matrices of complex numbers."""
    return torch.stack((z.real, -z.imag, z.imag, z.real), -1).unflatten(-1, (2, 2))


def block_mistakes(m: Tensor, apply: Apply, table: Tensor, layout: str) -> Iterator[Mistake]:
    """From the matrix of each pair."""
    z = torch.complex(m[..., 0, 0], m[..., 1, 0])  # (B, T, heads, D/2): what (1, 0) becomes
    whole = table[None, :, None].expand(z.shape)
    expected = matrix(whole)
    c, s = whole.real, whole.imag
    of_other = torch.arange(D) % (D // 2) if layout == NEIGHBOURS else torch.arange(D) // 2  # the column of each channel
    crossed = matrix(table[:, of_other[pairs_of(layout, D)]])[None, :, None]  # (1, T, 1, D/2, channel, 2, 2)
    crossed = torch.stack((crossed[..., 0, 0, :], crossed[..., 1, 1, :]), -2).expand(m.shape)
    up, down = m[..., 0, :], m[..., 1, :]
    x, y = torch.eye(2).double()
    read_late = s[..., None] * up + c[..., None] * y, c[..., None] * x - s[..., None] * down
    size = (*z.shape[:3], z.shape[2])
    unturned = matrices(apply, torch.ones_like(table), *size)[0]
    if near(m, expected):
        return
    if near(m, matrix(z)) and near(z.abs(), torch.ones_like(c)) and not near(unturned, matrices(apply, table, *size)[0]):
        yield from turn_mistakes(z, table, whole)
        return
    yield from first(
        (near(m, crossed), *LAYOUT),
        (near(m, matrix(z)) and near(z.abs(), torch.ones_like(c)),
         "the table is not used: its rows begin at start_pos, with the model's base",
         "没有用传入的表：它的行从 start_pos 开始，底数是模型的", 8),
        (near(m, matrix(z)) and any(near(z, each) for each in (c + 0j, s + 0j, 1j * c, 1j * s, c + 1j * c, s + 1j * s)),
         "cosine or sine is missing: x cos a - y sin a, x sin a + y cos a",
         "少了 cos 或 sin：x cos a - y sin a, x sin a + y cos a", 1),
        (near(m, matrix(z)) and near(z / z.abs(), whole),
         f"scaled: a rotation keeps lengths; here 1 becomes {z.abs().flatten()[0]:.4g}",
         f"改变了长度：旋转不改变长度；这里 1 变成 {z.abs().flatten()[0]:.4g}", 1),
        (near(up, x.expand(up.shape)) or near(down, y.expand(up.shape)),
         "only one number of each pair is rotated", "每组只转了一个数", 1),
        ((near(up, expected[..., 0, :]) and near(down, read_late[0])) or (near(down, expected[..., 1, :]) and near(up, read_late[1])),
         "a number is overwritten while it is still needed: compute both, then write",
         "还要用的数先被覆盖了：两个都算好再写", 1),
        (near(m, expected.flip(-2)),
         "the two numbers of each pair exchanged: first x cos a - y sin a",
         "每组的两个数颠倒了：先是 x cos a - y sin a", 1),
        (near(m.abs(), expected.abs()),
         "the minus signs: x cos a - y sin a, x sin a + y cos a", "负号：x cos a - y sin a, x sin a + y cos a", 1),
        (True,
         "the formula: (x, y) becomes (x cos a - y sin a, x sin a + y cos a)",
         "公式：(x, y) 应变为 (x cos a - y sin a, x sin a + y cos a)", 1),
    )


TWICE = Mistake("rotated twice: a token at p is turned to 2p", "转了两次：位置 p 转到了 2p", 4)
HEADS = Mistake(
    "rotation along the head axis: x is (B, T, H, D), so the table is (1, T, 1, D/2)",
    "沿 head 轴旋转：x 是 (B, T, H, D)，表应为 (1, T, 1, D/2)", 4)
BATCH = Mistake(
    "rotation along the batch axis: x is (B, T, H, D), so the table is (1, T, 1, D/2)",
    "沿 batch 轴旋转：x 是 (B, T, H, D)，表应为 (1, T, 1, D/2)", 4)
EXCHANGED = Mistake(
    "cosine and sine exchanged: x cos a - y sin a, x sin a + y cos a",
    "cos 与 sin 颠倒了：x cos a - y sin a, x sin a + y cos a", 1)
COLUMNS = Mistake("the columns of the table: pair i has column i", "表的列：第 i 组用第 i 列", 3)
ROWS = Mistake("the rows of the table: token t has row t", "表的行：token t 用第 t 行", 4)


def turn_mistakes(z: Tensor, table: Tensor, whole: Tensor) -> Iterator[Mistake]:
    """Of pairs that are rotated, but not by the angles of the table: by which ones, in which order."""
    B, T, heads, _ = z.shape
    turns = {None: lambda w: w, SIGN: torch.conj, TWICE: torch.square, EXCHANGED: lambda w: torch.complex(w.imag, w.real)}
    orders = {
        None: whole,
        HEADS: table[:heads].expand(z.shape) if heads <= T else whole,
        BATCH: table[:B, None, None].expand(z.shape),
        COLUMNS: whole.flip(-1),
    }
    for (turn, turned), (order, expected) in product(turns.items(), orders.items()):
        if near(z, turned(expected)):
            yield from filter(None, (turn, order))
            return
    is_row = torch.stack([(z - row).abs().amax(-1) < 0.01 for row in table], -1)  # (B, T, heads, T)
    is_column = torch.stack([(z - column[:, None, None]).abs().amax(1) < 0.01 for column in table.T], -1)
    is_kept = (z - 1).abs() < 1e-4
    yield from first(
        (bool((is_row.any(-1) & (is_row == is_row[:, :1]).all(-1)).all()),
         "one row of the table for all tokens: token t has row t", "所有 token 用了表的同一行：token t 用第 t 行", 4),
        (bool(is_row.any(-1).all()), *ROWS),
        (bool(is_column.any(-1).all()), *COLUMNS),
        (bool((is_kept | ((z - whole).abs() < 0.01)).all()),
         "only a part is rotated: all pairs, tokens and heads are", "只转了一部分：所有组、token、head 都要转", 3),
        (True,
         f"the angle: pair 0 of token 1 turns by {z[0, 1, 0, 0].angle():.4g}; its row has {table[1, 0].angle():.4g}",
         f"角度：token 1 的第 0 组转了 {z[0, 1, 0, 0].angle():.4g}；表里是 {table[1, 0].angle():.4g}", 1),
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


def reshape_probe(*size: int) -> Probe:
    x = torch.complex(random(*size), random(*size, seed=2))
    return Probe(Both(
        f"x {size}", f"x {size}"), lambda reshape: reshaped(reshape(random_table(size[1], size[3]), x), x))


def refused(reshape: Apply) -> str:
    """How many of the tables that do not fit x are refused, with a ValueError or by an assertion, as in LLaMA."""
    table, x = random_table(5, 6), torch.zeros(2, 5, 4, 6, dtype=torch.complex64)
    count = 0
    for wrong in (table[:1], torch.cat((table, table)), table[:, :1], table.T.contiguous()):
        try:
            reshape(wrong, x)
        except Exception as error:
            count += isinstance(error.__cause__ or error, ValueError | AssertionError)
    return f"{count} of 4"


RESHAPE_SIZES = ((2, 5, 4, 6), (3, 3, 3, 3))
RESHAPE_PROBES = (
    *(reshape_probe(*size) for size in RESHAPE_SIZES),
    Probe(Both("tables that do not fit x and are refused", "大小不合而被拒绝的表"), refused),
)


def reshape_right(table: Tensor, x: Tensor) -> Tensor:
    if table.shape != (x.shape[1], x.shape[3]):
        raise ValueError
    return table[None, :, None]


def reshape_mistakes(reshape: Apply, _: str) -> Iterator[Mistake]:
    yield from first((refused(reshape) != "4 of 4",
        "no ValueError for a table of another shape: one row would be broadcast over all tokens",
        "大小不合的表没有报错：只有一行的表会被广播到所有 token", 4))
    size = next(size for size in RESHAPE_SIZES if not isinstance(reshape_probe(*size).of(reshape), Raised))
    x, table = torch.complex(random(*size), random(*size, seed=2)), random_table(size[1], size[3])
    found = plain(reshape(table, x))
    if not torch.is_tensor(found):
        return
    shaped = found[(None,) * (4 - found.ndim)]
    yield from first(
        (near(reshaped(found, x), table[None, :, None]), "", ""),
        (near(shaped, table[None, None]), *HEADS),
        (near(shaped, table[:, None, None]), *BATCH),
        (near(shaped, table.conj()[None, :, None]), *SIGN),
        (found.numel() == size[3] or near(shaped.flatten(), table.flip(0).flatten()), *ROWS),
        (near(shaped.abs().flatten(), torch.ones(table.numel()).double()),
         "the table is along the wrong axes: (1, T, 1, D/2)", "表的轴不对：应为 (1, T, 1, D/2)", 4),
        (near(shaped, table.real[None, :, None]),
         "the table is cast to real: the sines are lost", "表变成了实数：sin 丢了", 5),
        (found.shape == x.shape, "x is returned: return the table", "返回了 x：应返回表", 4),
        (found.numel() == table.numel(), "scaled: the function only reshapes the table", "改变了数值：只应改变形状", 1),
    )
# fmt: on
EXERCISE = Exercise(3, ("xq", "xk", "freqs_cis"), right, PROBES, AXES, ("q", "k"), mistakes)
RESHAPE = Exercise(
    4, ("freqs_cis", "x"), lambda _: reshape_right, RESHAPE_PROBES, (*AXES[:3], TABLE_AXES[1]), (), reshape_mistakes
)
