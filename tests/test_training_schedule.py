import math

import pytest

from model.training.config import TrainArgs
from model.training.optimizer import learning_rate


def test_the_rate_rises_decay_starts_and_falls_to_the_floor():
    args = TrainArgs(warmup=0.1, decay_start=0.5, min_lr=0.2)
    assert learning_rate(args, 0.05) == 0.5
    assert learning_rate(args, 0.1) == learning_rate(args, 0.3) == learning_rate(args, 0.5) == 1
    assert learning_rate(args, 0.75) == pytest.approx(0.6)  # half way down to 0.2
    assert learning_rate(args, 1.0) == pytest.approx(0.2)


def test_the_cosine_has_the_same_ends_and_middle_and_other_quarters():
    straight, curved = (TrainArgs(warmup=0, decay_start=0, schedule=form) for form in ("linear", "cosine"))
    for share in (0, 0.5, 1):
        assert learning_rate(curved, share) == pytest.approx(learning_rate(straight, share))
    assert learning_rate(curved, 0.25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_the_first_step_moves_and_the_rate_never_leaves_its_range():
    args = TrainArgs(warmup=0.3, decay_start=0.1, min_lr=0.1)  # the decay cannot begin before the warm-up ends
    rates = [learning_rate(args, n / 1000) for n in range(1200)]  # with minutes, the last step may end past 1
    assert rates[0] > 0
    assert all(0 < x <= 1 for x in rates)
    assert rates[300] == 1
    assert rates[300:] == sorted(rates[300:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
