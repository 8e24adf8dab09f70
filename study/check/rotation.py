"""apply_rotary_emb and reshape_for_broadcast: their probes, and usual mistakes by what becomes of each channel."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..topic import Both
from .compare import Exercise, Mistake, Probe, first, of_parts, same, words
from .reader import Raised
from .table import SIGN
from .tensors import HALVES, NEIGHBOURS, near, pairs_of, plain, random, random_table, rotate

AXES = ("batch", "token", "head", "channel")
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


def changed(apply: Apply, change: Callable[[Tensor], Tensor]) -> Any:
    """The results for changed vectors."""
    xq, xk, table = vectors()
    return apply(change(xq), change(xk), table)


def rotated_in(apply: Apply) -> str:
    """In which dtype vectors in bfloat16 are rotated."""
    pairs = zip(changed(apply, Tensor.bfloat16), changed(apply, lambda x: x.bfloat16().float()))
    # Single numbers may lie between two of bfloat16.
    is_rounded = any(bool((x.bfloat16() != y.bfloat16()).float().mean() > 0.05) for x, y in pairs)
    return "bfloat16" if is_rounded else "float32"


DTYPES = Probe(
    Both("the dtypes for bfloat16", "输入为 bfloat16 时的 dtype"),
    lambda apply: words(x.dtype for x in changed(apply, Tensor.bfloat16)),
)
PRECISION = Probe(Both("vectors in bfloat16 are rotated in", "bfloat16 的向量旋转时用的精度"), rotated_in)
GRADIENTS = Probe(
    Both("the results have a gradient", "结果有没有梯度"),
    lambda apply: words(x.requires_grad for x in changed(apply, lambda x: 1 * x.requires_grad_())),
)
PROBES = (*(vectors_probe(*size) for size in ((1, 2, 1, 1), *SIZES, (2, 1, 4, 2))), DTYPES, PRECISION, GRADIENTS)


def size_that_runs(apply: Apply) -> tuple[int, int, int, int]:
    return next((size for size in SIZES if isinstance(vectors_probe(*size).of(apply), tuple)), SIZES[0])


def matrices(apply: Apply) -> list[Tensor]:
    """What q and k become if they are 1 in one channel: (B, T, heads, channels of the result, channels of x)."""
    B, T, H, K = size_that_runs(apply)
    table = random_table(T, D // 2)
    columns = [plain(apply(x.repeat(B, T, H, 1), x.repeat(B, T, K, 1), table)) for x in torch.eye(D)]
    return [torch.stack(parts, -1) for parts in zip(*columns)]


def blocks(m: Tensor, out: str, into: str) -> Tensor:
    """The 2 x 2 matrix of each pair of channels of the result and of x: (B, T, heads, D/2, 2, 2)."""
    return m[..., pairs_of(out, D)[:, :, None], pairs_of(into, D)[:, None]]


def layout_of(apply: Apply) -> str:
    """The layout in whose pairs the numbers stay; of a result of another shape, any."""
    found = Probe(same(""), matrices).of(apply)
    if not isinstance(found, tuple) or any(m.shape[-2:] != (D, D) for m in found):
        return NEIGHBOURS
    return max((NEIGHBOURS, HALVES), key=lambda each: sum(float(blocks(m, each, each).square().sum()) for m in found))


# fmt: off
LAYOUT = Mistake("layouts mixed: one for pairs, angles and results", "布局弄混了：分组、角度、结果要用同一种布局", 3)
MIXED_UP = Mistake("q and k mixed up: return xq, then xk, both rotated", "q 与 k 弄混了：先返回 xq，再返回 xk", 4)
UNROTATED = Mistake("not rotated: rotate q and k", "没有旋转：q 和 k 都要旋转", 2)
TWICE = Mistake("rotated twice: a token at p is turned to 2p", "转了两次：位置 p 转到了 2p", 4)
EXCHANGED = Mistake("cosine and sine exchanged: x cos a - y sin a", "cos 与 sin 颠倒了：x cos a - y sin a", 1)
HEADS = Mistake("rotation along the head axis: (1, T, 1, D/2)", "沿 head 轴旋转：表应为 (1, T, 1, D/2)", 4)
BATCH = Mistake("rotation along the batch axis: (1, T, 1, D/2)", "沿 batch 轴旋转：表应为 (1, T, 1, D/2)", 4)


def mistakes(apply: Apply, layout: str) -> Iterator[Mistake]:
    xq, xk, table = vectors(*size_that_runs(apply))
    (q, k), zero, double = (plain(apply(n * xq, n * xk, table)) for n in (1, 0, 2))
    expected, other = (plain(rotate(x, table, layout)) for x in (xq, xk))
    found = first(
        (near(q, k) or near(q, other), *MIXED_UP),
        (q.shape != expected.shape or k.shape != other.shape, "the shape: .flatten(3)", "形状：.flatten(3)", 4),
        (zero[0].any() or not near(double[0], 2 * q), "not linear: only turn each pair", "不是线性的：只应旋转每组", 1),
    ) or of_parts("qk", [part_mistakes(m, table, layout) for m in matrices(apply)])
    yield from found
    is_rounded = PRECISION.of(apply) == "bfloat16" or (near(q, expected, 0.02) and not near(q, expected, 1e-4))
    is_cast = DTYPES.of(apply) in ("float32 and float32", "bfloat16 and float32", "float32 and bfloat16")
    yield from first(
        (is_cast, "the dtype changes: end with .type_as(x)", "dtype 变了：最后 .type_as(x)", 4),
        (is_rounded and not found, "rotated in half precision: x.float() first", "用半精度旋转：先 x.float()", 4),
    )


def part_mistakes(m: Tensor, table: Tensor, layout: str) -> list[Mistake]:
    """Of q or k, from its matrix for each token and head."""
    pairs = product(sorted((NEIGHBOURS, HALVES), key=layout.__ne__), repeat=2)
    fitting = [pair for pair in pairs if near(blocks(m, *pair).square().sum((3, 4, 5)), m.square().sum((3, 4)), 1e-3)]
    if near(m, torch.eye(D).double().expand(m.shape)):
        return [UNROTATED]
    if (layout, layout) in fitting:
        return block_mistakes(blocks(m, layout, layout), table, layout)
    pairs_en, pairs_zh = "the pairs: (2i, 2i + 1) or (i, i + D/2)", "分组：(2i, 2i + 1) 或 (i, i + D/2)"
    return first((fitting, *LAYOUT), (True, pairs_en, pairs_zh, 3))


def block_mistakes(m: Tensor, table: Tensor, layout: str) -> list[Mistake]:
    """From the matrix of each pair: by which formula, and by which angles it turns."""

    def shows(*numbers: Tensor) -> bool:
        return near(m, torch.stack(numbers, -1).unflatten(-1, (2, 2)).expand(m.shape))

    B, rows = len(m), table[:, None]  # rows (T, 1, D/2)
    axes = {None: rows, HEADS: table[: m.shape[2]], BATCH: table[:B, None, None], TWICE: rows**2}
    for axis, w in axes.items():
        c, s = w.real, w.imag
        for formula, numbers in ((None, (c, -s, s, c)), (SIGN, (c, s, -s, c)), (EXCHANGED, (s, -c, c, s))):
            if shows(*numbers):
                return [each for each in (formula, axis) if each]
    of_other = torch.arange(D) % (D // 2) if layout == NEIGHBOURS else torch.arange(D) // 2  # columns of the channels
    x, y = (rows[..., of_other[channels]] for channels in pairs_of(layout, D).T)
    c, s, z = rows.real, rows.imag, torch.complex(m[..., 0, 0], m[..., 1, 0])  # z: what (1, 0) becomes
    is_turn = shows(z.real, -z.imag, z.imag, z.real)
    angle, expected = z[0, 1, 0, 0].angle(), table[1, 0].angle()
    return first(
        (shows(x.real, -x.imag, y.imag, y.real), *LAYOUT),
        (is_turn and near(z / z.abs(), rows.expand(z.shape)), "scaled: a rotation keeps lengths", "改变了长度", 1),
        (shows(c, -s, s * c, c - s * s), "a number is overwritten while it is still needed", "还要用的数先被覆盖了", 1),
        (not is_turn or not near(z.abs(), torch.ones_like(z.real)), "the formula: x cos a - y sin a, x sin a + y cos a",
         "公式：x cos a - y sin a, x sin a + y cos a", 1),
        (all(any(near(row, each) for each in table) for row in z.flatten(0, 2)),
         "the rows of the table: token t has row t", "表的行：token t 用第 t 行", 4),
        (True, f"the angle: token 1, pair 0 turns by {angle:.4g}, not {expected:.4g}",
         f"角度：token 1 的第 0 组转了 {angle:.4g}，不是 {expected:.4g}", 1),
    )
# fmt: on


# reshape_for_broadcast

RESHAPE_SIZES = ((2, 5, 4, 6), (3, 3, 3, 3))


def reshape_right(table: Tensor, x: Tensor) -> Tensor:
    if table.shape != (x.shape[1], x.shape[3]):
        raise ValueError
    return table[None, :, None]


def reshape_probe(size: tuple[int, ...]) -> Probe:
    """The table as it is broadcast to x of this size."""
    table, x = random_table(size[1], size[3]), torch.ones(size, dtype=torch.complex128)
    return Probe(same(f"x {size}"), lambda reshape: x * reshape(table, x))


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


REFUSED = Probe(Both("tables that do not fit x and are refused", "大小不合而被拒绝的表"), refused)


def reshape_mistakes(reshape: Apply, _: str) -> list[Mistake]:
    found, table = RESHAPE_PROBES[1].of(reshape), random_table(3, 3)
    return first(
        (near(found, table[:, None].expand(3, 3, 3, 3)), "", ""),
        (near(found, table.expand(3, 3, 3, 3)), *HEADS),
        (near(found, table[:, None, None].expand(3, 3, 3, 3)), *BATCH),
    )


EXERCISE = Exercise(3, ("xq", "xk", "freqs_cis"), right, PROBES, AXES, ("q", "k"), mistakes)
RESHAPE_PROBES, RESHAPE_AXES = (*map(reshape_probe, RESHAPE_SIZES), REFUSED), (*AXES[:3], "pair")
RESHAPE = Exercise(4, ("freqs_cis", "x"), lambda _: reshape_right, RESHAPE_PROBES, RESHAPE_AXES, (), reshape_mistakes)
