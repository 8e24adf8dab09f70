"""The estimate of the remaining time ignores the first step, which may be slow."""

import math

from model.training.config import TrainArgs
from model.training.pace import Pace


def estimates(first: float, later: float, steps: int, **settings) -> list[Pace]:
    """The estimate after each step. The first step takes ``first`` seconds, each later one ``later`` seconds."""
    paces = []
    for last in range(1, steps + 1):
        pace = Pace(TrainArgs(**settings))
        for step in range(1, last + 1):
            pace.update(step, first + later * (step - 1))
        paces.append(pace)
    return paces


def test_the_remaining_time_ignores_a_slow_first_step():
    seconds = [pace.seconds_left for pace in estimates(first=30.0, later=2.0, steps=60, max_steps=60)]
    assert seconds == [math.inf] * 3 + [2 * (60 - step) for step in range(4, 61)]


def test_the_minutes_give_the_remaining_time_only_if_they_end_before_the_steps():
    """Three measured steps are needed to know whether the steps are used up before the minutes are."""
    steps_first = [pace.seconds_left for pace in estimates(first=2.0, later=2.0, steps=6, max_steps=6, minutes=9.0)]
    assert steps_first == [math.inf] * 3 + [4, 2, 0]
    minutes_only = [pace.seconds_left for pace in estimates(first=5.0, later=5.0, steps=4, minutes=1.0)]
    assert minutes_only == [55, 50, 45, 40]
    minutes_first = estimates(first=5.0, later=5.0, steps=4, max_steps=1000, minutes=1.0)
    assert minutes_first[-1].seconds_left == 40


def test_the_total_steps_are_estimated_from_the_minutes():
    *_, pace = estimates(first=30.0, later=5.0, steps=21, minutes=10.0)
    assert pace.total_steps == 1 + (600 - 30) / 5
    *_, pace = estimates(first=30.0, later=5.0, steps=21, max_steps=100, minutes=10.0)
    assert pace.total_steps == 100


def test_an_estimate_is_reliable_after_twenty_measured_steps_or_seconds():
    quick = [pace.is_reliable for pace in estimates(first=0.1, later=0.1, steps=22, max_steps=60)]
    assert quick.index(True) + 1 == 21
    slow = [pace.is_reliable for pace in estimates(first=30.0, later=9.0, steps=22, max_steps=60)]
    assert slow.index(True) + 1 == 4
