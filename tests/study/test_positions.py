"""Every scheme is causal, cached == uncached, trains, is saved and loaded, and equals the paper's formula."""

import math

import pytest
import torch
from greedy import in_chunks
from study_models import random_model

from model import KVCache, ModelArgs, Transformer, generate
from model.decoding.endless import is_shift_invariant
from model.fast.kernels import accelerate
from model.generation import padding_mask
from model.weights import load_model, save_model
from study.positions import SCHEMES, build_scheme, with_more_positions
from study.positions.encodings import t5_buckets
from study.positions.scores import alibi_slopes

V, T = 41, 12
ARGS = ModelArgs(dim=24, n_layers=2, n_heads=3, n_kv_heads=1, head_dim=8, hidden_dim=32, vocab_size=V, max_seq_len=20)


@pytest.fixture(params=SCHEMES)
def scheme(request) -> str:
    return request.param


@pytest.fixture
def model(scheme) -> Transformer:
    return random_model(ARGS, scheme, factor=2.0)


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(V, (2, T), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def test_cached_equals_uncached(model, tokens):
    cached = in_chunks(model, tokens, [5, 1, 4, 1, 1], KVCache(ARGS, 2))
    torch.testing.assert_close(cached, model(tokens), atol=5e-5, rtol=0)


def test_every_parameter_receives_a_gradient(model, tokens):
    model(tokens).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().max() > 0, name


@torch.no_grad()
def test_a_saved_model_loads_with_equal_logits(model, tokens, tmp_path):
    save_model(model, tmp_path)
    assert torch.equal(load_model(tmp_path, network=type(model))(tokens), accelerate(model.eval())(tokens))


@torch.no_grad()
def test_a_longer_context_keeps_the_logits_or_is_an_error(model, scheme, tokens):
    if not SCHEMES[scheme].any_length:
        with pytest.raises(ValueError, match=f"{scheme} has one vector for each of 20 positions: it cannot encode 40"):
            with_more_positions(model, 2)
        return
    longer = with_more_positions(model, 2)
    assert longer(tokens.repeat(1, 3)).shape == (2, 36, V)
    torch.testing.assert_close(longer(tokens), model(tokens), atol=1e-5, rtol=0)


@torch.no_grad()
def test_shift_invariance_is_as_declared(model, tokens):
    """The same tokens at position 0, and after five tokens that a mask hides."""
    text = torch.cat((tokens[:, :5] * 0, tokens), 1)
    padded = model(text, mask=padding_mask(torch.tensor([5, 5]), 0, text.shape[1]))[:, 5:]
    gap = (padded - model(tokens)).abs().max()
    assert gap < 2e-5 if is_shift_invariant(model) else gap > 1e-2


def test_unequal_prompts_in_a_batch_generate_as_alone_or_are_an_error(model, tokens):
    prompts = [tokens[0, :6].tolist(), tokens[1, :3].tolist()]
    if not is_shift_invariant(model):
        with pytest.raises(ValueError, match="absolute positions"):
            list(generate(model, prompts, 4))
        return
    together = list(zip(*generate(model, prompts, 4)))
    alone = [tuple(step[0] for step in generate(model, [prompt], 4)) for prompt in prompts]
    assert together == alone


@pytest.mark.parametrize("scheme", [name for name, entry in SCHEMES.items() if entry.changes == "score"])
@torch.no_grad()
def test_each_group_of_heads_reads_its_own_key_head(scheme):
    args = ModelArgs(dim=32, n_layers=1, n_heads=4, n_kv_heads=2, vocab_size=V, max_seq_len=8)
    attention = build_scheme(args, scheme).layers[0].attention
    xq, keys, values = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    full = attention.attend(xq, keys[:, [0, 0, 1, 1]], values[:, [0, 0, 1, 1]], None)
    torch.testing.assert_close(attention.attend(xq, keys, values, None), full)


# Each scheme's scores, compared with the formula in its paper. q, k (8, D); heads have 8 channels, and this is head 1.


def t5_score(model, q, k, i, j):
    return q[i] @ k[j] / 8**0.5 + model.relative_bias.weight[i - j, 1]


def alibi_score(model, q, k, i, j):
    slope = 2**-8  # of the second of three heads: two from the series for 2, one from the series for 4
    return q[i] @ k[j] / 8**0.5 - slope * (i - j)


def shaw_score(model, q, k, i, j):
    return q[i] @ (k[j] + model.layers[0].attention.relative[0][min(i - j, 3)]) / 8**0.5


def transformer_xl_score(model, q, k, i, j):
    attention = model.layers[0].attention
    r = torch.tensor([f((i - j) / 10000 ** (2 * t / 24)) for t in range(12) for f in (math.sin, math.cos)])
    relative_key = attention.wr.weight[8:16] @ r
    u, v = attention.u[1, 0], attention.v[1, 0]
    return (q[i] @ k[j] + q[i] @ relative_key + u @ k[j] + v @ relative_key) / 8**0.5


def tupe_score(model, q, k, i, j):
    term = model.position_term
    p = term.norm(term.pos_embeddings.weight)
    positions = (term.uq.weight[8:16] @ p[i]) @ (term.uk.weight[8:16] @ p[j])
    return (q[i] @ k[j] + positions) / 16**0.5 + term.relative_bias.weight[i - j, 1]


def deberta_score(model, q, k, i, j):
    attention, table = model.layers[0].attention, model.rel_embeddings.weight
    kr = attention.wkr.weight[8:16] @ table[min(max(i - j + 4, 0), 7)]
    qr = attention.wqr.weight[8:16] @ table[min(max(j - i + 4, 0), 7)]
    return (q[i] @ k[j] + q[i] @ kr + k[j] @ qr) / 24**0.5


@pytest.mark.parametrize("score", [t5_score, alibi_score, shaw_score, transformer_xl_score, tupe_score, deberta_score])
@torch.no_grad()
def test_weights_equal_the_papers_formula(score, monkeypatch):
    monkeypatch.setattr(SCHEMES["shaw"].network, "farthest", 3)
    monkeypatch.setattr(SCHEMES["deberta"].network, "k", 4)
    model = build_scheme(ARGS, score.__name__.removesuffix("_score"))
    for weight in model.parameters():
        weight.normal_(std=0.5)
    q, k = torch.randn(2, 8, 8)
    scores = torch.full((8, 8), -math.inf)
    for i in range(8):
        for j in range(i + 1):
            scores[i, j] = score(model, q, k, i, j)
    weights = scores.softmax(-1)
    attention = model.layers[0].attention
    heads = (t.expand(1, n, 8, 8) for t, n in ((q, 3), (k, 1), (torch.eye(8), 1)))  # with the unit matrix as values,
    found = attention.attend(*heads, None)[0, 1]  # the output is the weights
    if score is shaw_score:  # whose values depend on the distance, too
        a_values = attention.relative[1]
        for i in range(8):
            weights[i] = sum(weights[i, j] * (torch.eye(8)[j] + a_values[min(i - j, 3)]) for j in range(i + 1))
    torch.testing.assert_close(found, weights, atol=1e-5, rtol=0)


def test_alibi_slopes_are_a_geometric_series():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(12)[8:].tolist() == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_t5_buckets_are_single_distances_then_logarithmic():
    found = t5_buckets(torch.arange(200)).tolist()
    assert found[:17] == [*range(16), 16]
    assert found[127:] == [31] * 73
    assert found == sorted(found)
    assert set(found) == set(range(32))


def test_2d_rotates_by_the_row_and_the_column():
    angles = build_scheme(ARGS, "2d").freqs_cis[19].angle()  # row 1, column 3 of 16; two pairs each
    assert angles.tolist() == pytest.approx([1, 1 / 100, 3, 3 / 100], abs=1e-6)


def test_partial_rotates_only_the_first_half_of_a_head():
    table = build_scheme(ARGS, "partial").freqs_cis  # (max_seq_len, 4), of 8 channels
    assert table[7].angle().tolist()[:2] == pytest.approx([7 - 2 * math.pi, 7 / 100], abs=1e-5)
    assert (table[:, 2:] == 1).all()


def test_learnable_starts_as_rope_and_its_table_follows_the_parameters():
    model = build_scheme(ARGS, "learnable")
    torch.testing.assert_close(model.freqs_cis, Transformer(ARGS).freqs_cis, atol=1e-5, rtol=0)
    with torch.no_grad():
        model.frequencies[0] = 0.25
    assert model.freqs_cis[4, 0].angle().item() == pytest.approx(1.0, abs=1e-6)
    model.freqs_cis = 1j * model.freqs_cis.detach()
    assert model.freqs_cis[4, 0].angle().item() == pytest.approx(1.0 + math.pi / 2, abs=1e-6)
