import math
import warnings

import numpy as np
import pytest
import torch

from model.text.dataset import Dataset
from model.training.evaluation import PRIOR_COUNT, bits_per_byte, cross_entropy, ngram_losses


def test_the_loss_is_the_mean_negative_log_likelihood_of_the_targets():
    logits, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    losses = [-logits[b, t].double().log_softmax(-1)[targets[b, t]].item() for b in range(3) for t in range(5)]
    assert cross_entropy(logits, targets).item() == pytest.approx(sum(losses) / 15, rel=1e-5)
    assert cross_entropy(logits, targets, "sum").item() == pytest.approx(sum(losses), rel=1e-5)
    assert cross_entropy(logits.bfloat16(), targets).dtype == torch.float32


def test_the_unigram_loss_follows_from_the_counts():
    text = Dataset(np.array([1, 1, 1, 2, 0], np.uint16), np.array([1, 1, 2, 3], np.uint16), 9, "text")
    expected = -sum(math.log(p) for p in (4 / 9, 2 / 9, 1 / 9)) / 3  # one added to each count, over 5 + 4 tokens
    assert ngram_losses(text, vocab_size=4)[0] == pytest.approx(expected)


def test_tokens_of_a_long_text_are_counted_in_blocks_spread_over_it(monkeypatch):
    monkeypatch.setattr("model.training.evaluation.SAMPLED_TOKENS", 1000)
    halves = np.repeat(np.array([0, 1], np.uint16), 50_000)
    text = Dataset(halves, halves, 9, "text")
    assert ngram_losses(text, 2)[0] == pytest.approx(math.log(2), rel=0.01)


@pytest.mark.parametrize(("train", "val"), [(9, 3), (3, 9)])
def test_ngrams_are_at_most_as_long_as_either_text(train, val):
    ids = np.arange(9, dtype=np.uint16) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns about the mean of no n-grams
        losses = ngram_losses(Dataset(ids[:train], ids[:val], 9, "text"), 2, order=6)
    assert 1 <= len(losses) <= 3
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.parametrize(("order", "unigram"), [(2, 0.5), (3, 1 / 3)])
def test_an_ngram_probability_includes_the_lower_orders_with_the_weight_of_the_prior_count(order, unigram):
    """In 0 1 0 1 … each token follows with certainty from the one before."""
    text = Dataset(np.arange(400, dtype=np.uint16) % order, np.arange(30, dtype=np.uint16) % order, 9, "text")
    count = 400 // order
    probability = unigram
    for _ in range(order - 1):
        probability = (count + PRIOR_COUNT * probability) / (count + PRIOR_COUNT)
    # Not exact, because nothing follows the last token.
    assert ngram_losses(text, order, order)[-1] == pytest.approx(-math.log(probability), abs=0.003)


def test_ngram_losses_follow_from_counting_one_by_one():
    train, val = np.random.default_rng(1).integers(0, 3, (2, 30))

    def probability(ngram: list[int]) -> float:
        if not ngram:
            return 1 / 3
        context = ngram[:-1]
        n, prior = len(ngram), PRIOR_COUNT if context else 3
        windows = [train[i : i + n].tolist() for i in range(len(train) - n + 1)]
        seen = sum(train[i : i + n - 1].tolist() == context for i in range(len(train) - n + 2))
        seen = seen if context else len(train)
        return (windows.count(ngram) + prior * probability(ngram[1:])) / (seen + prior)

    text = Dataset(train, val, 9, "text")
    for n, loss in enumerate(ngram_losses(text, 3, 3), 1):
        scored = range(max(n - 1, 1), len(val))
        expected = -np.mean([math.log(probability(val[i - n + 1 : i + 1].tolist())) for i in scored])
        assert loss == pytest.approx(expected), n


def test_longer_ngrams_do_not_raise_the_lowest_loss_on_random_tokens():
    ids = np.random.default_rng(3).integers(0, 5, 60_000).astype(np.uint16)
    text = Dataset(ids[:50_000], ids[50_000:], 9, "text")
    assert min(ngram_losses(text, 5, 3)) == pytest.approx(math.log(5), rel=0.01)


def test_bits_per_byte_do_not_depend_on_the_tokenizer():
    """The same text as 80 tokens of 1 byte and as 20 tokens of 4 bytes, predicted equally well."""
    coarse, fine = (Dataset(np.zeros(1), np.zeros(tokens + 1), val_bytes=80, fingerprint="") for tokens in (20, 80))
    assert bits_per_byte(4 * math.log(8), coarse) == pytest.approx(3 * 1.0)
    assert bits_per_byte(math.log(8), fine) == pytest.approx(3.0)
