"""attention: its probes, and its usual mistakes by the weights, the scores and the values that the output shows."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import Exercise, Mistake, Probe, first, of_parts, only, same
from .rotation import AXES, LAYOUT, TWICE, UNROTATED
from .table import SIGN
from .tensors import HALVES, NEIGHBOURS, near, plain, random, random_table, rotate

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


def probe(label: str, mask: Tensor, size: float = 1.0) -> Probe:
    given = *vectors(size), random_table(T, D // 2), mask
    return Probe(same(label), lambda attend: call(attend, *given), 2e-4)


SHAPES = f"xq {(B, T, H, D)}, xk {(B, T, K, D)}"
PROBES = probe(SHAPES, MASK), probe(f"{SHAPES}, causal mask", TRIANGLE), probe("20,000 xq", MASK, 20_000.0)


# fmt: off
def mistakes(attend: Attend, layout: str) -> Iterator[Mistake]:
    q, k, v = vectors()
    alike = k[:, :, :1].expand(k.shape)  # whatever the key/value head
    table, scores = random_table(T, D // 2), torch.einsum("bthd,bsd->bths", q, k[:, :, 0]).double()

    def out(k: Tensor, v: Tensor, table: Tensor, mask: Tensor, q: Tensor = q) -> Tensor:
        result: Tensor = plain(call(attend, q, k, v, table, mask))
        return result

    def weights(k: Tensor, table: Tensor, mask: Tensor, q: Tensor = q) -> Tensor:
        """(B, T, H, S): the values are 1 at the channel of their token."""
        return out(k, torch.eye(T, D)[:, None].expand(B, T, K, D), table, mask, q)[..., :T]

    shape = out(k, v, table, ALL).shape
    if shape != q.shape:
        yield Mistake("the shape: transpose back to (B, T, H, D)", "形状：转置回 (B, T, H, D)")
        return
    w = weights(alike, STILL, ALL)
    if fit(weights(alike, STILL, ~ALL), scores) and not fit(w, scores):
        yield Mistake("True and False exchanged: False hides a key", "True 与 False 颠倒了：False 表示看不到")
        yield from mistakes(lambda *given: attend(*given[:-1], ~given[-1]), layout)
        return
    rotated, of_next = v.double().repeat_interleave(G, 2), out(k, v, table, SELF.roll(1, 1))
    if any(near(of_next, rotate(rotated, table, how).roll(-1, 1)) for how in (NEIGHBOURS, HALVES)):
        yield Mistake("values are rotated: only q and k are", "value 也转了：只转 q 和 k")
        return
    if not near(out(k, 2 * v, STILL, ALL), 2 * out(k, v, STILL, ALL)):
        yield Mistake("the result is no sum of values: weights @ v", "结果不是 value 的加权和：weights @ v")
        return
    scale = fit(w, scores)
    if not scale:
        yield from weight_mistakes(w, scores)
        return
    yield from first(
        (abs(scale * math.sqrt(D) - 1) < 0.01, "", ""),
        (abs(scale - 1) < 0.01, "the scores are not divided by sqrt(D)", "得分没有除以 sqrt(D)"),
        (scale < 0, "the scores are negated", "得分的符号反了"),
        (True, f"the scale of the scores: 1/sqrt(D), here {scale:.4g}", f"得分的缩放：1/sqrt(D)，这里是 {scale:.4g}"),
    )
    yield from rotation_mistakes(weights(alike, table, ALL), scale * q, alike, table, layout)
    large = weights(alike, STILL, MASK, 20_000 * q)
    yield from mask_mistakes(w, weights(alike, STILL, MASK), large)
    numbers = torch.arange(K).float()[:, None].expand(B, T, K, D)  # values that are their head
    yield from head_mistakes(weights(k, STILL, ALL), out(k, numbers, STILL, ALL), scale * q, k)
    yield from first((large.isnan().any(), "exp overflows: subtract the largest score", "exp 溢出：先减去最大得分"))


def fit(w: Tensor, scores: Tensor, tolerance: float = 1e-4) -> float | None:
    """The factor of the scores whose softmax is w, None if there is none."""
    x = scores - scores.mean(-1, keepdim=True)
    y = w.log() - w.log().mean(-1, keepdim=True)
    factor = float((x * y).sum() / (x * x).sum())
    return factor if math.isfinite(factor) and near(w, (factor * scores).softmax(-1), tolerance) else None


def weight_mistakes(w: Tensor, scores: Tensor) -> list[Mistake]:
    """Of weights that are no softmax of a multiple of the scores over the keys."""
    sums = {name: w.sum(axis) for axis, name in enumerate(("batch", "queries", "heads", "keys"))}
    axes = [name for name, each in sums.items() if near(each, torch.ones_like(each))]
    return first(
        (w.isnan().all(), "every number is NaN: masked_fill(~mask, -inf)", "全是 NaN：masked_fill(~mask, -inf)"),
        (not w.transpose(1, 2).triu(1).any(), "another mask than the argument", "用的不是传入的 mask"),
        (fit(w, scores, 0.02), "half precision: float32", "半精度：应用 float32", 12),
        (fit(w.transpose(1, 3), scores), "the weights are transposed", "权重转置了"),
        ("keys" not in axes and axes, f"the softmax runs along the wrong axis: {axes}", f"softmax 的轴不对：{axes}"),
        ("keys" not in axes, "the weights do not sum to 1", "权重之和不为 1"),
    )


def rotation_mistakes(w: Tensor, q: Tensor, k: Tensor, table: Tensor, layout: str) -> list[Mistake]:
    """From the weights with a table, which show how q and k were turned."""

    def turned(of_q: int, of_k: int, *layouts: str) -> bool:
        for how in layouts or (NEIGHBOURS, HALVES):
            rotated = rotate(q, table**of_q, how), rotate(k, table**of_k, how)[:, :, 0]
            if near(w, torch.einsum("bthd,bsd->bths", *rotated).double().softmax(-1), 1e-3):
                return True
        return False

    return first(
        (turned(1, 1, layout), "", ""),
        (turned(0, 0), *UNROTATED),
        (turned(1, 0), *only("k", UNROTATED)),
        (turned(0, 1), *only("q", UNROTATED)),
        (turned(-1, -1), *SIGN),
        (turned(2, 2), *TWICE),
        (turned(1, 1), *LAYOUT),
    )


def mask_mistakes(w: Tensor, masked: Tensor, large: Tensor) -> list[Mistake]:
    """From the weights of all keys, those with MASK, and those with MASK and large scores."""

    def under(mask: Tensor) -> bool:
        return near(masked, w * mask[:, None] / (w * mask[:, None]).sum(-1, keepdim=True), 1e-3)

    hidden = torch.stack((masked, large))[:, ~MASK[:, None].expand(w.shape)]
    return first(
        (under(MASK) and not (hidden.abs() > 1e-6).any(), "", ""),
        (under(ALL), "the mask is not used", "没有用 mask"),
        (under(MASK.T), "the mask is transposed: row t belongs to query t", "mask 转置了：第 t 行属于 query t"),
        (near(masked, w * MASK[:, None], 1e-3), "the mask comes after the softmax", "mask 用在 softmax 之后"),
        ((hidden.abs() > 1e-6).any(), "hidden keys keep some weight: fill in -inf", "遮住的 key 仍有权重：填 -inf"),
    )


def head_mistakes(w: Tensor, of_values: Tensor, q: Tensor, k: Tensor) -> list[Mistake]:
    """From the key/value head of each query head: of the keys, whose scores fit best, and of the values, a number."""
    errors = (w - torch.einsum("bthd,bsjd->jbths", q, k).double().softmax(-1)).abs().amax((1, 2, 4))  # (K, H)
    h = torch.arange(H)
    parts = [first(
        (torch.equal(heads, h // G), "", ""),
        (torch.equal(heads, h % K), "heads are tiled instead of repeated: see step 7", "head 平铺了，没有逐个重复"),
        (True, "other key/value heads: head h uses h // (H // K)", "key/value head 不对：head h 用 h // (H // K)"),
    ) for heads in (errors.argmin(0), of_values[0, 0, :, 0].round().long())]
    return of_parts("kv", parts)
# fmt: on


EXERCISE = Exercise(7, ("xq", "xk", "xv", "freqs_cis", "mask"), right, PROBES, AXES, (), mistakes)
