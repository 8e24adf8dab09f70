import cmath
import math
import re

import pytest
import torch

from model.rope import apply_rotary_emb, apply_rotary_emb_real, precompute_freqs_cis, reshape_for_broadcast

B, T, H, K, D = 2, 7, 6, 3, 10


def queries_and_keys(dtype=torch.float32, length=T):
    return tuple(torch.randn(B, length, n, D).to(dtype) for n in (H, K))


def rotated_one_by_one(x: torch.Tensor, start: int) -> torch.Tensor:
    """The definition in float64: one 2 x 2 rotation for each pair, without a table or complex numbers."""
    out = torch.empty(x.shape, dtype=torch.float64)
    for b, t, h in torch.cartesian_prod(*(torch.arange(n) for n in x.shape[:3])).tolist():
        for i in range(x.shape[3] // 2):
            angle = (start + t) * 10000 ** (-2 * i / x.shape[3])
            u, v = x[b, t, h, 2 * i : 2 * i + 2].tolist()
            out[b, t, h, 2 * i] = math.cos(angle) * u - math.sin(angle) * v
            out[b, t, h, 2 * i + 1] = math.sin(angle) * u + math.cos(angle) * v
    return out


@pytest.mark.parametrize(("dim", "theta"), [(8, 10000.0), (10, 500000.0), (2, 10000.0)])
def test_table_is_the_formula(dim, theta):
    table = precompute_freqs_cis(dim, 2049, theta)
    assert (table.dtype, table.shape) == (torch.complex64, (2049, dim // 2))
    for p in (0, 1, 2, 3, 511, 512, 1000, 2047, 2048):
        for i in range(dim // 2):
            expected = cmath.rect(1, p * theta ** (-2 * i / dim))
            assert table[p, i].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_table_ignores_the_default_dtype_and_device(dtype):
    fresh = precompute_freqs_cis(D, 600)
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
            made = precompute_freqs_cis(D, 600)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(made, fresh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rotate", [apply_rotary_emb, apply_rotary_emb_real])
def test_equals_a_loop_of_rotations_and_keeps_shape_and_dtype(dtype, rotate):
    tolerance = max(2e-6, 4 * torch.finfo(dtype).eps)
    # At large positions low-precision angles would be wrong by radians; a length may equal the number of heads.
    for length, start in ((T, 0), (H, 5), (K, 5), (1, 5), (T, 2041)):
        table = precompute_freqs_cis(D, 2048)[start : start + length]
        contiguous = queries_and_keys(dtype, length=length)
        strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in contiguous]
        for given in (contiguous, strided):
            for x, out in zip(given, rotate(*given, table), strict=True):
                assert (out.dtype, out.shape) == (dtype, x.shape)
                exact = rotated_one_by_one(x, start).to(dtype)
                torch.testing.assert_close(out, exact, atol=tolerance, rtol=tolerance)


def test_real_arithmetic_has_the_gradients_of_complex_arithmetic():
    table = precompute_freqs_cis(D, 2048)[-T:]
    given = [x.requires_grad_() for x in queries_and_keys()]
    results = []
    for rotate in (apply_rotary_emb, apply_rotary_emb_real):
        out = rotate(*given, table)
        results.append([*out, *torch.autograd.grad(out[0].pow(3).sum() + out[1].pow(3).sum(), given)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_the_table_broadcasts_over_batch_and_heads_and_any_other_shape_is_refused():
    x = torch.ones(2, 7, 6, 5)
    assert reshape_for_broadcast(torch.ones(7, 5), x).shape == (1, 7, 1, 5)
    for table in ((7, 10), (7,), (6, 5)):
        with pytest.raises(ValueError, match=f"freqs_cis.*{re.escape(str(table))}.*{re.escape('(2, 7, 6, 5)')}"):
            reshape_for_broadcast(torch.ones(table), x)
    with pytest.raises(ValueError, match=re.escape("(2, 7, 5)")):
        reshape_for_broadcast(torch.ones(7, 5), x[:, :, 0])


@pytest.mark.parametrize("rotate", [apply_rotary_emb, apply_rotary_emb_real])
def test_a_table_of_another_length_or_an_odd_width_is_refused(rotate):
    for length in (0, 1, T - 1, T + 1):  # one row would broadcast over all positions
        with pytest.raises(ValueError, match="freqs_cis"):
            rotate(*queries_and_keys(), precompute_freqs_cis(D, length))
    with pytest.raises(ValueError, match="dim is 7: make it even"):
        precompute_freqs_cis(7, 4)
