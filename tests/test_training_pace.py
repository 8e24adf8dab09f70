"""How long a run will still take: estimated from its steps, the first of which may have been slow."""

import math

from model.training.config import TrainArgs
from model.training.pace import Pace


def estimates(first: float, others: float, steps: int, **settings) -> list[Pace]:
    """The estimate after each of the steps, of which the first and the others take so many seconds."""
    found = []
    for last in range(1, steps + 1):
        pace = Pace(TrainArgs(**settings))
        for step in range(1, last + 1):
            pace.update(step, first + others * (step - 1))
        found.append(pace)
    return found


def test_the_time_left_does_not_jump_and_ignores_a_slow_first_step():
    left = [pace.seconds_left for pace in estimates(first=30.0, others=2.0, steps=60, max_steps=60)]
    assert left == [math.inf] * 3 + [2 * (60 - step) for step in range(4, 61)]


def test_minutes_are_the_time_left_only_where_they_end_the_run():
    """Three measured steps are needed to know whether the steps are used up before the minutes are."""
    both = [pace.seconds_left for pace in estimates(first=2.0, others=2.0, steps=6, max_steps=6, minutes=9.0)]
    assert both == [math.inf] * 3 + [4, 2, 0]
    by_clock = [pace.seconds_left for pace in estimates(first=5.0, others=5.0, steps=4, minutes=1.0)]
    assert by_clock == [55, 50, 45, 40]
    sooner = estimates(first=5.0, others=5.0, steps=4, max_steps=1000, minutes=1.0)
    assert sooner[-1].seconds_left == 40


def test_minutes_are_estimated_in_steps():
    *_, pace = estimates(first=30.0, others=5.0, steps=21, minutes=10.0)
    assert pace.total_steps == 1 + (600 - 30) / 5
    *_, pace = estimates(first=30.0, others=5.0, steps=21, max_steps=100, minutes=10.0)
    assert pace.total_steps == 100


def test_an_estimate_is_reliable_after_twenty_steps_or_seconds():
    quick = [pace.is_reliable for pace in estimates(first=0.1, others=0.1, steps=22, max_steps=60)]
    assert quick.index(True) + 1 == 21
    slow = [pace.is_reliable for pace in estimates(first=30.0, others=9.0, steps=22, max_steps=60)]
    assert slow.index(True) + 1 == 4
