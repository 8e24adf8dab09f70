"""attention: its probes, and its usual mistakes by the weights, the scores and the values that the output shows."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.attention import attention as ours

from .compare import Exercise, Mistake, View, first, near, of_parts, plain, random
from .rope import AXES, HALVES, NEIGHBOURS, SIGN, TWICE, UNROTATED, random_table, rotate
from .rope import right as rotation

B, T, H, K, D = 3, 4, 6, 2, 8
# Each row sees some keys, and no rule, such as the transpose or a triangle, makes the same of it as another.
MASK = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 1], [0, 0, 1, 1]], dtype=torch.bool)
ALL, TRIANGLE, SELF = torch.ones_like(MASK), torch.ones_like(MASK).tril(), torch.eye(T, dtype=torch.bool)
TABLE = random_table(T, D // 2)
STILL = torch.ones_like(TABLE)  # a table that rotates nothing
Q, KEYS, VALUES = random(B, T, H, D), random(B, T, K, D, seed=2), random(B, T, K, D, seed=3)
LARGE = 1000  # times Q: exp of such scores overflows


def of_rotated(attend: View, layout: str) -> View:
    """Attention (B, T, H, D) by one of rotated queries and keys (B, H, T, D), such as the one in model/attention.py."""

    def view(xq: Tensor, xk: Tensor, xv: Tensor, table: Tensor, mask: Tensor) -> Any:
        turned = *rotation(layout)(xq, xk, table), xv
        return attend(*(x.transpose(1, 2) for x in turned), mask).transpose(1, 2)

    return view


def probes(attend: View) -> Iterator[tuple[str, Tensor]]:
    for name, mask, size in (("", MASK, 1), (", causal mask", TRIANGLE, 1), (f", {LARGE} xq", MASK, LARGE)):
        yield f"xq {(B, T, H, D)}, xk {(B, T, K, D)}{name}", attend(size * Q, KEYS, VALUES, TABLE, mask)


# fmt: off
def mistakes(attend: View, _: str) -> Iterator[Mistake]:
    alike = KEYS[:, :, :1].expand(KEYS.shape)  # whatever the key/value head
    scores = torch.einsum("bthd,bsd->bths", Q, KEYS[:, :, 0]).double()

    def out(k: Tensor, v: Tensor, table: Tensor, mask: Tensor, q: Tensor = Q) -> Tensor:
        result: Tensor = plain(attend(q, k, v, table, mask))
        return result

    def weights(k: Tensor, table: Tensor, mask: Tensor, q: Tensor = Q) -> Tensor:
        """(B, T, H, S): the values are 1 at the channel of their token."""
        return out(k, torch.eye(T, D)[:, None].expand(B, T, K, D), table, mask, q)[..., :T]

    of_next = out(KEYS, VALUES, TABLE, SELF.roll(1, 1))
    if of_next.shape != Q.shape:
        yield Mistake("the shape: transpose back to (B, T, H, D)")
        return
    w, rotated = weights(alike, STILL, ALL), VALUES.double().repeat_interleave(H // K, 2)
    scale = fit(w, scores)
    general = first(
        (not scale and fit(weights(alike, STILL, ~ALL), scores), "True and False exchanged: False hides a key"),
        (any(near(of_next, rotate(rotated, TABLE[:, None], how).roll(-1, 1)) for how in (NEIGHBOURS, HALVES)),
         "values are rotated: only q and k are"),
        (not near(out(KEYS, 2 * VALUES, STILL, ALL), 2 * out(KEYS, VALUES, STILL, ALL)),
         "the result is no sum of values: weights @ v"),
    )
    if general or not scale:
        yield from general or weight_mistakes(w, scores)
        return
    yield from first(
        (abs(scale * math.sqrt(D) - 1) < 0.01, ""),
        (abs(scale - 1) < 0.01, "the scores are not divided by sqrt(D)"),
        (True, f"the scale of the scores: 1/sqrt(D), here {scale:.4g}"),
    )
    yield from rotation_mistakes(weights(alike, TABLE, ALL), scale * Q, alike)
    large = weights(alike, STILL, MASK, LARGE * Q)
    yield from mask_mistakes(w, weights(alike, STILL, MASK), large)
    numbers = torch.arange(K).float()[:, None].expand(B, T, K, D)  # values that are their head
    yield from head_mistakes(weights(KEYS, STILL, ALL), out(KEYS, numbers, STILL, ALL), scale * Q)
    yield from first((large.isnan().any(), "exp overflows: subtract the largest score"))


def fit(w: Tensor, scores: Tensor) -> float | None:
    """The factor of the scores whose softmax is w, None if there is none."""
    x = scores - scores.mean(-1, keepdim=True)
    factor = float((x * (w.log() - w.log().mean(-1, keepdim=True))).sum() / (x * x).sum())
    return factor if math.isfinite(factor) and near(w, (factor * scores).softmax(-1), 1e-4) else None


def weight_mistakes(w: Tensor, scores: Tensor) -> list[Mistake]:
    """Of weights that are no softmax of a multiple of the scores over the keys."""
    is_one = [near(w.sum(axis), torch.ones_like(w.sum(axis))) for axis in range(4)]
    return first(
        (w.isnan().all(), "every number is NaN: masked_fill(~mask, -inf)"),
        (not w.transpose(1, 2).triu(1).any(), "another mask than the argument"),
        (fit(w.transpose(1, 3), scores), "the weights are transposed"),
        (is_one[3], ""),
        (any(is_one), "the softmax runs along the wrong axis: over the keys, dim=-1"),
        (True, "the weights do not sum to 1"),
    )


def rotation_mistakes(w: Tensor, q: Tensor, k: Tensor) -> list[Mistake]:
    """From the weights with a table, which show how q and k were turned: the powers of the table."""
    def turned(of_q: int, of_k: int) -> bool:
        for how in (NEIGHBOURS, HALVES):
            rotated = rotate(q, TABLE[:, None] ** of_q, how), rotate(k, TABLE[:, None] ** of_k, how)[:, :, 0]
            if near(w, torch.einsum("bthd,bsd->bths", *rotated).double().softmax(-1), 1e-3):
                return True
        return False

    return first(
        (turned(0, 0), *UNROTATED),
        (turned(1, 0), *UNROTATED._replace(part="k")),
        (turned(0, 1), *UNROTATED._replace(part="q")),
        (turned(-1, -1), *SIGN),
        (turned(2, 2), *TWICE),
    )


def mask_mistakes(w: Tensor, masked: Tensor, large: Tensor) -> list[Mistake]:
    """From the weights of all keys, those with MASK, and those with MASK and large scores."""
    def under(mask: Tensor) -> bool:
        return near(masked, w * mask[:, None] / (w * mask[:, None]).sum(-1, keepdim=True), 1e-3)

    is_leaking = bool((torch.stack((masked, large))[:, ~MASK[:, None].expand(w.shape)].abs() > 1e-6).any())
    return first(
        (under(MASK) and not is_leaking, ""),
        (under(ALL), "the mask is not used"),
        (under(MASK.T), "the mask is transposed: row t belongs to query t"),
        (near(masked, w * MASK[:, None], 1e-3), "the mask comes after the softmax"),
        (is_leaking, "hidden keys keep some weight: fill in -inf"),
    )


def head_mistakes(w: Tensor, of_values: Tensor, q: Tensor) -> list[Mistake]:
    """From the key/value head of each query head: of the keys, whose scores fit best, and of the values, a number."""
    errors = (w - torch.einsum("bthd,bsjd->jbths", q, KEYS).double().softmax(-1)).abs().amax((1, 2, 4))  # (K, H)
    h = torch.arange(H)
    parts = [first(
        (torch.equal(heads, h // (H // K)), ""),
        (torch.equal(heads, h % K), "heads are tiled instead of repeated: head h uses h // (H // K)"),
        (True, "other key/value heads: head h uses h // (H // K)"),
    ) for heads in (errors.argmin(0), of_values[0, 0, :, 0].round().long())]
    return of_parts("kv", parts)
# fmt: on


EXERCISE = Exercise(
    7, ("xq", "xk", "xv", "freqs_cis", "mask"), partial(of_rotated, ours), probes, AXES, (), mistakes, 2e-4
)
