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

    def out(k: Tensor, v: Tensor, table: Tensor, mask: Tensor, q: Tensor = q) -> Tensor:
        result: Tensor = plain(call(attend, q, k, v, table, ~mask if is_negated else mask))
        return result.transpose(1, 2) if result.shape == (B, H, T, D) else result

    def weights(k: Tensor, table: Tensor, mask: Tensor, q: Tensor = q) -> Tensor:
        """(B, T, H, S): the values are 1 at the channel of their token."""
        return out(k, torch.eye(T, D)[:, None].expand(B, T, K, D), table, mask, q)[..., :T]

    shape = call(attend, q, k, v, STILL, ALL).shape
    yield from first(
        (shape in ((B, H, T, T), (B, T, H, T)), "the weights are returned: weights @ v", "返回了权重：weights @ v"),
        (shape == (B, H, T, D), "no transpose back: (B, T, H, D)", "没有转置回来：(B, T, H, D)"),
        (shape != q.shape, "the shape: (B, T, H, D)", "形状：(B, T, H, D)"),
    )
    if shape not in (q.shape, (B, H, T, D)):
        return
    if is_softmax(weights(k, STILL, ~ALL)) and not is_softmax(weights(k, STILL, ALL)):
        yield Mistake("True and False exchanged: False hides a key", "True 与 False 颠倒了：False 表示看不到")
        is_negated = True
    found = value_mistakes(out(k, v, STILL, SELF), q.double(), k.double(), v.double())
    yield from found
    if found:
        return
    found = turned_mistakes(out(k, v, table, SELF.roll(1, 1)), v, table)
    yield from found
    same = k[:, :, :1].expand(k.shape)  # whatever the key/value head
    w, scores = weights(same, STILL, ALL), torch.einsum("bthd,bsd->bths", q, k[:, :, 0]).double()
    scale = fit(w, scores)
    if not near(w.sum(-1), torch.ones(B, T, H).double()) or scale is None:
        yield from weight_mistakes(w, scores, q, k[:, :, 0])
        return
    yield from first(
        (abs(scale * math.sqrt(D) - 1) < 0.01, "", ""),
        (abs(scale - 1) < 0.01, "the scores are not divided by sqrt(D)", "得分没有除以 sqrt(D)"),
        (scale < 0, "the scores are negated", "得分的符号反了"),
        (True, f"the scale of the scores: sqrt(D) is {math.sqrt(D):.4g}, here they are divided by {1 / scale:.4g}",
         f"得分的缩放：sqrt(D) 是 {math.sqrt(D):.4g}，这里除以 {1 / scale:.4g}"),
    )
    if not found:
        yield from rotation_mistakes(weights(same, table, ALL), q, same, table, scale, layout)
    yield from mask_mistakes(w, weights(same, STILL, MASK), weights(same, STILL, MASK, 20_000 * q))
    numbers = torch.arange(K).float()[:, None].expand(B, T, K, D)  # values that are their head
    yield from head_mistakes(weights(k, STILL, ALL), out(k, numbers, STILL, ALL), scale * q, k)
    yield from first((weights(same, STILL, ALL, 20_000 * q).isnan().any(),
                      "exp without subtracting the largest visible score", "exp 之前没有减去看得到的最大得分"))


def is_softmax(w: Tensor) -> bool:
    """Whether the weights of each query sum to 1, and differ."""
    return near(w.sum(-1), torch.ones(B, T, H).double()) and not near(w, torch.full_like(w, 1 / T))


def fit(w: Tensor, scores: Tensor) -> float | None:
    """The factor of the scores whose softmax is w, None if there is none."""
    x, y = (each - each.mean(-1, keepdim=True) for each in (scores, w.log()))
    factor = float((x * y).sum() / (x * x).sum())
    return factor if factor and math.isfinite(factor) and near(y, factor * x, 2e-3) else None


def value_mistakes(found: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Mistake]:
    """From the output if each token sees itself only."""
    keys, values, tiled = k.repeat_interleave(G, 2), v.repeat_interleave(G, 2), v.repeat(1, 1, G, 1)
    of_heads = [any(near(found[:, :, h], v[:, :, j]) for j in range(K)) for h in range(H)]
    return first(
        (near(found, keys) or near(found, q),
         "keys or queries are summed instead of values", "加权的是 key 或 query，不是 value"),
        (near(found - q, values) or near(found - q, tiled), "the input is added to the output", "输出里加上了输入"),
        (near(found.flatten().sort()[0], values.flatten().sort()[0]) and not all(of_heads),
         "a view instead of a transpose: it mixes tokens and heads", "用 view 代替了 transpose：token 和 head 混了"),
    )


def turned_mistakes(found: Tensor, v: Tensor, table: Tensor) -> list[Mistake]:
    """From the output if token t sees only token t + 1."""
    values, layouts = v.double().repeat_interleave(G, 2), (NEIGHBOURS, HALVES)
    return first(
        (any(near(found, rotate(values, table, each).roll(-1, 1)) for each in layouts),
         "values are rotated", "value 也转了"),
        (any(near(found, rotate(values.roll(-1, 1), table, each)) for each in layouts),
         "the output is rotated", "输出也转了"),
    )


def weight_mistakes(w: Tensor, scores: Tensor, q: Tensor, k: Tensor) -> list[Mistake]:
    """Of weights that are no softmax of a multiple of the scores over the keys."""

    def is_one(axis: int) -> bool:
        return near(w.sum(axis), torch.ones_like(w.sum(axis)))

    axes = ", ".join(name for axis, name in ((0, "batch"), (1, "queries"), (2, "heads")) if is_one(axis))
    cosines, scaled = scores / q.norm(dim=-1)[..., None] / k.norm(dim=-1)[:, None, None], scores / math.sqrt(D)
    queries = torch.einsum("bthd,bshd->bths", q, q)
    keys = torch.einsum("btd,bsd->bts", k, k)[:, :, None].expand(w.shape)
    return first(
        (w.isnan().all(), "every number is NaN: masked_fill(~mask, -inf)", "全是 NaN：masked_fill(~mask, -inf)"),
        (w.isnan().any(), "", ""),
        (not w.transpose(1, 2).triu(1).any(), "another mask than the argument", "用的不是传入的 mask"),
        (not is_one(-1) and fit(w.transpose(1, 3), scores), "the weights are transposed", "权重转置了"),
        (not is_one(-1) and axes, f"the softmax runs along the wrong axis: {axes}", f"softmax 的轴不对：{axes}"),
        ((w < -1e-6).any(), "not a softmax of the scores", "不是得分的 softmax"),
        (not is_one(-1) and (fit(w, scores) or near(w, scaled.sigmoid())),
         "the weights do not sum to 1", "权重之和不为 1"),
        (not is_one(-1), "", ""),
        (fit(w, cosines), "the scores are cosines: q . k / sqrt(D)", "得分成了余弦：应为 q · k / sqrt(D)"),
        (fit(w, queries.double()) or fit(w, keys.double()),
         "queries are compared with queries, or keys with keys", "query 与 query 比，或 key 与 key 比"),
        (fit(w, scores.transpose(1, 3)), "queries and keys exchanged in the scores", "得分里 query 与 key 颠倒了"),
        (near(w, scaled.softmax(-1).softmax(-1), 1e-3), "the softmax is taken twice", "softmax 做了两次"),
    )


def rotation_mistakes(w: Tensor, q: Tensor, k: Tensor, table: Tensor, scale: float, layout: str) -> list[Mistake]:
    """From the weights with a table, which show how q and k were turned."""

    def agrees(of_q: int, of_k: int, *layouts: str) -> bool:
        for how in layouts:
            rotated = rotate(scale * q, table**of_q, how), rotate(k, table**of_k, how)[:, :, 0]
            if near(w, torch.einsum("bthd,bsd->bths", *rotated).double().softmax(-1), 1e-3):
                return True
        return False

    def turned(*turns: tuple[int, int]) -> bool:
        return any(agrees(*turn, NEIGHBOURS, HALVES) for turn in turns)

    in_k, in_q = (of_parts("qk", parts)[0] for parts in ([[], [UNROTATED]], [[UNROTATED], []]))
    return first(
        (agrees(1, 1, layout), "", ""),
        (turned((0, 0)), *UNROTATED),
        (turned((1, 0)), *in_k),
        (turned((0, 1)), *in_q),
        (turned((-1, -1), (1, -1), (-1, 1)), *SIGN),
        (turned((2, 2), (2, 1), (1, 2)), *TWICE),
        (turned((1, 1)), *LAYOUT),
        (True, "the rotation: row t of freqs_cis turns token t", "旋转：freqs_cis 的第 t 行旋转 token t"),
    )


def mask_mistakes(w: Tensor, masked: Tensor, large: Tensor) -> list[Mistake]:
    """From the weights of all keys, those with MASK, and those with MASK and large scores."""

    def under(mask: Tensor) -> bool:
        return near(masked, w * mask[:, None] / (w * mask[:, None]).sum(-1, keepdim=True), 1e-3)

    hidden = torch.stack((masked, large))[:, ~MASK[:, None].expand(w.shape)]
    leaks = bool((hidden.abs() > 1e-6).any())
    return first(
        ((under(MASK) and not leaks) or masked.isnan().any(), "", ""),
        (under(ALL), "the mask is not used", "没有用 mask"),
        (under(MASK.T), "the mask is transposed: row t belongs to query t", "mask 转置了：第 t 行属于 query t"),
        (under(TRIANGLE), "another mask than the argument", "用的不是传入的 mask"),
        (near(masked, w * MASK[:, None], 1e-3), "the mask comes after the softmax", "mask 用在 softmax 之后"),
        (leaks,
         "hidden keys keep some weight: masked_fill(~mask, -inf)", "遮住的 key 仍有权重：masked_fill(~mask, -inf)"),
    )


def head_mistakes(w: Tensor, of_values: Tensor, q: Tensor, k: Tensor) -> list[Mistake]:
    """From the key/value head of each query head: of the keys, whose scores fit best, and of the values, a number."""
    errors = (w - torch.einsum("bthd,bsjd->jbths", q, k).double().softmax(-1)).abs().amax((1, 2, 4))  # (K, H)
    parts = [first(
        (torch.equal(heads, torch.arange(H) // G), "", ""),
        (torch.equal(heads, torch.arange(H) % K),
         "heads are tiled instead of repeated: head h uses h // (H // K)",
         "head 平铺了，没有逐个重复：head h 用第 h // (H // K) 个"),
        (True,
         "other key/value heads: head h uses h // (H // K)", "用错了 key/value head：head h 用第 h // (H // K) 个"),
    ) for heads in (errors.argmin(0), of_values[0, 0, :, 0].round().long())]
    return of_parts("kv", parts)
# fmt: on


EXERCISE = Exercise(7, ("xq", "xk", "xv", "freqs_cis", "mask"), right, PROBES, AXES, (), mistakes)
