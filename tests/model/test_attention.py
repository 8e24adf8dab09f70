import math

import pytest
import torch

from model.attention import Attention, attention
from model.rope import apply_rotary_emb, precompute_freqs_cis


def head_by_head(layer: Attention, args, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Causal attention by its definition: one batch row, one query head and one query at a time."""
    B, T, _ = x.shape
    D, group = args.head_dim, args.n_heads // args.n_kv_heads
    out = torch.zeros(B, T, args.n_heads * D)
    for h in range(args.n_heads):
        k = h // group  # neighbouring query heads share a key/value head
        q = x @ layer.wq.weight[h * D : (h + 1) * D].T
        key = x @ layer.wk.weight[k * D : (k + 1) * D].T
        value = x @ layer.wv.weight[k * D : (k + 1) * D].T
        q, key = (t.squeeze(2) for t in apply_rotary_emb(q.unsqueeze(2), key.unsqueeze(2), table))
        for b in range(B):
            for t in range(T):
                scores = torch.stack([q[b, t] @ key[b, s] for s in range(t + 1)]) / math.sqrt(D)
                weights = torch.exp(scores - scores.max())
                weights = weights / weights.sum()
                out[b, t, h * D : (h + 1) * D] = sum(weights[s] * value[b, s] for s in range(t + 1))
    return out @ layer.wo.weight.T


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@torch.no_grad()
def test_equals_a_loop_over_heads_and_queries(small_args, n_kv_heads):
    args = small_args(n_kv_heads=n_kv_heads)
    attention = Attention(args)
    x = 3 * torch.randn(2, 5, args.dim)
    table = precompute_freqs_cis(args.head_dim, 5)
    out = attention(x, 0, table, None, None)
    torch.testing.assert_close(out, head_by_head(attention, args, x, table), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_values_are_not_rotated(small_args):
    args = small_args()
    attention = Attention(args)
    attention.wq.weight.zero_()  # then all scores are equal, and the output is the average of the values
    x = torch.randn(2, 6, args.dim)
    out = attention(x, 0, precompute_freqs_cis(args.head_dim, 6), None, None)
    unrotated = attention(x, 0, torch.ones(6, args.head_dim // 2, dtype=torch.complex64), None, None)
    assert torch.equal(out, unrotated)
    groups = attention.wv(x).unflatten(-1, (args.n_kv_heads, args.head_dim))  # (B, T, K, D)
    values = groups.repeat_interleave(args.n_heads // args.n_kv_heads, dim=2).flatten(2)
    averages = values.cumsum(dim=1) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(out, attention.wo(averages), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_default_mask_is_causal_and_aligned_to_the_last_key():
    q, k, v = torch.randn(2, 6, 3, 10), torch.randn(2, 2, 5, 10), torch.randn(2, 2, 5, 10)
    causal = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    torch.testing.assert_close(attention(q, k, v), attention(q, k, v, causal))
    alone = [attention(q[:, :, t : t + 1], k[:, :, : t + 3], v[:, :, : t + 3]) for t in range(3)]
    torch.testing.assert_close(attention(q, k, v), torch.cat(alone, 2))


@torch.no_grad()
def test_a_mask_may_differ_by_row_and_by_head():
    q, k, v = torch.randn(2, 6, 4, 10), torch.randn(2, 2, 4, 10), torch.randn(2, 2, 4, 10)
    for shape in ((4, 4), (2, 1, 4, 4), (1, 6, 4, 4), (2, 6, 4, 4), (2, 1, 1, 4)):
        mask = torch.rand(shape) < 0.5
        mask[..., 0] = True
        found, full = attention(q, k, v, mask), mask.expand(2, 6, 4, 4)
        for row in range(2):
            for head in range(6):
                key, value = k[row, head // 3], v[row, head // 3]
                scores = (q[row, head] @ key.T / math.sqrt(10)).masked_fill(~full[row, head], -math.inf)
                torch.testing.assert_close(found[row, head], scores.softmax(-1) @ value)
