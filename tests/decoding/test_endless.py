"""The endless cache: moved keys equal freshly rotated ones, and the right tokens are evicted."""

import pytest
import torch

from model import ModelArgs, Transformer, generate
from model.decoding.batches import check_shift_invariant, decode_batch
from model.decoding.endless import SINKS, EndlessCache, is_shift_invariant
from model.decoding.network import for_decoding
from model.decoding.sampling import Sampler, Sampling
from model.rope import apply_rotary_emb, precompute_freqs_cis
from model.rope_scaling import RopeScaling
from study.positions import SCHEMES, build_scheme

LIMIT = 24
SCALED = {
    "none": None,
    "linear": RopeScaling("linear", 2.5),
    "ntk": RopeScaling("ntk", 3.0),
    "llama3": RopeScaling("llama3", 4.0, original_max_seq_len=9, low=1.0, high=3.0),
    "yarn": RopeScaling("yarn", 4.0, original_max_seq_len=10, low=0.5, high=2.0),
}
# In 16 bits a key of up to 6 is rounded four times, when it is stored and at each of three moves: 4 * eps / 2 * 6.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 12 * 2**-7, torch.float16: 12 * 2**-10}


def rotated(keys, table, positions):
    """(B, N, K, D) at these positions, in the layout of the cache: (B, K, N, D)."""
    return apply_rotary_emb(keys, keys, table[positions])[1].transpose(1, 2)


@pytest.mark.parametrize("scaling", SCALED)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_moved_keys_equal_freshly_rotated_ones(small_args, scaling, n_kv_heads, dtype):
    args = small_args(rope_scaling=SCALED[scaling], n_kv_heads=n_kv_heads)
    table = precompute_freqs_cis(args.head_dim, LIMIT, args.rope_theta, args.rope_scaling)
    cache = EndlessCache(args, table, batch_size=3, dtype=dtype)
    keys, values = torch.randn(2, 3, LIMIT, n_kv_heads, args.head_dim).to(dtype)
    for layer in cache.layers:
        layer.update(0, rotated(keys, table, torch.arange(LIMIT)), values.transpose(1, 2))
    cached_positions = list(range(LIMIT))
    for _ in range(3):  # each kept key is moved three times before it is evicted
        length = cache.make_room(len(cached_positions))
        assert (length, len(cached_positions) - length) == (LIMIT - LIMIT // 4, LIMIT // 4)
        cached_positions = cached_positions[:SINKS] + cached_positions[SINKS + LIMIT // 4 :]
        expected = rotated(keys[:, cached_positions], table, torch.arange(length))
        for layer in cache.layers:
            torch.testing.assert_close(layer.keys[:, :, :length], expected, atol=TOLERANCE[dtype], rtol=0)
            assert torch.equal(layer.values[:, :, :length], values[:, cached_positions].transpose(1, 2))
        new = torch.randn(3, LIMIT - length, n_kv_heads, args.head_dim).to(dtype)
        keys, values = torch.cat((keys, new), 1), torch.cat((values, new), 1)
        for layer in cache.layers:
            layer.update(length, rotated(new, table, torch.arange(length, LIMIT)), new.transpose(1, 2))
        cached_positions += range(keys.shape[1] - new.shape[1], keys.shape[1])
    assert cache.evicted == 3 * (LIMIT // 4)


@torch.no_grad()
@pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if is_shift_invariant(scheme.network)])
def test_with_one_layer_logits_equal_those_of_the_cached_tokens_alone(scheme):
    """A single layer's keys and values depend on their own token only, so evicted tokens leave no trace."""
    args = ModelArgs(dim=24, n_layers=1, n_heads=3, n_kv_heads=1, head_dim=8, vocab_size=41, max_seq_len=20)
    model = build_scheme(args, scheme, **({"factor": 2.0} if scheme in ("linear", "ntk", "yarn") else {})).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=0.4)
    text = torch.randint(41, (2, 37))
    cache = EndlessCache(args, model.freqs_cis, 2)
    cached_positions, done = [], 0
    for T in (20, 1, 1, 7, 1, 1, 6):
        start_pos = cache.make_room(len(cached_positions), T)
        cached_positions = cached_positions[:SINKS] + cached_positions[SINKS + len(cached_positions) - start_pos :]
        logits = model(text[:, done : done + T], start_pos, cache)
        cached_positions += range(done, done + T)
        done += T
        torch.testing.assert_close(logits, model(text[:, cached_positions])[:, -T:], atol=1e-5, rtol=0)
    assert cache.evicted == 20


@pytest.mark.parametrize(("limit", "quarter", "keep"), [(2, 1, 0), (3, 1, 1), (5, 1, 3), (8, 2, 4), (24, 6, 4)])
def test_a_quarter_is_evicted_and_the_first_tokens_are_kept(small_args, limit, quarter, keep):
    args = small_args()
    cache = EndlessCache(args, precompute_freqs_cis(args.head_dim, LIMIT), max_seq_len=limit)
    cache.layers[0].values[..., :limit, :] = torch.arange(limit)[:, None]
    assert [cache.make_room(start_pos) for start_pos in range(limit)] == [*range(limit)]
    assert cache.make_room(limit) == limit - quarter
    kept = [*range(keep), *range(keep + quarter, limit)]
    assert cache.layers[0].values[0, 0, : limit - quarter, 0].tolist() == kept
    assert cache.make_room(limit - quarter, limit - keep) == keep
    with pytest.raises(ValueError, match=f"{limit - keep + 1} tokens do not fit into a context of {limit}"):
        cache.make_room(keep, limit - keep + 1)
    assert cache.make_room(0, limit) == 0, "an empty cache has nothing to keep"


def test_a_context_of_one_token_is_an_error(small_args):
    with pytest.raises(ValueError, match="at least 2 tokens"):
        EndlessCache(small_args(max_seq_len=1), torch.ones(1, 5))


@pytest.fixture
def model(small_model):
    return small_model().eval()


def test_an_endless_text_begins_like_the_plain_one(model):
    prompts = [[1, 5, 7], [2, 2, 4]]
    plain = [*generate(model, prompts, LIMIT - 3)]
    endless = [*generate(model, prompts, 4 * LIMIT, endless=True)]
    assert len(endless) == 4 * LIMIT
    assert endless[: len(plain)] == plain
    assert all(0 <= token < 37 for row in endless for token in row)


def test_rows_of_an_endless_batch_equal_each_prompt_alone(model):
    prompts = [[1, 5, 7], [2, 2, 4], [9, 8, 7]]
    together = [*generate(model, prompts, 60, endless=True)]
    for row, prompt in enumerate(prompts):
        assert [[step[row]] for step in together] == [*generate(model, [prompt], 60, endless=True)]


@torch.no_grad()
def test_endless_decoding_equals_decoding_with_evictions_by_hand(model):
    """Greedy tokens and their log-probabilities, one token at a time, with explicit calls of ``evict``."""
    cache = EndlessCache(model.args, model.freqs_cis)
    logits = model(torch.tensor([[1, 5, 7]]), 0, cache)[0, -1]
    expected, start_pos = [], 3
    for _ in range(60):
        expected.append((int(logits.argmax()), float(logits.log_softmax(-1).max())))
        if start_pos == LIMIT:
            cache.evict(6, LIMIT)
            start_pos -= 6
        logits = model(torch.tensor([[expected[-1][0]]]), start_pos, cache)[0, -1]
        start_pos += 1
    cache = EndlessCache(model.args, model.freqs_cis)
    sampler = Sampler(Sampling(0.0), [[1]], 37, with_logprobs=True)
    steps = decode_batch(for_decoding(model), [[1, 5, 7]], 60, sampler, cache)
    for tokens, (token, score) in zip(steps, expected, strict=True):
        assert tokens == [token]
        assert sampler.logprobs[0] == pytest.approx(score, abs=1e-4)


def test_a_prompt_may_fill_the_context(model):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 3
    assert len([*generate(model, [prompt], 30, endless=True)]) == 30
    with pytest.raises(ValueError, match="a prompt of 25 tokens is longer than the context of 24: shorten it"):
        generate(model, [[*prompt, 1]], 30, endless=True)


@pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if not is_shift_invariant(scheme.network)])
def test_a_network_with_absolute_positions_cannot_be_endless(scheme):
    args = ModelArgs(dim=24, n_layers=1, n_heads=3, head_dim=8, vocab_size=41, max_seq_len=20)
    with pytest.raises(ValueError, match="this network's scores depend on them"):
        generate(build_scheme(args, scheme), [[1]], 40, endless=True)
    with pytest.raises(ValueError, match="this network's scores depend on them"):
        check_shift_invariant(SCHEMES[scheme].network)
    check_shift_invariant(Transformer)
