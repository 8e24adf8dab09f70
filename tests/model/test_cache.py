from contextlib import nullcontext

import pytest
import torch

from model import KVCache

# Lengths that add up to the small context: one by one, all at once, a prefill then one by one, uneven chunks.
CHUNKINGS = [[1] * 24, [24], [9] + [1] * 15, [2, 5, 1, 7, 1, 1, 4, 3], [1, 23], [23, 1]]


def in_chunks(model, tokens, chunks, cache):
    logits, start = [], 0
    for T in chunks:
        logits.append(model(tokens[:, start : start + T], start_pos=start, cache=cache))
        start += T
    assert start == tokens.shape[1]
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("chunks", CHUNKINGS, ids=str)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_cached_logits_equal_uncached_logits_at_every_position(small_model, chunks, n_kv_heads, batch):
    model = small_model(n_kv_heads=n_kv_heads)
    tokens = torch.randint(37, (batch, 24))
    cache = KVCache(model.args, batch_size=batch)
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)  # slots that are not written must not be read
        layer.values.fill_(torch.nan)
    cached = in_chunks(model, tokens, chunks, cache)
    torch.testing.assert_close(cached, model(tokens), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_cache_can_be_reused_from_any_position(small_model):
    model = small_model()
    long, short = torch.randint(37, (1, 24)), torch.randint(37, (1, 7))
    cache = KVCache(model.args)
    model(long, cache=cache)
    torch.testing.assert_close(in_chunks(model, short, [4, 1, 2], cache), model(short), atol=1e-5, rtol=0)
    # Tokens written from position 4 on replace the old ones.
    other = torch.cat((short[:, :4], torch.randint(37, (1, 9))), dim=1)
    rewritten = model(other[:, 4:], start_pos=4, cache=cache)
    torch.testing.assert_close(rewritten, model(other)[:, 4:], atol=1e-5, rtol=0)


def test_keys_are_cached_rotated(small_model):
    model = small_model()
    token = torch.full((1, 6), 5)  # one token, six times: its layer-0 keys differ by their position only
    cache = KVCache(model.args)
    with torch.no_grad():
        model(token, cache=cache)
    keys, values = cache.layers[0].keys[0, :, :6], cache.layers[0].values[0, :, :6]  # (K, T, D)
    torch.testing.assert_close(keys.norm(dim=-1), keys[:, :1].norm(dim=-1).expand(-1, 6))
    assert (keys[:, 1:] - keys[:, :1]).abs().amax(dim=(0, 2)).min() > 0.01
    torch.testing.assert_close(values, values[:, :1].expand_as(values))


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_using_a_cache_does_not_change_gradients(small_model, mode):
    model = small_model()
    tokens = torch.randint(37, (2, 10))

    def gradients():
        model.zero_grad()
        model(tokens).square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    before = gradients()
    cache = KVCache(model.args, batch_size=2)
    with mode():  # without it gradients are on, as for a careless caller
        in_chunks(model, tokens, [4] + [1] * 6, cache)
    assert not any(layer.keys.requires_grad or layer.values.requires_grad for layer in cache.layers)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(gradients(), before, strict=True))


@pytest.mark.parametrize(
    ("cast", "autocast", "cache_dtype"),
    [
        (lambda m: m.bfloat16(), False, None),
        (lambda m: m.to(torch.bfloat16), False, None),
        (lambda m: m.half(), False, None),
        (lambda m: m, True, None),
        (lambda m: m, False, torch.bfloat16),
    ],
)
@torch.no_grad()
def test_the_dtypes_of_network_and_cache_may_differ(small_model, cast, autocast, cache_dtype):
    model = small_model()
    tokens = torch.randint(37, (2, 24))
    expected = model(tokens)
    dtype = cast(model).tok_embeddings.weight.dtype
    cache = KVCache(model.args, batch_size=2, dtype=cache_dtype)
    assert cache.layers[0].keys.dtype == cache.layers[0].values.dtype == (cache_dtype or torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        cached = in_chunks(model, tokens, [7, 1, 1, 15], cache)
    assert autocast or cached.dtype == dtype
    assert (cached.float() - expected).abs().max() < 0.2 * expected.std()


def test_allocated_once_for_the_kv_heads_only(small_args):
    args = small_args()
    cache = KVCache(args, batch_size=3, max_seq_len=9)
    assert [layer.keys.shape for layer in cache.layers] == [(3, 2, 9, 10)] * 2  # (B, K, max_seq_len, D)
    assert [layer.values.shape for layer in cache.layers] == [(3, 2, 9, 10)] * 2
    assert KVCache(args, device="meta").layers[0].keys.device.type == "meta"


@torch.no_grad()
def test_the_end_of_a_short_cache(small_model):
    model = small_model()
    tokens = torch.randint(37, (1, 24))
    cache = KVCache(model.args, max_seq_len=9)
    exact = in_chunks(model, tokens[:, :9], [8, 1], cache)
    torch.testing.assert_close(exact, model(tokens[:, :9]), atol=1e-5, rtol=0)
    kept = cache.layers[0].keys.clone()
    for start, T in ((0, 10), (8, 2), (9, 1), (20, 1)):
        with pytest.raises(ValueError, match=f"start_pos {start} with T = {T} .* the 9 positions of the cache"):
            model(tokens[:, :T], start_pos=start, cache=cache)
    assert torch.equal(cache.layers[0].keys, kept)  # refused before anything was written


def test_invalid_sizes_are_refused(small_model):
    model = small_model()
    for name, value in (("max_seq_len", 0), ("max_seq_len", -1), ("max_seq_len", 25), ("batch_size", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            KVCache(model.args, **{name: value})
    for rows in (1, 3):  # one row would broadcast over both
        with pytest.raises(ValueError, match=f"batch of 2, but tokens have {rows} rows"):
            model(torch.zeros(rows, 4, dtype=torch.long), cache=KVCache(model.args, batch_size=2))
