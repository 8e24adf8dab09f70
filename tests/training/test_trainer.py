"""The training loop: the result does not depend on interruptions or evaluations, bit for bit."""

import dataclasses
import itertools
import math
from contextlib import nullcontext
from itertools import count

import numpy as np
import pytest
import torch
from torch.nn.utils import get_total_norm
from training_helpers import ARGS, dataset, metrics, same, stop_at, trainer, weights

from model import Transformer, generate
from model.text.dataset import Dataset
from model.training.config import TrainArgs
from model.training.trainer import Trainer, add_dropout
from model.weights import load_model

SHALLOW = dataclasses.replace(ARGS, n_layers=1, tie_embeddings=True)
FULL_SETTINGS = {"eval_every": 30, "batch_size": 8, "micro_batch_size": 4, "dropout": 0.1, "model_args": SHALLOW}
FULL_SETTINGS |= {"context_warmup": 0.7}


def without_speed(directory) -> list[dict]:
    return [line | {"tokens_per_second": None} for line in metrics(directory)]


def test_the_loss_starts_at_that_of_uniform_guessing_and_falls(tmp_path):
    run = trainer(tmp_path, max_steps=80)
    run.run()
    losses = [line["train_loss"] for line in metrics(tmp_path)]
    assert losses[0] == pytest.approx(math.log(ARGS.vocab_size), rel=0.05)
    assert losses[-1] < 0.6
    assert run.progress.best_val_loss < 0.6
    assert run.progress.tokens == 80 * 8 * ARGS.max_seq_len


class Frozen(Transformer):
    def __init__(self, args):
        super().__init__(args)
        for weight in self.layers.parameters():
            weight.requires_grad_(weight.ndim < 2)


class Unused(Transformer):
    def __init__(self, args):
        super().__init__(args)
        self.unused = torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("optimizer", "steps", "network"),
    [("muon", 70, Transformer), ("adamw", 40, Transformer), ("muon", 20, Unused), ("muon", 2, Frozen)],
)
def test_a_resumed_run_is_the_uninterrupted_run_bit_for_bit(tmp_path, optimizer, steps, network):
    """Also if some parameters are not trained."""
    for name in ("uninterrupted", "resumed"):
        (tmp_path / name).mkdir()
    settings = {"optimizer": optimizer, "max_steps": steps, "network": network, **FULL_SETTINGS}
    uninterrupted = trainer(tmp_path / "uninterrupted", **settings)
    uninterrupted.run()
    assert stop_at(trainer(tmp_path / "resumed", **settings), steps // 2).progress.step == steps // 2
    resumed = trainer(tmp_path / "resumed", resume=True, **settings)
    assert (resumed.progress.step, resumed.fraction_done) == (steps // 2, 0.5)
    resumed.run()
    assert same(weights(uninterrupted.model), weights(resumed.model))
    assert [line["step"] for line in metrics(tmp_path / "resumed")] == list(range(1, steps + 1))
    directories = (tmp_path / "uninterrupted", tmp_path / "resumed")
    assert same(*(load_model(directory, network=network).state_dict() for directory in directories))
    assert without_speed(directories[0]) == without_speed(directories[1])


@pytest.mark.parametrize(
    ("optimizer", "tolerances"),
    [("adamw", (0.01, 0.01)), pytest.param("muon", (0.03, 0.5), marks=pytest.mark.slow)],
)
def test_training_in_float16_learns_as_in_float32(optimizer, tolerances):
    """At every step, until the gradients are far smaller than at the beginning."""
    settings = {"optimizer": optimizer, "max_steps": 300, "grad_clip": 0.5, "batch_size": 4}
    found = []
    for dtype in ("float32", "float16"):
        run = trainer(None, dtype=dtype, model_args=dataclasses.replace(ARGS, n_layers=1), **settings)
        found.append([[measured["train_loss"], measured["grad_norm"]] for measured in run.steps()])
    exact, half = np.array(found)  # (300, 2) each
    largest_errors = np.abs(half / exact - 1).max(0)
    assert (largest_errors < tolerances).all()


def test_a_step_whose_gradients_overflow_float16_is_computed_again_with_a_smaller_scale(tmp_path):
    """The schedule and the batches do not notice, and an interrupted run has the same scales."""
    settings = {"dtype": "float16", "max_steps": 12, "eval_every": 5, "dropout": 0.1}

    def overflowing(directory, **options):
        directory.mkdir(exist_ok=True)
        run = trainer(directory, **settings, **options)
        if not options:
            run.scaler.load_state_dict(run.scaler.state_dict() | {"scale": 2.0**24})
        run.scaler.set_growth_interval(4)
        return run

    whole, again = overflowing(tmp_path / "whole"), overflowing(tmp_path / "resumed")
    whole.run()
    assert 1 <= whole.scaler.get_scale() < 2**24
    assert [line["step"] for line in metrics(tmp_path / "whole")] == list(range(1, 13))
    stop_at(again, 7)
    again = overflowing(tmp_path / "resumed", resume=True)
    assert again.scaler.get_scale() not in (2.0**16, 2.0**24), "the scale is in the state"
    again.run()
    assert same(weights(whole.model), weights(again.model))
    assert without_speed(tmp_path / "whole") == without_speed(tmp_path / "resumed")
    exact = trainer(tmp_path, **settings | {"dtype": "float32", "dropout": 0.0})
    half = trainer(None, **settings | {"dropout": 0.0})
    half.scaler.load_state_dict(half.scaler.state_dict() | {"scale": 2.0**24})
    losses = [[measured["train_loss"] for measured in run.steps()] for run in (exact, half)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    resumed = trainer(tmp_path, resume=True, **settings)
    assert resumed.scaler.get_scale() == 2.0**16, "that of a new run, because a run in float32 has none"


def test_gradients_that_overflow_float16_at_every_scale_end_the_run(tmp_path):
    run = trainer(tmp_path, dtype="float16")
    run.model.layers[0].feed_forward.w1.weight.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(ValueError, match=r"^step 1: .* the gradient norm (nan|inf): resume .* with --dtype float32"):
        run.run()


class Growing(Transformer):
    """A network that ``args`` alone do not determine: each one has a larger table."""

    sizes = itertools.count(1)

    def __init__(self, args):
        super().__init__(args)
        self.table = torch.nn.Parameter(torch.zeros(next(self.sizes)))


def test_a_network_that_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="table is"):
        trainer(tmp_path, network=Growing)
    assert list(tmp_path.iterdir()) == []


def test_samples_and_validations_do_not_change_a_run(tmp_path):
    plain, sampled = (trainer(tmp_path, dropout=0.1, max_steps=8, eval_every=every) for every in (100, 4))
    plain.run()
    for _ in sampled.steps():
        list(generate(sampled.model, [[1, 2]], max_new_tokens=3, temperature=1.0, seed=sampled.progress.step))
        torch.rand(3), np.random.rand(3)
        sampled.validation_loss()
    assert same(weights(plain.model), weights(sampled.model))


def test_micro_batches_give_the_step_of_the_full_batch_even_if_they_are_uneven(tmp_path):
    found = []
    for rows in (6, 4, 1):  # 4 + 2 rows are uneven
        trainer(tmp_path, micro_batch_size=rows, max_steps=5, batch_size=6, context_warmup=0.5).run()
        found.append([(line["train_loss"], line["grad_norm"]) for line in metrics(tmp_path)])
    assert np.allclose(found[0], found[1], atol=1e-5)
    assert np.allclose(found[0], found[2], atol=1e-5)


def test_a_context_of_one_token_has_no_half():
    assert trainer(None, model_args=dataclasses.replace(ARGS, max_seq_len=1), context_warmup=0.5).batch_shape == (8, 1)


def test_sequences_have_half_of_the_context_during_its_warmup_but_those_of_validations_all_of_it(tmp_path):
    run = trainer(tmp_path, context_warmup=0.5, max_steps=4, eval_every=1, batch_size=6, micro_batch_size=3)
    shapes = []
    run.compiled_loss.register_forward_pre_hook(lambda loss, inputs: shapes.append((*inputs[0].shape, loss.training)))
    run.run()
    T = ARGS.max_seq_len
    assert [shape for *shape, training in shapes if training] == 4 * [[6, T // 2]] + 4 * [[3, T]]
    validated = [shape for *shape, training in shapes if not training]
    assert validated == 4 * validated[: len(validated) // 4]
    assert validated[0][1] == T
    assert run.progress.tokens == 4 * 6 * T


def test_the_gradient_is_clipped_and_its_norm_before_clipping_is_reported(tmp_path):
    trainer(tmp_path, max_steps=1, grad_clip=0).run()
    unclipped_norm = metrics(tmp_path)[0]["grad_norm"]
    run = trainer(tmp_path, max_steps=1, grad_clip=unclipped_norm / 3)
    norms = []
    gradients = (p.grad for p in run.model.parameters())
    run.optimizers[0].register_step_pre_hook(lambda *_: norms.append(get_total_norm(gradients)))
    run.run()
    assert norms[0] == pytest.approx(unclipped_norm / 3, rel=1e-4)
    assert metrics(tmp_path)[0]["grad_norm"] == pytest.approx(unclipped_norm, rel=1e-5)


def test_minutes_end_a_run_and_the_learning_rate_follows_the_clock(tmp_path):
    ticks = count(1000.0, 2.0)  # a step reads the clock three times
    settings = {"max_steps": None, "minutes": 1, "warmup": 0, "decay_start": 0.5, "eval_every": 100}
    run = trainer(tmp_path, **settings, batch_size=12, clock=lambda: next(ticks))
    run.run()
    assert run.progress.step == 10  # the first step to end after 60 seconds, of which a reading took 2 before the steps
    assert run.progress.train_seconds == 10 * 2
    assert [line["tokens_per_second"] for line in metrics(tmp_path)] == [12 * ARGS.max_seq_len / 2] * 10
    rates = [line["lr"] / run.args.lr for line in metrics(tmp_path)]
    assert rates == pytest.approx([1] * 6 + [0.8, 0.6, 0.4, 0.2], abs=1e-6)
    assert "val_loss" in metrics(tmp_path)[-1]


def test_a_resumed_run_has_only_the_remaining_minutes(tmp_path):
    ticks = count(1000.0, 1.0)  # a clock does not begin at 0
    settings = {"max_steps": None, "minutes": 1, "clock": lambda: next(ticks)}
    stop_at(trainer(tmp_path, **settings), 10)
    resumed = trainer(tmp_path, resume=True, **settings)
    used = resumed.progress.wall_seconds
    assert 20 < used < 45
    began = next(ticks)
    resumed.run()
    assert 60 <= resumed.progress.wall_seconds < 66
    assert next(ticks) - began < 60 - used + 6


def test_a_run_with_no_step_left_is_validated_so_that_its_model_is_saved(tmp_path):
    stopped = stop_at(trainer(tmp_path, eval_every=100), 5)
    assert not (tmp_path / "model.safetensors").exists()
    assert trainer(tmp_path, resume=True, max_steps=5).run().best_step == 5
    assert same(weights(load_model(tmp_path)), weights(stopped.model))


def test_fine_tuning_that_ends_right_after_its_first_validation_begins_again(tmp_path):
    directory = tmp_path / "killed"
    directory.mkdir()
    settings = {"init_from": tmp_path / "base", "max_steps": 6, "eval_every": 3}
    uninterrupted, killed = trainer(tmp_path, **settings), trainer(directory, **settings)
    uninterrupted.run()
    assert next(killed.steps()).keys() == {"val_loss", "val_bits_per_byte"}
    resumed = trainer(directory, resume=True, **settings)
    resumed.run()
    assert same(weights(resumed.model), weights(uninterrupted.model))
    assert without_speed(directory) == without_speed(tmp_path)
    assert [line["step"] for line in metrics(directory)] == list(range(7))


def test_the_saved_model_is_the_one_with_the_best_validation_loss(tmp_path, monkeypatch):
    losses = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(Trainer, "validation_loss", lambda trainer: next(losses))
    run = trainer(tmp_path, max_steps=3, eval_every=1)
    after_step = {number: weights(run.model) for number, _ in enumerate(run.steps(), 1)}
    assert (run.progress.best_step, run.progress.best_val_loss, run.progress.val_loss) == (2, 1.0, 2.0)
    assert same(weights(load_model(tmp_path)), after_step[2])
    assert same(weights(trainer(tmp_path, resume=True, max_steps=3).model), after_step[3])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, bad):
    run = trainer(tmp_path, max_steps=50, eval_every=4)

    def train_with_bad_weight() -> None:
        for _ in run.steps():
            if run.progress.step == 6:
                run.model.norm.weight.data[0] = bad

    with pytest.raises(ValueError, match=r"step 7: the loss is nan.*: resume .* with half of --lr"):
        train_with_bad_weight()
    resumed = trainer(tmp_path, resume=True, max_steps=8, eval_every=4)
    assert resumed.progress.step == 4
    assert all(p.isfinite().all() for p in resumed.model.parameters())
    assert resumed.run().step == 8


@pytest.mark.parametrize("losses", [[math.nan], [1.0, math.nan]])
def test_a_validation_loss_that_is_not_finite_is_never_saved(tmp_path, monkeypatch, losses):
    given = iter(losses)
    monkeypatch.setattr(Trainer, "validation_loss", lambda trainer: next(given))
    kept = 2 * len(losses) - 2
    with pytest.raises(ValueError, match=rf"^step {kept + 2}: the validation loss is nan: resume "):
        trainer(tmp_path, max_steps=4, eval_every=2).run()
    assert trainer(tmp_path, resume=True).progress.step == kept


class Biased(Transformer):
    """With a table of biases by distance, as in T5."""

    def __init__(self, args):
        super().__init__(args)
        self.bias = torch.nn.Embedding(8, 2)


def test_dropout_is_for_training_only_and_not_for_tables_beside_the_embedding_of_tokens():
    model, tokens = Biased(ARGS), torch.tensor([[1, 2, 3]])
    plain, names = model(tokens), set(model.state_dict())
    add_dropout(model, 0.5)
    model.eval()
    assert torch.equal(model(tokens), plain)
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    assert (model.tok_embeddings(torch.arange(8)) == 0).any()
    assert (model.bias(torch.arange(8)) == model.bias.weight).all()
    assert set(model.state_dict()) == names


def test_dropout_differs_between_steps_and_seeds(tmp_path):
    same_text = Dataset(np.arange(9, dtype=np.uint16), dataset().val, 99, 99)  # one window, which all batches repeat
    losses = set()
    for seed in (1, 2):
        run = trainer(tmp_path, dropout=0.3, text=same_text)
        object.__setattr__(run.args, "seed", seed)
        losses |= {run.step(1e-9)["train_loss"] for run.progress.step in (0, 1)}
    assert len(losses) == 4


def test_all_copies_of_the_network_have_the_table_of_rotations_on_the_device_from_the_first_step_on(monkeypatch):
    """A network that moved it in its first step would be compiled once more."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # PyTorch has none for the meta device
    model = Transformer(ARGS).to("meta")
    assert model.freqs_cis.device.type == "cpu"
    run = Trainer(model, dataset(), TrainArgs(dtype="float32"))
    networks = [module for module in run.parallel_loss.modules() if isinstance(module, Transformer)]
    assert len(networks) > 1
    assert {network.freqs_cis.device.type for network in networks} == {"meta"}


def test_compiling_is_not_on_the_clock_of_the_schedule(monkeypatch):
    """Its first call takes a minute of five; the learning rate begins with its warm-up all the same."""
    now = [0.0]

    def compile(network):
        calls = count()

        def compiled(*batch):
            now[0] += 60 if next(calls) == 0 else 1
            return network(*batch)

        return compiled

    monkeypatch.setattr(torch, "compile", compile)
    settings = {"max_steps": None, "minutes": 5, "warmup": 0.1, "optimizer": "adamw"}
    run = trainer(None, **settings, compile=True, clock=lambda: now[0])
    measured = next(run.steps())
    assert run.progress.wall_seconds == 1
    monkeypatch.undo()
    eager = trainer(None, **settings, clock=lambda: 0.0)
    first = next(eager.steps())
    assert (first["lr"], first["train_loss"]) == (measured["lr"], measured["train_loss"]), "no batch is learnt before"


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:Torchinductor does not support")
def test_compiling_has_no_graph_breaks_and_does_not_change_the_losses(tmp_path, compiler, monkeypatch, backend):
    """With the eager backend, torch.compile only traces. The dropout hooks are part of the graph."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda network: compile(network, backend=backend))
    counters = compiler.utils.counters
    compiler.reset()
    counters.clear()
    # The real compiler draws other random numbers.
    settings = FULL_SETTINGS | {"eval_every": 3, "max_steps": 6, "dropout": 0.1 if backend == "eager" else 0.0}
    settings |= {"context_warmup": 0.0}  # each length would be compiled
    losses = []
    for compiled in (False, True):
        trainer(tmp_path, **settings, compile=compiled).run()
        losses.append([(line["train_loss"], line.get("val_loss", 0.0)) for line in metrics(tmp_path)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5 if backend == "eager" else 1e-4)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1, "validation is not compiled"
    compiler.reset()
