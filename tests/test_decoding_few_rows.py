"""Linear layers for a few rows: equal to the plain ones for any shape."""

import pytest
import torch
from torch import nn

from model.decoding.few_rows import FewRowsLinear


@pytest.mark.parametrize("out_features", [1, 7, 8, 12, 32, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_layer_for_few_rows_is_the_linear_layer(each_processor, out_features, dtype, rows, transposed):
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
def test_onednn_is_off_for_one_row_of_16_bits_and_then_as_it_was(each_processor, monkeypatch, enabled, rows, dtype):
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
