"""Each filter is compared with plain Python, and the draw with its distribution."""

import itertools
import math
import random

import pytest
import torch

from model.decoding.sampling import (
    Sampler,
    Sampling,
    apply_filters,
    apply_temperature,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize,
    uniforms,
)

V = 50


@pytest.fixture
def logits():
    return 3 * torch.randn(4, V)


def kept(logits):
    return [{i for i, value in enumerate(row) if value > -math.inf} for row in logits.tolist()]


def softmax(row):
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def ranked(row):
    return sorted(range(len(row)), key=lambda i: -row[i])


@pytest.mark.parametrize("k", [1, 2, 7, V, 10 * V])
def test_top_k_keeps_the_k_likeliest_tokens(logits, k):
    assert kept(keep_top_k(logits, k)) == [set(ranked(row)[:k]) for row in logits.tolist()]


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("vocab_size", [V, 400])  # of 400, the likeliest 256 may not be enough
def test_top_p_keeps_the_fewest_tokens_that_sum_to_p(p, vocab_size):
    logits = torch.randn(4, vocab_size)
    expected = []
    for row in logits.tolist():
        probs, chosen, total = softmax(row), set(), 0.0
        for i in ranked(row):
            if total >= p:
                break
            chosen.add(i)
            total += probs[i]
        expected.append(chosen)
    assert kept(keep_top_p(logits, p)) == expected


@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 1.0])
def test_min_p_keeps_tokens_above_a_fraction_of_the_largest_probability(logits, p):
    expected = []
    for row in logits.tolist():
        probs = softmax(row)
        expected.append({i for i, q in enumerate(probs) if q >= p * max(probs) * (1 - 1e-6)})
    assert kept(keep_min_p(logits, p)) == expected


def test_the_penalty_lowers_seen_tokens_only(logits):
    seen = torch.rand(logits.shape) < 0.3
    after = penalize(logits, seen, 1.5)
    assert torch.equal(after[~seen], logits[~seen])
    assert (after[seen] < logits[seen]).all()
    assert torch.allclose(after[seen], torch.where(logits > 0, logits / 1.5, logits * 1.5)[seen])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_temperature_divides_the_logits(logits, temperature):
    expected = torch.tensor([softmax([value / temperature for value in row]) for row in logits.tolist()])
    assert torch.allclose(apply_temperature(logits, temperature).softmax(-1), expected, atol=1e-6)


def test_the_filters_are_applied_in_the_customary_order(logits):
    """top_p is applied to the distribution after temperature and top_k."""
    sampling = Sampling(temperature=2.0, top_k=5, top_p=0.7, min_p=0.2)
    expected = keep_min_p(keep_top_p(keep_top_k(apply_temperature(logits, 2.0), 5), 0.7), 0.2)
    assert torch.equal(apply_filters(logits, sampling), expected)
    assert any(kept(expected)[row] != kept(keep_top_p(logits, 0.7))[row] for row in range(4))


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_p": 1e-9}, {"top_k": 2, "top_p": 0.3}])
def test_one_kept_token_is_the_greedy_one_where_logits_tie(sampling):
    logits = torch.zeros(1, 9)
    logits[0, [3, 7]] = 5.0
    for dtype in (torch.float32, torch.bfloat16):
        sampler = Sampler(Sampling(1.0, **sampling), [[1]], 9)
        assert {int(sampler(logits.to(dtype))) for _ in range(40)} == {3} == {int(logits.argmax())}


def test_filters_that_are_off_change_nothing(logits):
    assert torch.equal(
        apply_filters(logits, Sampling(1.0, top_k=0, top_p=1.0, min_p=0.0)), apply_temperature(logits, 1.0)
    )


def test_the_draw_inverts_the_cumulative_distribution():
    logits = torch.tensor([[0.1, 0.2, 0.0, 0.4, 0.3]]).log()
    points = {0.0: 0, 0.0999: 0, 0.1001: 1, 0.2999: 1, 0.3001: 3, 0.6999: 3, 0.7001: 4, 1 - 2**-53: 4}
    for point, token in points.items():
        assert draw(logits, torch.tensor([point], dtype=torch.float64)).tolist() == [token], point


def test_the_draw_never_gives_an_excluded_token():
    logits = torch.full((1, 9), -math.inf)
    logits[0, [2, 5]] = 0.0
    found = {int(draw(logits, torch.tensor([u], dtype=torch.float64))) for u in [0.0, 0.3, 0.5, 0.7, 1 - 2**-53]}
    assert found == {2, 5}


def drawn(seed, rows, steps):
    """The random numbers of the first ``steps`` draws, (B, steps)."""
    return torch.stack(list(itertools.islice(uniforms(seed, rows), steps)), 1)


def test_a_rows_random_numbers_do_not_depend_on_other_rows():
    together = drawn(7, range(3), 5)
    assert torch.equal(drawn(7, [2], 5)[0], together[2])
    assert len({tuple(row) for row in together.tolist()}) == 3
    assert not torch.equal(drawn(8, range(3), 5), together)
    assert not torch.equal(drawn(None, range(3), 5), drawn(None, range(3), 5))


def test_random_numbers_do_not_depend_on_the_block_size(monkeypatch):
    expected = drawn(7, range(2), 2500)
    assert len({*expected.flatten().tolist()}) == 5000, "no block repeats"
    for size in (1, 7, 4000):
        monkeypatch.setattr("model.decoding.sampling.BLOCK_SIZE", size)
        assert torch.equal(drawn(7, range(2), 2500), expected)


def test_temperature_zero_draws_no_random_numbers(logits):
    sampler = Sampler(Sampling(0.0), [[1]] * 4, V)
    sampler.uniforms = iter(())
    assert sampler(logits)[:, 0].tolist() == logits.argmax(-1).tolist()


def test_sampling_does_not_change_global_generators(logits):
    before = torch.random.get_rng_state(), random.getstate()
    Sampler(Sampling(1.0), [[1]] * 4, V)(logits)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_the_penalty_counts_prompt_and_sampled_tokens():
    logits = torch.zeros(1, 4) + torch.tensor([4.0, 3.0, 2.0, 1.0])
    choose = Sampler(Sampling(0.0, repetition_penalty=10.0), [[0]], 4)
    assert [int(choose(logits)) for _ in range(4)] == [1, 2, 3, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-46, 1e-300])
def test_a_tiny_temperature_neither_overflows_nor_changes_the_order(temperature):
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 4.9]])
    found = apply_temperature(logits, temperature)
    assert not found.isnan().any()
    assert found.argmax(-1).tolist() == [1, 0]
    assert Sampler(Sampling(temperature, seed=1), [[0], [0]], 3)(logits).tolist() == [[1], [0]]


@pytest.mark.parametrize(("p", "count"), [(0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.9, 4)])
def test_top_p_stops_as_soon_as_the_sum_equals_p(p, count):
    logits = torch.tensor([[4.0, 2.0, 1.0, 1.0]]).log()  # probabilities 1/2, 1/4, 1/8, 1/8: sums without rounding
    assert kept(keep_top_p(logits, p)) == [set(range(count))]
