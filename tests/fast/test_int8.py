"""Int8 weights: every kernel gives the product with the dequantized matrix."""

import pytest
import torch
from torch import nn

from model import KVCache, Transformer
from model.fast.int8 import Int8Embedding, Int8Linear, quantize
from model.fast.step import for_decoding
from model.weights import load_model, save_model


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative difference of norms. PyTorch's product of few rows rounds x to bfloat16: 0.003 per product."""
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.fixture
def loaded(small_model, tmp_path):
    """``loaded(dtype, **sizes)`` -> (an int8 network, a plain one with its dequantized weights)."""

    def load(dtype=torch.float32, **changes) -> tuple[Transformer, Transformer]:
        model = small_model(**{"dim": 64, "head_dim": 16, "hidden_dim": 160} | changes)
        for weight in model.parameters():
            if weight.ndim == 1:
                torch.nn.init.uniform_(weight, 0.5, 1.5)
            else:
                weight.data = quantize(weight.data).dequantize(torch.float32)  # which quantizes to itself
        save_model(model, tmp_path)
        return load_model(tmp_path, dtype=dtype, int8=True), load_model(tmp_path, dtype=dtype)

    return load


def test_numbers_are_rounded_to_the_nearest_multiple_of_the_scale_of_their_row():
    weight = torch.randn(300, 24) * torch.logspace(-6, 3, 300)[:, None]
    weight[7] = 0
    quantized = quantize(weight)
    assert quantized.weight.dtype == torch.int8
    assert quantized.scales.shape == (300, 1)
    error = (quantized.dequantize(torch.float32) - weight).abs()
    assert (error <= quantized.scales.float() * 0.75).all(), "half a step, and bfloat16's rounding"
    assert set(quantized.weight.abs().amax(1).tolist()) <= {0, 126, 127}, "the whole range is used"
    requantized = quantize(quantized.dequantize(torch.float32))
    assert torch.equal(requantized.weight, quantized.weight)


def view(numbers, offset, stride=1):
    """The same numbers as a view that begins at an element of its storage, with gaps if the stride is above 1."""
    storage = torch.empty(offset + numbers.numel() * stride, dtype=numbers.dtype)
    storage[offset::stride][: numbers.numel()] = numbers.flatten()
    return storage[offset::stride][: numbers.numel()].view(numbers.shape)


@pytest.mark.parametrize(("offset", "stride"), [(0, 1), (1, 1), (5, 2), (8, 1), (17, 2)])
def test_views_at_any_address_give_the_same_product(monkeypatch, offset, stride):
    product = torch._weight_int8pack_mm

    def checked(x, weight, scales):
        assert (x.data_ptr() % 32, weight.data_ptr() % 16) == (0, 0), "with AVX-512 other addresses end the process"
        return product(x, weight, scales)

    monkeypatch.setattr(torch, "_weight_int8pack_mm", checked)
    quantized = quantize(torch.randn(37, 64))
    layer = Int8Linear(quantized)
    for rows in (1, 3, 9):
        for dtype in (torch.bfloat16, torch.float32):
            x = torch.randn(rows, 64).to(dtype)
            expected = x.float() @ quantized.dequantize(torch.float32).T
            assert relative_error(layer(view(x, offset, stride)), expected) < 0.01


@pytest.mark.parametrize("flag", [None, "tie_embeddings", "qkv_bias", "qk_norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_equal_those_of_the_dequantized_network_with_cache_and_without(loaded, flag, dtype):
    model, plain = loaded(dtype, **{flag: True} if flag else {})
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    expected = plain(tokens)
    assert relative_error(model(tokens), expected) < 0.02
    cache, network = KVCache(model.args), for_decoding(model)
    one_by_one = [network(tokens[:, [at]], at, cache) for at in range(tokens.shape[1])]
    assert relative_error(torch.cat(one_by_one, 1), expected) < 0.02


def test_all_matrices_are_int8_and_norms_are_not(loaded):
    for tied in (False, True):
        model, _ = loaded(torch.bfloat16, tie_embeddings=tied)
        assert not [m for m in model.modules() if type(m) in (nn.Linear, nn.Embedding)]
        assert type(model.tok_embeddings) is Int8Embedding
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert all("norm" in name for name, _ in model.named_parameters())
        assert not any(weight.requires_grad for weight in model.parameters())
        if tied:
            assert model.output.weight.data_ptr() == model.tok_embeddings.weight.data_ptr()


class Other(Transformer):
    pass


def test_a_custom_network_or_a_device_without_an_int8_product_is_an_error(small_model, tmp_path, monkeypatch):
    save_model(small_model(), tmp_path)
    with pytest.raises(ValueError, match=r"int8 is for the plain network, not for .*Other"):
        load_model(tmp_path, network=Other, int8=True)
    monkeypatch.delattr(torch, "_weight_int8pack_mm")
    with pytest.raises(ValueError, match=r"^[^\n]*cannot multiply by int8 weights on cpu; give --dtype auto[^\n]*$"):
        load_model(tmp_path, int8=True)
