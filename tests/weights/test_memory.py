"""The weights of a loaded network lie in one block, and hold the same numbers as before."""

import mmap

import pytest
import torch
from torch import nn

from model.weights.memory import CACHE_LINE, gather, huge_pages


@pytest.mark.parametrize("advice", ["taken", "refused", "missing"])  # Linux, a kernel without huge pages, others
def test_gathered_weights_are_the_same_aligned_and_still_tied(small_model, monkeypatch, advice):
    if advice == "missing":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    elif advice == "refused":
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1, raising=False)
    network = small_model(n_layers=2, qkv_bias=True)
    network.layers[1].feed_forward.w2.weight = network.layers[0].feed_forward.w2.weight
    network.layers[1].feed_forward.w3.weight = nn.Parameter(network.layers[1].feed_forward.w1.weight.detach())
    network.register_buffer("empty", torch.empty(0))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    gather(network)
    after = network.state_dict(keep_vars=True)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(tensor.data_ptr() % CACHE_LINE == 0 for tensor in after.values())
    assert network.layers[1].feed_forward.w2.weight is network.layers[0].feed_forward.w2.weight
    w1, w3 = network.layers[1].feed_forward.w1.weight, network.layers[1].feed_forward.w3.weight
    assert w1.data_ptr() == w3.data_ptr()
    network(torch.tensor([[1, 2, 3]])).sum().backward()
    with torch.no_grad():
        network.norm.weight.add_(1)
    assert torch.equal(network.norm.weight, before["norm.weight"] + 1)
    unchanged = {name for name, tensor in network.state_dict().items() if torch.equal(tensor, before[name])}
    assert unchanged == before.keys() - {"norm.weight"}


@pytest.mark.parametrize("size", [0, 1, 3 * 2**21 + 5])
def test_a_block_of_any_size(size):
    block = huge_pages(size)
    assert block.shape == (size,)
    block.fill_(7)
    assert block.sum(dtype=torch.int64) == 7 * size
