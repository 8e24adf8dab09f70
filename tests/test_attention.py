import math

import pytest
import torch

from model import attention as forms
from model.attention import LONGEST_WRITTEN_OUT, Attention
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
def test_values_are_not_rotated(small_args):
    args = small_args()
    attention = Attention(args, layer_id=0)
    attention.wq.weight.zero_()  # all scores are equal: what is left is the plain average of the values
    x = torch.randn(2, 6, args.dim)
    out = attention(x, 0, precompute_freqs_cis(args.head_dim, 6), None, None)
    unrotated = attention(x, 0, torch.ones(6, args.head_dim // 2, dtype=torch.complex64), None, None)
    assert torch.equal(out, unrotated)
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


def queries_keys_values(B, H, K, T, S, dtype=torch.float32, D=10):
    """Keys and values as a cache gives them: the first S of a longer tensor."""
    xq = torch.randn(B, H, T, D).to(dtype)
    return xq, *(torch.randn(B, K, S + 3, D).to(dtype)[:, :, :S] for _ in range(2))


def masks(B, H, T, S):
    """Every kind that the network, padded caches and the other position encodings pass."""
    causal = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    own = torch.arange(S) == torch.arange(S - T, S)[:, None]  # padding sees itself, or there is nothing to average
    padded = causal & (torch.arange(S) >= torch.arange(B)[:, None, None, None]) | own  # (B, 1, T, S)
    biases = torch.randn(1, H, T, S).masked_fill(~causal, float("-inf"))
    found = {"causal": causal, "padded": padded, "bias": biases, "both": biases.masked_fill(~padded, float("-inf"))}
    return found | ({"none": None} if T in (1, S) else {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("K", [1, 2, 3, 6])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 9), (4, 9), (9, 9)])
def test_written_out_and_fused_are_one_function(dtype, K, T, S):
    B, H = 2, 6
    q, k, v = queries_keys_values(B, H, K, T, S, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for name, mask in masks(B, H, T, S).items():
        mask = mask if mask is None or mask.dtype == torch.bool else mask.to(dtype)
        found, expected = forms.attention(q, k, v, mask), forms.fused_attention(q, k, v, mask)
        assert found.shape == expected.shape == q.shape, name
        assert found.dtype == expected.dtype == dtype, name
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("K", [1, 2, 6])
def test_written_out_and_fused_have_the_same_gradients(K):
    tensors = [t.requires_grad_() for t in queries_keys_values(3, 6, K, 7, 7)]
    out = torch.randn(3, 6, 7, 10)
    both = [
        torch.autograd.grad(form(*tensors, None), tensors, out) for form in (forms.attention, forms.fused_attention)
    ]
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def in_blocks(*tensors):
    return torch.cat([forms.attention(*block) for block in forms.in_blocks(*tensors)], 2)


@pytest.mark.parametrize(("T", "S"), [(9, 9), (8, 13), (11, 17), (2, 13)])
def test_blocks_of_queries_are_the_whole(monkeypatch, T, S):
    monkeypatch.setattr(forms, "QUERIES", 4)
    B, H = 3, 6
    tensors = [t.requires_grad_() for t in queries_keys_values(B, H, 2, T, S)]
    kinds = masks(B, H, T, S) | {"none": None, "later": torch.rand(T, S) < 0.8, "one row": torch.rand(1, S) < 0.8}
    for name, mask in kinds.items():
        mask = mask if mask is None or mask.dtype != torch.bool else mask | (torch.arange(S) == 0)
        found, expected = (form(*tensors, mask) for form in (in_blocks, forms.attention))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=name)
        out = torch.randn(B, H, T, 10)
        for one, other in zip(*(torch.autograd.grad(y, tensors, out) for y in (found, expected)), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5, msg=name)


def test_a_block_leaves_out_the_keys_that_none_of_its_queries_sees(monkeypatch):
    monkeypatch.setattr(forms, "QUERIES", 4)
    q, k, v = queries_keys_values(1, 6, 2, 10, 13)
    causal = torch.ones(10, 13, dtype=torch.bool).tril(3)
    for mask, lengths in ((None, (7, 11, 13)), (causal, (7, 11, 13)), (causal | True, (13, 13, 13))):
        blocks = list(forms.in_blocks(q, k, v, mask))
        assert [(queries.shape[2], keys.shape[2]) for queries, keys, _, _ in blocks] == list(zip((4, 4, 2), lengths))
        if mask is not None:  # the keys before a block's own tokens need none: all its queries see them
            assert [part.shape[1] for *_, part in blocks] == [end - own for end, own in zip(lengths, (3, 7, 11))]


def test_a_mask_of_fewer_keys_is_for_the_last_ones():
    q, k, v = queries_keys_values(2, 6, 2, 4, 9)
    mask = torch.rand(2, 1, 4, 3) < 0.5
    whole = torch.cat([torch.ones(2, 1, 4, 6, dtype=torch.bool), mask], -1)
    torch.testing.assert_close(forms.attention(q, k, v, mask), forms.attention(q, k, v, whole), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("K", [2, 6])
def test_a_mask_that_is_learned_gets_its_gradient(K):
    q, k, v = queries_keys_values(3, 6, K, 5, 9)
    bias = torch.randn(6, 5, 9).masked_fill(~torch.ones(5, 9, dtype=torch.bool).tril(4), float("-inf"))
    learned = [q.requires_grad_(), bias.requires_grad_()]
    out = torch.randn(3, 6, 5, 10)
    both = [torch.autograd.grad(form(q, k, v, bias), learned, out) for form in (forms.attention, forms.fused_attention)]
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "T", "S", "training", "written_out"),
    [
        (torch.bfloat16, 9, 9, True, True),
        (torch.bfloat16, 3, LONGEST_WRITTEN_OUT, True, True),
        (torch.bfloat16, 3, LONGEST_WRITTEN_OUT + 1, True, False),
        (torch.bfloat16, 3, LONGEST_WRITTEN_OUT + 1, False, True),
        (torch.bfloat16, 1, 9, False, False),
        (torch.float32, 9, 9, False, False),
        (torch.float16, 9, 9, True, False),
    ],
)
def test_scores_are_written_out_only_for_bfloat16_on_a_cpu_and_in_training_only_for_short_windows(
    small_args, monkeypatch, dtype, T, S, training, written_out
):
    taken = []
    for name in ("in_blocks", "fused_attention"):
        form = getattr(forms, name)
        monkeypatch.setattr(forms, name, lambda *given, name=name, form=form: taken.append(name) or form(*given))
    xq, keys, values = queries_keys_values(1, 6, 2, T, S, dtype)
    Attention(small_args(), 0).attend(xq.requires_grad_(training), keys, values, None)
    assert taken == ["in_blocks" if written_out else "fused_attention"]
