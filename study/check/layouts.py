"""to_neighbours, to_halves and causal_mask: their probes, and usual mistakes by where a row goes, what a token sees."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import HALVES, NEIGHBOURS, Both, Exercise, Mistake, Probe, first, near, of_parts, pairs_of, plain, same

ROWS = (Both("row", "行"), Both("column", "列"))
Function = Callable[..., Any]


def to_layout(layout: str) -> Function:
    """The right function: to_neighbours or to_halves."""

    def one(w: Tensor, D: int) -> Tensor:
        order = pairs_of(HALVES, D).flatten() if layout == NEIGHBOURS else pairs_of(NEIGHBOURS, D).T.flatten()
        return w.unflatten(0, (-1, D))[:, order].flatten(0, 1)

    return lambda wq, wk, n_heads, n_kv_heads: (one(wq, len(wq) // n_heads), one(wk, len(wq) // n_heads))


def weights(D: int, n_heads: int, n_kv_heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """W_q and W_k, whose numbers are 100 times their row, plus their column, and negative in W_k."""
    wq, wk = (100 * torch.arange(D * n)[:, None] + torch.arange(dim) + 1.0 for n in (n_heads, n_kv_heads))
    return wq, -wk


def layout_probe(D: int, n_heads: int, n_kv_heads: int, dim: int) -> Probe:
    text = f"wq ({D * n_heads}, {dim}), wk ({D * n_kv_heads}, {dim})"
    return Probe(same(text), lambda f: f(*weights(D, n_heads, n_kv_heads, dim), n_heads, n_kv_heads))


LAYOUT_PROBES = (layout_probe(16, 4, 2, 16), layout_probe(8, 3, 3, 24))


# fmt: off
def layout_mistakes(function: Function, layout: str) -> Iterator[Mistake]:
    D, H, K, dim = 16, 4, 2, 32
    given = weights(D, H, K, dim)
    found = plain(function(*given, H, K))
    if not isinstance(found, tuple):
        return
    if found[0].max() < 0:
        yield Mistake("wq and wk exchanged: return wq first", "wq 与 wk 颠倒了：先返回 wq")
        return
    other = HALVES if layout == NEIGHBOURS else NEIGHBOURS
    ways = given, found, *(to_layout(each)(*given, H, K) for each in (layout, other))
    yield from of_parts(("wq", "wk"), [list(row_mistakes(layout, D, *each)) for each in zip(*ways)])


def row_mistakes(layout: str, D: int, w: Tensor, x: Tensor, right: Tensor, inverse: Tensor) -> Iterator[Mistake]:
    """From where each row of one matrix goes."""
    if x.shape != w.shape:
        yield Mistake("the shape: end with a reshape to (heads * D, dim)", "形状：最后应变回 (heads * D, dim)")
        return
    rows, expected, back = ((each.abs() // 100)[:, 0].long() for each in (x, right, inverse))
    swapped = expected.view(-1, D // 2, 2).flip(2) if layout == NEIGHBOURS else expected.view(-1, 2, D // 2).flip(1)
    yield from first(
        (near(x, right.double()), "", ""),
        (not near(x, w[rows].double()),
         "columns are permuted: RoPE pairs rows, axis 0", "换的是列：RoPE 配对的是行，第 0 轴"),
        (len(rows.unique()) < len(rows),
         "rows are overwritten before they are read: write to a new tensor", "行还没读就被覆盖了：写到新的张量里"),
        (near(x, w.double()),
         "not permuted: both are, because scores multiply channel by channel", "没有换：两者都要换，得分是逐分量相乘"),
        (torch.equal(rows, back),
         "the other direction: row i of halves is row 2i of neighbours",
         "方向反了：前后两半的第 i 行是相邻布局的第 2i 行"),
        (torch.equal(rows, swapped.flatten()),
         "the rows of each pair exchanged: row i comes before row i + D/2",
         "每组的两行颠倒了：第 i 行在第 i + D/2 行之前"),
        (not torch.equal(rows // D, expected // D),
         "rows move to another head: permute within each head of D rows",
         "行跑到了别的 head：只在每个 head 的 D 行内换"),
        (True,
         f"the width of a head: D = wq.shape[0] / n_heads, {D} here, in wq and in wk",
         f"head 的宽度：wq 和 wk 都是 D = wq.shape[0] / n_heads，这里是 {D}"),
    )
# fmt: on


# causal_mask


def mask_right(start_pos: int, T: int) -> Tensor:
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos)


def mask_probe(start_pos: int, T: int) -> Probe:
    def measure(function: Function) -> Any:
        mask = function(start_pos, T)
        is_deep = torch.is_tensor(mask) and mask.ndim > 2 and mask.shape[:-2].numel() == 1
        return mask.reshape(mask.shape[-2:]) if is_deep else mask

    return Probe(Both(f"start_pos {start_pos}, T {T}", f"start_pos 为 {start_pos}，T 为 {T}"), measure)


MASK_PROBES = tuple(mask_probe(start, T) for start, T in ((1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (0, 1)))


# fmt: off
def mask_mistakes(function: Function, _: str) -> Iterator[Mistake]:
    start, T = 3, 5
    S = start + T
    mask, *others = (plain(function(*sizes)) for sizes in ((start, T), (7, 2), (2, 1), (0, 1)))
    if any(each is None for each in (mask, *others)):
        yield Mistake(
            "no mask is returned: return a boolean (T, S) even if all keys are visible",
            "没有返回 mask：即使全部可见，也应返回布尔的 (T, S)")
        return
    if mask.dtype != torch.bool:
        yield Mistake(
            "the mask is not boolean: True where a token may see a key", "mask 不是布尔型：能看到的地方为 True")
        mask = mask == 0 if mask.min() < 0 else mask > 0
    mask = mask.reshape(mask.shape[-2:])
    if mask.shape != (T, S):
        yield from first(
            (mask.shape == (T, T),
             "the mask is square: T new tokens see S = start_pos + T keys",
             "mask 是方的：T 个新 token 看 S = start_pos + T 个 key"),
            (mask.shape == (S, T),
             "the mask is transposed: (T, S), a row for each token", "mask 转置了：应为 (T, S)，每个 token 一行"),
            (mask.shape == (S, S),
             "a row for each cached token: only the T new ones have a row",
             "缓存的 token 也有一行：只有 T 个新 token 有行"),
            (True, "the shape: (T, S), S = start_pos + T", "形状：应为 (T, S)，S = start_pos + T"),
        )
        return
    keys, tokens = torch.arange(S), torch.arange(T)[:, None]
    last, right, cached = start + tokens, mask_right(start, T), keys < start
    corners = [keys <= tokens + n for n in (-start, -1, 0, 1, T)]

    def among(*masks: Tensor) -> bool:
        return any(torch.equal(mask, each) for each in masks)

    yield from first(
        (among(right), "", ""),
        (among(~right, ~right | cached),
         "True and False exchanged: True means that the token may see the key",
         "True 与 False 颠倒了：True 表示看得到"),
        (bool(mask.all()),
         "the future is not hidden: token t sees no key after start_pos + t",
         "没有遮住后面的 token：token t 看不到 start_pos + t 之后"),
        (among(keys < last, keys <= last + 1),
         "off by one position: token t sees keys 0 to start_pos + t, both included",
         "差了一个位置：token t 看得到 key 0 到 start_pos + t，两端都算"),
        (among(right & ~cached),
         "the cached keys are hidden: each new token sees all of them", "缓存的 key 被遮住了：新 token 都看得到它们"),
        (among(*corners),
         "the mask is aligned to the wrong corner: the triangle is at the right end, .tril(start_pos)",
         "mask 对错了角：三角形在右端，.tril(start_pos)"),
        (among(keys >= last, (keys >= last) | cached),
         "the mask is transposed: row t has the keys that token t sees", "mask 转置了：第 t 行是 token t 看得到的 key"),
        (among(right.flip(1)),
         "the order of the keys is reversed: column s is position s", "key 的顺序反了：第 s 列是位置 s"),
        (bool((mask <= right).all()),
         "earlier keys are hidden: token t sees all from 0 to itself",
         "前面的 key 被遮住了：token t 看得到从 0 到自己的所有 key"),
        (bool((mask >= right).all()),
         "later keys are visible: token t sees no key after start_pos + t",
         "看得到后面的 key：token t 看不到 start_pos + t 之后"),
    )
# fmt: on
TO_NEIGHBOURS, TO_HALVES = (
    Exercise(
        3,
        ("wq", "wk", "n_heads", "n_kv_heads"),
        lambda _, to=to: to_layout(to),  # type: ignore[misc]
        LAYOUT_PROBES,
        ROWS,
        ("wq", "wk"),
        lambda view, _, to=to: layout_mistakes(view, to),  # type: ignore[misc]
    )
    for to in (NEIGHBOURS, HALVES)
)
MASK = Exercise(8, ("start_pos", "T"), lambda _: mask_right, MASK_PROBES, (), (), mask_mistakes)
