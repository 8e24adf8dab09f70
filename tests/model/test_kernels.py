"""Every kernel equals the definition, attention's formula or F.linear: shapes, dtypes, masks and gradients."""

import pytest
import torch
import torch.nn.functional as F
from conftest import PROCESSORS

from model import kernels
from model.attention import attention
from model.weights.int8 import quantize

D = 10


def queries_keys_values(B, H, K, T, S, dtype=torch.float32):
    """Keys and values as a cache gives them: the first S of a longer tensor."""
    xq = torch.randn(B, H, T, D).to(dtype)
    return xq, *(torch.randn(B, K, S + 3, D).to(dtype)[:, :, :S] for _ in range(2))


def masks(B, T, S):
    causal = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    itself = torch.arange(S) == torch.arange(S - T, S)[:, None]  # a padding slot sees itself
    padded = causal & (torch.arange(S) >= torch.arange(B)[:, None, None, None]) | itself  # (B, 1, T, S)
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
    return [(way, T, S) for way in kernels.ATTENTION for T, S in sizes if T == 1 or way != "elementwise"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("K", [1, 2, 3, 6])
@pytest.mark.parametrize(("way", "T", "S"), every_attention((1, 1), (1, 9), (4, 9), (9, 9), (2, 17)))
def test_every_attention_equals_the_formula(monkeypatch, way, dtype, K, T, S):
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    q, k, v = queries_keys_values(2, 6, K, T, S, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for name, mask in masks(2, T, S).items():
        found = kernels.ATTENTION[way](q, k, v, mask)
        assert found.shape == q.shape, name
        assert found.dtype == dtype, name
        torch.testing.assert_close(found, reference(q, k, v, mask), atol=tolerance, rtol=tolerance, msg=name)


@pytest.mark.parametrize("K", [1, 2, 6])
@pytest.mark.parametrize(("way", "T", "S"), every_attention((7, 7), (5, 9), (1, 4)))
def test_every_attention_has_the_formulas_gradients(monkeypatch, way, K, T, S):
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 3)
    tensors = [t.requires_grad_() for t in queries_keys_values(3, 6, K, T, S)]
    out = torch.randn(3, 6, T, D)
    for name, mask in masks(3, T, S).items():
        both = [torch.autograd.grad(form(*tensors, mask), tensors, out) for form in (kernels.ATTENTION[way], attention)]
        for found, expected in zip(*both, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=name)


def attention_choice(processor, dtype, T, S, training=False):
    with torch.set_grad_enabled(training):
        chosen = kernels.choose_attention(torch.randn(1, 6, T, D).to(dtype), S)
    return next(name for name, way in kernels.ATTENTION.items() if way is chosen)


def linear_choice(processor, dtype, rows, weights=1_000_000):
    chosen = kernels.choose_linear(torch.empty(rows, 1, 1000, dtype=dtype), torch.empty(weights // 1000, 1000))
    return next(name for name, way in kernels.LINEAR.items() if way is chosen)


def int8_choice(processor, columns, rows, group=None):
    scales = quantize(torch.randn(3, columns), group).scales
    chosen = kernels.choose_int8(torch.randn(rows, 1, columns).bfloat16(), scales)
    return next(name for name, way in kernels.INT8.items() if way is chosen)


LONG, SLICED, PACKED = kernels.MAX_TRAINING_KEYS, kernels.MAX_SLICED_ROWS, kernels.MAX_PACKED_ROWS
FLOAT, BFLOAT = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("choice", "arguments", "compiling", "chosen"),
    [
        (attention_choice, ("amx", BFLOAT, 9, LONG, True), False, "blockwise"),
        (attention_choice, ("amx", BFLOAT, 9, LONG + 1, True), False, "fused"),
        (attention_choice, ("native", BFLOAT, 9, LONG + 1), False, "blockwise"),
        (attention_choice, ("amx", BFLOAT, 9, 9), False, "fused"),
        (attention_choice, ("emulated", BFLOAT, 9, 9, True), False, "fused"),
        (attention_choice, ("native", BFLOAT, 1, 9), False, "fused"),
        (attention_choice, ("native", BFLOAT, 1, 9), True, "elementwise"),
        (attention_choice, ("emulated", FLOAT, 1, 9), True, "elementwise"),
        (attention_choice, ("native", FLOAT, 9, 9, True), False, "fused"),
        (linear_choice, ("emulated", FLOAT, SLICED), True, "slices"),
        (linear_choice, ("emulated", FLOAT, SLICED + 1), False, "F.linear"),
        (linear_choice, ("native", FLOAT, SLICED), False, "slices"),
        (linear_choice, ("native", FLOAT, 1), False, "mv in slices"),
        (linear_choice, ("amx", FLOAT, SLICED), False, "F.linear"),
        (linear_choice, ("avx512", FLOAT, SLICED), False, "F.linear"),
        (linear_choice, ("native", FLOAT, 1), True, "elementwise"),
        (linear_choice, ("native", FLOAT, 1, 999_000), True, "mv"),
        (linear_choice, ("native", BFLOAT, 1), False, "F.linear"),
        (linear_choice, ("amx", BFLOAT, 1), False, "mv"),
        (linear_choice, ("amx", BFLOAT, 2), True, "F.linear"),
        (linear_choice, ("emulated", BFLOAT, 1), False, "mv"),
        (linear_choice, ("avx512", BFLOAT, 1), False, "mv"),
        (linear_choice, ("avx512", FLOAT, 1), True, "F.linear"),
        (linear_choice, ("avx512", FLOAT, 1, 999_000), True, "mv"),
        (int8_choice, ("native", 64, 1), True, "elementwise"),  # the compiler has wide instructions for it
        (int8_choice, ("emulated", 64, 1), True, "packed"),  # it has none
        (int8_choice, ("native", 65, 1), True, "elementwise"),  # PyTorch's product cannot take it
        (int8_choice, ("native", 64, 1, 8), True, "dequantized"),  # the others cannot take groups
        (int8_choice, ("emulated", 40, 1), True, "dequantized"),
        (int8_choice, ("native", 64, PACKED), False, "packed"),
        (int8_choice, ("native", 64, PACKED + 1), False, "dequantized"),
    ],
)
def test_which_way_is_chosen(monkeypatch, choice, arguments, compiling, chosen):
    monkeypatch.setattr(kernels, "CPU", PROCESSORS[arguments[0]])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    assert choice(*arguments) == chosen


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_the_chosen_attention_equals_the_formula_on_every_processor(monkeypatch, processor, dtype, training):
    monkeypatch.setattr(kernels, "CPU", PROCESSORS[processor])
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for T, S in ((1, 30), (30, 30), (6, 30), (kernels.MAX_TRAINING_KEYS + 1,) * 2):
        q, k, v = queries_keys_values(1, 4, 2, T, S, dtype)
        found = kernels.attend(q.requires_grad_(training), k, v)
        torch.testing.assert_close(found, reference(q, k, v, None), atol=tolerance, rtol=tolerance)


def test_scores_of_large_numbers_do_not_overflow_in_bfloat16():
    for way, T, S in every_attention((6, 6), (1, 6)):
        q, k, v = (300 * t for t in queries_keys_values(1, 2, 1, T, S, torch.bfloat16))
        assert kernels.ATTENTION[way](q, k, v, None).isfinite().all()


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
        one_row = ("mv", "mv in slices", "elementwise")
        ways = {name: way for name, way in kernels.LINEAR.items() if name not in one_row or x.numel() == 24}
        ways |= {"chosen": kernels.linear, "compiled": torch.compile(kernels.linear, backend="eager")}
        for name, way in ways.items():
            found = way(x, weight)
            assert found.shape == expected.shape, (name, shape)
            assert found.dtype == dtype, (name, shape)
            assert found.is_contiguous(), "rotation views two numbers as one complex one"
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=10 * tolerance, msg=f"{name} {shape}")


def test_sums_of_eight_bit_products_do_not_overflow_in_float16():
    weight, scales = torch.full((2, 1024), 127, dtype=torch.int8), torch.full((2, 1), 1e-3)
    x = torch.ones(20, 1024, dtype=torch.float16)
    torch.testing.assert_close(
        kernels.int8_linear(x, weight, scales), torch.full((20, 2), 130.0).half(), rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(("columns", "group"), [(64, None), (64, 8), (40, None), (4128, None)])
def test_every_product_in_eight_bits_equals_the_dequantized_ones(monkeypatch, processor, columns, group):
    monkeypatch.setattr(kernels, "CPU", PROCESSORS[processor])
    weight, scales = quantize(torch.randn(37, columns), group)
    for rows in (1, 3, 20):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(rows, 1, columns).to(dtype)
            expected = x.float() @ kernels.dequantize(weight, scales, torch.float32).T
            ways = {"dequantized": kernels.int8_dequantized, "chosen": kernels.int8_linear}
            ways["chosen, compiled"] = torch.compile(kernels.int8_linear, backend="eager")
            if group is None and columns != 40:  # PyTorch's product cannot take a row of 40 numbers
                ways["packed"] = kernels.int8_packed
            if rows == 1 and group is None:
                ways["elementwise"] = kernels.int8_elementwise
            for name, way in ways.items():
                found = way(x, weight, scales)
                assert found.dtype == dtype
                assert (found.float() - expected).norm() < 0.01 * expected.norm(), (name, rows, dtype)


@pytest.mark.parametrize("offset", [1, 15, 31])
def test_a_tensor_at_another_address_is_copied_to_an_aligned_one(offset):
    memory = kernels.aligned(torch.arange(128, dtype=torch.uint8), 32)
    assert kernels.aligned(memory[32:], 32).data_ptr() == memory.data_ptr() + 32, "an aligned one is not copied"
    moved = kernels.aligned(memory[offset:], 32)
    assert moved.data_ptr() % 32 == 0
    assert torch.equal(moved, memory[offset:])
