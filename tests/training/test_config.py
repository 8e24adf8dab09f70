"""The settings of a run: every range in its annotation is enforced, and what relates several settings."""

import math

import pytest

from model.ranges import Range, setting_fields
from model.training.config import DEFAULT_STEPS, DataArgs, TrainArgs

RANGES = [
    (cls, name, field.kind, field.range)
    for cls in (DataArgs, TrainArgs)
    for name, field in setting_fields(cls).items()
    if field.kind in (int, float)
]


def test_every_setting_has_a_help_text_and_every_number_a_range():
    assert all(len(field.help) > 10 for field in setting_fields(DataArgs, TrainArgs).values())
    assert all(bounds != Range() for *_, bounds in RANGES)


@pytest.mark.parametrize(("cls", "name", "kind", "bounds"), RANGES, ids=lambda value: str(value))
def test_a_number_is_accepted_at_the_limits_of_its_range_and_refused_beyond(cls, name, kind, bounds):
    high = min(bounds.high, 2**63 - 1)
    for value in (bounds.low, high):
        assert getattr(cls(**{name: kind(value)}), name) == value
    step = 1 if kind is int else 1e-9
    wrong = [bounds.low - step, high * 1.001 + step, math.nan] if kind is float else [bounds.low - 1, high + 1]
    for value in wrong:
        with pytest.raises(ValueError, match=rf"^{name} is {value}: give [^;]*\d".replace("+", r"\+")):
            cls(**{name: value})


def test_all_problems_are_reported_at_once():
    with pytest.raises(ValueError, match=r"val_fraction is 1.*data is empty"):
        DataArgs(data=(), val_fraction=1)


def test_fraction_done_is_by_steps_or_by_the_clock_whichever_is_larger():
    assert TrainArgs().fraction_done(DEFAULT_STEPS // 4, 1e9) == 0.25
    assert TrainArgs(max_steps=10).fraction_done(5, 1e9) == 0.5
    assert TrainArgs(minutes=2).fraction_done(10**9, 30) == 0.25
    assert TrainArgs(minutes=2, max_steps=10).fraction_done(5, 30) == 0.5
    assert TrainArgs(minutes=2, max_steps=10).fraction_done(5, 90) == 0.75


def test_a_micro_batch_on_an_apple_gpu_has_at_most_32768_tokens():
    args = TrainArgs(batch_size=64)
    assert args.micro_batch_rows(1024, "cpu") == args.micro_batch_rows(1024, "cuda") == 64
    assert args.micro_batch_rows(1024, "mps") == 32
    assert args.micro_batch_rows(1024, "mps", world_size=4) == 16
    assert args.micro_batch_rows(100_000, "mps") == 1
