import math

import pytest
import torch

from model.attention import Attention
from model.rope import apply_rotary_emb, precompute_freqs_cis


def head_by_head(attention: Attention, args, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Causal attention as the paper writes it: one batch row, one query head, one query at a time."""
    B, T, _ = x.shape
    D, group = args.head_dim, args.n_heads // args.n_kv_heads
    out = torch.zeros(B, T, args.n_heads * D)
    for h in range(args.n_heads):
        k = h // group  # neighbouring query heads share a key/value head
        q = x @ attention.wq.weight[h * D : (h + 1) * D].T
        key = x @ attention.wk.weight[k * D : (k + 1) * D].T
        value = x @ attention.wv.weight[k * D : (k + 1) * D].T
        q, key = (t.squeeze(2) for t in apply_rotary_emb(q.unsqueeze(2), key.unsqueeze(2), table))
        for b in range(B):
            for t in range(T):
                scores = torch.stack([q[b, t] @ key[b, s] for s in range(t + 1)]) / math.sqrt(D)
                weights = torch.exp(scores - scores.max())
                weights = weights / weights.sum()
                out[b, t, h * D : (h + 1) * D] = sum(weights[s] * value[b, s] for s in range(t + 1))
    return out @ attention.wo.weight.T


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@torch.no_grad()
def test_equals_a_loop_over_heads_and_queries(small_args, n_kv_heads):
    args = small_args(n_kv_heads=n_kv_heads)
    attention = Attention(args, layer_id=0)
    x = 3 * torch.randn(2, 5, args.dim)
    table = precompute_freqs_cis(args.head_dim, 5)
    out = attention(x, 0, table, None, None)
    torch.testing.assert_close(out, head_by_head(attention, args, x, table), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_values_are_not_turned(small_args):
    args = small_args()
    attention = Attention(args, layer_id=0)
    attention.wq.weight.zero_()  # all scores are equal: what is left is the plain average of the values
    x = torch.randn(2, 6, args.dim)
    out = attention(x, 0, precompute_freqs_cis(args.head_dim, 6), None, None)
    unturned = attention(x, 0, torch.ones(6, args.head_dim // 2, dtype=torch.complex64), None, None)
    assert torch.equal(out, unturned)
    groups = attention.wv(x).unflatten(-1, (args.n_kv_heads, args.head_dim))  # (B, T, K, D)
    values = groups.repeat_interleave(args.n_heads // args.n_kv_heads, dim=2).flatten(2)
    averages = values.cumsum(dim=1) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(out, attention.wo(averages), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_table_is_used(small_args):
    args = small_args()
    attention = Attention(args, layer_id=0)
    x = 3 * torch.randn(1, 6, args.dim)
    table = precompute_freqs_cis(args.head_dim, 12)
    here, later = (attention(x, 0, table[start : start + 6], None, None) for start in (0, 6))
    without = attention(x, 0, torch.ones_like(table[:6]), None, None)
    torch.testing.assert_close(here, later, atol=1e-5, rtol=1e-5)  # only distances count
    assert (here - without)[:, 1:].abs().max() > 0.01


def test_projections_have_metas_shapes_and_no_bias(small_args):
    args = small_args()
    shapes = {name: tuple(weight.shape) for name, weight in Attention(args, layer_id=0).named_parameters()}
    assert shapes == {
        "wq.weight": (60, 48),
        "wk.weight": (20, 48),
        "wv.weight": (20, 48),
        "wo.weight": (48, 60),
    }
