"""The endless cache: logits after an eviction are those of the tokens that are left, and the right ones are evicted."""

import pytest
import torch
from study_models import random_model

from model import KVCache, ModelArgs, generate
from model.decoding.endless import SINKS, EndlessCache, is_shift_invariant
from study.positions import SCHEMES

LIMIT = 24


@torch.no_grad()
@pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if is_shift_invariant(scheme.network)])
def test_with_one_layer_logits_equal_those_of_the_cached_tokens_alone(scheme):
    """A single layer's keys and values depend on their own token only, so evicted tokens leave no trace."""
    args = ModelArgs(dim=24, n_layers=1, n_heads=3, n_kv_heads=1, head_dim=8, vocab_size=41, max_seq_len=20)
    model = random_model(args, scheme, **({"factor": 2.0} if scheme in ("linear", "ntk", "yarn") else {}))
    text = torch.randint(41, (2, 37))
    cache = EndlessCache(model, 2)
    cached_positions, done = [], 0
    for T in (20, 1, 1, 7, 1, 1, 6):
        start_pos = cache.make_room(len(cached_positions), T)
        cached_positions = cached_positions[:SINKS] + cached_positions[SINKS + len(cached_positions) - start_pos :]
        logits = model(text[:, done : done + T], start_pos, cache)
        cached_positions += range(done, done + T)
        done += T
        torch.testing.assert_close(logits, model(text[:, cached_positions])[:, -T:], atol=3e-5, rtol=0)
    assert cache.evicted == 20


@pytest.fixture
def model(small_model):
    return small_model().eval()


def test_rows_of_an_endless_batch_equal_each_prompt_alone_and_begin_like_plain_texts(model):
    prompts = [[1, 5, 7], [2, 2, 4], [9, 8, 7]]
    together = [*generate(model, prompts, 4 * LIMIT, endless=True)]
    for row, prompt in enumerate(prompts):
        assert [[step[row]] for step in together] == [*generate(model, [prompt], 4 * LIMIT, endless=True)]
    assert together[: LIMIT - 3] == [*generate(model, prompts, LIMIT - 3)]
    assert len([*generate(model.to(torch.bfloat16), prompts, 2 * LIMIT, endless=True)]) == 2 * LIMIT


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 3, 23, 24, 25, 100])
def test_endless_decoding_equals_decoding_with_evictions_by_hand(model, length):
    """One token at a time, with explicit calls of ``evict``. A prompt may be longer than the context."""
    cache, text, start_pos = EndlessCache(model), ([3, 1, 4, 1, 5, 9, 2, 6] * 13)[:length], 0
    cache.make_room(0, LIMIT)
    for read in range(length + 60):
        if start_pos == LIMIT:
            cache.evict(6, LIMIT)
            start_pos -= 6
        logits = model(torch.tensor([[text[read]]]), start_pos, cache)[0, -1]
        start_pos += 1
        if len(text) == read + 1:
            text.append(int(logits.argmax()))
    assert [token for (token,) in generate(model, [text[:length]], 60, endless=True)] == text[length : length + 60]


@torch.no_grad()
def test_a_cache_that_grows_gives_the_logits_of_one_that_does_not(model, monkeypatch):
    monkeypatch.setattr("model.decoding.endless.FIRST_SLOTS", 3)
    text, start_pos = torch.randint(37, (2, 24)), 0
    cache, plain = EndlessCache(model, 2), KVCache(model.args, 2)
    for chunk in text.split((2, 1, 1, 5, 1, 9, 5), dim=1):
        assert cache.make_room(start_pos, chunk.shape[1]) == start_pos
        assert torch.equal(model(chunk, start_pos, cache), model(chunk, start_pos, plain))
        start_pos += chunk.shape[1]
        assert start_pos <= cache.max_seq_len < max(3, 2 * start_pos), "it doubles"
    with pytest.raises(ValueError, match="context is 25: the network allows 1 to 24"):
        EndlessCache(model, context=25)
