import copy
import math

import pytest
import torch
import torch.nn.functional as F
from greedy import in_chunks

from model import KVCache, ModelArgs, Transformer
from model.rope import precompute_freqs_cis
from model.transformer import RMSNorm

# Positions


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "cast",
    [
        lambda model: model.half(),
        lambda model: model.bfloat16(),
        lambda model: model.to(torch.bfloat16),
        lambda model: model.to(dtype=torch.float16),
        lambda model: model.double(),
        lambda model: model.type(torch.bfloat16),
        lambda model: model.half().float(),
        lambda model: model,
    ],
)
@torch.no_grad()
def test_the_table_survives_every_cast_and_positions_511_and_512_differ(small_model, cast, autocast):
    """The layer-0 keys of one token at neighbouring positions differ by one rotation, under every cast and autocast."""
    exact = small_model(max_seq_len=520, rope_theta=20000.0)
    model = cast(copy.deepcopy(exact))
    assert model.freqs_cis.dtype == torch.complex64
    assert torch.equal(model.freqs_cis, precompute_freqs_cis(10, 520, 20000.0))
    caches = KVCache(exact.args), KVCache(exact.args)
    for position in (511, 512):
        exact(torch.tensor([[5]]), start_pos=position, cache=caches[0])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            model(torch.tensor([[5]]), start_pos=position, cache=caches[1])
    keys, low = (cache.layers[0].keys[0, :, 511:513] for cache in caches)  # (K, 2, D)
    assert (keys[:, 0] - keys[:, 1]).abs().max() > 0.5
    assert (low - keys).abs().max() < 0.05 * keys.abs().max()


@pytest.mark.parametrize("how", ["to_empty", "assign"])
@pytest.mark.parametrize("tie", [False, True])
@torch.no_grad()
def test_construction_on_the_meta_device(small_model, how, tie):
    reference = small_model(rope_theta=500.0, tie_embeddings=tie)
    with torch.device("meta"):
        model = Transformer(reference.args)
    assert model.tok_embeddings.weight.is_meta
    if how == "to_empty":
        model.to_empty(device="cpu")
    model.load_state_dict(reference.state_dict(), assign=how == "assign")
    tokens = torch.randint(37, (2, 24))
    assert torch.equal(model(tokens), reference(tokens))
    assert torch.equal(model(tokens[:, :9], cache=KVCache(model.args, batch_size=2)), reference(tokens[:, :9]))


def trained(model, batch, steps):
    """Train on the tokens (B, T) and the targets that ``batch`` returns, -100 where there is none; the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        tokens, targets = batch()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("positions", [True, False])
def test_only_positions_let_one_layer_copy_from_a_distance(positions):
    model = Transformer(ModelArgs(dim=32, n_layers=1, n_heads=2, hidden_dim=32, vocab_size=12, max_seq_len=24))
    if not positions:
        model.freqs_cis = torch.ones_like(model.freqs_cis)

    def looking_back():
        tokens = torch.randint(12, (32, 24))
        targets = tokens.roll(3, dims=1)
        targets[:, :3] = -100  # the first three have no token three places back
        return tokens, targets

    trained(model, looking_back, 150)
    tokens, targets = looking_back()
    right = (model(tokens)[:, 3:].argmax(-1) == targets[:, 3:]).float().mean().item()
    assert right > 0.9 if positions else right < 0.4


@pytest.mark.parametrize("tie", [False, True])
def test_one_batch_overfits(tie):
    args = ModelArgs(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=20, max_seq_len=12, tie_embeddings=tie)
    batch = torch.randint(20, (4, 13))
    batch[:, 0] = torch.arange(4)  # distinct first tokens, because nothing could tell rows with the same one apart
    assert trained(Transformer(args), lambda: (batch[:, :-1], batch[:, 1:]), 80) < 0.05


# Numerics and initialisation


@torch.no_grad()
def test_rmsnorm_computes_in_float32_and_adds_eps_inside_the_root():
    norm = RMSNorm(64, eps=1e-5)
    norm.weight.uniform_(0.5, 1.5)
    assert torch.equal(norm(torch.zeros(1, 64)), torch.zeros(1, 64))
    for value, scale in ((1000.0, 1), (1e-3, 0.3015)):  # the squares overflow float16, or are lost beside eps
        out = norm.half()(torch.full((1, 64), value, dtype=torch.float16))
        assert out.dtype == torch.float16
        torch.testing.assert_close(out, norm.weight[None] * scale, atol=2e-3, rtol=2e-3)


def test_matrices_that_write_to_the_residual_stream_start_smaller():
    args = ModelArgs(dim=128, n_layers=8, n_heads=4, vocab_size=300, max_seq_len=8, qkv_bias=True)
    for name, weight in Transformer(args).named_parameters():
        mean = 1 if name.endswith("norm.weight") else 0
        assert weight.mean().item() == pytest.approx(mean, abs=0.001), name
        std = 0 if weight.ndim == 1 else 0.02
        if name.endswith(("attention.wo.weight", "feed_forward.w2.weight")):
            std = 0.02 / math.sqrt(16)
        assert weight.std().item() == pytest.approx(std, rel=0.05), name


def test_compiles_in_one_graph_without_complex_products(small_model, compiler):
    model = small_model()
    tokens = torch.randint(37, (2, 12))
    products = []

    def keep(graph, example_inputs):
        values = [node.meta["example_value"] for node in graph.graph.nodes if "mul" in str(node.target)]
        products.append([value.is_complex() for value in values])
        return graph.forward

    compiled = torch.compile(model, backend=keep, fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        cached = in_chunks(compiled, tokens, [8, 4], KVCache(model.args, batch_size=2))
        torch.testing.assert_close(cached, model(tokens), atol=1e-5, rtol=1e-5)
    assert len(products) >= 2
    assert all(products)  # each graph has some
    assert not any(map(any, products))  # and none is complex


def test_wrong_tokens_are_named_in_one_line():
    network = Transformer(ModelArgs(dim=16, n_layers=1, n_heads=2, vocab_size=9, max_seq_len=8))
    for tokens, message in (
        ([1, 2], r"tokens are a list: give a tensor \(B, T\)"),
        (torch.tensor([1, 2]), r"tokens are \(2,\): give a tensor \(B, T\)"),
        (torch.tensor([[1, 9]]), "tokens are 1 to 9: the vocabulary has 9"),
        (torch.tensor([[-1, 2]]), "tokens are -1 to 2: the vocabulary has 9"),
    ):
        with pytest.raises(ValueError, match=message):
            network(tokens)
