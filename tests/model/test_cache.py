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
    cached = in_chunks(model, tokens, chunks, KVCache(model.args, batch_size=batch))
    torch.testing.assert_close(cached, model(tokens), atol=1e-5, rtol=0)


@torch.no_grad()
def test_stale_slots_are_never_read(small_model):
    model = small_model()
    tokens = torch.randint(37, (2, 24))
    cache = KVCache(model.args, batch_size=2)
    for layer in cache.layers:
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    assert torch.isfinite(model(tokens[:, :5], cache=cache)).all()
    poisoned = in_chunks(model, tokens, [5, 3, 1, 15], cache)
    assert torch.isfinite(poisoned).all()
    torch.testing.assert_close(poisoned, model(tokens), atol=1e-5, rtol=0)


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


@torch.no_grad()
def test_two_caches_are_independent_and_only_their_caller_advances_them(small_model):
    model = small_model()
    tokens = torch.randint(37, (1, 10))
    one, other = KVCache(model.args), KVCache(model.args)
    first = model(tokens[:, :6], cache=one)
    model(torch.randint(37, (1, 8)), cache=other)
    model(torch.randint(37, (1, 8)))  # without a cache: touches none
    rest = model(tokens[:, 6:], start_pos=6, cache=one)
    again = model(tokens[:, 6:], start_pos=6, cache=one)  # the same call, the same answer
    torch.testing.assert_close(torch.cat((first, rest), 1), model(tokens), atol=1e-5, rtol=0)
    assert torch.equal(rest, again)


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


def test_using_a_cache_does_not_change_gradients(small_model):
    model = small_model()
    tokens = torch.randint(37, (2, 10))

    def gradients():
        model.zero_grad()
        model(tokens).square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    before = gradients()
    was_training = model.training
    cache = KVCache(model.args, batch_size=2)
    in_chunks(model, tokens, [4] + [1] * 6, cache)  # with gradients on, as a careless caller would
    assert not any(layer.keys.requires_grad or layer.values.requires_grad for layer in cache.layers)
    assert model.training is was_training
    for _ in range(2):
        for a, b in zip(gradients(), before, strict=True):
            assert torch.equal(a, b)


def test_training_after_inference_mode(small_model):
    model = small_model()
    tokens = torch.randint(37, (1, 6))
    with torch.inference_mode():
        in_chunks(model, tokens, [3, 1, 2], KVCache(model.args))
    for _ in range(2):
        model(tokens).mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("cast", [lambda m: m.bfloat16(), lambda m: m.to(torch.bfloat16), lambda m: m.half()])
@torch.no_grad()
def test_low_precision_network_with_a_default_cache(small_model, cast):
    model = cast(small_model())
    dtype = model.tok_embeddings.weight.dtype
    tokens = torch.randint(37, (2, 24))
    cached = in_chunks(model, tokens, [7, 1, 1, 15], KVCache(model.args, batch_size=2))
    uncached = model(tokens)
    assert cached.dtype == uncached.dtype == dtype
    spread = uncached.float().std()
    assert (cached.float() - uncached.float()).abs().max() < 0.15 * spread


@torch.no_grad()
def test_autocast_with_a_default_cache(small_model):
    model = small_model()
    tokens = torch.randint(37, (2, 24))
    expected = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cached = in_chunks(model, tokens, [7, 1, 1, 15], KVCache(model.args, batch_size=2))
    assert (cached.float() - expected).abs().max() < 0.2 * expected.std()


@torch.no_grad()
def test_the_cache_may_have_another_dtype_than_the_network(small_model):
    model = small_model()
    tokens = torch.randint(37, (1, 12))
    cache = KVCache(model.args, dtype=torch.bfloat16)
    assert cache.layers[0].keys.dtype == cache.layers[0].values.dtype == torch.bfloat16
    logits = in_chunks(model, tokens, [6, 1, 5], cache)
    assert logits.dtype == torch.float32
    assert (logits - model(tokens)).abs().max() < 0.15 * logits.std()


def test_allocated_once_for_the_kv_heads_only(small_args):
    args = small_args()
    cache = KVCache(args, batch_size=3, max_seq_len=9)
    assert len(cache.layers) == args.n_layers == 2
    for layer in cache.layers:
        assert layer.keys.shape == layer.values.shape == (3, 2, 9, 10)  # (B, K, max_seq_len, D)
    assert (cache.batch_size, cache.max_seq_len) == (3, 9)
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
        with pytest.raises(ValueError, match="max_seq_len") as caught:
            model(tokens[:, :T], start_pos=start, cache=cache)
        assert str(start) in str(caught.value)
        assert str(T) in str(caught.value)
        assert "9" in str(caught.value)
    assert torch.equal(cache.layers[0].keys, kept)  # refused before anything was written


def test_a_cache_may_be_one_slot_to_the_whole_context_long(small_args):
    for length in (1, 24):
        assert KVCache(small_args(), max_seq_len=length).layers[0].keys.shape[2] == length
    for length in (0, -1, 25):
        with pytest.raises(ValueError, match=f"max_seq_len is {length}"):
            KVCache(small_args(), max_seq_len=length)


def test_a_cache_for_another_batch_size_is_refused(small_model):
    model = small_model()
    with pytest.raises(ValueError, match="batch_size is 0"):
        KVCache(model.args, batch_size=0)
    for rows in (1, 3):  # one row would broadcast over both
        with pytest.raises(ValueError, match="batch") as caught:
            model(torch.zeros(rows, 4, dtype=torch.long), cache=KVCache(model.args, batch_size=2))
        assert str(rows) in str(caught.value)
        assert "2" in str(caught.value)
