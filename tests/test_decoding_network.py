"""The decoding network: the same weights, the same logits, the caller's model as it was."""

import pytest
import torch
from torch import nn

from model import KVCache, generate
from model.decoding.network import FewRowsLinear, for_decoding
from model.transformer import FeedForward


@pytest.mark.parametrize("tied", [False, True])
def test_it_has_the_same_weights_and_logits_and_leaves_the_model_alone(small_model, tied):
    model = small_model(tie_embeddings=tied).train()
    network = for_decoding(model)
    caches = [KVCache(model.args) for _ in range(2)]
    for position, token in enumerate([3, 1, 4]):
        tokens = torch.tensor([[token]])
        ours, theirs = network(tokens, position, caches[0]), model(tokens, position, caches[1])
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert {id(p) for p in network.parameters()} == {id(p) for p in model.parameters()}
    assert network.freqs_cis is model.freqs_cis
    assert type(network.layers[0].attention.wq) is type(network.output) is FewRowsLinear
    assert type(model.layers[0].attention.wq) is nn.Linear
    assert (model.output is None) == tied
    assert model.training
    assert not any(module.training for module in network.modules())


@pytest.mark.parametrize("out_features", [1, 7, 8, 12, 32, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_layer_for_few_rows_is_the_linear_layer(out_features, dtype, rows, transposed):
    layer = nn.Linear(24, out_features, bias=False, dtype=dtype)
    if transposed:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    x = torch.randn(rows, 1, 24, dtype=dtype)
    expected = layer(x)
    layer = FewRowsLinear(layer.weight)
    for forward in (layer, torch.compile(layer, backend="eager")):
        found = forward(x)
        assert found.shape == expected.shape
        assert found.dtype == dtype
        assert found.is_contiguous(), "what follows may look at two numbers as one complex"
        assert torch.allclose(found, expected, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-5)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.bfloat16), (2, torch.bfloat16), (1, torch.float32)])
def test_onednn_is_off_for_one_row_of_16_bits_and_then_as_it_was(monkeypatch, enabled, rows, dtype):
    seen = []
    linear = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda *pair: seen.append(torch.backends.mkldnn.enabled) or linear(*pair)
    )
    before = torch.backends.mkldnn.enabled
    layer = FewRowsLinear(torch.randn(16, 24, dtype=dtype))
    try:
        torch.backends.mkldnn.enabled = enabled
        layer(torch.randn(rows, 1, 24, dtype=dtype))
        with pytest.raises(RuntimeError):
            layer(torch.randn(rows, 1, 25, dtype=dtype))
        assert torch.backends.mkldnn.enabled == enabled
    finally:
        torch.backends.mkldnn.enabled = before
    one = rows == 1 and dtype == torch.bfloat16
    assert seen == [enabled and not one] * len(seen)
    assert len(seen) == (0 if dtype == torch.float32 else 2)


@pytest.mark.parametrize("shape", [(24,), (1, 24), (5, 24), (1, 3, 24), (2, 3, 24), (2, 1, 1, 24)])
def test_other_shapes_go_the_usual_way(shape):
    layer, x = nn.Linear(24, 16, bias=False), torch.randn(shape)
    expected = layer(x)
    layer = FewRowsLinear(layer.weight)
    for forward in (layer, torch.compile(layer, backend="eager")):
        assert torch.equal(forward(x), expected)


@pytest.mark.parametrize("sizes", [(9, 4), (1, 5), (6, 1, 2)])
def test_of_a_prompt_the_last_block_computes_the_last_token_only(small_model, monkeypatch, sizes):
    model = small_model(n_layers=3, n_kv_heads=2)
    network, caches = for_decoding(model), [KVCache(model.args, 2) for _ in range(2)]
    text = torch.randint(model.args.vocab_size, (2, sum(sizes)))
    expected = model.hidden(text, 0, caches[0])
    forward, widths, start_pos = FeedForward.forward, [], 0
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: widths.append(x.shape[1]) or forward(self, x))
    for chunk in text.split(sizes, dim=1):
        h = network.hidden(chunk, start_pos, caches[1])
        start_pos += chunk.shape[1]
        torch.testing.assert_close(h, expected[:, start_pos - 1 : start_pos], atol=1e-5, rtol=1e-5)
    assert widths == [width for size in sizes for width in (size, size, 1)]
    torch.testing.assert_close(caches[1].keys, caches[0].keys, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(caches[1].values, caches[0].values, atol=1e-5, rtol=1e-5)


def test_what_was_put_into_the_model_takes_part(small_model):
    """Hooks, layers of another kind and changed code are the reader's business, and generating respects them."""
    model = small_model()
    plain = list(generate(model, [[1]], 6))
    calls = []
    handle = model.layers[0].attention.wq.register_forward_hook(lambda *_: calls.append(1))
    assert list(generate(model, [[1]], 6)) == plain
    assert len(calls) == 6
    handle.remove()

    class Louder(nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    louder = Louder(model.args.dim, model.args.vocab_size, bias=False)
    louder.weight = model.output.weight
    model.output = louder
    assert list(generate(model, [[1]], 6)) == list(generate(model, [[1]], 6, use_cache=False)) != plain


def test_weights_changed_between_two_tokens_count_at_once(small_model):
    model = small_model()
    steps = generate(model, [[1]], 3)
    next(steps)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.weight[5] = 1000 * model.norm.weight
        model.norm.weight.zero_()
    assert next(steps) == [0], "all logits are zero"
