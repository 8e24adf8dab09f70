"""Every way to compute attention and products equals its definition, and the accelerated network the plain one."""

import gc
import itertools
import math
import operator
import weakref

import pytest
import torch
import torch.nn.functional as F
from cards import OnCard
from conftest import PROCESSORS
from greedy import in_chunks
from operators import count_operators
from torch import nn
from torch.overrides import TorchFunctionMode

from model import KVCache, Transformer, generate
from model.attention import RMSNorm, attention
from model.cli import machine
from model.fast import int8, kernels, token
from model.fast.int8 import Quantized, quantize
from model.fast.kernels import accelerate, attend_block, fast_product, replace_modules
from model.fast.loss import NextTokenLoss
from model.fast.step import for_decoding
from model.generation import padding_mask

ATTENTION = kernels.ATTENTION | {
    "formula": attention,
    "one block": attend_block,
    "compiled": token.attend,
    "on a GPU": kernels.gpu_attention,
}
D = 10


def by_loops(q, k, v, mask):
    """Attention in float64, one row and head at a time, rounded at the end."""
    B, H, T, S = *q.shape[:3], k.shape[2]
    if mask is None:  # causal, and aligned to the last key
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    mask = mask.expand(B, H, T, S)
    outs = []
    for row, head in itertools.product(range(B), range(H)):
        shared = head * k.shape[1] // H  # by neighbouring query heads
        scores = q[row, head].double() @ k[row, shared].double().T / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~mask[row, head], -math.inf).softmax(-1)
        outs.append(weights @ v[row, shared].double())
    return torch.stack(outs).view(q.shape).to(q.dtype)


def masks(B, T, S):
    sparse = torch.rand(B, 6, T, S) < 0.3
    sparse[..., 0] = True  # because a softmax over no keys is NaN
    padded = padding_mask(torch.arange(B), S - T, T)  # (B, 1, T, S)
    not_causal, one_row = sparse[:, :1], sparse[:, :1, :1]
    found = {"none": None, "padded": padded, "each head": sparse, "not causal": not_causal, "one row": one_row}
    return found | {"two dimensions": sparse[0, 0], "one dimension": sparse[0, 0, 0]}


@pytest.mark.parametrize(("T", "S"), [(1, 9), (4, 9), (9, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_attention_and_its_gradients_equal_a_loop_over_rows_and_heads(monkeypatch, dtype, T, S):
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for K, (mask_name, mask) in itertools.product((1, 2, 6), masks(2, T, S).items()):
        # Keys and values as a cache gives them: the first S of a longer tensor.
        keys, values = torch.randn(2, 2, K, S + 3, D).to(dtype)[..., :S, :]
        tensors = [tensor.requires_grad_() for tensor in (torch.randn(2, 6, T, D).to(dtype), keys, values)]
        expected = by_loops(*tensors, mask)
        expected_gradients = torch.autograd.grad(expected.pow(3).sum(), tensors)
        for way, attend in ATTENTION.items():
            if way == "compiled" and T > 1:
                continue  # it takes a single query
            name = f"{way}, {K} heads of keys, mask: {mask_name}"
            found = attend(*tensors, mask)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance, msg=name)
            if dtype == torch.float32:
                gradients = torch.autograd.grad(found.pow(3).sum(), tensors)
                torch.testing.assert_close(gradients, expected_gradients, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(("dtype", "tie_embeddings"), [(torch.float32, False), (torch.bfloat16, True)])
@torch.no_grad()
def test_the_accelerated_network_equals_the_plain_one_at_every_position(
    monkeypatch, small_model, processor, dtype, tie_embeddings
):
    monkeypatch.setattr(machine, "CPU", PROCESSORS[processor])
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    model = small_model(qkv_bias=True, tie_embeddings=tie_embeddings).to(dtype)
    fast = replace_modules(accelerate(model), fast_product)
    assert all(map(operator.is_, fast.state_dict(keep_vars=True).values(), model.state_dict(keep_vars=True).values()))
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.3}[dtype]
    tokens = torch.randint(model.args.vocab_size, (2, model.args.max_seq_len))
    plain = model(tokens)
    torch.testing.assert_close(fast(tokens), plain, atol=tolerance, rtol=tolerance)
    for sizes in ([1], [7, 1, 9, 1, 6]):
        found = in_chunks(fast, tokens, sizes, KVCache(model.args, 2))
        torch.testing.assert_close(found, plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("replaced", ["tok_embeddings", "output", "layers"])
@pytest.mark.parametrize("make", [Transformer.eval, accelerate])
def test_a_part_of_a_network_that_is_replaced_takes_part_in_the_next_call(small_model, make, replaced):
    """A copy that held parts, or what they compute, would keep the old one; also of tied weights."""
    original, tokens = small_model(tie_embeddings=replaced != "output"), torch.tensor([[3, 1, 4, 1, 5]])
    model, expected = make(original), Transformer(original.args)
    expected.load_state_dict(original.state_dict())
    for network in (model, expected):
        torch.manual_seed(1)
        if replaced == "layers":
            network.layers[0].feed_forward = nn.Linear(48, 48)
        elif replaced == "output":
            network.output = nn.Linear(48, 41)
        else:
            network.tok_embeddings = nn.Embedding(41, 48)
    torch.testing.assert_close(model(tokens), expected(tokens))
    assert next(generate(model, [[3, 1, 4]], 1)) == next(generate(expected, [[3, 1, 4]], 1))


@pytest.mark.filterwarnings("ignore:.*torch:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_other_libraries_find_the_layers_of_an_accelerated_network_and_trace_it(small_model):
    plain = small_model(qkv_bias=True).eval()
    model, tokens = accelerate(plain), torch.tensor([[3, 1, 4, 1, 5]])
    assert [type(module) is nn.Linear for module in model.modules()] == [
        type(module) is nn.Linear for module in plain.modules()
    ]
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert not [module for module in quantized.modules() if type(module) is nn.Linear]
    assert not torch.equal(quantized(tokens), model(tokens))
    assert torch.equal(torch.jit.trace(model, tokens)(tokens.flip(1)), model(tokens.flip(1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_off_the_cpu_products_and_attention_are_pytorchs_own_whatever_the_processor(monkeypatch, small_args, dtype):
    """The same operations for each processor, on the meta device, and no slow ones."""
    calls = []

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            calls.append(function.__name__)
            return function(*args, **kwargs or {})

    found = set()
    for processor in PROCESSORS.values():
        monkeypatch.setattr(machine, "CPU", processor)
        with torch.device("meta"):
            model = replace_modules(accelerate(Transformer(small_args()).to(dtype)), fast_product)
            tokens = torch.ones(2, 7, dtype=torch.int64)
            calls.clear()
            with Recorder():
                in_chunks(model, tokens, [3, 3, 1], KVCache(model.args, 2))
        found.add(tuple(calls))
    assert len(found) == 1
    assert not {"bmm", "mv", "matmul", "__matmul__", "mm"} & {*calls}


@pytest.mark.parametrize("has_flash", [False, True])
@pytest.mark.parametrize("S", [5, 9])
def test_a_prompt_in_16_bits_takes_the_flash_kernel_of_a_gpu_with_neither_mask_nor_copies_of_keys(
    monkeypatch, has_flash, S
):
    """PyTorch's choice would be cuDNN, which makes a plan for each length, and in training it remains so."""
    taken = []

    def flash(q, k, v, is_causal):
        assert is_causal
        taken.append(k.shape[1])
        return by_loops(q, k, v, None), "its logsumexp"

    flash.default = torch.ops.aten._scaled_dot_product_flash_attention.default  # which PyTorch's tables name
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention", flash)
    monkeypatch.setattr(kernels, "can_use_flash_attention", lambda params: has_flash)
    q, (k, v) = torch.randn(2, 6, 5, 16), torch.randn(2, 2, 2, S, 16)
    expected = attention(q, k, v)
    torch.testing.assert_close(kernels.gpu_attention(q, k, v), expected)
    torch.testing.assert_close(kernels.gpu_attention(q, k, v, torch.ones(5, S).bool().tril(S - 5)), expected)
    assert not taken, "with gradients and with a mask"
    with torch.no_grad():
        torch.testing.assert_close(kernels.gpu_attention(q, k, v), expected)
        torch.testing.assert_close(
            kernels.gpu_attention(*(each[..., :10] for each in (q, k, v))),
            attention(*(each[..., :10] for each in (q, k, v))),
        )
    assert taken == [2] * has_flash, "heads of 10 numbers are not for it"


@pytest.mark.slow
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_a_compiled_training_step_on_a_gpu_is_one_graph(small_args, compiler, n_kv_heads):
    """Nothing in it is a question that only PyTorch's eager mode answers."""
    loss = NextTokenLoss(Transformer(small_args(n_kv_heads=n_kv_heads)).to("meta"), merge=True)
    loss.network.freqs_cis = loss.body.freqs_cis = loss.network.freqs_cis.to("meta")
    tokens = torch.ones(2, 7, dtype=torch.int64, device="meta")
    explained = compiler.explain(loss)(tokens, tokens)
    assert (explained.graph_count, explained.break_reasons) == (1, [])


SHAPES = [(24,), (1, 24), (5, 24), (1, 1, 24), (5, 1, 24), (1, 3, 24), (2, 3, 24), (2, 1, 1, 24), (200, 1, 24)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_product_equals_the_linear_layers(dtype):
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    for out_features, transposed, shape in itertools.product((1, 7, 12, 1000), (False, True), SHAPES):
        weight, x = torch.randn(out_features, 24).to(dtype), torch.randn(shape).to(dtype)
        if transposed:
            weight = weight.t().contiguous().t()
        expected = F.linear(x.double(), weight.double()).to(dtype)
        ways = {name: way for name, way in kernels.LINEAR.items() if name != "mv" or x.numel() == 24}
        ways["chosen"] = kernels.linear
        if len(shape) == 3 and shape[1] == 1:
            ways["compiled"] = token.linear
        for name, way in ways.items():
            found = way(x, weight)
            assert found.is_contiguous(), "rotation views two numbers as one complex one"
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=10 * tolerance, msg=f"{name} {shape}")


AVX512 = ("avx2", "avx512_f", "avx512_bw", "avx512_vl")
REPORTED = {  # by PyTorch, which on a Mac lacks oneDNN
    "amx": (*AVX512, "avx512_bf16", "amx_tile", "amx_bf16"),
    "native": (*AVX512, "avx512_bf16"),
    "avx512": AVX512,
    "emulated": ("avx2",),
    "arm": ("neon", "bf16"),
    "apple": ("neon", "bf16"),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_processor_is_known_by_what_pytorch_reports_of_it(monkeypatch, processor):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(REPORTED[processor], True))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: processor != "apple")
    assert machine.this_processor() == PROCESSORS[processor]


@pytest.mark.parametrize("processor", PROCESSORS)
def test_only_processors_that_were_measured_take_other_products_than_pytorchs(monkeypatch, processor):
    monkeypatch.setattr(machine, "CPU", PROCESSORS[processor])
    rows = [torch.ones(rows, 1, 24, dtype=dtype) for rows in (1, 5) for dtype in (torch.float32, torch.bfloat16)]
    takes_others = any(kernels.choose_linear(x) is not F.linear for x in rows)
    assert takes_others == (processor not in ("arm", "apple"))


def test_sums_of_eight_bit_products_do_not_overflow_in_float16():
    weight, scales = torch.full((2, 1024), 127, dtype=torch.int8), torch.full((2, 1), 1e-3)
    x = torch.ones(20, 1024, dtype=torch.float16)
    torch.testing.assert_close(
        int8.int8_linear(x, weight, scales), torch.full((20, 2), 130.0).half(), rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("processor", ["native", "emulated"])  # with and without AVX-512
def test_every_product_in_eight_bits_equals_the_dequantized_ones(monkeypatch, processor):
    monkeypatch.setattr(machine, "CPU", PROCESSORS[processor])
    for columns, rows, dtype in itertools.product((64, 40, 4128), (1, 3, 20), (torch.float32, torch.bfloat16)):
        weight, scales = quantize(torch.randn(37, columns))
        x = torch.randn(rows, 1, columns).to(dtype)
        expected = x.float() @ Quantized(weight, scales).dequantize(torch.float32).T
        ways = {"dequantized": int8.dequantized, "chosen": int8.int8_linear, "compiled": token.int8_linear}
        if columns != 40:  # PyTorch's product cannot take a row of 40 numbers
            ways["packed"] = int8.packed
        for name, way in ways.items():
            found = way(x, weight, scales)
            assert found.dtype == dtype
            assert (found.float() - expected).norm() < 0.01 * expected.norm(), (name, columns, rows, dtype)


@pytest.mark.parametrize("make", [accelerate, for_decoding, NextTokenLoss])
def test_a_copy_of_a_network_is_freed_with_its_last_name(small_model, make):
    """Without the collector of cycles, which may run much later."""
    model = small_model()
    copied = make(model)
    alive = [weakref.ref(module) for each in (model, copied) for module in each.modules()]
    gc.collect()
    gc.disable()
    try:
        del model, copied
        assert not any(module() for module in alive)
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_pytorchs_norm_which_gpus_take_is_the_formula(dtype, eps):
    """In 16 bits it is at least as close to the exact norm, because it is rounded once."""
    norm = RMSNorm(96, eps).to(dtype)
    torch.manual_seed(0)
    torch.nn.init.normal_(norm.weight, 1, 0.3)
    x = (3 * torch.randn(4, 7, 96)).to(dtype)
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps) * norm.weight.double()
    theirs, formula = F.rms_norm(x, (96,), norm.weight, eps), norm(x)
    assert (theirs - exact).abs().max() <= max(1.01 * (formula - exact).abs().max(), 1e-5)


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_a_norm_of_two_dtypes_is_one_kernel_of_a_gpu_and_a_conversion(x_dtype, weight_dtype):
    """As the norms of queries and keys under autocast. The formula takes eight kernels."""
    norm = RMSNorm(96, 1e-5)
    torch.nn.init.normal_(norm.weight, 1, 0.3)
    norm.to(weight_dtype)
    x = torch.randn(4, 7, 96).to(x_dtype)
    with OnCard():
        counts = count_operators(kernels.FastRMSNorm(norm), x)
        found = kernels.FastRMSNorm(norm)(x)
    counts.pop("promote_types", None)  # starts no kernel
    assert counts == ({"rms_norm": 1} if x_dtype == weight_dtype else {"rms_norm": 1, "_to_copy": 1})
    assert found.dtype == norm(x).dtype
    torch.testing.assert_close(found, norm(x), rtol=1e-2, atol=1e-2)
