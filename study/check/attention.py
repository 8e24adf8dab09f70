"""attention: its probes, and its usual mistakes by the weights, the scores and the values that the output shows."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import HALVES, NEIGHBOURS, Both, Mistake, Probe, near, plain, random, random_table, rotate
from .rotation import AXES

B, T, H, K, D = 3, 4, 6, 2, 8
G = H // K
Attend = Callable[..., Any]
# Each row sees some keys, and no rule, such as the transpose or a triangle, makes the same of it as another.
MASK = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 1], [0, 0, 1, 1]], dtype=torch.bool)
ALL, TRIANGLE, SELF = torch.ones_like(MASK), torch.ones_like(MASK).tril(), torch.eye(T, dtype=torch.bool)


def right(layout: str) -> Attend:
    def attend(xq: Tensor, xk: Tensor, xv: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        group = xq.shape[2] // xk.shape[2]
        q, k = (rotate(x.double(), table, layout) for x in (xq, xk))
        k, v = (x.repeat_interleave(group, 2) for x in (k, xv.double()))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)

    return attend


def vectors(size: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return size * random(B, T, H, D), random(B, T, K, D, seed=2), random(B, T, K, D, seed=3), random_table(T, D // 2)


def four_axes(out: Any, q: Tensor) -> Any:
    """The output, whose heads may be flattened."""
    return out.reshape(q.shape) if torch.is_tensor(out) and out.shape == (*q.shape[:2], q.shape[2:].numel()) else out


def probe(en: str, zh: str, mask: Tensor, size: float = 1.0) -> Probe:
    q, k, v, table = vectors(size)
    label = Both(
        f"xq {tuple(q.shape)}, xk and xv {tuple(k.shape)}{en}", f"xq {tuple(q.shape)}，xk 和 xv {tuple(k.shape)}{zh}"
    )
    return Probe(label, lambda attend: four_axes(attend(q, k, v, table, mask), q), 2e-4)


PROBES = (
    probe("", "", MASK),
    probe(", causal mask", "，causal mask", TRIANGLE),
    probe(", xq 20,000 times as large", "，xq 放大 20000 倍", MASK, 20_000.0),
)


def mistakes(attend: Attend, layout: str) -> Iterator[Mistake]:
    q, k, v, table = vectors()
    still = torch.ones_like(table)  # a table that rotates nothing

    def out(q: Tensor, k: Tensor, v: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = plain(four_axes(attend(q, k, v, table, mask), q))
        return result.transpose(1, 2) if result.shape == (B, H, T, D) else result

    def weights(q: Tensor, k: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        """(B, T, H, S): the values are 1 at the channel of their token."""
        return out(q, k, torch.eye(T, D)[None, :, None].expand(B, T, K, D), table, mask)[..., :T]

    shape = tuple(attend(q, k, v, still, ALL).shape)
    if shape == (B, H, T, D):
        yield Mistake(7, "no transpose back: the output is (B, T, H, D).", "没有转置回来：输出应为 (B, T, H, D)。")
    elif T in shape and shape[-1] == T:
        yield Mistake(7, "the weights are returned: multiply the values by them.", "返回了权重：还要乘 values。")
        return
    elif shape not in ((B, T, H, D), (B, T, H * D)):
        return
    yield from value_mistakes(out, q, k, v, table)
    w = weights(q, k, still, ALL)
    if not near(w.sum(-1), torch.ones(B, T, H).double()):
        axes = {0: "batch", 1: "queries", 2: "heads"}
        axis = next((name for axis, name in axes.items() if near(w.sum(axis), torch.ones_like(w.sum(axis)))), None)
        if axis:
            yield Mistake(
                7,
                f"the softmax runs along the wrong axis, the {axis}: dim=-1 are the keys of (B, H, T, S).",
                f"softmax 的轴不对（{axis}）：(B, H, T, S) 的 dim=-1 才是 key。",
            )
        elif near(out(q, k, v, still, SELF), v.double().repeat_interleave(G, 2), 0.01) or near(w, w.abs()):
            yield Mistake(
                7,
                "the weights do not sum to 1: they are softmax(-1) of the scores, over the keys of each query.",
                "权重之和不为 1：每个 query 的权重是得分在 key 上的 softmax(-1)。",
            )
        return
    same = k[:, :, :1].expand(B, T, K, D)  # whatever the key/value head
    w = weights(q, same, still, ALL)
    scores = torch.einsum("bthd,bsd->bths", q, k[:, :, 0]).double()
    scale = fit(w.log(), scores)
    if scale is None:
        yield from score_mistakes(w, q, k, scores)
    else:
        yield from scale_mistakes(scale)
        turned = weights(q, same, table, ALL)
        yield from rotation_mistakes(turned, q, k[:, :, :1], table, scale, layout)
        yield from mask_mistakes(w, weights(q, same, still, MASK))
        yield from head_mistakes(out, weights(q, k, still, ALL), q, k, still)
    large = vectors(20_000.0)
    if not w.isnan().any() and out(*large, ALL).isnan().any():
        yield Mistake(
            7,
            "exp without subtracting the largest score that the row sees: large scores overflow; softmax(-1) does it right.",
            "exp 之前没有减去这一行看得到的最大得分：得分大就溢出；softmax(-1) 不会。",
        )


def fit(log_weights: Tensor, scores: Tensor) -> float | None:
    """The factor of the scores that gives these weights, None if there is none."""
    x, y = (each - each.mean(-1, keepdim=True) for each in (scores, log_weights))
    factor = float((x * y).sum() / (x * x).sum())
    return factor if near(y, factor * x, 2e-3) else None


def value_mistakes(out: Attend, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Iterator[Mistake]:
    """From masks in which each token sees one key, whose value is then the output."""
    still = torch.ones_like(table)
    found = out(q, k, v, still, SELF)
    values, keys = (x.double().repeat_interleave(G, 2) for x in (v, k))
    tiled = v.double().repeat(1, 1, G, 1)
    if near(found, keys) or near(found, q.double()):
        yield Mistake(
            7,
            "keys or queries are summed instead of values: weights @ v.",
            "加权的是 key 或 query，不是 value：应为 weights @ v。",
        )
    elif any(near(found - q, each) for each in (values, tiled)):
        yield Mistake(
            7,
            "the input is added to the output: the block adds the residual.",
            "输出里加上了输入：残差由外面的 block 加。",
        )
    elif near(found.flatten().sort().values, values.flatten().sort().values) and not near(found, values):
        heads = [any(near(found[:, :, h], v[:, :, j].double()) for j in range(K)) for h in range(H)]
        if not all(heads):
            yield Mistake(
                7,
                "a view instead of a transpose: reshape keeps the order in memory, which mixes tokens and heads.",
                "用 view 代替了 transpose：reshape 不改变内存里的顺序，token 和 head 就混了。",
            )
    following = SELF.roll(1, 1)  # token t sees only key t + 1
    moved, at_key = out(q, k, v, table, following), values.roll(-1, 1)
    for layout in (NEIGHBOURS, HALVES):
        if near(moved, rotate(values, table, layout).roll(-1, 1)):
            yield Mistake(7, "values are rotated: rotate only queries and keys.", "value 也转了：只转 query 和 key。")
        elif near(moved, rotate(at_key, table, layout)):
            yield Mistake(7, "the output is rotated: rotate only queries and keys.", "输出也转了：只转 query 和 key。")


def scale_mistakes(scale: float) -> Iterator[Mistake]:
    if abs(scale * math.sqrt(D) - 1) < 0.01:
        return
    if abs(scale - 1) < 0.01:
        yield Mistake(
            7, "the scores are not divided by sqrt(D), D = xq.shape[-1].", "得分没有除以 sqrt(D)，D = xq.shape[-1]。"
        )
    elif scale < 0:
        yield Mistake(
            7,
            "the scores are negated: the largest score has the largest weight.",
            "得分的符号反了：得分最大，权重最大。",
        )
    else:
        yield Mistake(
            7,
            f"the scale of the scores: divide by sqrt(D) = {math.sqrt(D):.4g} once; yours is {1 / scale:.4g}.",
            f"得分的缩放：除以一次 sqrt(D) = {math.sqrt(D):.4g}；你除以了 {1 / scale:.4g}。",
        )


def score_mistakes(w: Tensor, q: Tensor, k: Tensor, scores: Tensor) -> Iterator[Mistake]:
    """Of weights that are no softmax of a multiple of the scores."""
    keys = k[:, :, 0]
    normal_q, normal_k = (x / x.norm(dim=-1, keepdim=True) for x in (q, keys))
    own = [torch.einsum("bthd,bshd->bths", q, q), torch.einsum("btd,bsd->bts", keys, keys)[:, :, None].expand(w.shape)]
    if fit(w.log(), torch.einsum("bthd,bsd->bths", normal_q, normal_k).double()) is not None:
        yield Mistake(7, "the scores are cosines: a score is q . k / sqrt(D).", "得分成了余弦：应为 q · k / sqrt(D)。")
    elif any(fit(w.log(), each.double()) is not None for each in own):
        yield Mistake(
            7,
            "queries are compared with queries, or keys with keys: a score is q . k.",
            "query 与 query 相比，或 key 与 key 相比：得分是 q · k。",
        )
    elif fit(w.log(), scores.transpose(1, 3)) is not None:
        yield Mistake(
            7,
            "queries and keys exchanged in the scores: row t belongs to query t, q @ k.mT.",
            "得分里 query 与 key 颠倒了：第 t 行属于 query t，q @ k.mT。",
        )
    elif near(w, (scores / math.sqrt(D)).softmax(-1).softmax(-1), 1e-3):
        yield Mistake(7, "the softmax is taken twice.", "softmax 做了两次。")
    elif float(w.min()) < -1e-6 or float((w.abs() < 1e-6).double().mean()) > 0.1:
        yield Mistake(
            7,
            "not a softmax of the scores: the weights are exp(score), divided by their sum.",
            "不是得分的 softmax：权重是 exp(得分) 除以总和。",
        )


def rotation_mistakes(w: Tensor, q: Tensor, k: Tensor, table: Tensor, scale: float, layout: str) -> Iterator[Mistake]:
    def agrees(turn_q: int, turn_k: int, how: str) -> bool:
        rotated_q, rotated_k = rotate(q, table**turn_q, how), rotate(k, table**turn_k, how)
        return near(
            w, (scale * torch.einsum("bthd,bsd->bths", rotated_q, rotated_k[:, :, 0])).double().softmax(-1), 1e-3
        )

    if agrees(1, 1, layout):
        return
    if agrees(0, 0, layout):
        yield Mistake(
            2,
            "not rotated: rotate q and k, because only then the score depends on the distance.",
            "没有旋转：q 和 k 都要旋转，得分才只依赖距离。",
        )
    for how in (NEIGHBOURS, HALVES):
        if agrees(1, 0, how) or agrees(0, 1, how):
            name = "q" if agrees(0, 1, how) else "k"
            yield Mistake(
                2, f"not rotated, in {name} only: rotate both q and k.", f"{name} 没有旋转：q 和 k 都要旋转。"
            )
        elif agrees(-1, -1, how):
            yield Mistake(1, "the sign of the angle: both are turned backwards.", "角度的符号：转反了。")
        elif agrees(1, -1, how) or agrees(-1, 1, how):
            yield Mistake(
                1,
                "the sign of the angle differs between q and k: turn both the same way.",
                "q 与 k 的角度符号不同：应朝同一方向转。",
            )
        elif any(agrees(*turns, how) for turns in ((2, 2), (2, 1), (1, 2))):
            yield Mistake(4, "rotated twice: a token at p is turned to 2p.", "转了两次：位置 p 的 token 转到了 2p。")
        elif how != layout and agrees(1, 1, how):
            yield Mistake(
                3, "layouts mixed: these are the pairs of the other layout.", "布局弄混了：用了另一种布局的分组。"
            )


def mask_mistakes(w: Tensor, masked: Tensor) -> Iterator[Mistake]:
    """From the weights of all keys, and with MASK."""
    if masked.isnan().any():
        if masked.isnan().all():
            yield Mistake(
                7,
                "every number is NaN: 0 * inf and inf - inf are NaN; write masked_fill(~mask, -inf).",
                "全是 NaN：0 * inf 和 inf - inf 都是 NaN；请写 masked_fill(~mask, -inf)。",
            )
        return

    def under(mask: Tensor) -> Tensor:
        hidden = w * mask[:, None]
        return hidden / hidden.sum(-1, keepdim=True)

    if near(masked, under(MASK), 1e-3):
        return
    if near(masked, under(ALL), 1e-3):
        yield Mistake(
            7, "the mask is not used: scores are -inf where it is False.", "没有用 mask：False 处的得分应为 -inf。"
        )
    elif near(masked, under(~MASK), 1e-3):
        yield Mistake(
            7,
            "True and False exchanged: scores are -inf where the mask is False, masked_fill(~mask, -inf).",
            "True 与 False 颠倒了：mask 为 False 处的得分是 -inf，masked_fill(~mask, -inf)。",
        )
    elif near(masked, under(MASK.T), 1e-3):
        yield Mistake(
            7, "the mask is transposed: row t of the mask belongs to query t.", "mask 转置了：第 t 行属于 query t。"
        )
    elif any(near(masked, under(each), 1e-3) for each in (TRIANGLE, TRIANGLE & MASK)):
        yield Mistake(
            7,
            "another mask than the argument: it is not always a triangle.",
            "用了别的 mask：传入的 mask 不一定是三角形。",
        )
    elif near(masked, w * MASK[:, None], 1e-3):
        yield Mistake(
            7,
            "the mask comes after the softmax: the rest do not sum to 1; mask the scores.",
            "mask 用在 softmax 之后：剩下的权重之和不为 1；应遮住得分。",
        )
    elif float((masked * ~MASK[:, None]).abs().max()) > 1e-6:
        yield Mistake(
            7,
            "hidden keys have a score that is not -inf, so they keep some weight: masked_fill(~mask, -inf).",
            "遮住的 key 的得分不是 -inf，仍有权重：masked_fill(~mask, -inf)。",
        )


def head_mistakes(out: Attend, w: Tensor, q: Tensor, k: Tensor, still: Tensor) -> Iterator[Mistake]:
    """Which key/value head each query head uses: that of the values, which are its number, and that of the keys."""
    numbers = torch.arange(K).float()[None, None, :, None].expand(B, T, K, D)
    of_values = out(q, k, numbers, still, ALL)[0, 0, :, 0]
    scores = torch.einsum("bthd,bsjd->jbths", q, k).double().log_softmax(-1)
    center = w.log() - w.log().mean(-1, keepdim=True)
    scores -= scores.mean(-1, keepdim=True)
    likeness = torch.einsum("bths,jbths->jh", center, scores) / scores.square().sum((1, 2, 4)).sqrt()
    right_heads, tiled = torch.arange(H) // G, torch.arange(H) % K
    found = [of_values.round().long(), likeness.argmax(0)]
    wrong = [name for name, heads in zip("vk", found) if not torch.equal(heads, right_heads)]
    if not wrong:
        return
    where_en, where_zh = ("", "") if len(wrong) == 2 else (f", in {wrong[0]} only", f"（只在 {wrong[0]} 里）")
    if all(torch.equal(heads, tiled) for name, heads in zip("vk", found) if name in wrong):
        yield Mistake(
            7,
            f"heads are tiled instead of repeated{where_en}: head h uses key/value head h // (H // K), repeat_interleave.",
            f"head 是平铺的，不是逐个重复的{where_zh}：head h 用第 h // (H // K) 个，repeat_interleave。",
        )
    else:
        yield Mistake(
            7,
            f"other key/value heads{where_en}: head h uses key/value head h // (H // K).",
            f"用错了 key/value head{where_zh}：head h 用第 h // (H // K) 个。",
        )
