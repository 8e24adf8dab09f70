"""Faster ways equal the definition: attention's formula, F.linear, and the plain network."""

import pytest
import torch
import torch.nn.functional as F
from conftest import PROCESSORS
from greedy import in_chunks
from torch import nn
from torch._subclasses import FakeTensorMode

from model import KVCache, Transformer, kernels
from model.attention import Attention, attention
from model.decoding import network
from model.generation import padding_mask
from model.kernels import accelerate, attend_block, choose_attention
from model.weights import int8
from model.weights.int8 import Quantized, quantize

ATTENTION = kernels.ATTENTION | {"one block": attend_block, "compiled": network.attend}  # the last is for one query
D = 10


def queries_keys_values(B, H, K, T, S, dtype=torch.float32):
    """Keys and values as a cache gives them: the first S of a longer tensor."""
    xq = torch.randn(B, H, T, D).to(dtype)
    return xq, *(torch.randn(B, K, S + 3, D).to(dtype)[:, :, :S] for _ in range(2))


def masks(B, T, S):
    causal = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    padded = padding_mask(torch.arange(B), S - T, T)  # (B, 1, T, S)
    sparse = torch.rand(B, 1, T, S) < 0.3
    sparse[..., 0] = True  # because a softmax over no keys is NaN
    one_row = sparse[:, :, :1]
    found = {"none": None, "causal": causal, "padded": padded, "not causal": sparse, "one row": one_row}
    return found | {"one dimension": one_row[0, 0, 0]}


def reference(q, k, v, mask):
    """The formula in float64, rounded at the end."""
    return attention(q.double(), k.double(), v.double(), mask).to(q.dtype)


def every_attention(*sizes):
    """Cases (way, T, S) of each kernel; one of them takes a single query only."""
    return [(way, T, S) for way in ATTENTION for T, S in sizes if T == 1 or way != "compiled"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("K", [1, 2, 3, 6])
@pytest.mark.parametrize(("way", "T", "S"), every_attention((1, 1), (1, 9), (4, 9), (9, 9), (2, 17)))
def test_every_attention_equals_the_formula(monkeypatch, way, dtype, K, T, S):
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    q, k, v = queries_keys_values(2, 6, K, T, S, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for name, mask in masks(2, T, S).items():
        found = ATTENTION[way](q, k, v, mask)
        torch.testing.assert_close(found, reference(q, k, v, mask), atol=tolerance, rtol=tolerance, msg=name)


@pytest.mark.parametrize("K", [1, 2, 6])
@pytest.mark.parametrize(("way", "T", "S"), every_attention((7, 7), (5, 9), (1, 4)))
def test_every_attention_has_the_formulas_gradients(monkeypatch, way, K, T, S):
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 3)
    tensors = [t.requires_grad_() for t in queries_keys_values(3, 6, K, T, S)]
    out = torch.randn(3, 6, T, D)
    for name, mask in masks(3, T, S).items():
        both = [torch.autograd.grad(form(*tensors, mask), tensors, out) for form in (ATTENTION[way], attention)]
        for found, expected in zip(*both, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tie_embeddings", [False, True])
@torch.no_grad()
def test_the_accelerated_network_equals_the_plain_one_at_every_position(
    monkeypatch, small_model, processor, dtype, tie_embeddings
):
    monkeypatch.setattr(kernels, "CPU", PROCESSORS[processor])
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    model = small_model(qkv_bias=True, tie_embeddings=tie_embeddings).to(dtype)
    fast = accelerate(model)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.3}[dtype]
    tokens = torch.randint(model.args.vocab_size, (2, model.args.max_seq_len))
    plain = model(tokens)
    torch.testing.assert_close(fast(tokens), plain, atol=tolerance, rtol=tolerance)
    for sizes in ([1], [7, 1, 9, 1, 6]):
        found = in_chunks(fast, tokens, sizes, KVCache(model.args, 2, dtype=dtype))
        torch.testing.assert_close(found, plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_gradients_names_and_tensors_are_those_of_the_plain_network(small_model, tie_embeddings):
    model = small_model(tie_embeddings=tie_embeddings)
    fast = accelerate(model)
    assert [*fast.state_dict()] == [*model.state_dict()]
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters(), strict=True))
    tokens, gradients = torch.randint(model.args.vocab_size, (2, 20)), []
    for each in (model, fast, accelerate(fast)):
        loss = F.cross_entropy(each(tokens).flatten(0, 1), tokens.flatten())
        gradients.append(torch.autograd.grad(loss, [*model.parameters()]))
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], atol=1e-5, rtol=1e-4)


def test_each_has_its_own_mode_and_modules_but_the_same_hooks(small_model):
    model = small_model().train()
    fast = accelerate(model).eval()
    calls = []
    model.layers[1].register_forward_hook(lambda module, *_: calls.append(module.training))
    model.layers[0] = nn.Identity()
    fast(torch.tensor([[1, 2]]))
    assert calls == [False]
    assert model.training
    assert model.layers[1].training


def test_other_linear_layers_and_other_attention_stay_as_they_are(small_model):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Backwards(Attention):
        def attend(self, xq, keys, values, mask):
            return attention(xq, keys, values, mask).flip(1)

    model, tokens = small_model(), torch.tensor([[1, 2, 3]])
    model.layers[0].feed_forward.w2 = Doubled(64, 48, bias=False)
    model.layers[1].attention = Backwards(model.args)
    model.layers[0].attention.attend = lambda q, k, v, mask: torch.zeros_like(q)
    torch.testing.assert_close(accelerate(model)(tokens), model(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_off_the_cpu_products_and_attention_are_pytorchs_own_whatever_the_processor(monkeypatch, small_args, dtype):
    """The same operations for each processor, on the meta device, and no slow ones."""
    calls = []

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            calls.append(function.__name__)
            if (kwargs or {}).get("enable_gqa"):  # with a mask or in float32, CUDA has it only in its slowest kernel
                assert len(args) == 3
                assert dtype != torch.float32
            return function(*args, **kwargs or {})

    found = set()
    for processor in PROCESSORS.values():
        monkeypatch.setattr(kernels, "CPU", processor)
        with torch.device("meta"):
            model = accelerate(Transformer(small_args()).to(dtype))
            tokens = torch.ones(2, 7, dtype=torch.int64)
            calls.clear()
            with Recorder():
                in_chunks(model, tokens, [3, 3, 1], KVCache(model.args, 2, dtype=dtype))
        found.add(tuple(calls))
    assert len(found) == 1
    assert not {"bmm", "mv", "matmul", "__matmul__", "mm"} & {*calls}


SHAPES = [(24,), (1, 24), (5, 24), (1, 1, 24), (5, 1, 24), (1, 3, 24), (2, 3, 24), (2, 1, 1, 24), (200, 1, 24)]


@pytest.mark.parametrize("out_features", [1, 7, 8, 12, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_product_equals_the_linear_layers(out_features, dtype, transposed):
    weight = torch.randn(out_features, 24).to(dtype)
    if transposed:
        weight = weight.t().contiguous().t()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    for shape in SHAPES:
        x = torch.randn(shape).to(dtype)
        expected = F.linear(x.double(), weight.double()).to(dtype)
        one_row = ("mv", "mv in slices")
        ways = {name: way for name, way in kernels.LINEAR.items() if name not in one_row or x.numel() == 24}
        ways["chosen"] = kernels.linear
        if len(shape) == 3 and shape[1] == 1:
            ways["compiled"] = network.linear
        for name, way in ways.items():
            found = way(x, weight)
            assert found.is_contiguous(), "rotation views two numbers as one complex one"
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=10 * tolerance, msg=f"{name} {shape}")


def test_sums_of_eight_bit_products_do_not_overflow_in_float16():
    weight, scales = torch.full((2, 1024), 127, dtype=torch.int8), torch.full((2, 1), 1e-3)
    x = torch.ones(20, 1024, dtype=torch.float16)
    torch.testing.assert_close(
        int8.int8_linear(x, weight, scales), torch.full((20, 2), 130.0).half(), rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("columns", [64, 40, 4128])
def test_every_product_in_eight_bits_equals_the_dequantized_ones(monkeypatch, processor, columns):
    monkeypatch.setattr(kernels, "CPU", PROCESSORS[processor])
    weight, scales = quantize(torch.randn(37, columns))
    for rows in (1, 3, 20):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(rows, 1, columns).to(dtype)
            expected = x.float() @ Quantized(weight, scales).dequantize(torch.float32).T
            ways = {"dequantized": int8.dequantized, "chosen": int8.int8_linear, "compiled": network.int8_linear}
            if columns != 40:  # PyTorch's product cannot take a row of 40 numbers
                ways["packed"] = int8.packed
            for name, way in ways.items():
                found = way(x, weight, scales)
                assert found.dtype == dtype
                assert (found.float() - expected).norm() < 0.01 * expected.norm(), (name, rows, dtype)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_cuda_one_query_in_16_bits_takes_the_formula(queries, dtype):
    """PyTorch's own would be cuDNN's, which is planned again for each number of keys."""
    with FakeTensorMode():
        chosen = choose_attention(torch.empty(1, 4, queries, 8, dtype=dtype, device="cuda"), 9)
    assert (chosen is attend_block) == (queries == 1 and dtype == torch.bfloat16)
