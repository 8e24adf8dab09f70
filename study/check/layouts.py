"""to_neighbours, to_halves and causal_mask: their probes, and usual mistakes by where a row goes, what a token sees."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..topic import Both
from .compare import Exercise, Mistake, Probe, first, of_parts, same
from .tensors import HALVES, NEIGHBOURS, near, pairs_of, plain

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
    given = weights(16, 4, 2, 32)
    found = plain(function(*given))
    other = HALVES if layout == NEIGHBOURS else NEIGHBOURS
    each = zip(given, found, permuted(layout, *given), permuted(other, *given))
    yield from of_parts(("wq", "wk"), [row_mistakes(layout, *parts) for parts in each])


def row_mistakes(layout: str, w: Tensor, x: Tensor, right: Tensor, inverse: Tensor) -> list[Mistake]:
    """From where each row of one matrix goes."""
    is_of_rows = near(x.abs() % 100, w.double().abs() % 100)
    is_permuted = near(x.flatten().sort()[0], w.double().flatten().sort()[0])
    of_heads = [permuted(layout, w, w, count, count)[0].double() for count in (1, 2, 4, 8)]
    return first(
        (near(x, right.double()), "", ""),
        (not is_permuted, "", ""),
        (not is_of_rows, "columns are permuted: RoPE pairs rows, axis 0", "换的是列：RoPE 配对的是行，第 0 轴"),
        (near(x, w.double()), "not permuted: scores multiply channel by channel", "没有换：得分是逐分量相乘"),
        (near(x, inverse.double()), "the other direction: row i of halves is 2i of neighbours",
         "方向反了：两半的第 i 行是相邻的第 2i 行"),
        (any(near(x, each) for each in of_heads),
         "the width of a head: wq.shape[0] / n_heads in both", "head 的宽度：都是 wq.shape[0] / n_heads"),
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
    mask = mask_probe(start, T).of(function)
    if mask.dtype != torch.bool:
        yield Mistake("the mask is not boolean: True is visible", "mask 不是布尔型：能看到的地方为 True")
        mask = mask == 0 if mask.min() < 0 else mask > 0
    if mask.shape != (T, S):
        return
    keys, tokens = torch.arange(S), torch.arange(T)[:, None]
    last, right, cached = start + tokens, mask_right(start, T), keys < start

    def among(*masks: Tensor) -> bool:
        return any(torch.equal(mask, each) for each in masks)

    yield from first(
        (among(right), "", ""),
        (among(~right, ~right | cached), "True and False exchanged: True is visible", "True 与 False 颠倒了"),
        (mask.all(), "the future is not hidden: keys after start_pos + t", "没有遮住后面的 token"),
        (among(keys < last, keys <= last + 1),
         "off by one position: token t sees 0 .. start_pos + t", "差了一个位置：token t 看 0 … start_pos + t"),
        (among(right & ~cached), "the cached keys are hidden: all see them", "缓存的 key 被遮住了：都看得到"),
        (among(*(keys <= tokens + n for n in (-start, -1, 0, 1, T))),
         "the mask is aligned to the wrong corner: .tril(start_pos)", "mask 对错了角：.tril(start_pos)"),
        (among(keys >= last, (keys >= last) | cached), "the mask is transposed: row t is token t", "mask 转置了"),
        ((mask <= right).all(), "earlier keys are hidden: token t sees all from 0", "前面的 key 被遮住了：从 0 看起"),
        ((mask >= right).all(), "later keys are visible: none after start_pos + t", "看得到 start_pos + t 之后的 key"),
    )
# fmt: on


def exercise_to(layout: str) -> Exercise:
    names, probes = ("wq", "wk"), (layout_probe(16, 4, 2, 16), layout_probe(8, 3, 3, 24))
    arguments, ours = (*names, "n_heads", "n_kv_heads"), partial(permuted, layout)
    return Exercise(3, arguments, lambda _: ours, probes, ("row", "column"), names, partial(layout_mistakes, layout))


TO_NEIGHBOURS, TO_HALVES = map(exercise_to, (NEIGHBOURS, HALVES))
MASK = Exercise(8, ("start_pos", "T"), lambda _: mask_right, MASK_PROBES, (), (), mask_mistakes)
