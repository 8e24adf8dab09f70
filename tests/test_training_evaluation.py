import math

import numpy as np
import pytest
import torch

from model.text.dataset import Dataset
from model.training.evaluation import PRIOR_COUNT, cross_entropy, ngram_losses


def test_the_loss_is_the_mean_of_what_each_target_costs():
    logits, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    costs = [-logits[b, t].double().log_softmax(-1)[targets[b, t]].item() for b in range(3) for t in range(5)]
    assert cross_entropy(logits, targets).item() == pytest.approx(sum(costs) / 15, rel=1e-5)
    assert cross_entropy(logits, targets, "sum").item() == pytest.approx(sum(costs), rel=1e-5)


def test_the_loss_is_float32_whatever_the_logits_are():
    logits, targets = torch.randn(2, 3, 11).bfloat16(), torch.randint(11, (2, 3))
    assert cross_entropy(logits, targets).dtype == torch.float32


def test_guessing_by_frequency_costs_what_the_counts_say():
    text = Dataset(np.array([1, 1, 1, 2, 0], np.uint16), np.array([0, 1, 2, 3], np.uint16), 9, "text")
    expected = -sum(math.log(p) for p in (4 / 9, 2 / 9, 1 / 9)) / 3  # one added to each count, over 5 + 4 tokens
    assert ngram_losses(text, vocab_size=4)[0] == pytest.approx(expected)


def test_frequencies_of_a_long_text_are_counted_in_blocks_all_over_it():
    halves = np.repeat(np.array([0, 1], np.uint16), 50_000)
    text = Dataset(halves, halves, 9, "text")
    assert ngram_losses(text, 2, tokens=1000)[0] == pytest.approx(math.log(2), rel=0.01)


def test_no_guess_is_better_than_uniform_where_all_tokens_are_as_frequent():
    ids = np.arange(11 * 400, dtype=np.uint16) % 11
    assert ngram_losses(Dataset(ids, ids, 9, "text"), 11)[0] == pytest.approx(math.log(11), rel=1e-3)


@pytest.mark.parametrize(("order", "alone"), [(2, 0.5), (3, 1 / 3)])
def test_a_guess_by_the_tokens_before_is_mixed_with_the_guess_by_fewer(order, alone):
    """0 1 0 1 … is certain from one token before; what a guess of one order less says weighs as five more of them."""
    text = Dataset(np.arange(400, dtype=np.uint16) % order, np.arange(30, dtype=np.uint16) % order, 9, "text")
    seen = 400 // order
    guess = alone
    for _ in range(order - 1):
        guess = (seen + PRIOR_COUNT * guess) / (seen + PRIOR_COUNT)
    assert ngram_losses(text, order, order)[-1] == pytest.approx(
        -math.log(guess), abs=0.003
    )  # the last token is followed by none


def test_longer_sequences_cost_nothing_where_they_say_nothing():
    ids = np.random.default_rng(3).integers(0, 5, 60_000).astype(np.uint16)
    text = Dataset(ids[:50_000], ids[50_000:], 9, "text")
    assert min(ngram_losses(text, 5, 3)) == pytest.approx(math.log(5), rel=0.01)
