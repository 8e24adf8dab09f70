import dataclasses
import math

import pytest

from model.cli.settings import setting_fields
from model.training.config import DEFAULT_STEPS, DataArgs, TrainArgs


def test_the_defaults_are_valid():
    DataArgs()
    TrainArgs()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("micro_batch_size", 0),
        ("max_steps", 0),
        ("eval_every", 0),
        ("eval_tokens", -1),
        ("minutes", 0.0),
        ("minutes", math.inf),
        ("lr", -1e-3),
        ("lr", math.nan),
        ("muon_lr", 0.0),
        ("warmup", 1.0),
        ("decay_start", -0.1),
        ("min_lr", 1.5),
        ("beta1", 1.0),
        ("beta2", math.nan),
        ("dropout", 1.0),
        ("seed", -1),
        ("seed", 2**63),
        ("sample_every", -1),
        ("weight_decay", math.inf),
        ("weight_decay", 1e18),
        ("dropout", 0.999999),
        ("lr", 1e-300),
        ("muon_lr", 1e308),
        ("grad_clip", 1e-300),
        ("max_steps", 2**64),
        ("batch_size", 10**30),
        ("grad_clip", -1.0),
    ],
)
def test_an_error_for_a_number_out_of_range_gives_the_setting_the_value_and_the_limits(name, value):
    with pytest.raises(ValueError, match=rf"^{name} is {value}: give [^\n]*\d[^\n]*$".replace("+", r"\+")):
        TrainArgs(**{name: value})


def test_all_problems_are_reported_at_once():
    with pytest.raises(ValueError, match=r"batch_size is 0.*lr is -1.*dropout is 2"):
        TrainArgs(batch_size=0, lr=-1, dropout=2)


def test_the_batch_size_must_be_a_multiple_of_the_micro_batch_size():
    with pytest.raises(ValueError, match="batch_size is 10, not a multiple of micro_batch_size 4"):
        TrainArgs(batch_size=10, micro_batch_size=4)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, math.nan, 1e-9])
def test_the_validation_fraction_has_limits_unless_val_data_is_given(fraction):
    with pytest.raises(ValueError, match=f"val_fraction is {fraction}: give a fraction from 0.00001 to 0.9"):
        DataArgs(val_fraction=fraction)
    DataArgs(val_fraction=fraction, val_data=("other.txt",))


def test_data_must_not_be_empty():
    with pytest.raises(ValueError, match="data is empty"):
        DataArgs(data=())


def test_fraction_done_is_by_steps_or_by_the_clock_whichever_is_larger():
    assert TrainArgs().fraction_done(DEFAULT_STEPS // 4, 1e9) == 0.25
    assert TrainArgs(max_steps=10).fraction_done(5, 1e9) == 0.5
    assert TrainArgs(minutes=2).fraction_done(10**9, 30) == 0.25
    assert TrainArgs(minutes=2, max_steps=10).fraction_done(5, 30) == 0.5
    assert TrainArgs(minutes=2, max_steps=10).fraction_done(5, 90) == 0.75


def test_every_setting_has_a_help_text():
    described = setting_fields(DataArgs, TrainArgs)
    assert set(described) == {field.name for cls in (DataArgs, TrainArgs) for field in dataclasses.fields(cls)}
    assert all(len(text) > 10 for _, text in described.values())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("batch_size", (1, 2**63 - 1)),
        ("max_steps", (1, 2**63 - 1)),
        ("seed", (0, 2**63 - 1)),
        ("sample_every", (0, 2**63 - 1)),
        ("minutes", (1e-9, 1e6)),
        ("lr", (1e-12, 100.0)),
        ("muon_lr", (1e-12, 100.0)),
        ("warmup", (0.0, 0.999)),
        ("beta1", (0.0, 0.9999)),
        ("beta2", (0.0, 0.99999)),
        ("dropout", (0.0, 0.95)),
        ("weight_decay", (0.0, 100.0)),
        ("grad_clip", (0.0, 1e-6, 1e6)),
    ],
)
def test_a_number_at_the_limit_of_its_range_is_accepted(name, values):
    for value in values:
        assert getattr(TrainArgs(**{name: value}), name) == value


def test_a_validation_fraction_at_the_limit_of_its_range_is_accepted():
    for fraction in (1e-5, 0.9):
        assert DataArgs(val_fraction=fraction).val_fraction == fraction


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("minutes", 1_000_001.0),
        ("lr", 100.1),
        ("muon_lr", 100.1),
        ("beta1", 0.99991),
        ("beta2", 0.999991),
        ("dropout", 0.951),
        ("weight_decay", 100.1),
        ("grad_clip", 1_000_001.0),
    ],
)
def test_a_number_just_beyond_the_limit_of_its_range_is_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name} is {value}: give a number"):
        TrainArgs(**{name: value})
