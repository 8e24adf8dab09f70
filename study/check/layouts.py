"""to_neighbours, to_halves and causal_mask: their probes, and usual mistakes by where a row goes and what a token sees."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import HALVES, NEIGHBOURS, Both, Mistake, Probe, near, pairs_of, plain

ROWS, KEYS = (Both("row", "行"), Both("column", "列")), (Both("token", "token"), Both("key", "key"))
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
    return Probe(Both(text, text), lambda f: f(*weights(D, n_heads, n_kv_heads, dim), n_heads, n_kv_heads))


LAYOUT_PROBES = (layout_probe(16, 4, 2, 16), layout_probe(8, 3, 3, 24))


def layout_mistakes(function: Function, layout: str) -> Iterator[Mistake]:
    D, H, K, dim = 16, 4, 2, 32
    given = weights(D, H, K, dim)
    found = plain(function(*given, H, K))
    other = to_layout(HALVES if layout == NEIGHBOURS else NEIGHBOURS)(*given, H, K)
    right = to_layout(layout)(*given, H, K)
    if found[0].max() < 0:
        yield Mistake(3, "wq and wk exchanged: return wq first.", "wq 与 wk 颠倒了：先返回 wq。")
        return
    for name, w, x, expected, inverse in zip(("wq", "wk"), given, found, right, other):
        if x.shape != w.shape:
            yield Mistake(
                3,
                f"the shape of {name}: end with a reshape to (heads * D, dim).",
                f"{name} 的形状：最后应变回 (heads * D, dim)。",
            )
            return
        rows = (x.abs() // 100)[:, 0].long()
        want, back = ((y.abs() // 100)[:, 0].long() for y in (expected, inverse))
        if near(x, expected.double()):
            continue
        if not near(x, w[rows].double()):
            yield Mistake(
                3,
                f"columns are permuted in {name}: RoPE pairs rows, axis 0, of each head.",
                f"{name} 的列被换了：RoPE 配对的是每个 head 的行，第 0 轴。",
            )
        elif len(rows.unique()) < len(rows):
            yield Mistake(
                3,
                f"rows of {name} are overwritten before they are read: write to a new tensor.",
                f"{name} 的行还没读就被覆盖了：请写到新的张量里。",
            )
        elif torch.equal(rows, torch.arange(len(w))):
            yield Mistake(
                3,
                f"{name} is not permuted: both are, because scores multiply channel by channel.",
                f"{name} 没有换：两者都要换，因为得分是逐分量相乘。",
            )
        elif not torch.equal(rows // D, torch.arange(len(w)) // D):
            yield Mistake(
                3,
                f"rows of {name} move to another head: permute each head of D rows, {H} heads in wq and {K} in wk here.",
                f"{name} 的行跑到了别的 head：每个 head 的 D 行内部换，这里 wq 有 {H} 个 head，wk 有 {K} 个。",
            )
        elif torch.equal(rows, back):
            yield Mistake(
                3,
                f"the other direction in {name}: row i of halves is row 2i of neighbours.",
                f"{name} 的方向反了：前后两半的第 i 行是相邻布局的第 2i 行。",
            )
        elif torch.equal(
            rows.view(-1, D // 2, 2).flip(2).flatten()
            if layout == NEIGHBOURS
            else rows.view(-1, 2, D // 2).flip(1).flatten(),
            want,
        ):
            yield Mistake(
                3,
                f"the numbers of each pair of {name} in the other order: row i comes before row i + D/2.",
                f"{name} 每组的两行颠倒了：第 i 行在第 i + D/2 行之前。",
            )
        else:
            yield Mistake(
                3,
                f"within a head of {name}, the rows are in another order: D is wq.shape[0] / n_heads, {D} here.",
                f"{name} 每个 head 内的顺序不对：D 是 wq.shape[0] / n_heads，这里是 {D}。",
            )


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


def mask_mistakes(function: Function) -> Iterator[Mistake]:
    masks = {(start, T): plain(function(start, T)) for start, T in ((3, 5), (7, 2), (2, 1), (0, 1))}
    if any(mask is None for mask in masks.values()):
        yield Mistake(
            8,
            "no mask is returned: return a boolean (T, S) even if all keys are visible.",
            "没有返回 mask：即使全部可见，也应返回布尔的 (T, S)。",
        )
        return
    start, T = 3, 5
    S = start + T
    mask = masks[start, T]
    if mask.dtype != torch.bool:
        yield Mistake(
            8,
            "the mask is not boolean: True where a token may see a key, dtype=torch.bool.",
            "mask 不是布尔型：能看到的地方为 True，dtype=torch.bool。",
        )
        mask = mask == 0 if mask.min() < 0 else mask > 0
    mask = mask.reshape(mask.shape[-2:])
    if mask.shape != (T, S):
        if mask.shape == (T, T):
            yield Mistake(
                8,
                "the mask is square: T new tokens see S = start_pos + T keys, so it is (T, S).",
                "mask 是方的：T 个新 token 看 S = start_pos + T 个 key，应为 (T, S)。",
            )
        elif mask.shape == (S, S):
            yield Mistake(
                8,
                "a row for each cached token: only the T new tokens have a row.",
                "缓存的 token 也有一行：只有 T 个新 token 有行。",
            )
        else:
            yield Mistake(8, "the number of keys: S = start_pos + T.", "key 的个数：S = start_pos + T。")
        return
    keys, last = torch.arange(S), start + torch.arange(T)[:, None]
    right = keys <= last
    cached = keys < start
    if torch.equal(mask, right):
        return
    if torch.equal(mask, ~right) or torch.equal(mask, ~right | cached) and T > 1:
        yield Mistake(
            8,
            "True and False exchanged: True means that the token may see the key.",
            "True 与 False 颠倒了：True 表示看得到。",
        )
    elif mask.all():
        yield Mistake(
            8,
            "the future is not hidden: token t sees no key after start_pos + t.",
            "没有遮住后面的 token：token t 看不到 start_pos + t 之后的 key。",
        )
    elif torch.equal(mask, keys < last) or torch.equal(mask, keys <= last + 1):
        yield Mistake(
            8,
            "off by one position: token t sees keys 0 to start_pos + t, both included.",
            "差了一个位置：token t 看得到 key 0 到 start_pos + t，两端都算。",
        )
    elif torch.equal(mask, right & ~cached):
        yield Mistake(
            8,
            "the cached keys are hidden: each new token also sees all start_pos cached ones.",
            "缓存的 key 被遮住了：新 token 都看得到 start_pos 个缓存的 key。",
        )
    elif any(torch.equal(mask, keys <= torch.arange(T)[:, None] + n) for n in (-start, -1, 0, 1, T)):
        yield Mistake(
            8,
            "the mask is aligned to the wrong corner: the triangle is at the right end, .tril(diagonal=start_pos).",
            "mask 对错了角：三角形在右端，.tril(diagonal=start_pos)。",
        )
    elif torch.equal(mask, keys >= last) or torch.equal(mask, (keys >= last) | cached):
        yield Mistake(
            8,
            "the mask is transposed: row t has the keys that token t sees.",
            "mask 转置了：第 t 行是 token t 看得到的 key。",
        )
    elif torch.equal(mask, right.flip(1)):
        yield Mistake(
            8,
            "the order of the keys is reversed: column s is the key at position s.",
            "key 的顺序反了：第 s 列是位置 s 的 key。",
        )
    elif bool((mask <= right).all()):
        yield Mistake(
            8,
            "earlier keys are hidden: token t sees all keys from 0 up to itself.",
            "前面的 key 被遮住了：token t 看得到从 0 到自己的所有 key。",
        )
    elif bool((mask >= right).all()):
        yield Mistake(
            8,
            "later keys are visible: token t sees no key after start_pos + t.",
            "看得到后面的 key：token t 看不到 start_pos + t 之后的 key。",
        )
