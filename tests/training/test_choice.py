"""The model and the settings that are chosen for a text, a machine and some minutes."""

import dataclasses
import json
import math
import statistics
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_helpers import ARGS, dataset, make_run

from model import ModelArgs, Transformer
from model.training import choice, sizing
from model.training.choice import time_models, tokens_per_second
from model.training.config import TrainArgs
from model.training.distributed import Ranks
from model.training.estimate import count_parameters
from model.training.sizing import (
    FINE_TUNING_EPOCHS,
    LAW,
    MAX_EPOCHS,
    Planner,
    lowest_ngram_loss,
    needs_choice,
    validation_settings,
)

VOCABULARY = 500
OPEN = {"minutes": 5.0, "vocab_size": VOCABULARY}  # settings that leave the model open
NGRAM_LOSS = math.log(VOCABULARY)  # of random tokens
RUNS = Path(__file__).parents[2] / "benchmarks" / "sizing.jsonl"


def simulated(model: ModelArgs, train: TrainArgs | None = None, speed: float = 1.0) -> float:
    """The tokens per second of a simulated machine: a fixed time per token, and a time for each parameter."""
    return speed / (1e-5 + 6e-11 * count_parameters(model).hidden)


def chosen(tokens: int = 1_000_000, speed: float = 1.0, processes: int = 1, measure=simulated, **settings) -> dict:
    """The settings, and those that are chosen for a text of so many tokens."""
    settings = {"minutes": 5.0, "dtype": "float32", "device": "cpu", "vocab_size": VOCABULARY} | settings
    measure = partial(measure, speed=speed) if speed != 1 else measure
    planner = Planner(make_run(**settings), tokens, NGRAM_LOSS, processes)
    speeds = time_models(measure, planner, Ranks(world_size=processes))
    return planner.choose(speeds)[0].values()


def hidden(settings: dict) -> int:
    return count_parameters(ModelArgs(**{name: settings[name] for name in vars(ARGS)})).hidden


@given(hidden=st.integers(10**4, 10**8), tokens=st.floats(1e4, 1e9), unique=st.integers(10**4, 10**8))
def test_the_predicted_loss_falls_with_larger_models_more_tokens_and_more_text(hidden, tokens, unique):
    loss = LAW.loss(4.0, hidden, tokens, unique)
    assert math.isfinite(loss)
    assert LAW.loss(4.0, 2 * hidden, tokens, unique) < loss
    assert LAW.loss(4.0, hidden, 1.5 * tokens, unique) <= loss * (1 + 1e-9)  # with a tolerance for rounding
    assert LAW.loss(4.0, hidden, tokens, 2 * unique) <= loss * (1 + 1e-9)
    assert LAW.loss(8.0, hidden, tokens, unique) == pytest.approx(2 * loss)


def test_the_law_predicts_the_losses_of_the_recorded_runs():
    runs = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    losses = [LAW.loss(run["guess"], run["hidden"], run["tokens"], run["unique"]) for run in runs]
    errors = [abs(math.log(loss / run["val_loss"])) for loss, run in zip(losses, runs)]
    assert statistics.median(errors) < 0.03


def candidates(**settings) -> list[ModelArgs]:
    return Planner(make_run(**OPEN | settings), 1_000_000, NGRAM_LOSS).candidates()


def test_candidates_grow_in_size_and_a_given_size_is_the_only_one():
    sizes = [count_parameters(args).hidden for args in candidates(qk_norm=True)]
    assert sizes == sorted(sizes)
    assert len(sizes) == len(sizing.LADDER)
    assert all(args.qk_norm and args.vocab_size == VOCABULARY for args in candidates(qk_norm=True))
    assert candidates(dim=64) == [ModelArgs(dim=64, vocab_size=VOCABULARY)]


def test_embeddings_are_tied_only_if_the_model_would_memorise_the_text():
    assert [chosen(tokens)["tie_embeddings"] for tokens in (50_000, 20_000_000)] == [True, False]
    assert [chosen(200_000, minutes=minutes)["tie_embeddings"] for minutes in (10, 0.2)] == [True, False]
    assert chosen(50_000, tie_embeddings=False)["tie_embeddings"] is False


def test_a_faster_machine_and_more_minutes_never_train_a_smaller_model():
    sizes = [hidden(chosen(20_000_000, speed=speed)) for speed in (0.2, 1, 5, 25)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    by_minutes = [hidden(chosen(20_000_000, minutes=minutes)) for minutes in (0.5, 2.0, 10.0, 60.0)]
    assert by_minutes == sorted(by_minutes)
    assert by_minutes[0] < by_minutes[-1]


@pytest.mark.parametrize("minutes", [1.0, 2.5, 5.0, 10.0, 15.0])
def test_noise_in_the_timing_moves_the_choice_by_one_size_at_most(minutes):
    widths = [args.dim for args in candidates()]
    places = [widths.index(chosen(speed=speed, minutes=minutes)["dim"]) for speed in (0.9, 1, 1.1)]
    assert max(places) - min(places) <= 1


def test_explicit_settings_are_kept():
    explicit = {"lr": 0.003, "batch_size": 5, "weight_decay": 0.7, "eval_every": 33, "max_seq_len": 64}
    settings = chosen(**explicit)
    assert {name: settings[name] for name in explicit} == explicit
    assert (settings["dim"], settings["n_layers"]) in {size[:2] for size in sizing.LADDER}


def test_explicit_max_steps_limit_the_tokens_and_allow_more_epochs_than_would_be_chosen():
    few = chosen(20_000_000, minutes=60.0, max_steps=50)
    assert (few["max_steps"], few["eval_every"]) == (50, 5)
    many = chosen(100_000, minutes=60.0, max_steps=10**6)
    assert many["max_steps"] == 10**6
    run = make_run(**many)
    steps = Planner(run, 100_000, NGRAM_LOSS).forecast(run.model, run.train, simulated(run.model)).steps
    assert steps * run.train.batch_size * run.model.max_seq_len > 12 * 100_000
    assert 10 <= steps / many["eval_every"] <= 20


def test_on_a_small_text_the_run_ends_before_its_minutes():
    settings = chosen(30_000, speed=20, minutes=10.0)
    seen = settings["max_steps"] * settings["batch_size"] * settings["max_seq_len"]
    assert seen <= 1.05 * MAX_EPOCHS * 30_000
    assert settings["weight_decay"] > 0.1
    assert chosen(30_000_000, speed=20, minutes=1.0)["max_steps"] is None


def test_only_models_that_fit_into_the_memory_are_chosen(monkeypatch):
    unlimited = hidden(chosen(20_000_000, speed=1000))
    monkeypatch.setattr("model.cli.machine.free_memory", lambda device: 400 * 10**6)
    assert hidden(chosen(20_000_000, speed=1000)) < unlimited
    monkeypatch.setattr("model.cli.machine.free_memory", lambda device: 10**6)
    with pytest.raises(ValueError, match=r"this run needs about .* of memory, but 1 MB are free on cpu"):
        chosen()


def test_a_choice_is_needed_with_minutes_unless_size_and_batch_size_are_set():
    given = [{}, {"batch_size": 4}, {"dim": 64}, {"init_from": Path("runs/demo")}]
    assert all(needs_choice(make_run(minutes=2.0, **settings)) for settings in given)
    given = [{"max_steps": 100}, *({"minutes": 2.0, "batch_size": 4} | size for size in ({"dim": 64}, given[-1]))]
    assert not any(needs_choice(make_run(**settings)) for settings in given)


def test_a_forecast_ends_after_the_steps_or_the_minutes():
    planner = Planner(make_run(), len(dataset().train), lowest_ngram_loss(dataset(), ARGS.vocab_size))

    def forecast(**settings):
        return planner.forecast(ARGS, TrainArgs(**settings), speed=90_000)

    assert forecast(max_steps=40).steps == forecast(max_steps=40, minutes=60.0).steps == 40
    short, twice = forecast(minutes=0.001), forecast(minutes=0.002)
    assert twice.steps == pytest.approx(2 * short.steps, abs=1)
    assert twice.loss < short.loss
    assert forecast(max_steps=40, init_from=Path("base")).loss is None


@pytest.mark.parametrize(
    "model",
    [{"dim": 96, "n_layers": 3}, {"init_from": Path("base"), **vars(dataclasses.replace(ARGS, max_seq_len=256))}],
)
def test_with_a_fixed_architecture_only_the_batch_size_is_chosen(model):
    short, long = (chosen(20_000_000, minutes=minutes, **model) for minutes in (0.4, 60.0))
    assert (short["dim"], short["n_layers"]) == (model["dim"], model["n_layers"])
    assert short["batch_size"] < long["batch_size"]
    assert short["eval_every"] > 0
    assert chosen(20_000_000, minutes=0.4, processes=3, **model)["batch_size"] % 3 == 0
    assert chosen(minutes=0.4, batch_size=5, **model)["batch_size"] == 5


def test_weight_decay_grows_with_the_epochs_and_with_the_vocabulary():
    def weight_decay(vocab_size, epochs):
        model = dataclasses.replace(ARGS, vocab_size=vocab_size)
        return Planner(make_run(), 30_000, NGRAM_LOSS).training_settings(model, epochs * 3e4).weight_decay

    assert weight_decay(300, 0.5) < weight_decay(300, 12) < weight_decay(1024, 12)
    assert weight_decay(1024, 0.5) == 0.1


def test_fine_tuning_on_a_small_text_ends_after_a_few_epochs():
    model = vars(dataclasses.replace(ARGS, max_seq_len=256)) | {"init_from": Path("base")}
    small, large = (chosen(tokens, speed=20, **model) for tokens in (30_000, 300_000_000))
    seen = small["max_steps"] * small["batch_size"] * 256
    assert seen == pytest.approx(FINE_TUNING_EPOCHS * 30_000, rel=0.02)
    assert large["max_steps"] is None
    assert small["weight_decay"] == 0.1, "more would shrink the weights that the model has learnt"
    assert chosen(30_000, speed=20, dim=96, n_layers=3)["weight_decay"] > 0.1
    assert chosen(30_000, speed=20, **model, max_steps=9)["max_steps"] == 9


SETTINGS = {"batch_size": 2, "device": "cpu", "dtype": "float32"}


def measured(**settings) -> float:
    ranks = Ranks(world_size=settings.pop("world_size", 1))
    return tokens_per_second(Transformer, dataset(), ranks, ARGS, TrainArgs(**SETTINGS | settings))


def test_the_speed_of_a_model_is_that_of_its_fastest_step(monkeypatch):
    now = 0.0
    durations = [0.5, 0.1, 0.2, 9.0, 1.6]

    def step(self, lr_fraction):
        nonlocal now
        now += durations.pop(0)

    monkeypatch.setattr(choice.Trainer, "step", step)
    monkeypatch.setattr(choice.time, "perf_counter", lambda: now)
    tokens = 2 * ARGS.max_seq_len
    assert measured() == pytest.approx(tokens / 0.1)
    assert measured() == pytest.approx(tokens / 9.0), "a single slow step"


def test_each_of_several_processes_is_timed_with_its_share_of_the_batch(monkeypatch):
    shares = []
    monkeypatch.setattr(choice.Trainer, "step", lambda self, lr_fraction: shares.append(self.args.batch_size))
    now = iter(range(100))
    monkeypatch.setattr(choice.time, "perf_counter", lambda: next(now))
    assert measured(batch_size=12, world_size=2, compile=True, fsdp=True) == 12 * ARGS.max_seq_len
    assert set(shares) == {6}


def test_a_short_load_while_one_size_is_timed_does_not_decide():
    """In the first of three rounds, the second size is timed at a tenth of its speed."""
    timed = count(1)

    def disturbed(model, train):
        return simulated(model) * (0.1 if next(timed) == 2 else 1)

    assert chosen(20_000_000, measure=disturbed) == chosen(20_000_000)


@pytest.mark.parametrize(("tokens", "rows"), [(1e6, 4), (4e6, 8), (64e6, 32), (256e6, 64), (1e12, 64), (1e3, 2)])
def test_the_batch_grows_with_the_square_root_of_the_tokens(tokens, rows):
    model = ModelArgs(dim=64, n_layers=2, vocab_size=VOCABULARY, max_seq_len=256)
    for processes in (1, 3):
        planner = Planner(make_run(), 1_000_000, NGRAM_LOSS, processes)
        assert planner.training_settings(model, tokens).batch_size == processes * max(1, round(rows / processes))


@pytest.mark.parametrize(
    ("steps", "tokens", "every", "validated"),
    [(7, 1e5, 1, 40_000), (1234, 1e7, 100, 75_000), (2999, 2e7, 200, 150_000), (98_765, 1e9, 9000, 200_000)],
)
def test_a_run_validates_about_ten_times_on_a_fraction_of_its_tokens(steps, tokens, every, validated):
    expected = {"eval_every": every, "eval_tokens": validated, "sample_every": 2 * every}
    assert validation_settings(steps, tokens) == expected
