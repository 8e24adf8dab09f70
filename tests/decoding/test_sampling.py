"""Each filter is compared with plain Python, and the draw with its distribution."""

import itertools
import math
import random
from contextlib import nullcontext

import pytest
import torch
from cards import OnCard
from operators import count_operators

from model.decoding.options import Sampling
from model.decoding.sampling import Sampler, apply_filters, apply_temperature, penalize, random_streams

V = 50


@pytest.fixture
def logits():
    return 3 * torch.randn(4, V)


def kept(logits):
    return [{i for i, value in enumerate(row) if value > -math.inf} for row in logits.tolist()]


def probabilities(weights):
    return {i: weight / sum(weights.values()) for i, weight in weights.items()}


def by_definition(row, sampling):
    """Token -> probability of those that the filters keep."""
    probs = probabilities({i: math.exp((value - max(row)) / sampling.temperature) for i, value in enumerate(row)})
    ranked = sorted(probs, key=probs.get, reverse=True)
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
        probs = probabilities({i: probs[i] for i in ranked})
    if sampling.top_p is not None and sampling.top_p < 1:
        sums = itertools.accumulate(probs[i] for i in ranked)
        ranked = ranked[: 1 + sum(total < sampling.top_p for total in sums)]
        probs = probabilities({i: probs[i] for i in ranked})
    return probabilities({i: probs[i] for i in ranked})


@pytest.mark.parametrize("vocab_size", [V, 400, 2600])  # the likeliest 256 or 2,048 may not be enough for top_p
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 0, "top_p": 1.0},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 500},
        {"top_p": 1e-9},
        {"top_p": 0.5},
        {"top_p": 0.99},
        {"top_k": 5, "top_p": 0.7},
    ],
)
def test_the_filters_keep_what_their_definitions_keep(vocab_size, temperature, filters):
    """The order is temperature, top_k, top_p."""
    logits, sampling = 2 * torch.randn(4, vocab_size), Sampling(temperature, **filters)
    after = apply_filters(logits, sampling)
    for row, found in zip(logits.tolist(), after.softmax(-1).tolist()):
        expected = by_definition(row, sampling)
        assert {i for i, probability in enumerate(found) if probability} == {*expected}
        assert [found[i] for i in expected] == pytest.approx([*expected.values()], abs=1e-6)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}])
def test_no_more_of_a_vocabulary_is_sorted_than_top_p_needs(filters):
    """A vocabulary of 32,000 takes 40 times as long to sort as its likeliest 256 to find."""
    for spread, operators in ((8.0, {"topk": 1}), (1.6, {"topk": 2}), (0.0, {"topk": 2, "sort": 1})):
        logits = spread * torch.randn(2, 4000, generator=torch.Generator().manual_seed(1))
        counts = count_operators(apply_filters, logits, Sampling(1.0, **filters))
        found = {name: counts[name] for name in ("topk", "sort") if counts[name]}
        assert found == (operators if filters else {})


def test_the_likeliest_token_of_a_cpu_takes_one_operator():
    for vocab_size in (V, 32_000):
        counts = count_operators(Sampler(Sampling(0.0), [[1], [2]]), torch.randn(2, vocab_size))
        assert counts == {"max": 1}


def test_of_equal_logits_the_first_is_the_likeliest():
    logits = torch.randint(0, 3, (200, 4099)).float()
    tokens = Sampler(Sampling(0.0), [[1]] * 200)(logits)
    assert tokens.flatten().tolist() == [row.index(2.0) for row in logits.tolist()]


@pytest.mark.parametrize("filters", [{"min_p": 0.05}, {"min_p": 1.0}, {"top_k": 9, "top_p": 0.9, "min_p": 0.1}])
def test_min_p_comes_last_and_gives_the_distribution_of_transformers(transformers, filters):
    logits = 2 * torch.randn(4, V)
    sampling = Sampling(0.7, **filters)
    warpers = transformers.LogitsProcessorList([transformers.TemperatureLogitsWarper(0.7)])
    for name, warper in {"top_k": "TopK", "top_p": "TopP", "min_p": "MinP"}.items():
        if name in filters:
            warpers.append(getattr(transformers, f"{warper}LogitsWarper")(filters[name]))
    expected, found = warpers(None, logits.clone()).softmax(-1), apply_filters(logits, sampling).softmax(-1)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(found > 0, expected > 0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_p": 0.8},
        {"top_p": 0.99},
        {"top_k": 40, "top_p": 0.9, "repetition_penalty": 1.3},
        {"min_p": 0.05},
    ],
)
def test_a_card_draws_the_tokens_of_the_cpu(options):
    logits, drawn = 2 * torch.randn(50, 3, 400), []
    for device in (nullcontext(), OnCard()):
        with device:
            sampler = Sampler(Sampling(1.5, seed=1, **options), [[1, 2], [3], [4]])
            drawn.append([sampler(each).tolist() for each in logits])
    assert drawn[0] == drawn[1]


def test_the_penalty_lowers_seen_tokens_only(logits):
    seen = torch.rand(logits.shape) < 0.3
    after = penalize(logits, seen, 1.5)
    assert torch.equal(after[~seen], logits[~seen])
    assert (after[seen] < logits[seen]).all()
    assert torch.allclose(after[seen], torch.where(logits > 0, logits / 1.5, logits * 1.5)[seen])


def test_sampling_does_not_change_global_generators(logits):
    before = torch.random.get_rng_state(), random.getstate()
    Sampler(Sampling(1.0), [[1]] * 4)(logits)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_the_penalty_counts_prompt_and_sampled_tokens():
    logits = torch.zeros(1, 4) + torch.tensor([4.0, 3.0, 2.0, 1.0])
    choose = Sampler(Sampling(0.0, repetition_penalty=10.0), [[0]])
    assert [int(choose(logits)) for _ in range(4)] == [1, 2, 3, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-46, 1e-300])
def test_a_tiny_temperature_neither_overflows_nor_changes_the_order(temperature):
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 4.9]])
    found = apply_temperature(logits, temperature)
    assert not found.isnan().any()
    assert found.argmax(-1).tolist() == [1, 0]
    assert Sampler(Sampling(temperature, seed=1), [[0], [0]])(logits).tolist() == [[1], [0]]


@pytest.mark.parametrize(("p", "count"), [(0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.875, 3), (0.9, 5)])
def test_top_p_stops_as_soon_as_the_sum_equals_p(p, count):
    """Of two tokens that tie, both are kept."""
    logits = torch.tensor([[8.0, 4.0, 2.0, 1.0, 1.0]]).log()  # probabilities 1/2, 1/4, ...: sums without rounding
    assert kept(apply_filters(logits, Sampling(1.0, top_p=p))) == [set(range(count))]


def test_random_numbers_are_those_of_one_stream_for_each_row():
    """Whatever the batch is, and however many are drawn at a time."""
    found = list(itertools.islice(random_streams(5, [2, 0], torch.device("cpu")), 200))
    for column, row in enumerate([2, 0]):
        stream = torch.Generator().manual_seed(random.Random(f"5 {row}").getrandbits(63))
        one_by_one = [torch.rand(1, dtype=torch.float64, generator=stream).item() for _ in range(200)]
        assert [numbers[column].item() for numbers in found] == one_by_one


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0), Sampling(1.0, top_p=0.9, repetition_penalty=1.2)])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused_for_any_row(sampling, wrong):
    logits = torch.zeros(2, 5)
    logits[0, 3] = -math.inf
    sampler = Sampler(sampling, [[0], [0]])
    sampler(logits)
    logits[1, 4] = wrong
    sampler(logits)
    assert sampler.read().shape == (2, 1)
    with pytest.raises(ValueError, match="the logits contain NaN or infinity"):
        sampler.read()
