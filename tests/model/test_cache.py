import copy
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from greedy import in_chunks
from torch.utils._python_dispatch import TorchDispatchMode

from model import KVCache
from model.cache import LayerCache
from model.fast.recorded import SlotCache


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_using_a_cache_does_not_change_gradients(small_model, mode):
    model = small_model()
    tokens = torch.randint(37, (2, 10))
    cache = KVCache(model.args, batch_size=2)
    found = []
    for _ in range(2):
        found.append(torch.autograd.grad(model(tokens).square().mean(), [*model.parameters()]))
        with mode():  # without it gradients are on, as for a careless caller
            in_chunks(model, tokens, [4, 1], cache)
    assert not any(layer.keys.requires_grad or layer.values.requires_grad for layer in cache.layers)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("cache", [LayerCache(4), SlotCache(*torch.zeros(2, 1, 1, 4, 2), slot=torch.tensor([2]))])
def test_a_cache_keeps_no_activations_alive(cache):
    new = torch.ones(1, 1, 1, 2, requires_grad=True)
    keys, values = cache.update(2, new, 3 * new)
    for found, value in ((keys, 1), (values, 3)):
        assert not found.requires_grad
        assert found[0, 0, :3, 0].tolist() == [0, 0, value]


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.bfloat16, False), (torch.float16, False), (torch.float32, True)]
)
@torch.no_grad()
def test_a_cache_has_the_dtype_of_the_network_also_under_autocast(small_model, dtype, autocast):
    model = small_model()
    tokens = torch.randint(37, (2, 24))
    expected = model(tokens)
    cache = KVCache(model.args, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        cached = in_chunks(model.to(dtype), tokens, [7, 1, 1, 15], cache)
    assert autocast or cached.dtype == dtype
    assert (cached.float() - expected).abs().max() < 0.2 * expected.std()


@torch.no_grad()
def test_a_cache_takes_dtype_and_device_of_the_first_keys_in_every_mode(small_model):
    """The same logits as without a cache if inference mode or autocast is on for some of the calls only."""
    model = small_model()
    tokens = torch.randint(37, (2, 12))
    expected = model(tokens)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    modes = [torch.inference_mode, nullcontext, autocast]
    for first, second, third in product(modes, repeat=3):
        cache = KVCache(model.args, 2)
        for mode, start, end in ((first, 0, 7), (second, 7, 8), (third, 8, 12)):
            with mode():
                logits = model(tokens[:, start:end], start, cache)
        is_exact = autocast not in (first, second, third)
        tolerance = 1e-5 if is_exact else 0.2 * expected.std().item()
        torch.testing.assert_close(logits.float(), expected[:, 8:], atol=tolerance, rtol=0)
        assert cache.layers[0].keys.dtype == (torch.bfloat16 if first is autocast else torch.float32)
    empty = KVCache(model.args, 2)
    for cache in (copy.deepcopy(empty), empty):
        torch.testing.assert_close(in_chunks(model, tokens, [1, 11], cache), expected, atol=1e-5, rtol=0)
    there = KVCache(model.args, 2)
    assert copy.deepcopy(model).to("meta")(tokens.to("meta"), 0, there).is_meta
    assert there.layers[0].keys.is_meta


@torch.no_grad()
def test_no_token_copies_the_filled_cache_under_autocast(small_model):
    """A token converts its own activations and scores, not the keys of all tokens before it."""

    class Copies(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if function is torch.ops.aten._to_copy.default and args[0].ndim == 4:  # keys and values, not weights
                self.largest = max(self.largest, args[0].numel())
            return out

    model = small_model(max_seq_len=200)
    cache = KVCache(model.args)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randint(37, (1, 190)), 0, cache)
        with Copies() as copies:
            model(torch.randint(37, (1, 1)), 190, cache)
    assert copies.largest < cache.layers[0].keys[:, :, :190].numel()


@pytest.mark.parametrize("limit", [9, 24])
@torch.no_grad()
def test_the_context_ends_exactly_at_max_seq_len(small_model, limit):
    model = small_model()
    tokens = torch.randint(37, (1, limit + 4))
    cache = KVCache(model.args, max_seq_len=limit)
    exact = in_chunks(model, tokens[:, :limit], [limit - 1, 1], cache)
    torch.testing.assert_close(exact, model(tokens[:, :limit]), atol=1e-5, rtol=0)
    kept = cache.layers[0].keys.clone()
    for start, T in [(0, limit + 1), (limit - 1, 2), (limit, 1), (1000, 1), (-1, 1), (-2, 4), (0, 0), (limit, 0)]:
        with pytest.raises(ValueError, match=f"^start_pos {start} with T = {T} new tokens: .* the {limit} positions"):
            model(tokens[:, :T], start_pos=start, cache=cache)
    assert torch.equal(cache.layers[0].keys, kept)  # refused before anything was written


def test_sizes_that_do_not_fit_are_refused(small_model):
    model = small_model()
    for T, start, words in ((25, 0, "the 24 positions of the network"), (1, 3, "without a cache: pass the cache")):
        with pytest.raises(ValueError, match=f"start_pos.* {start} .*{words}"):
            model(torch.zeros(1, T, dtype=torch.long), start_pos=start)
    for name, value in (("max_seq_len", 0), ("max_seq_len", -1), ("max_seq_len", 25), ("batch_size", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            KVCache(model.args, **{name: value})
    assert KVCache(model.args).make_room(20, 4) == 20
    assert KVCache(model.args, max_seq_len=1).make_room(0, 1) == 0
    with pytest.raises(ValueError, match="start_pos 20 with T = 5 new tokens: the cache has 24 slots"):
        KVCache(model.args).make_room(20, 5)
    for rows in (1, 3):  # one row would broadcast over both
        with pytest.raises(ValueError, match=f"cache is for 2 rows, but tokens have {rows}"):
            model(torch.zeros(rows, 4, dtype=torch.long), cache=KVCache(model.args, batch_size=2))
