"""The operators of one token on a GPU: each is a kernel that is started, or more. A new one in a layer shows here.

Counted on the meta device, with a norm and PyTorch's attention as one kernel each, as on CUDA.
"""

import pytest
import torch
from operators import count_operators

from model import KVCache, Transformer
from model.fast import kernels
from model.fast.recorded import RecordedStep, SlotCache
from model.fast.step import for_decoding
from model.fast.token import logits_of_token


@pytest.fixture
def count(small_args, monkeypatch):
    """``count(call, dtype)``: the operators of one layer, and those before and after all layers."""
    one_query = kernels.one_query

    def as_on_cuda(q, *others):
        return one_query(q, *others) if q.dtype == torch.float32 else kernels.attend_block(q, *others)

    monkeypatch.setattr(kernels, "one_query", as_on_cuda)

    def call(arguments, dtype):
        found = []
        for n_layers in (2, 3):
            with torch.device("meta"):
                network = for_decoding(Transformer(small_args(n_layers=n_layers)).to(dtype))
                cache = KVCache(network.args)
                network(torch.zeros(1, 1, dtype=torch.long), 0, cache)  # allocates it
                found.append(count_operators(*arguments(network, cache)).total())
        layer = found[1] - found[0]
        return layer, found[0] - 2 * layer

    return call


def recorded_token(network, cache):
    slot, freqs_cis = torch.zeros(1, dtype=torch.long), torch.zeros(1, 5, dtype=torch.complex64)
    visible = torch.ones(1, 1, 1, 24, dtype=torch.bool)
    caches = [SlotCache(layer.keys, layer.values, slot) for layer in cache.layers]
    merged = RecordedStep(network).network
    return logits_of_token, merged, torch.zeros(1, 1, dtype=torch.long), 0, freqs_cis, visible, caches


def eager_token(network, cache):
    network.freqs_cis = network.freqs_cis.to("meta")  # which the first call does
    return network, torch.zeros(1, 1, dtype=torch.long), 3, cache


def prompt(network, cache):
    network.freqs_cis = network.freqs_cis.to("meta")
    return network, torch.zeros(1, 3, dtype=torch.long), 0, cache


@pytest.mark.parametrize(
    ("arguments", "dtype", "layer"),
    [
        (recorded_token, torch.float32, 15),
        (recorded_token, torch.bfloat16, 24),
        (eager_token, torch.float32, 18),
        (eager_token, torch.bfloat16, 25),
        (prompt, torch.float32, 21),
    ],
)
def test_a_layer_starts_no_more_kernels_than_today(count, arguments, dtype, layer):
    found = count(arguments, dtype)
    assert found[0] <= layer
    assert found[1] <= 3, "the embedding, the last norm and the output matrix"
