"""The state of a run: complete, restored bit for bit, and refused if it is damaged or belongs to another model."""

import pytest
import torch
from training_helpers import same, trainer, weights

from model.training.run_directory import STATE, load_state, read_progress, state_tensors
from model.weights.tensors import load_tensors, save_tensors

WQ = "layers.1.attention.wq.weight"


def test_loading_restores_weights_and_optimizer_states_bit_for_bit_but_no_hyperparameters(tmp_path):
    run = trainer(tmp_path, max_steps=3)
    run.run()
    assert read_progress(tmp_path) == run.progress
    names = load_tensors(tmp_path / STATE).keys()
    assert {"optimizer.exp_avg_sq.tok_embeddings.weight", f"optimizer.momentum_buffer.{WQ}"} <= names
    restored = trainer(tmp_path, seed=99, max_steps=1, lr=0.5)
    load_state(tmp_path, restored.model, restored.optimizers)
    assert same(state_tensors(run.model, run.optimizers), state_tensors(restored.model, restored.optimizers))
    adamw, muon = restored.optimizers
    assert (muon.defaults["lr"], adamw.defaults["lr"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (f"model.{WQ}", None),
        (f"model.{WQ}", torch.zeros(1, 16)),
        (f"optimizer.momentum_buffer.{WQ}", torch.zeros(16, 16).double()),
        ("model.layers.7.attention.wq.weight", torch.zeros(2)),
        ("optimizer.step.norm.weight", None),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_loaded(tmp_path, name, tensor):
    run = trainer(tmp_path, max_steps=1)
    run.run()
    tensors = load_tensors(tmp_path / STATE) | {name: tensor}
    save_tensors(tmp_path / STATE, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    before = weights(run.model)
    with pytest.raises(ValueError, match=rf"{STATE} is damaged or belongs to another model: restore the file, or"):
        load_state(tmp_path, run.model, run.optimizers)
    assert same(weights(run.model), before)
