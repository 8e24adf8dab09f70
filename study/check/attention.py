"""attention: its probes, and its usual mistakes by the weights, the scores and the values that the output shows."""

import math
from collections.abc import Callable, Iterator
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
    plain,
    random,
    random_table,
    rotate,
)
from .rotation import AXES, LAYOUT, TWICE, UNROTATED
from .table import SIGN

B, T, H, K, D = 3, 4, 6, 2, 8
G = H // K
Attend = Callable[..., Any]
# Each row sees some keys, and no rule, such as the transpose or a triangle, makes the same of it as another.
MASK = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 1], [0, 0, 1, 1]], dtype=torch.bool)
ALL, TRIANGLE, SELF = torch.ones_like(MASK), torch.ones_like(MASK).tril(), torch.eye(T, dtype=torch.bool)
STILL = torch.ones(T, D // 2, dtype=torch.complex128)  # a table that rotates nothing


def right(layout: str) -> Attend:
    def attend(xq: Tensor, xk: Tensor, xv: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        q, k = (rotate(x.double(), table, layout) for x in (xq, xk))
        q, k, v = (x.repeat_interleave(H // x.shape[2], 2).transpose(1, 2) for x in (q, k, xv.double()))
        scores = (q @ k.mT / math.sqrt(D)).masked_fill(~mask, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)

    return attend


def vectors(size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    return size * random(B, T, H, D), random(B, T, K, D, seed=2), random(B, T, K, D, seed=3)


def call(attend: Attend, q: Tensor, k: Tensor, v: Tensor, table: Tensor, mask: Tensor) -> Any:
    """The output, whose heads may be flattened, as (B, T, H, D)."""
    out = attend(q, k, v, table, mask)
    return out.reshape(q.shape) if torch.is_tensor(out) and out.shape == (B, T, H * D) else out


def probe(en: str, zh: str, mask: Tensor, size: float = 1.0) -> Probe:
    label = f"xq {(B, T, H, D)}, xk {(B, T, K, D)}"
    given = *vectors(size), random_table(T, D // 2), mask
    return Probe(Both(label + en, label + zh), lambda attend: call(attend, *given), 2e-4)


PROBES = (
    probe("", "", MASK),
    probe(", causal mask", "，causal mask", TRIANGLE),
    probe(", xq 20,000 times as large", "，xq 放大 20000 倍", MASK, 20_000.0),
)


# fmt: off
def mistakes(attend: Attend, layout: str) -> Iterator[Mistake]:
    q, k, v = vectors()
    table, is_negated = random_table(T, D // 2), False

    def out(q: Tensor, k: Tensor, v: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = plain(call(attend, q, k, v, table, ~mask if is_negated else mask))
        return result.transpose(1, 2) if result.shape == (B, H, T, D) else result

    def weights(k: Tensor, table: Tensor, mask: Tensor, q: Tensor = q) -> Tensor:
        """(B, T, H, S): the values are 1 at the channel of their token."""
        return out(q, k, torch.eye(T, D)[:, None].expand(B, T, K, D), table, mask)[..., :T]

    shape = call(attend, q, k, v, STILL, ALL).shape
    found = list(first(
        (shape in ((B, H, T, T), (B, T, H, T)),
         "the weights are returned: weights @ v", "返回了权重：还要乘，weights @ v"),
        (shape == (B, H, T, D), "no transpose back: the output is (B, T, H, D)", "没有转置回来：输出应为 (B, T, H, D)"),
        (shape != q.shape, "the shape: (B, T, H, D)", "形状：应为 (B, T, H, D)"),
    ))
    yield from found
    if shape not in (q.shape, (B, H, T, D)):
        return
    if is_softmax(weights(k, STILL, ~ALL)) and not is_softmax(weights(k, STILL, ALL)):
        yield Mistake("True and False exchanged: False hides a key, masked_fill(~mask, -inf)",
                      "True 与 False 颠倒了：False 表示看不到，masked_fill(~mask, -inf)")
        is_negated = True
    found = list(value_mistakes(out, q, k, v))
    yield from found
    if found:
        return
    found = list(turned_mistakes(out, q, k, v, table))
    yield from found
    same = k[:, :, :1].expand(k.shape)  # whatever the key/value head
    w, scores = weights(same, STILL, ALL), torch.einsum("bthd,bsd->bths", q, k[:, :, 0]).double()
    scale = fit(w, scores)
    if not near(w.sum(-1), torch.ones(B, T, H).double()) or scale is None:
        yield from weight_mistakes(w, scores, q, k[:, :, 0])
        return
    yield from first(
        (abs(scale * math.sqrt(D) - 1) < 0.01, "", ""),
        (abs(scale - 1) < 0.01,
         "the scores are not divided by sqrt(D): D is xq.shape[-1]", "得分没有除以 sqrt(D)：D 是 xq.shape[-1]"),
        (scale < 0, "the scores are negated: the largest has the largest weight", "得分的符号反了：得分最大，权重最大"),
        (True, f"the scale of the scores: divide by sqrt(D), {math.sqrt(D):.4g} here, not by {1 / scale:.4g}",
         f"得分的缩放：应除以 sqrt(D)，这里是 {math.sqrt(D):.4g}，不是 {1 / scale:.4g}"),
    )
    if not found:
        yield from rotation_mistakes(weights(same, table, ALL), q, same, table, scale, layout)
    yield from mask_mistakes(w, weights(same, STILL, MASK), weights(same, STILL, MASK, 20_000 * q))
    yield from head_mistakes(out, weights(k, STILL, ALL), q, k, scale)
    yield from first((weights(same, STILL, ALL, 20_000 * q).isnan().any(),
                      "exp without subtracting the largest visible score: it overflows; use softmax(-1)",
                      "exp 之前没有减去看得到的最大得分：会溢出，应用 softmax(-1)"))


def is_softmax(w: Tensor) -> bool:
    """Whether the weights of each query sum to 1, and differ."""
    return near(w.sum(-1), torch.ones(B, T, H).double()) and not near(w, torch.full_like(w, 1 / T))


def fit(w: Tensor, scores: Tensor) -> float | None:
    """The factor of the scores whose softmax is w, None if there is none."""
    x, y = (each - each.mean(-1, keepdim=True) for each in (scores, w.log()))
    factor = float((x * y).sum() / (x * x).sum())
    return factor if factor and near(y, factor * x, 2e-3) else None


def value_mistakes(out: Attend, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Mistake]:
    """From a mask in which each token sees itself only, whose value is then the output."""
    found = out(q, k, v, STILL, SELF)
    keys, values, tiled = (*(x.double().repeat_interleave(G, 2) for x in (k, v)), v.double().repeat(1, 1, G, 1))
    of_heads = [any(near(found[:, :, h], v[:, :, j].double()) for j in range(K)) for h in range(H)]
    yield from first(
        (near(found, keys) or near(found, q.double()),
         "keys or queries are summed instead of values: weights @ v", "加权的是 key 或 query，不是 value：weights @ v"),
        (near(found - q, values) or near(found - q, tiled),
         "the input is added: the block adds the residual", "加上了输入：残差由外面的 block 加"),
        (near(found.flatten().sort()[0], values.flatten().sort()[0]) and not all(of_heads),
         "a view instead of a transpose: reshape mixes tokens and heads",
         "用 view 代替了 transpose：reshape 把 token 和 head 混在一起"),
    )


def turned_mistakes(out: Attend, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Iterator[Mistake]:
    """From a mask in which token t sees only token t + 1."""
    found, values = out(q, k, v, table, SELF.roll(1, 1)), v.double().repeat_interleave(G, 2)
    layouts = (NEIGHBOURS, HALVES)
    yield from first(
        (any(near(found, rotate(values, table, each).roll(-1, 1)) for each in layouts),
         "values are rotated: rotate only queries and keys", "value 也转了：只转 query 和 key"),
        (any(near(found, rotate(values.roll(-1, 1), table, each)) for each in layouts),
         "the output is rotated: rotate only queries and keys", "输出也转了：只转 query 和 key"),
    )


def weight_mistakes(w: Tensor, scores: Tensor, q: Tensor, k: Tensor) -> Iterator[Mistake]:
    """Of weights that are no softmax of a multiple of the scores over the keys."""
    def along(axis: int) -> bool:
        return near(w.sum(axis), torch.ones_like(w.sum(axis)))

    axes = [name for axis, name in ((0, "batch"), (1, "queries"), (2, "heads")) if along(axis)]
    cosines = scores / q.norm(dim=-1)[..., None] / k.norm(dim=-1)[:, None, None]
    queries, keys = torch.einsum("bthd,bshd->bths", q, q), torch.einsum("btd,bsd->bts", k, k)[:, :, None].expand(w.shape)
    scaled = scores / math.sqrt(D)
    yield from first(
        (w.isnan().all(),
         "every number is NaN: (1 - mask) * -inf is; masked_fill(~mask, -inf)",
         "全是 NaN：(1 - mask) * -inf 就是；masked_fill(~mask, -inf)"),
        (w.isnan().any(), "", ""),
        (not w.transpose(1, 2).triu(1).any(),
         "another mask than the argument: it is not always a triangle", "用了别的 mask：传入的不一定是三角形"),
        (not along(-1) and axes,
         f"the softmax runs along the wrong axis: {' '.join(axes)}; keys are the last",
         f"softmax 的轴不对：{' '.join(axes)}；key 是最后一轴"),
        (bool((w < -1e-6).any()),
         "not a softmax of the scores: exp(score) divided by the sum", "不是得分的 softmax：应为 exp(得分) 除以总和"),
        (not along(-1) and (fit(w, scores) or near(w, scaled.sigmoid())),
         "the weights do not sum to 1: softmax(-1) of the scores", "权重之和不为 1：应为得分的 softmax(-1)"),
        (not along(-1), "", ""),
        (fit(w, cosines), "the scores are cosines: q . k / sqrt(D)", "得分成了余弦：应为 q · k / sqrt(D)"),
        (fit(w, queries.double()) or fit(w, keys.double()),
         "queries are compared with queries, or keys with keys: q . k",
         "query 与 query 比，或 key 与 key 比：应为 q · k"),
        (fit(w, scores.transpose(1, 3)),
         "queries and keys exchanged in the scores: q @ k.mT", "得分里 query 与 key 颠倒了：q @ k.mT"),
        (near(w, scaled.softmax(-1).softmax(-1), 1e-3), "the softmax is taken twice", "softmax 做了两次"),
    )


def rotation_mistakes(w: Tensor, q: Tensor, k: Tensor, table: Tensor, scale: float, layout: str) -> Iterator[Mistake]:
    """From the weights with a table, which show how q and k were turned."""

    def agrees(of_q: int, of_k: int, how: str) -> bool:
        rotated = rotate(q, table**of_q, how), rotate(k, table**of_k, how)[:, :, 0]
        return near(w, (scale * torch.einsum("bthd,bsd->bths", *rotated)).double().softmax(-1), 1e-3)

    def turned(*turns: tuple[int, int]) -> bool:
        return any(agrees(*turn, how) for turn in turns for how in (NEIGHBOURS, HALVES))

    in_k, in_q = (of_parts("qk", parts)[0] for parts in ([[], [UNROTATED]], [[UNROTATED], []]))
    yield from first(
        (agrees(1, 1, layout), "", ""),
        (turned((0, 0)), *UNROTATED),
        (turned((1, 0)), *in_k),
        (turned((0, 1)), *in_q),
        (turned((-1, -1), (1, -1), (-1, 1)), *SIGN),
        (turned((2, 2), (2, 1), (1, 2)), *TWICE),
        (turned((1, 1)), *LAYOUT),
        (True,
         "the rotation: row t of freqs_cis turns q and k of token t",
         "旋转：freqs_cis 的第 t 行旋转 token t 的 q 和 k"),
    )


def mask_mistakes(w: Tensor, masked: Tensor, large: Tensor) -> Iterator[Mistake]:
    """From the weights of all keys, those with MASK, and those with MASK and large scores."""

    def under(mask: Tensor) -> bool:
        return near(masked, w * mask[:, None] / (w * mask[:, None]).sum(-1, keepdim=True), 1e-3)

    hidden = ~MASK[:, None].expand(w.shape)
    leaks = bool((large[hidden].abs() > 1e-6).any() or (masked[hidden].abs() > 1e-6).any())
    yield from first(
        ((under(MASK) and not leaks) or masked.isnan().any(), "", ""),
        (under(ALL), "the mask is not used: scores are -inf where it is False", "没有用 mask：False 处的得分应为 -inf"),
        (under(MASK.T), "the mask is transposed: row t belongs to query t", "mask 转置了：第 t 行属于 query t"),
        (under(TRIANGLE),
         "another mask than the argument: it is not always a triangle", "用了别的 mask：传入的不一定是三角形"),
        (near(masked, w * MASK[:, None], 1e-3),
         "the mask comes after the softmax: the rest do not sum to 1; mask the scores",
         "mask 用在 softmax 之后：剩下的和不为 1，应遮住得分"),
        (leaks,
         "hidden keys keep some weight: their score is -inf, masked_fill(~mask, -inf)",
         "遮住的 key 仍有权重：得分应为 -inf，masked_fill(~mask, -inf)"),
    )


def head_mistakes(out: Attend, w: Tensor, q: Tensor, k: Tensor, scale: float) -> Iterator[Mistake]:
    """From the key/value head of each query head: that of the values, which are its number, and that of the keys."""
    numbers = torch.arange(K).float()[:, None].expand(B, T, K, D)
    fits = (w - (scale * torch.einsum("bthd,bsjd->jbths", q, k)).double().softmax(-1)).abs().amax((1, 2, 4))  # (K, H)
    parts = []
    for heads in (fits.argmin(0), out(q, k, numbers, STILL, ALL)[0, 0, :, 0].round().long()):
        parts.append(list(first(
            (torch.equal(heads, torch.arange(H) // G), "", ""),
            (torch.equal(heads, torch.arange(H) % K),
             "heads are tiled instead of repeated: head h uses h // (H // K), repeat_interleave",
             "head 平铺了，没有逐个重复：head h 用第 h // (H // K) 个，repeat_interleave"),
            (True,
             "other key/value heads: head h uses h // (H // K)", "用错了 key/value head：head h 用第 h // (H // K) 个"),
        )))
    yield from of_parts("kv", parts)
# fmt: on
EXERCISE = Exercise(7, ("xq", "xk", "xv", "freqs_cis", "mask"), right, PROBES, AXES, (), mistakes)
