import math

import pytest

from model.training.config import TrainArgs
from model.training.optimizer import lr_fraction


def test_the_learning_rate_warms_up_stays_at_its_peak_and_decays_to_min_lr():
    args = TrainArgs(warmup=0.1, decay_start=0.5, min_lr=0.2)
    assert lr_fraction(args, 0.05) == 0.5
    assert lr_fraction(args, 0.1) == lr_fraction(args, 0.3) == lr_fraction(args, 0.5) == 1
    assert lr_fraction(args, 0.75) == pytest.approx(0.6)  # half way down to 0.2
    assert lr_fraction(args, 1.0) == pytest.approx(0.2)


def test_the_cosine_schedule_meets_the_linear_one_at_the_ends_and_in_the_middle():
    linear, cosine = (TrainArgs(warmup=0, decay_start=0, schedule=schedule) for schedule in ("linear", "cosine"))
    for fraction_done in (0, 0.5, 1):
        assert lr_fraction(cosine, fraction_done) == pytest.approx(lr_fraction(linear, fraction_done))
    assert lr_fraction(cosine, 0.25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_the_learning_rate_is_never_0_or_above_its_peak():
    args = TrainArgs(warmup=0.3, decay_start=0.1, min_lr=0.1)  # the decay cannot begin before the warm-up ends
    rates = [lr_fraction(args, n / 1000) for n in range(1200)]  # with minutes, the last step may end past 1
    assert rates[0] > 0
    assert all(0 < x <= 1 for x in rates)
    assert rates[300] == 1
    assert rates[300:] == sorted(rates[300:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
