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
from .rotation import LAYOUT, TWICE, UNROTATED
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
    table = random_table(T, D // 2)

    def out(q: Tensor, k: Tensor, v: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = plain(call(attend, q, k, v, table, ~mask if is_negated else mask))
        return result.transpose(1, 2) if result.shape == (B, H, T, D) else result

    def weights(q: Tensor, k: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        """(B, T, H, S): the values are 1 at the channel of their token."""
        return out(q, k, torch.eye(T, D)[None, :, None].expand(B, T, K, D), table, mask)[..., :T]

    def is_softmax(w: Tensor) -> bool:
        return near(w.sum(-1), torch.ones(B, T, H).double())

    is_negated = False
    found = list(first(
        (out(q, k, v, STILL, ALL).shape == (B, H, T, T) or out(q, k, v, STILL, ALL).shape == (B, T, H, T), "the weights are returned: weights @ v", "返回了权重：还要乘，weights @ v"),
        (out(q, k, v, STILL, ALL).shape != q.shape, "the shape: (B, T, H, D), or (B, T, H * D)", "形状：(B, T, H, D) 或 (B, T, H * D)"),
    ))
    yield from found
    if found:
        return
    if attend(q, k, v, STILL, ALL).shape == (B, H, T, D):
        yield Mistake("no transpose back: the output is (B, T, H, D)", "没有转置回来：输出应为 (B, T, H, D)")
    w = weights(q, k, STILL, ALL)
    opposite = weights(q, k, STILL, ~ALL)
    if not is_softmax(w) and is_softmax(opposite) and not near(opposite, torch.full_like(w, 1 / T)):
        yield Mistake("True and False exchanged: scores are -inf where the mask is False, masked_fill(~mask, -inf)", "True 与 False 颠倒了：mask 为 False 处的得分是 -inf，masked_fill(~mask, -inf)")
        is_negated = True
        w = weights(q, k, STILL, ALL)
    found = list(value_mistakes(out, q, k, v))
    yield from found
    if found:
        return
    yield from turned_mistakes(out, q, k, v, table)
    over = {name: axis for name, axis in (("batch", 0), ("queries", 1), ("heads", 2)) if near(w.sum(axis), torch.ones_like(w.sum(axis)))}
    found = list(first(
        (w.isnan().all(), "every number is NaN: 0 * inf and inf - inf are; write masked_fill(~mask, -inf)", "全是 NaN：0 * inf 和 inf - inf 都是；请写 masked_fill(~mask, -inf)"),
        (w.isnan().any(), "", ""),
        (not is_softmax(w) and over, f"the softmax runs along the wrong axis, the {' '.join(over)}: keys are dim=-1", f"softmax 的轴不对（{' '.join(over)}）：key 是 dim=-1"),
        (not is_softmax(w), "the weights of a query do not sum to 1: softmax(-1) of the scores", "每个 query 的权重之和不为 1：应为得分的 softmax(-1)"),
        (not bool(w.transpose(1, 2).triu(1).any()), "another mask than the argument: it is not always a triangle", "用了别的 mask：传入的不一定是三角形"),
    ))
    yield from found
    same = k[:, :, :1].expand(k.shape)  # whatever the key/value head
    w = weights(q, same, STILL, ALL)
    scores = torch.einsum("bthd,bsd->bths", q, k[:, :, 0]).double()
    scale = None if found or w.isnan().any() else fit(w, scores)
    if scale is not None:
        yield from scale_mistakes(scale)
        yield from rotation_mistakes(weights(q, same, table, ALL), q, same, table, scale, layout)
        yield from mask_mistakes(w, weights(q, same, STILL, MASK), weights(20_000 * q, same, STILL, MASK))
        yield from head_mistakes(out, weights(q, k, STILL, ALL), q, k)
        if out(*vectors(20_000.0), STILL, ALL).isnan().any():
            yield Mistake("exp without subtracting the largest visible score: exp overflows; softmax(-1) does it right", "exp 之前没有减去看得到的最大得分：exp 会溢出；softmax(-1) 不会")
    elif not found:
        yield from score_mistakes(w, q, k[:, :, 0], scores)


def fit(w: Tensor, scores: Tensor) -> float | None:
    """The factor of the scores whose softmax is w, None if there is none."""
    x, y = (each - each.mean(-1, keepdim=True) for each in (scores, w.log()))
    factor = float((x * y).sum() / (x * x).sum())
    return factor if near(y, factor * x, 2e-3) else None


def value_mistakes(out: Attend, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Mistake]:
    """From a mask in which each token sees itself only, whose value is then the output."""
    found = out(q, k, v, STILL, SELF)
    keys, values = (x.double().repeat_interleave(G, 2) for x in (k, v))
    of_heads = [any(near(found[:, :, h], v[:, :, j].double()) for j in range(K)) for h in range(H)]
    yield from first(
        (near(found, keys) or near(found, q.double()), "keys or queries are summed instead of values: weights @ v", "加权的是 key 或 query，不是 value：应为 weights @ v"),
        (any(near(found - q, each) for each in (values, v.double().repeat(1, 1, G, 1))), "the input is added: the block adds the residual", "加上了输入：残差由外面的 block 加"),
        (near(found.flatten().sort()[0], values.flatten().sort()[0]) and not all(of_heads),
         "a view instead of a transpose: reshape keeps the order in memory, which mixes tokens and heads", "用 view 代替了 transpose：reshape 不改变内存里的顺序，token 和 head 就混了"),
    )


def turned_mistakes(out: Attend, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Iterator[Mistake]:
    """From a mask in which token t sees only token t + 1."""
    shifted, values = out(q, k, v, table, SELF.roll(1, 1)), v.double().repeat_interleave(G, 2)
    turned = [(rotate(values, table, each).roll(-1, 1), rotate(values.roll(-1, 1), table, each)) for each in (NEIGHBOURS, HALVES)]
    yield from first(
        (any(near(shifted, each[0]) for each in turned), "values are rotated: rotate only queries and keys", "value 也转了：只转 query 和 key"),
        (any(near(shifted, each[1]) for each in turned), "the output is rotated: rotate only queries and keys", "输出也转了：只转 query 和 key"),
    )


def scale_mistakes(scale: float) -> Iterator[Mistake]:
    yield from first(
        (abs(scale * math.sqrt(D) - 1) < 0.01, "", ""),
        (abs(scale - 1) < 0.01, "the scores are not divided by sqrt(D): D is xq.shape[-1]", "得分没有除以 sqrt(D)：D 是 xq.shape[-1]"),
        (scale < 0, "the scores are negated: the largest score has the largest weight", "得分的符号反了：得分最大，权重最大"),
        (True, f"the scale of the scores: they are divided by sqrt(D), {math.sqrt(D):.4g} here; yours by {1 / scale:.4g}", f"得分的缩放：应除以 sqrt(D)，这里是 {math.sqrt(D):.4g}；你除以了 {1 / scale:.4g}"),
    )


def score_mistakes(w: Tensor, q: Tensor, k: Tensor, scores: Tensor) -> Iterator[Mistake]:
    """Of weights that are no softmax of a multiple of the scores."""
    cosines = scores / q.norm(dim=-1)[..., None] / k.norm(dim=-1)[:, None, None]
    queries, keys = torch.einsum("bthd,bshd->bths", q, q), torch.einsum("btd,bsd->bts", k, k)[:, :, None].expand(w.shape)
    yield from first(
        (fit(w, cosines) is not None, "the scores are cosines: a score is q . k / sqrt(D)", "得分成了余弦：应为 q · k / sqrt(D)"),
        (any(fit(w, each.double()) is not None for each in (queries, keys)), "queries are compared with queries, or keys with keys: q . k", "query 与 query 相比，或 key 与 key 相比：应为 q · k"),
        (fit(w, scores.transpose(1, 3)) is not None, "queries and keys exchanged in the scores: q @ k.mT", "得分里 query 与 key 颠倒了：q @ k.mT"),
        (near(w, (scores / math.sqrt(D)).softmax(-1).softmax(-1), 1e-3), "the softmax is taken twice", "softmax 做了两次"),
    )


def rotation_mistakes(w: Tensor, q: Tensor, k: Tensor, table: Tensor, scale: float, layout: str) -> Iterator[Mistake]:
    """From the weights with a table, which show how q and k were turned."""

    def turned(*turns: tuple[int, int]) -> bool:
        return any(agrees(*turn, how) for turn in turns for how in (NEIGHBOURS, HALVES))

    def agrees(of_q: int, of_k: int, how: str) -> bool:
        rotated = rotate(q, table**of_q, how), rotate(k, table**of_k, how)[:, :, 0]
        return near(w, (scale * torch.einsum("bthd,bsd->bths", *rotated)).double().softmax(-1), 1e-3)

    yield from first(
        (agrees(1, 1, layout), "", ""),
        (turned((0, 0)), *UNROTATED),
        (turned((1, 0)), "not rotated, in k only: a score depends on the distance only if both are", "没有旋转（只在 k）：两者都旋转，得分才只依赖距离", 2),
        (turned((0, 1)), "not rotated, in q only: a score depends on the distance only if both are", "没有旋转（只在 q）：两者都旋转，得分才只依赖距离", 2),
        (turned((-1, -1), (1, -1), (-1, 1)), *SIGN),
        (turned((2, 2), (2, 1), (1, 2)), *TWICE),
        (turned((1, 1)), *LAYOUT),
    )


def mask_mistakes(w: Tensor, masked: Tensor, large: Tensor) -> Iterator[Mistake]:
    """From the weights of all keys, those with MASK, and those with MASK and large scores."""

    def under(*masks: Tensor) -> bool:
        return any(near(masked, w * mask[:, None] / (w * mask[:, None]).sum(-1, keepdim=True), 1e-3) for mask in masks)

    hidden = ~MASK[:, None].expand(w.shape)
    yield from first(
        (under(MASK) and not bool((large[hidden].abs() > 1e-6).any()), "", ""),
        (bool(masked.isnan().any()), "", ""),
        (under(ALL), "the mask is not used: scores are -inf where it is False", "没有用 mask：False 处的得分应为 -inf"),
        (under(MASK.T), "the mask is transposed: row t belongs to query t", "mask 转置了：第 t 行属于 query t"),
        (under(TRIANGLE), "another mask than the argument: it is not always a triangle", "用了别的 mask：传入的不一定是三角形"),
        (near(masked, w * MASK[:, None], 1e-3), "the mask comes after the softmax, so the rest do not sum to 1: mask the scores", "mask 用在 softmax 之后，剩下的权重之和不为 1：应遮住得分"),
        (bool((large[hidden].abs() > 1e-6).any() or (masked[hidden].abs() > 1e-6).any()),
         "hidden keys have a score that is not -inf, so they keep some weight: masked_fill(~mask, -inf)", "遮住的 key 的得分不是 -inf，仍有权重：masked_fill(~mask, -inf)"),
    )


def head_mistakes(out: Attend, w: Tensor, q: Tensor, k: Tensor) -> Iterator[Mistake]:
    """From the key/value head of each query head: that of the values, which are its number, and that of the keys."""
    numbers = torch.arange(K).float()[:, None].expand(B, T, K, D)
    scores = torch.einsum("bthd,bsjd->jbths", q, k).double()
    scores, logs = scores - scores.mean(-1, keepdim=True), w.log() - w.log().mean(-1, keepdim=True)
    likeness = torch.einsum("bths,jbths->jh", logs, scores) / scores.square().sum((1, 2, 4)).sqrt()
    parts = []
    for heads in (likeness.argmax(0), out(q, k, numbers, STILL, ALL)[0, 0, :, 0].round().long()):
        parts.append(list(first(
            (torch.equal(heads, torch.arange(H) // G), "", ""),
            (torch.equal(heads, torch.arange(H) % K), "heads are tiled instead of repeated: head h uses head h // (H // K), repeat_interleave", "head 是平铺的，不是逐个重复的：head h 用第 h // (H // K) 个，repeat_interleave"),
            (True, "other key/value heads: head h uses head h // (H // K)", "用错了 key/value head：head h 用第 h // (H // K) 个"),
        )))
    yield from of_parts(("k", "v"), parts)
