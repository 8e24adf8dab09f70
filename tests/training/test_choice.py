"""The model and the settings that are chosen for a text, a machine and some minutes."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_helpers import ARGS, dataset, make_run

from model import ModelArgs
from model.training import choice
from model.training.choice import (
    FINE_TUNING_PASSES,
    LADDER,
    MAX_PASSES,
    MIN_STEPS,
    choose_size,
    plan,
    solve,
    with_short_validations,
)
from model.training.config import Run
from model.training.distributed import Ranks
from model.training.estimate import count_parameters

FINE_TUNED = {"init_from": Path("base"), **vars(dataclasses.replace(ARGS, max_seq_len=1024))}


class Machine:
    """A simulated one: its time for a token has a part for each layer, and a part for each multiplication."""

    def __init__(self, speed: float = 1.0, noise: float = 0.0) -> None:
        self.speed, self.noise = speed, noise

    def __call__(self, run: Run, model: ModelArgs, *rest) -> float:
        self.noise = -self.noise  # one model is timed too fast, the other too slowly
        return self.speed * (1 + self.noise) / (2e-6 * model.n_layers + 15e-12 * choice.multiplications(model))


def opened(**settings) -> Run:
    return make_run(
        **{"minutes": 5.0, "dtype": "float32", "device": "cpu", "vocab_size": 500, "max_seq_len": 256} | settings
    )


def chosen(
    text_tokens: int = 1_000_000,
    machine: Machine | None = None,
    processes: int = 1,
    memory: int | None = None,
    **settings,
) -> Run:
    """The run that is chosen for a text of so many tokens."""
    run, ranks, machine = opened(**settings), Ranks(world_size=processes), machine or Machine()
    text = dataclasses.replace(dataset(), train=range(text_tokens))
    if run.has_size:
        return plan(run, run.model, machine(run, run.model), text_tokens, ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "measure_speed", machine)
        patch.setattr("model.cli.machine.free_memory", lambda device: memory)
        return choose_size(run, text, ranks)[0]


def place(run: Run) -> int:
    return [size[:2] for size in LADDER].index((run.model.dim, run.model.n_layers))


def tokens(run: Run, machine: Machine | None = None) -> float:
    """Those that the run sees in its minutes or steps."""
    in_time = 56 * run.train.minutes * (machine or Machine())(run, run.model)
    return min(in_time, run.train.step_limit * run.train.batch_size * run.model.max_seq_len)


@given(
    minutes=st.floats(0.1, 1000),
    speed=st.floats(0.01, 1000),
    text_tokens=st.integers(10_000, 10**9),
    vocab_size=st.sampled_from([80, 2048, 32_000]),
)
def test_the_largest_model_that_sees_enough_and_memorises_little_is_chosen(minutes, speed, text_tokens, vocab_size):
    machine = Machine(speed)
    run = chosen(text_tokens, machine, minutes=minutes, vocab_size=vocab_size)

    def sees_enough(size) -> bool:
        model = dataclasses.replace(run.model, **dict(zip(("dim", "n_layers", "n_heads", "n_kv_heads"), size)),
                                    head_dim=None, hidden_dim=None)  # fmt: skip
        seen = 60 * choice.TRAINING_SHARE * minutes * machine(run, model)
        if count_parameters(model).hidden > 25 * text_tokens:
            return False
        return seen >= min(3000 * math.sqrt(count_parameters(model).hidden), 12 * text_tokens)

    sizes = [size for size in LADDER if sees_enough(size)]
    assert LADDER[place(run)] == (sizes or LADDER)[-1 if sizes else 0]


def test_two_timings_tell_the_speed_of_every_size():
    models = [ModelArgs(dim, layers, heads, kv, vocab_size=500) for dim, layers, heads, kv in LADDER]
    speed = solve(models[0], models[5], Machine()(None, models[0]), Machine()(None, models[5]))
    for model in models:
        assert speed.tokens_per_second(model) == pytest.approx(Machine()(None, model))


@given(small=st.floats(1, 1e7), large=st.floats(1, 1e7))
def test_no_timing_gives_an_absurd_speed(small, large):
    models = [ModelArgs(dim, layers, heads, kv, vocab_size=500) for dim, layers, heads, kv in LADDER]
    speeds = [solve(models[0], models[5], small, large).tokens_per_second(model) for model in models]
    assert all(0 < speed < math.inf for speed in speeds)
    assert speeds[4:] == sorted(speeds[4:], reverse=True)


def test_a_faster_machine_and_more_minutes_never_train_a_smaller_model():
    by_speed = [place(chosen(20_000_000, Machine(speed))) for speed in (0.1, 1, 10, 100)]
    assert by_speed == sorted(set(by_speed))
    by_minutes = [place(chosen(20_000_000, minutes=minutes)) for minutes in (0.5, 5.0, 50.0, 500.0)]
    assert by_minutes == sorted(set(by_minutes))


@pytest.mark.parametrize("minutes", [1.0, 2.5, 5.0, 10.0, 15.0])
def test_noise_in_the_timing_moves_the_choice_by_one_size_at_most(minutes):
    places = [place(chosen(machine=Machine(noise=noise), minutes=minutes)) for noise in (-0.1, 0, 0.1)]
    assert max(places) - min(places) <= 1


def test_explicit_settings_are_kept():
    explicit = {"lr": 0.003, "batch_size": 5, "weight_decay": 0.7, "eval_every": 33, "max_seq_len": 64}
    values = chosen(**explicit).values()
    assert {name: values[name] for name in explicit} == explicit


def test_the_chosen_settings_are_decided():
    """So the command that --plan prints trains the same run."""
    run = chosen()
    again = make_run(**{name: value for name, value in run.values().items() if name in run.given})
    assert not again.needs_choice
    assert (again.model, again.train) == (run.model, run.train)


def test_explicit_max_steps_limit_the_tokens_and_allow_more_passes_than_would_be_chosen():
    few = chosen(20_000_000, minutes=60.0, max_steps=50).train
    assert (few.max_steps, few.eval_every) == (50, 5)
    many = chosen(100_000, minutes=60.0, max_steps=10**6)
    assert many.train.max_steps == 10**6
    assert tokens(many) > 12 * 100_000


@pytest.mark.parametrize(("passes", "settings"), [(MAX_PASSES, {}), (FINE_TUNING_PASSES, FINE_TUNED)])
def test_on_a_small_text_the_run_ends_after_some_passes(passes, settings):
    run = chosen(50_000, Machine(20), minutes=10.0, **settings)
    assert run.train.max_steps * run.train.batch_size * run.model.max_seq_len == pytest.approx(
        passes * 50_000, rel=0.05
    )
    assert chosen(30_000_000, minutes=1.0, **settings).train.max_steps is None
    assert chosen(50_000, Machine(20), **settings, max_steps=9).train.max_steps == 9


def test_a_size_by_hand_takes_all_of_the_minutes():
    assert chosen(30_000, Machine(20), dim=96, n_layers=3).train.max_steps is None


def test_only_models_that_fit_into_the_memory_are_chosen():
    unlimited = place(chosen(20_000_000, Machine(1000)))
    assert 0 < place(chosen(20_000_000, Machine(1000), memory=600 * 10**6)) < unlimited


def test_a_choice_is_needed_with_minutes_unless_size_and_batch_size_are_set():
    given = [{}, {"batch_size": 4}, {"dim": 64}, {"init_from": Path("runs/demo")}]
    assert all(make_run(minutes=2.0, **settings).needs_choice for settings in given)
    given = [{"max_steps": 100}, *({"minutes": 2.0, "batch_size": 4} | size for size in ({"dim": 64}, given[-1]))]
    assert not any(make_run(**settings).needs_choice for settings in given)


@pytest.mark.parametrize("model", [{"dim": 96, "n_layers": 3}, {"max_seq_len": 256} | FINE_TUNED])
def test_with_a_fixed_architecture_only_the_batch_size_is_chosen(model):
    short, long = (chosen(20_000_000, minutes=minutes, **model) for minutes in (0.4, 60.0))
    assert (short.model.dim, short.model.n_layers) == (model["dim"], model["n_layers"])
    assert short.train.batch_size < long.train.batch_size
    assert chosen(20_000_000, minutes=0.4, processes=3, **model).train.batch_size % 3 == 0
    assert chosen(minutes=0.4, batch_size=5, **model).train.batch_size == 5


@pytest.mark.parametrize("tokens_per_second", [5.0, 150.0, 4000.0, 10**6])
def test_fine_tuning_has_steps_enough_for_its_minutes(tokens_per_second):
    """On a slow machine by shorter windows and fewer of them."""
    run = opened(**{name: value for name, value in FINE_TUNED.items() if name != "max_seq_len"})
    model = dataclasses.replace(run.model, max_seq_len=1024, vocab_size=50_000)
    run = plan(dataclasses.replace(run, given=run.given - {"max_seq_len"}), model, tokens_per_second, 10**9, Ranks())
    steps = 5 * 56 * tokens_per_second / (run.train.batch_size * run.model.max_seq_len)
    assert steps >= MIN_STEPS - 1 or (run.train.batch_size, run.model.max_seq_len) == (1, 64)
    assert run.model.max_seq_len == {5: 64, 150: 512}.get(tokens_per_second, 1024)
    assert run.train.weight_decay == 0.1, "more would shrink the weights that the model has learnt"


@pytest.mark.parametrize("settings", [{}, {"dim": 96, "n_layers": 3}, FINE_TUNED])
@given(speed=st.floats(1e-4, 100), minutes=st.floats(0.2, 100))
def test_validations_take_at_most_a_tenth_of_the_minutes(settings, speed, minutes):
    """A token takes a third of the time of its training, and a run validates once more at its end."""
    run = chosen(30_000_000, Machine(speed), minutes=minutes, **settings)
    seen = tokens(run, Machine(speed))
    steps = seen / (run.train.batch_size * run.model.max_seq_len)
    validations = steps / run.train.eval_every + 1
    if steps >= 10:
        assert validations * run.train.eval_tokens / 3 <= 0.1 * seen


def test_weight_decay_grows_with_the_passes_and_with_the_vocabulary():
    def weight_decay(vocab_size, minutes):
        return chosen(30_000, vocab_size=vocab_size, minutes=minutes, dim=96, n_layers=3).train.weight_decay

    assert weight_decay(300, 0.02) < weight_decay(300, 0.03) < weight_decay(2000, 0.03)
    assert weight_decay(2000, 0.001) == 0.1


def test_embeddings_are_tied_only_if_the_model_would_memorise_the_text():
    assert chosen(30_000, Machine(20), vocab_size=500).model.tie_embeddings
    assert not chosen(30_000_000, vocab_size=500).model.tie_embeddings
    assert not chosen(30_000, Machine(20), tie_embeddings=False).model.tie_embeddings


def planned_for(tokens: float, processes: int = 1, **settings) -> Run:
    """The plan for a machine that sees so many tokens in its minutes."""
    run = opened(dim=64, n_layers=2, **settings)
    speed = tokens / (60 * choice.TRAINING_SHARE * run.train.minutes)
    return plan(run, run.model, speed, 10**12, Ranks(world_size=processes))


@pytest.mark.parametrize(("seen", "rows"), [(1e6, 4), (4e6, 8), (64e6, 32), (256e6, 64), (1e12, 64), (1e3, 2)])
@pytest.mark.parametrize("processes", [1, 3])
def test_the_batch_grows_with_the_square_root_of_the_tokens(seen, rows, processes):
    planned = planned_for(seen, processes)
    assert planned.train.batch_size == processes * max(1, round(rows / processes))
    assert planned.train.micro_batch_size is None


@pytest.mark.parametrize(("seen", "rows"), [(1e5, 8), (4e6, 8), (64e6, 32)])
def test_a_batch_has_a_quarter_as_many_tokens_as_the_vocabulary_has_pieces(seen, rows):
    assert planned_for(seen, vocab_size=8192).train.batch_size == rows


def test_on_gpus_the_batch_grows_with_the_processes_and_is_computed_in_parts_that_fit(monkeypatch):
    monkeypatch.setattr(choice, "local_device", lambda name, ranks: torch.device("cuda"))
    monkeypatch.setattr(choice, "fits", lambda model, train, ranks: train.micro_batch_size <= 20)
    run = opened(dim=64, n_layers=2)
    planned = plan(run, run.model, 1e12, 10**15, Ranks(world_size=4)).train
    assert (planned.batch_size, planned.micro_batch_size) == (4 * 64, 16)
    assert plan(opened(dim=64, micro_batch_size=7), run.model, 1e12, 10**15, Ranks()).train.micro_batch_size == 7


SETTINGS = {"batch_size": 2, "device": "cpu", "dtype": "float32", "minutes": 1.0}


def measured(model=ARGS, **settings) -> float:
    ranks = Ranks(world_size=settings.pop("world_size", 1))
    run = make_run(**vars(ARGS) | SETTINGS | settings)
    return choice.measure_speed(run, model, dataset(), ranks)


@pytest.fixture
def steps(monkeypatch):
    """The tokens of each timed step, and the clock: ``durations`` are the seconds of the steps."""

    class Steps:
        now, durations, tokens = 0.0, [], []

        def step(self, trainer):
            self.tokens.append((trainer.args.batch_size, trainer.model.args.max_seq_len))
            self.now += self.durations.pop(0)

    found = Steps()
    monkeypatch.setattr(choice.Trainer, "step", lambda trainer, lr_scale: found.step(trainer))
    monkeypatch.setattr(choice.time, "perf_counter", lambda: found.now)
    return found


def test_the_speed_of_a_model_is_that_of_its_fastest_step(steps):
    steps.durations = [0.5, 0.1, 0.2, 9.0, 8.0]
    assert measured() == pytest.approx(2048 / 0.1)
    assert measured() == pytest.approx(2048 / 8.0), "two slow steps"
    assert set(steps.tokens) == {(2048 // ARGS.max_seq_len, ARGS.max_seq_len)}


def test_a_large_model_is_timed_with_few_tokens_and_several_processes_together(steps):
    steps.durations = [1.0] * 9
    large = dataclasses.replace(ARGS, n_layers=2000, max_seq_len=1024)
    speed = measured(large, world_size=2, batch_size=12, compile=True, fsdp=True)
    [(rows, context), *_] = steps.tokens
    assert rows == 1
    assert 6 * choice.multiplications(large) * context == pytest.approx(1e11, rel=0.5) or context == 64
    assert speed == 2 * context


@pytest.mark.parametrize("speed", [150.0, 5000.0])
@pytest.mark.parametrize("eval_every", [1, 20, 10_000])
def test_validations_take_a_tenth_of_the_minutes_at_most_if_all_settings_are_given(speed, eval_every):
    settings = {"minutes": 5.0, "dim": 64, "batch_size": 8, "max_seq_len": 128, "eval_every": eval_every}
    run = with_short_validations(make_run(**settings), speed, dataset())
    seconds = 300 * choice.TRAINING_SHARE
    validations = seconds * speed // (8 * 128 * eval_every) + 1
    validated = validations * run.train.eval_tokens / (3 * speed)  # a token takes a third of the time of its training
    assert validated <= seconds / 10 + validations / speed
    assert run.train.eval_tokens == 200_000 or validated > seconds / 11
    given = make_run(**settings, eval_tokens=10**6)
    assert with_short_validations(given, speed, dataset()) == given
