import math

import numpy as np
import pytest

from model.text.dataset import Dataset
from model.training.run_text import unigram_loss


def test_the_unigram_loss_follows_from_the_counts():
    text = Dataset(np.array([1, 1, 1, 2, 0], np.uint16), np.array([1, 1, 2, 3], np.uint16), 9, 3)
    expected = -sum(math.log(p) for p in (4 / 9, 2 / 9, 1 / 9)) / 3  # one added to each count, over 5 + 4 tokens
    assert unigram_loss(text, vocab_size=4) == pytest.approx(expected)


def test_tokens_of_a_long_text_are_counted_in_blocks_spread_over_it(monkeypatch):
    monkeypatch.setattr("model.training.run_text.SAMPLED_TOKENS", 1000)
    halves = np.repeat(np.array([0, 1], np.uint16), 50_000)
    text = Dataset(halves, halves, 9, 9)
    assert unigram_loss(text, 2) == pytest.approx(math.log(2), rel=0.01)
