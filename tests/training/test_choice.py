"""The model and the settings that are chosen for a text, a machine and some minutes."""

import dataclasses
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_helpers import ARGS, dataset, make_run

from model import ModelArgs, Transformer
from model.cli.settings import values
from model.text.dataset import Conversations
from model.training import choice
from model.training.choice import (
    FINE_TUNING_PASSES,
    LADDER,
    MAX_PASSES,
    MEMORISING_PASSES,
    MIN_STEPS,
    choose,
    choose_model,
    plan,
)
from model.training.config import CHOSEN, SIZE, TrainArgs
from model.training.distributed import Machine
from model.training.estimate import count_parameters, training_memory
from model.training.run import Run

CPU = Machine(torch.device("cpu"), memory=10**12)
CARD = dataclasses.replace(CPU, device=torch.device("cuda"))
FINE_TUNED = {"init_from": Path("base"), **vars(dataclasses.replace(ARGS, max_seq_len=1024))}


def seconds_per_token(model: ModelArgs) -> float:
    """Of a simulated machine: a part for each layer, and a part for each multiplication."""
    return 2e-6 * model.n_layers + 15e-12 * choice.multiplications(model)


def chosen(
    text_tokens: int = 1_000_000,
    speed: float = 1.0,
    processes: int = 1,
    memory: int = 10**12,
    **settings,
) -> Run:
    """The run that is chosen for a text of so many tokens, on a machine ``speed`` times as fast."""
    defaults = {"minutes": 5.0, "dtype": "float32", "device": "cpu", "vocab_size": 500, "max_seq_len": 256}
    run = make_run(**defaults | settings)
    text = dataclasses.replace(dataset(), train=range(text_tokens), val=range(text_tokens // 9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "measure_speed", lambda run, model, *_: speed / seconds_per_token(model))
        return choose_model(run, text, dataclasses.replace(CPU, processes=processes, memory=memory))[0]


def place(run: Run) -> int:
    return [size[:2] for size in LADDER].index((run.model.dim, run.model.n_layers))


@pytest.mark.parametrize(
    ("text_tokens", "vocab_size", "places"),
    [
        (30_000, 80, [1, 2, 2, 2, 2]),  # a larger model would memorise the text
        (1_000_000, 80, [0, 2, 4, 7, 7]),
        (1_000_000, 2048, [0, 1, 4, 7, 7]),
        (30_000_000, 2048, [0, 1, 4, 6, 8]),
        (30_000_000, 32_000, [0, 0, 0, 4, 7]),  # each piece is rarer, so it takes more tokens to learn it
    ],
)
def test_the_model_grows_with_the_minutes_until_it_would_memorise_the_text(text_tokens, vocab_size, places):
    """On the simulated machine; ``places`` are those in the ladder after 0.1, 1, 10, 100 and 1,000 minutes."""
    found = [place(chosen(text_tokens, minutes=0.1 * 10 ** (n / 5), vocab_size=vocab_size)) for n in range(21)]
    assert found[::5] == places
    assert found == sorted(found)


def test_each_model_of_the_ladder_has_up_to_about_twice_the_parameters_of_the_one_before():
    models = [ModelArgs(**dict(zip(SIZE, size))) for size in LADDER]
    sizes = [count_parameters(model).hidden for model in models]
    assert all(1.2 < larger / size < 2.4 for size, larger in pairwise(sizes))


@pytest.mark.parametrize("size", [{}, {"dim": 96, "n_layers": 3}, FINE_TUNED])
def test_explicit_settings_are_kept(size):
    explicit = size | {"lr": 0.003, "batch_size": 5, "weight_decay": 0.7, "eval_every": 33, "max_seq_len": 64}
    explicit |= {"micro_batch_size": 3, "max_steps": 10**6, "eval_tokens": 999, "tie_embeddings": False}
    values = chosen(100_000, **explicit).values()
    assert {name: values[name] for name in explicit} == explicit


@pytest.mark.parametrize(
    ("speed", "settings", "warmup"),
    [
        (1e3, {}, 0.6),
        (1e3, {"context_warmup": 0.2}, 0.2),
        (1e3, {"compile": True}, 0.0),
        (1e3, FINE_TUNED, 0.0),
        (1e6, {}, 0.0),
    ],
)
def test_short_runs_begin_with_half_of_the_context(speed, settings, warmup):
    """Unless the code for it is compiled, or the model knows its context."""
    run = make_run(minutes=2.0, device="cpu", dtype="float32", **settings)
    text = dataclasses.replace(dataset(), train=range(10**8))
    assert plan(run, run.model, speed, text, CPU).train.context_warmup == warmup


LARGE = FINE_TUNED | {"dim": 256, "n_layers": 6, "hidden_dim": 704}  # for 50,000 tokens


@pytest.mark.parametrize(
    ("passes", "settings"), [(MAX_PASSES, {}), (FINE_TUNING_PASSES, FINE_TUNED), (MEMORISING_PASSES, LARGE)]
)
def test_on_a_small_text_the_run_ends_after_some_passes(passes, settings):
    run = chosen(50_000, speed=20, minutes=10.0, **settings)
    tokens = run.train.max_steps * run.train.batch_size * run.model.max_seq_len
    assert tokens == pytest.approx(passes * 50_000, rel=0.05)
    assert chosen(30_000_000, minutes=1.0, **settings).train.max_steps is None
    assert chosen(30_000, speed=20, dim=96, n_layers=3).train.max_steps is None, "a size by hand takes all minutes"


def test_only_models_that_fit_into_the_memory_are_chosen():
    unlimited = place(chosen(20_000_000, speed=1000))
    assert 0 < place(chosen(20_000_000, speed=1000, memory=600 * 10**6)) < unlimited


@pytest.mark.parametrize("length", [{"minutes": 1.0}, {"max_steps": 9}])
def test_a_size_that_does_not_fit_into_the_memory_is_refused_before_it_is_built_and_timed(length, monkeypatch):
    monkeypatch.setattr(choice, "measure_speed", lambda *_: pytest.fail("timed"))
    run = make_run(**length, device="cpu", dim=4096, n_layers=24)
    with pytest.raises(ValueError, match=r"this run needs about .* GB of memory, but 8.0 GB are free on cpu"):
        choose(run, dataset(), dataclasses.replace(CPU, memory=8 * 10**9), with_speed=True)


@pytest.mark.parametrize("tokens_per_second", [5.0, 150.0, 4000.0, 10**6])
def test_fine_tuning_has_steps_enough_for_its_minutes(tokens_per_second):
    """On a slow machine by shorter windows and fewer of them."""
    seen = 300 * choice.TRAINING_SHARE * tokens_per_second
    sizes = {name: value for name, value in FINE_TUNED.items() if name != "max_seq_len"}
    run = make_run(minutes=5.0, device="cpu", dtype="float32", **sizes | {"vocab_size": 50_000})
    text = dataclasses.replace(dataset(), train=range(10**9))
    run = plan(run, dataclasses.replace(run.model, max_seq_len=1024), tokens_per_second, text, CPU)
    steps = seen / (run.train.batch_size * run.model.max_seq_len)
    assert steps >= MIN_STEPS - 1 or (run.train.batch_size, run.model.max_seq_len) == (1, 64)
    assert run.model.max_seq_len == {5: 64, 150: 512}.get(tokens_per_second, 1024)
    assert run.train.weight_decay == 0.1, "more would shrink the weights that the model has learnt"


@pytest.mark.parametrize("settings", [{}, {"dim": 96}, {"dim": 96, "max_steps": 100}, FINE_TUNED])
@given(speed=st.floats(1e-3, 100), minutes=st.floats(0.2, 100))
def test_validations_take_at_most_a_tenth_of_the_minutes(settings, speed, minutes):
    """A token takes a third of the time of its training, and a run validates once more at its end.

    The speed changes how often they are, not what is validated.
    """
    run = chosen(30_000_000, speed, minutes=minutes, **settings)
    seen = 60 * choice.TRAINING_SHARE * minutes * speed / seconds_per_token(run.model)
    seen = min(seen, run.train.step_limit * run.train.batch_size * run.model.max_seq_len)
    steps = seen / (run.train.batch_size * run.model.max_seq_len)
    assert run.train.eval_tokens == TrainArgs.eval_tokens
    validations = steps / run.train.eval_every + 1
    if seen > 10 * run.train.eval_tokens:
        assert validations * run.train.eval_tokens / 3 <= 0.1 * seen


def test_help_names_the_settings_that_are_chosen():
    """Those that have no default of None, which their own words explain."""
    run = chosen(30_000, speed=20.0)
    defaults = values(ModelArgs(), TrainArgs())
    decided = (
        run.decided - make_run(minutes=5.0, dtype="float32", device="cpu", vocab_size=500, max_seq_len=256).decided
    )
    explained = {"n_kv_heads", "micro_batch_size", "max_steps", "max_seq_len"}
    assert {*CHOSEN} == decided - explained
    assert all(defaults[name] is not None for name in CHOSEN)


@pytest.mark.parametrize("settings", [{}, FINE_TUNED])
def test_the_same_tokens_are_validated_at_any_speed(settings):
    """The speed chooses other models and contexts, and how often they are validated."""
    text = dataclasses.replace(dataset(), val=np.arange(50_001, dtype=np.uint16), val_tokens=50_000)

    def validated(speed: float) -> tuple[int, list[int]]:
        run = chosen(30_000_000, speed, minutes=2.0, **settings)
        context, tokens = run.model.max_seq_len, run.train.eval_tokens
        batches = text.val_batches(run.train.micro_batch_rows(context, "cpu"), context, tokens)
        return run.train.eval_every, sorted(token for _, targets in batches for token in targets.ravel().tolist())

    (often, slow), (rarely, fast) = validated(0.01), validated(10.0)
    assert slow == fast
    assert len(slow) == TrainArgs.eval_tokens
    assert often != rarely


def test_a_small_text_raises_the_weight_decay_and_ties_the_embeddings():
    def weight_decay(vocab_size, minutes):
        return chosen(30_000, vocab_size=vocab_size, minutes=minutes, dim=96, n_layers=3).train.weight_decay

    assert 0.1 == weight_decay(2000, 0.001) <= weight_decay(300, 0.02) < weight_decay(300, 0.03)
    assert weight_decay(300, 0.03) < weight_decay(2000, 0.03), "a larger vocabulary memorises more"
    assert chosen(30_000, speed=20).model.tie_embeddings
    assert not chosen(30_000_000).model.tie_embeddings


@given(minutes=st.floats(0.01, 20), vocab_size=st.sampled_from([80, 500, 8192]))
def test_a_batch_grows_with_the_square_root_of_the_tokens_and_with_the_vocabulary(minutes, vocab_size):
    settings = {"minutes": minutes, "vocab_size": vocab_size, "dim": 64, "n_layers": 2}
    run = chosen(10**12, **settings)
    seen = 60 * choice.TRAINING_SHARE * minutes / seconds_per_token(run.model)
    rows = max(1024 * math.sqrt(seen / 1e6), vocab_size / 4) / 256
    assert abs(math.log2(run.train.batch_size / max(2, rows))) < 0.501, "the nearest power of two"
    shared = chosen(10**12, processes=3, **settings).train.batch_size
    assert shared % 3 == 0
    assert abs(shared - run.train.batch_size) < 2


def test_a_large_batch_has_64_sequences_for_each_process_and_is_computed_in_parts_that_fit():
    large = {"text_tokens": 10**15, "speed": 1e9, "processes": 4, "dim": 64, "n_layers": 2}
    whole = chosen(**large)
    assert (whole.train.batch_size, whole.train.micro_batch_size) == (4 * 64, 64)
    for most, rows in ((20, 16), (1, 1)):
        train = dataclasses.replace(whole.train, micro_batch_size=most)
        memory = training_memory(whole.model, train, dataclasses.replace(CPU, processes=4)).peak
        train = chosen(**large, memory=memory).train
        assert (train.batch_size, train.micro_batch_size) == (4 * 64, rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_speed_of_a_model_is_that_of_its_fastest_step(monkeypatch, device):
    """On a CPU, a large model is timed with fewer tokens; and one process for all.

    A step has the whole context, as those after a warm-up of the context, and ends when its device has computed it.
    """
    monkeypatch.setattr(choice, "TIMED_OPERATIONS", 1e9)
    large = dataclasses.replace(ARGS, n_layers=20, max_seq_len=1024)
    now, tokens, seconds = [0.0], [], iter([0.2, 0.1, 0.15, 0.3])

    def compute(*_):
        now[0] += next(seconds)

    def step(trainer, lr_scale):
        rows, context = trainer.batch_shape
        assert context == trainer.model.args.max_seq_len
        tokens.append(rows * context)
        now[0] += 0.05
        if device == "cpu":
            compute()

    monkeypatch.setattr(choice.Trainer, "step", step)
    monkeypatch.setattr(Transformer, "to", lambda network, device: network)
    monkeypatch.setattr(torch.accelerator, "synchronize", compute)
    monkeypatch.setattr(choice.time, "perf_counter", lambda: now[0])
    settings = {"batch_size": 12, "device": "cpu", "dtype": "float32", "context_warmup": 0.5}
    run, machine = make_run(**vars(ARGS) | settings), Machine(torch.device(device), processes=2)
    model, train = choice.timed_step(run, large, dataset(), machine)
    speed = choice.measure_speed(run, model, train, dataset(), machine)
    assert speed == pytest.approx(2 * tokens[0] / 0.15)
    assert len(tokens) == 4, "half a second and more after a warm-up"
    assert 6 * choice.multiplications(large) * tokens[0] == pytest.approx(1e9, rel=0.01)


@pytest.mark.parametrize("lengths", [[40] * 100, [10, 30, 10, 10, 200] * 20, range(2, 1000)])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_speed_on_conversations_is_that_of_their_batches_without_the_padding(monkeypatch, lengths, rows):
    """On a machine that takes a second for 1,000 positions of a batch."""

    def step_seconds(run, model, train, *_):
        return train.batch_size * model.max_seq_len / 1000

    monkeypatch.setattr(choice, "step_seconds", step_seconds)
    ids, ends = np.zeros(sum(lengths), np.uint16), np.cumsum(lengths)
    text = Conversations(ids, ids, 9, 9, train_targets=ids, val_targets=ids, train_ends=ends, val_ends=ends)
    run = make_run(minutes=1.0, device="cpu", batch_size=rows, max_seq_len=1024, dim=16, n_layers=1, n_heads=2)
    model, _ = choice.timed_step(run, run.model, text, CPU)
    for timed in (model, run.model):
        speed = choice.measure_speed(run, timed, run.train, text, CPU)
        batches = [text.batch(seen, batch_size=rows, context=1024, seed=1)[0] for seen in range(0, len(lengths), rows)]
        seconds = sum(batch.size for batch in batches) / 1000
        assert speed == pytest.approx(len(batches) * rows * text.window_tokens(1024) / seconds, rel=0.1)


class Card:
    """A card whose step costs the launches of its kernels, as on an H200 (benchmarks/README.md), or its arithmetic."""

    def __init__(self, patch: pytest.MonkeyPatch, gain: float = 1.0) -> None:
        """Compiling makes both faster by ``gain``."""
        self.gain = gain
        self.compiled: list[tuple[int, int]] = []  # the widths of the networks, and their batches
        self.most = math.inf  # width times batch: more does not fit
        patch.setattr(choice, "step_seconds", self.step_seconds)

    def step_seconds(self, run, model, train, *_) -> float:
        if model.dim * train.batch_size > self.most:
            raise torch.OutOfMemoryError
        if train.compile:
            self.compiled.append((model.dim, train.batch_size))
        arithmetic = 6 * choice.multiplications(model) * train.batch_size * model.max_seq_len / 300e12
        return max(0.01615, arithmetic) / (self.gain if train.compile else 1)

    def speed(self, run: Run) -> float:
        tokens = run.train.batch_size * run.model.max_seq_len
        return tokens / self.step_seconds(run, run.model, run.train)


TWENTY_MB = dataclasses.replace(dataset(), train=range(6_000_000))
ON_A_CARD = {"dtype": "float32", "device": "cpu", "vocab_size": 4096, "max_seq_len": 256}


def chosen_on_a_card(text=TWENTY_MB, processes: int = 1, **settings) -> tuple[Run, float]:
    return choose_model(make_run(**ON_A_CARD | settings), text, dataclasses.replace(CARD, processes=processes))


@pytest.mark.parametrize("minutes", [1.0, 10.0])
def test_on_a_card_a_model_is_timed_in_the_batch_that_it_is_trained_with(monkeypatch, minutes):
    """There a step of few tokens takes as long as one of many, and a large model would look as slow as it is large."""
    card = Card(monkeypatch)
    run, speed = chosen_on_a_card(minutes=minutes, compile=False)
    assert speed == pytest.approx(card.speed(run))
    assert place(run) == {1.0: 5, 10.0: 9}[minutes]


def test_the_batch_on_a_card_is_the_largest_that_its_own_speed_asks_for(monkeypatch):
    card = Card(monkeypatch)
    run = make_run(**ON_A_CARD, minutes=3.0, dim=96, n_layers=3, n_heads=3)
    text = dataclasses.replace(dataset(), train=range(10**9))
    planned, speed = choice.timed_plan(run, run.model, text, CARD)
    assert speed == card.speed(planned)
    again = plan(run, run.model, speed, text, CPU)
    assert again.train.batch_size == planned.train.batch_size
    twice = dataclasses.replace(
        planned, train=dataclasses.replace(planned.train, batch_size=2 * again.train.batch_size)
    )
    assert plan(run, run.model, card.speed(twice), text, CPU).train.batch_size < twice.train.batch_size


@pytest.mark.parametrize("gain", [0.7, 1.5, 3.0])
def test_a_long_run_on_a_card_is_compiled_once_in_its_batch_if_that_is_faster(monkeypatch, gain):
    card = Card(monkeypatch, gain)
    monkeypatch.setattr(choice, "can_compile", lambda *_: True)
    eager, _ = chosen_on_a_card(minutes=2.0, compile=False)
    assert not card.compiled
    run, speed = chosen_on_a_card(minutes=2.0, compile=True)
    assert run.train.compile, "because it was asked for"
    assert card.compiled == [(run.model.dim, run.train.batch_size)]
    assert speed == card.speed(run)
    assert place(run) == place(eager)
    endless = dataclasses.replace(dataset(), train=range(10**9))
    faster = gain > 1
    for minutes, text, compiles in ((10.0, endless, faster), (2.0, endless, False), (10.0, TWENTY_MB, False)):
        run, speed = chosen_on_a_card(text, minutes=minutes)
        assert run.train.compile == compiles, "a small text ends the run early"
        assert ("compile" in run.decided) == compiles, "so that the command that --plan prints compiles, too"
        assert speed == card.speed(run)


def test_a_model_that_does_not_fit_while_it_is_timed_is_too_large(monkeypatch):
    card = Card(monkeypatch)
    unlimited, _ = chosen_on_a_card(minutes=10.0, compile=False)
    card.most = 64 * unlimited.model.dim - 1
    smaller, _ = chosen_on_a_card(minutes=10.0, compile=False)
    assert place(smaller) < place(unlimited)


def test_a_run_by_steps_is_compiled_from_ten_thousand_on(monkeypatch):
    Card(monkeypatch)
    monkeypatch.setattr(choice, "can_compile", lambda *_: True)
    for steps, setting, compiles in ((10_000, None, True), (9_999, None, False), (10_000, False, False)):
        given = {} if setting is None else {"compile": setting}
        run, _ = choose(make_run(**ON_A_CARD, max_steps=steps, dim=96, n_layers=3, n_heads=3, **given), TWENTY_MB, CARD)
        assert run.train.compile == compiles
    undecided = make_run(**ON_A_CARD, max_steps=10_000, dim=96, n_layers=3, n_heads=3)
    resumed, _ = choose(dataclasses.replace(undecided, resume=True), TWENTY_MB, CARD)
    assert not resumed.train.compile, "its first steps were not"


def test_only_where_a_compiler_is_found_a_card_compiles_without_being_asked(monkeypatch):
    run = make_run(**ON_A_CARD, minutes=10.0)
    monkeypatch.setattr(choice, "has_triton", lambda: True)
    monkeypatch.setattr(choice.shutil, "which", lambda name: name)
    monkeypatch.setattr(choice.Path, "exists", lambda path: True)
    assert not choice.can_compile(run, TWENTY_MB, CPU)
    Card(monkeypatch)
    assert choice.can_compile(run, TWENTY_MB, CARD)
    assert not choice.can_compile(run, TWENTY_MB, dataclasses.replace(CARD, processes=2))
    assert not choice.can_compile(make_run(**ON_A_CARD, network="mine:Network"), TWENTY_MB, CARD)
    assert not choice.can_compile(make_run(**ON_A_CARD, context_warmup=0.5), TWENTY_MB, CARD)
    assert not choice.can_compile(run, Conversations.__new__(Conversations), CARD)
    for place, lacking in ((choice.shutil, "which"), (choice, "has_triton")):  # a card before Volta has no Triton
        with monkeypatch.context() as patch:
            patch.setattr(place, lacking, lambda *_: None)
            assert not choice.can_compile(run, TWENTY_MB, CARD)


def test_a_model_that_is_sharded_is_never_timed_whole(monkeypatch):
    """Two layers of it are, in one process."""
    layers = []

    def step_seconds(run, model, *_):
        layers.append(model.n_layers)
        return 0.1 + 0.02 * model.n_layers

    monkeypatch.setattr(choice, "step_seconds", step_seconds)
    sizes = {"dim": 96, "n_layers": 50, "n_heads": 3, "batch_size": 8}
    run = make_run(**ON_A_CARD, **sizes, minutes=10.0, fsdp=True)
    machine = dataclasses.replace(CPU, processes=4, local_processes=4)
    speed = choice.measure_speed(run, run.model, run.train, TWENTY_MB, machine)
    assert layers == [1, 2]
    assert speed == pytest.approx(8 * 256 / (0.1 + 0.02 * 50))
    choose(run, TWENTY_MB, machine)
    assert set(layers) == {1, 2}
