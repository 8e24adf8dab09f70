"""to_neighbours, to_halves and causal_mask: their probes, and usual mistakes by where a row goes, what a token sees."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .compare import HALVES, NEIGHBOURS, Both, Exercise, Mistake, Probe, first, near, of_parts, pairs_of, plain, same

Function = Callable[..., Any]


def permuted(layout: str, wq: Tensor, wk: Tensor, n_heads: int, n_kv_heads: int) -> list[Tensor]:
    """The rows of both in this layout, if they are in the other one."""
    D = len(wq) // n_heads
    order = pairs_of(HALVES, D).flatten() if layout == NEIGHBOURS else pairs_of(NEIGHBOURS, D).T.flatten()
    return [w.unflatten(0, (-1, D))[:, order].flatten(0, 1) for w in (wq, wk)]


def weights(D: int, n_heads: int, n_kv_heads: int, dim: int) -> tuple[Any, ...]:
    """W_q and W_k, whose numbers are 100 times their row, plus their column, and negative in W_k; and the heads."""
    wq, wk = (100 * torch.arange(D * n)[:, None] + torch.arange(dim) + 1.0 for n in (n_heads, n_kv_heads))
    return wq, -wk, n_heads, n_kv_heads


def layout_probe(*size: int) -> Probe:
    wq, wk, *_ = weights(*size)
    return Probe(same(f"wq {tuple(wq.shape)}, wk {tuple(wk.shape)}"), lambda function: function(*weights(*size)))


# fmt: off
def layout_mistakes(layout: str, function: Function, _: str) -> Iterator[Mistake]:
    given, D = weights(16, 4, 2, 32), 16
    found = plain(function(*given))
    if isinstance(found, tuple) and found[0].max() < 0:
        yield Mistake("wq and wk exchanged: return wq first", "wq 与 wk 颠倒了：先返回 wq")
    elif isinstance(found, tuple):
        other = HALVES if layout == NEIGHBOURS else NEIGHBOURS
        each = zip(given, found, permuted(layout, *given), permuted(other, *given))
        yield from of_parts(("wq", "wk"), [row_mistakes(layout, D, *parts) for parts in each])


def row_mistakes(layout: str, D: int, w: Tensor, x: Tensor, right: Tensor, inverse: Tensor) -> list[Mistake]:
    """From where each row of one matrix goes."""
    if x.shape != w.shape:
        return [Mistake("the shape: reshape to (heads * D, dim)", "形状：最后变回 (heads * D, dim)")]
    rows, expected, back = ((each.abs() // 100)[:, 0].long() for each in (x, right, inverse))
    swapped = expected.view(-1, D // 2, 2).flip(2) if layout == NEIGHBOURS else expected.view(-1, 2, D // 2).flip(1)
    return first(
        (near(x, right.double()), "", ""),
        (not near(x, w[rows].double()),
         "columns are permuted: RoPE pairs rows, axis 0", "换的是列：RoPE 配对的是行，第 0 轴"),
        (len(rows.unique()) < len(rows),
         "rows are overwritten before they are read: copy", "行还没读就被覆盖了：先复制"),
        (near(x, w.double()), "not permuted: scores multiply channel by channel", "没有换：得分是逐分量相乘"),
        (torch.equal(rows, back),
         "the other direction: row i of halves is 2i of neighbours", "方向反了：两半的第 i 行是相邻的第 2i 行"),
        (torch.equal(rows, swapped.flatten()),
         "the rows of each pair exchanged: i, then i + D/2", "每组的两行颠倒了：先 i 后 i + D/2"),
        (not torch.equal(rows // D, expected // D),
         "rows move to another head: permute within each", "行跑到了别的 head：在各自的 head 内换"),
        (True,
         f"the width of a head: wq.shape[0] / n_heads, {D} here, in both",
         f"head 的宽度：都是 wq.shape[0] / n_heads，这里是 {D}"),
    )


def mask_right(start_pos: int, T: int) -> Tensor:
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos)


def mask_probe(start_pos: int, T: int) -> Probe:
    def measure(function: Function) -> Any:
        mask = function(start_pos, T)
        is_deep = torch.is_tensor(mask) and mask.ndim > 2 and mask.shape[:-2].numel() == 1
        return mask.reshape(mask.shape[-2:]) if is_deep else mask

    return Probe(Both(f"start_pos {start_pos}, T {T}", f"start_pos 为 {start_pos}，T 为 {T}"), measure)


MASK_PROBES = tuple(mask_probe(start, T) for start, T in ((1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (0, 1)))


def mask_mistakes(function: Function, _: str) -> Iterator[Mistake]:
    start, T, S = 3, 5, 8
    masks = [probe.of(function) for probe in MASK_PROBES]
    mask = masks[2]
    if None in [each if each is None else 0 for each in masks]:
        yield Mistake(
            "no mask is returned: a boolean (T, S) even if all is visible",
            "没有返回 mask：全部可见时也应返回布尔的 (T, S)")
        return
    if mask.dtype != torch.bool:
        yield Mistake(
            "the mask is not boolean: True where a token may see a key", "mask 不是布尔型：能看到的地方为 True")
        mask = mask == 0 if mask.min() < 0 else mask > 0
    if mask.shape != (T, S):
        yield from first(
            (mask.shape == (T, T),
             "the mask is square: T tokens see start_pos + T keys", "mask 是方的：T 个 token 看 start_pos + T 个 key"),
            (mask.shape == (S, T), "the mask is transposed: (T, S)", "mask 转置了：应为 (T, S)"),
            (mask.shape == (S, S),
             "a row for each cached token: only the new ones", "缓存的 token 也有一行：只有新的有行"),
            (True, "the shape: (T, S), S = start_pos + T", "形状：(T, S)，S = start_pos + T"),
        )
        return
    keys, tokens = torch.arange(S), torch.arange(T)[:, None]
    last, right, cached = start + tokens, mask_right(start, T), keys < start

    def among(*masks: Tensor) -> bool:
        return any(torch.equal(mask, each) for each in masks)

    yield from first(
        (among(right), "", ""),
        (among(~right, ~right | cached),
         "True and False exchanged: True means visible", "True 与 False 颠倒了：True 表示看得到"),
        (mask.all(), "the future is not hidden: keys after start_pos + t", "没有遮住后面的 token：start_pos + t 之后"),
        (among(keys < last, keys <= last + 1),
         "off by one position: token t sees 0 .. start_pos + t", "差了一个位置：token t 看 0 … start_pos + t"),
        (among(right & ~cached),
         "the cached keys are hidden: the new tokens see them", "缓存的 key 被遮住了：新 token 看得到"),
        (among(*(keys <= tokens + n for n in (-start, -1, 0, 1, T))),
         "the mask is aligned to the wrong corner: .tril(start_pos)", "mask 对错了角：.tril(start_pos)"),
        (among(keys >= last, (keys >= last) | cached),
         "the mask is transposed: row t is token t", "mask 转置了：第 t 行是 token t"),
        (among(right.flip(1)),
         "the order of the keys is reversed: column s is position s", "key 的顺序反了：第 s 列是位置 s"),
        ((mask <= right).all(),
         "earlier keys are hidden: token t sees all from 0", "前面的 key 被遮住了：token t 从 0 看起"),
        ((mask >= right).all(),
         "later keys are visible: none after start_pos + t", "看得到后面的 key：start_pos + t 之后看不到"),
    )
# fmt: on


def exercise_to(layout: str) -> Exercise:
    names, probes = ("wq", "wk"), (layout_probe(16, 4, 2, 16), layout_probe(8, 3, 3, 24))
    axes = (Both("row", "行"), Both("column", "列"))
    return Exercise(
        3,
        (*names, "n_heads", "n_kv_heads"),
        lambda _: partial(permuted, layout),
        probes,
        axes,
        names,
        partial(layout_mistakes, layout),
    )


TO_NEIGHBOURS, TO_HALVES = map(exercise_to, (NEIGHBOURS, HALVES))
MASK = Exercise(8, ("start_pos", "T"), lambda _: mask_right, MASK_PROBES, (), (), mask_mistakes)
