"""apply_rotary_emb and reshape_for_broadcast: their probes, and usual mistakes by what becomes of each channel."""

from collections.abc import Callable, Iterator
from functools import partial
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
from .table import SIGN

AXES = (Both("row of the batch", "batch 第几行"), Both("token", "token"), Both("head", "head"), Both("channel", "分量"))
D = 8
SIZES = ((2, 5, 4, 2), (3, 3, 3, 3))  # B, T, H, K; all differ, then all are equal, where a wrong axis raises nothing
Apply = Callable[..., Any]


def right(layout: str) -> Apply:
    return lambda xq, xk, table: (rotate(xq, table, layout), rotate(xk, table, layout))


def vectors(B: int = 2, T: int = 5, H: int = 4, K: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return random(B, T, H, D), random(B, T, K, D, seed=2), random_table(T, D // 2)


def vectors_probe(*size: int) -> Probe:
    xq, xk, table = vectors(*size)
    return Probe(same(f"xq {tuple(xq.shape)}, xk {tuple(xk.shape)}"), lambda apply: apply(xq, xk, table))


def dtypes(apply: Apply) -> str:
    xq, xk, table = vectors()
    return " and ".join(str(x.dtype)[6:] for x in apply(xq.bfloat16(), xk.bfloat16(), table))


def precision(apply: Apply) -> str:
    """In which dtype vectors in bfloat16 are rotated."""
    xq, xk, table = vectors()
    xq, xk = xq.bfloat16(), xk.bfloat16()
    pairs = zip(apply(xq, xk, table), apply(xq.float(), xk.float(), table))
    # Single numbers may lie between two of bfloat16.
    is_rounded = any(bool((x.bfloat16() != y.bfloat16()).float().mean() > 0.05) for x, y in pairs)
    return "bfloat16" if is_rounded else "float32"


def gradients(apply: Apply) -> str:
    xq, xk, table = vectors()
    return " and ".join(str(x.requires_grad) for x in apply(1 * xq.requires_grad_(), 1 * xk.requires_grad_(), table))


PROPERTIES = (
    Probe(Both("the dtypes for bfloat16", "输入为 bfloat16 时的 dtype"), dtypes),
    Probe(Both("vectors in bfloat16 are rotated in", "bfloat16 的向量旋转时用的精度"), precision),
    Probe(Both("the results have a gradient", "结果有没有梯度"), gradients),
)
PROBES = (*(vectors_probe(*size) for size in ((1, 2, 1, 1), *SIZES, (2, 1, 4, 2))), *PROPERTIES)


def size_that_runs(apply: Apply) -> tuple[int, int, int, int]:
    return next((size for size in SIZES if isinstance(vectors_probe(*size).of(apply), tuple)), SIZES[0])


def matrices(apply: Apply, table: Tensor, B: int, T: int, H: int, K: int) -> list[Tensor]:
    """What q and k become if they are 1 in one channel: (B, T, heads, channels of the result, channels of x)."""
    columns = [plain(apply(x.repeat(B, T, H, 1), x.repeat(B, T, K, 1), table)) for x in torch.eye(D)]
    return [torch.stack(parts, -1) for parts in zip(*columns)]


def blocks(m: Tensor, out: str, into: str) -> Tensor:
    """The 2 x 2 matrix of each pair of channels of the result and of x: (B, T, heads, D/2, 2, 2)."""
    return m[..., pairs_of(out, D)[:, :, None], pairs_of(into, D)[:, None]]


def layout_of(apply: Apply) -> str:
    """The layout in whose pairs the numbers stay; of a result of another shape, any."""
    _, _, table = vectors(*size_that_runs(apply))
    found = Probe(same(""), lambda apply: matrices(apply, table, *size_that_runs(apply))).of(apply)
    if not isinstance(found, tuple) or any(m.shape[-2:] != (D, D) for m in found):
        return NEIGHBOURS
    return max((NEIGHBOURS, HALVES), key=lambda each: sum(float(blocks(m, each, each).square().sum()) for m in found))


# fmt: off
LAYOUT = Mistake(
    "layouts mixed: neighbours or halves for pairs, angles and results alike",
    "布局弄混了：分组、角度、结果都用相邻，或都用两半", 3)
MIXED_UP = Mistake(
    "q and k mixed up: first the rotated xq, then the rotated xk", "q 与 k 弄混了：先返回旋转后的 xq，再返回 xk", 4)
UNROTATED = Mistake(
    "not rotated: a score depends on the distance if both are", "没有旋转：q 和 k 都旋转，得分才只依赖距离", 2)
TWICE = Mistake("rotated twice: a token at p is turned to 2p", "转了两次：位置 p 转到了 2p", 4)
EXCHANGED = Mistake("cosine and sine exchanged: x cos a - y sin a", "cos 与 sin 颠倒了：x cos a - y sin a", 1)
HEADS = Mistake("rotation along the head axis: the table is (1, T, 1, D/2)", "沿 head 轴旋转：表应为 (1, T, 1, D/2)", 4)
BATCH = Mistake(
    "rotation along the batch axis: the table is (1, T, 1, D/2)", "沿 batch 轴旋转：表应为 (1, T, 1, D/2)", 4)
ROWS = Mistake("the rows of the table: token t has row t", "表的行：token t 用第 t 行", 4)


def mistakes(apply: Apply, layout: str) -> Iterator[Mistake]:
    size = size_that_runs(apply)
    xq, xk, table = vectors(*size)
    results = plain(apply(xq, xk, table))
    if not isinstance(results, tuple):
        return
    q, k = results
    if (q.shape, k.shape) != (xq.shape, xk.shape):
        yield from first(
            ({q.shape, k.shape} <= {xq.shape, xk.shape}, *MIXED_UP),
            (True,
             "the shape: end with torch.view_as_real(..).flatten(3)",
             "形状：最后用 torch.view_as_real(..).flatten(3)", 4),
        )
        return
    expected, other = (plain(right(layout)(*each, table))[0] for each in ((xq, xk), (xk, xq)))
    found = first(
        (near(q, k) or near(q, other), *MIXED_UP),
        (any(float(x.abs().max()) > 1e-4 for x in plain(apply(0 * xq, 0 * xk, table))),
         "added: a rotation multiplies, 0 stays 0", "写成了相加：旋转是相乘，0 还是 0", 1),
        (not near(plain(apply(2 * xq, 2 * xk, table))[0], 2 * q),
         "normalized: a rotation keeps lengths", "归一化了：旋转不改变长度", 1),
    )

    def of_part(number: int) -> list[Mistake]:
        return list(part_mistakes(lambda each: matrices(apply, each, *size)[number], table, layout))

    found = found or of_parts(("q", "k"), [of_part(0), of_part(1)])
    yield from found
    is_wrong = [isinstance(probe.of(apply), str) and probe.of(apply) != probe.of(right(layout)) for probe in PROPERTIES]
    is_rounded = is_wrong[1] or (near(q, expected, 0.02) and not near(q, expected, 1e-4))
    yield from first((is_wrong[0],
        "the dtype changes: float32 inside, then .type_as(x)", "dtype 变了：先 float32，最后 .type_as(x)", 4))
    yield from first((is_wrong[2], "no gradient reaches the vectors: no detach", "梯度断了：不要 detach", 4))
    yield from first((is_rounded and not is_wrong[0] and not found,
                      "rotated in half precision: x.float() first, then .type_as(x)",
                      "用半精度旋转：先 x.float()，最后 .type_as(x)", 4))


def part_mistakes(turn: Callable[[Tensor], Tensor], table: Tensor, layout: str) -> Iterator[Mistake]:
    """Of q or k, from its matrices for a table."""
    m = turn(table)
    used = (m.abs().amax((0, 1, 2)) > 1e-4).double()  # the channels of x in each channel of the result
    partners = torch.eye(D)  # and those with which it makes a pair in one of the layouts
    for x, y in torch.cat([pairs_of(each, D) for each in (NEIGHBOURS, HALVES)]):
        partners[x, y] = partners[y, x] = 1
    pairs = list(product(sorted((NEIGHBOURS, HALVES), key=layout.__ne__), repeat=2))
    fitting = [pair for pair in pairs if near(blocks(m, *pair).square().sum((3, 4, 5)), m.square().sum((3, 4)), 1e-3)]
    if near(m, torch.eye(D).double().expand(m.shape)):
        yield UNROTATED
    elif (layout, layout) in fitting:
        yield from block_mistakes(blocks(m, layout, layout), table, layout, near(m, turn(torch.ones_like(table))))
    elif fitting or (used <= partners).all():
        yield LAYOUT
    elif (used.sum(1) <= 2).all():
        channel = int((used > partners).any(1).nonzero()[0])
        others = ", ".join(map(str, used[channel].nonzero()[:, 0].tolist()))
        yield Mistake(f"the pairs: (2i, 2i + 1) or (i, i + D/2); channel {channel} is computed from {others}",
                      f"分组：(2i, 2i + 1) 或 (i, i + D/2)；分量 {channel} 由 {others} 算出", 3)


def matrix(z: Tensor) -> Tensor:
    """The 2 x 2 matrices of complex numbers."""
    return torch.stack((z.real, -z.imag, z.imag, z.real), -1).unflatten(-1, (2, 2))


def block_mistakes(m: Tensor, table: Tensor, layout: str, is_fixed: bool) -> list[Mistake]:
    """From the matrix of each pair, and whether it is the same for another table."""
    z = torch.complex(m[..., 0, 0], m[..., 1, 0])  # (B, T, heads, D/2): what (1, 0) becomes
    whole = table[None, :, None].expand(z.shape)
    expected, c, s = matrix(whole), whole.real[..., None], whole.imag[..., None]
    of_other = torch.arange(D) % (D // 2) if layout == NEIGHBOURS else torch.arange(D) // 2  # columns of the channels
    crossed = matrix(table[:, of_other[pairs_of(layout, D)]])[None, :, None]  # (1, T, 1, D/2, channel, 2, 2)
    crossed = torch.stack((crossed[..., 0, 0, :], crossed[..., 1, 1, :]), -2).expand(m.shape)
    up, down, (x, y) = m[..., 0, :], m[..., 1, :], torch.eye(2).double()
    is_scaled_turn, is_turn = near(m, matrix(z)), near(m, matrix(z)) and near(z.abs(), torch.ones_like(z.real))
    if near(m, expected):
        return []
    if is_turn and not is_fixed:
        return turn_mistakes(z, table, whole)
    missing = [factor * part[..., 0] for factor in (1 + 0j, 1j, 1 + 1j) for part in (c, s)]
    late = (c * x - s * y, s * up + c * y), (c * x - s * down, s * x + c * y)  # the second one reads the first result
    return first(
        (near(m, crossed), *LAYOUT),
        (is_turn, "the table is not used: its rows begin at start_pos", "没有用传入的表：它的行从 start_pos 开始", 8),
        (is_scaled_turn and any(near(z, each) for each in missing),
         "cosine or sine is missing: x cos a - y sin a", "少了 cos 或 sin：x cos a - y sin a", 1),
        (is_scaled_turn and near(z / z.abs(), whole),
         f"scaled: 1 becomes {z.abs().flatten()[0]:.4g}", f"改变了长度：1 变成 {z.abs().flatten()[0]:.4g}", 1),
        (near(up, x.expand(up.shape)) or near(down, y.expand(up.shape)),
         "only one number of each pair is rotated", "每组只转了一个数", 1),
        (any(near(m, torch.stack(each, -2)) for each in late),
         "a number is overwritten while it is still needed", "还要用的数先被覆盖了", 1),
        (near(m, expected.flip(-2)),
         "the two numbers of each pair exchanged", "每组的两个数颠倒了", 1),
        (near(m.abs(), expected.abs()),
         "the minus signs: x cos a - y sin a, x sin a + y cos a", "负号：x cos a - y sin a, x sin a + y cos a", 1),
        (True, "the formula: x cos a - y sin a, x sin a + y cos a", "公式：x cos a - y sin a, x sin a + y cos a", 1),
    )


def turn_mistakes(z: Tensor, table: Tensor, whole: Tensor) -> list[Mistake]:
    """Of pairs that are rotated, but not by the angles of the table: by which ones, in which order."""
    B, _, heads, _ = z.shape
    turns = {None: whole, SIGN: whole.conj(), TWICE: whole**2, EXCHANGED: 1j * whole.conj()}
    axes = {None: lambda w: w, HEADS: lambda w: w[0, :heads, 0], BATCH: lambda w: w[0, :B, 0][:, None, None]}
    for (turn, expected), (axis, along) in product(turns.items(), axes.items()):
        if near(z, along(expected).expand(z.shape)):
            return [each for each in (turn, axis) if each]
    is_row = torch.stack([(z - row).abs().amax(-1) < 0.01 for row in table], -1)  # (B, T, heads, T)
    is_column = torch.stack([(z - column[:, None, None]).abs().amax(1) < 0.01 for column in table.T], -1)
    return first(
        ((is_row.any(-1) & (is_row == is_row[:, :1]).all(-1)).all(),
         "one row of the table for all tokens: token t has row t", "所有 token 用了表的同一行：token t 用第 t 行", 4),
        (is_row.any(-1).all(), *ROWS),
        (is_column.any(-1).all(), "the columns of the table: pair i has column i", "表的列：第 i 组用第 i 列", 3),
        ((((z - 1).abs() < 1e-4) | ((z - whole).abs() < 0.01)).all(),
         "only a part is rotated: all pairs, tokens, heads are", "只转了一部分：所有组、token、head 都要转", 3),
        (True, f"the angle: token 1, pair 0 turns by {z[0, 1, 0, 0].angle():.4g}, not {table[1, 0].angle():.4g}",
         f"角度：token 1 的第 0 组转了 {z[0, 1, 0, 0].angle():.4g}，不是 {table[1, 0].angle():.4g}", 1),
    )
# fmt: on


# reshape_for_broadcast


def reshaped(size: tuple[int, ...], reshape: Apply) -> Any:
    """The table as it is broadcast to x of this size; with four axes in any case."""
    x = torch.complex(random(*size), random(*size, seed=2))
    found = reshape(random_table(size[1], size[3]), x)
    try:
        table = found.expand(x.shape)
    except RuntimeError:
        return found[(None,) * (4 - found.ndim)]
    return table[:1, :, :1] if bool((table == table[:1, :, :1]).all()) else table


def refused(reshape: Apply) -> str:
    """How many of the tables that do not fit x are refused, with a ValueError or by an assertion, as in LLaMA."""
    table, x = random_table(5, 6), torch.zeros(2, 5, 4, 6, dtype=torch.complex64)
    count = 0
    for wrong in (table[:1], torch.cat((table, table)), table[:, :1], table.T.contiguous()):
        try:
            reshape(wrong, x)
        except (Raised, ValueError) as error:
            count += isinstance(error.__cause__ or error, ValueError | AssertionError)
    return f"{count} of 4"


RESHAPE_SIZES = ((2, 5, 4, 6), (3, 3, 3, 3))
RESHAPE_PROBES = (
    *(Probe(same(f"x {size}"), partial(reshaped, size)) for size in RESHAPE_SIZES),
    Probe(Both("tables that do not fit x and are refused", "大小不合而被拒绝的表"), refused),
)


def reshape_right(table: Tensor, x: Tensor) -> Tensor:
    if table.shape != (x.shape[1], x.shape[3]):
        raise ValueError
    return table[None, :, None]


# fmt: off
def reshape_mistakes(reshape: Apply, _: str) -> Iterator[Mistake]:
    yield from first((refused(reshape) != "4 of 4",
                      "no ValueError for a table of another shape", "大小不合的表没有报错"))
    results = [probe.of(reshape) for probe in RESHAPE_PROBES]
    place = next(place for place, result in enumerate(results) if not isinstance(result, Raised))
    found, (T, P) = results[place], RESHAPE_SIZES[place][1::2]
    table = random_table(T, P)
    rows = found[0, :, 0] if found.shape[1] > 1 else found[0, 0]
    yield from first(
        (near(found, table[None, :, None]), "", ""),
        ((found == found[:1, :1]).all() and near(found[0, 0], table[: found.shape[2]]) and found.shape[2] > 1, *HEADS),
        ((found == found[:, :1, :1]).all() and near(found[:, 0, 0], table[: len(found)]) and len(found) > 1, *BATCH),
        (near(found, table.conj()[None, :, None]), *SIGN),
        (found.shape[-1] == P and all(any(near(row, each) for each in table) for row in rows), *ROWS),
        (near(found.abs(), torch.ones_like(found.real)),
         "the table is along the wrong axes: (1, T, 1, D/2)", "表的轴不对：(1, T, 1, D/2)", 4),
        (True, "the values: the function only reshapes the table", "数值：这个函数只改变表的形状", 4),
    )
# fmt: on


EXERCISE = Exercise(3, ("xq", "xk", "freqs_cis"), right, PROBES, AXES, ("q", "k"), mistakes)
RESHAPE = Exercise(
    4,
    ("freqs_cis", "x"),
    lambda _: reshape_right,
    RESHAPE_PROBES,
    (*AXES[:3], Both("pair", "组")),
    (),
    reshape_mistakes,
)
