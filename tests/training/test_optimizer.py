import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_helpers import ARGS, trainer

from model import Transformer
from model.training.config import TrainArgs
from model.training.optimizer import Muon, build_optimizers, lr_fraction, set_learning_rate


def group_names(model: Transformer, optimizer: torch.optim.Optimizer) -> list[set[str]]:
    """The names of the parameters in each group."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [{names[id(p)] for p in group["params"]} for group in optimizer.param_groups]


@pytest.mark.parametrize("tied", [False, True])
def test_muon_trains_the_hidden_matrices_and_only_matrices_decay(tied):
    model = Transformer(dataclasses.replace(ARGS, tie_embeddings=tied))
    adamw, muon = build_optimizers(model, TrainArgs(weight_decay=0.3))
    (hidden,) = group_names(model, muon)
    decaying, not_decaying = group_names(model, adamw)
    assert hidden == {name for name, p in model.named_parameters() if name.startswith("layers.") and p.ndim == 2}
    assert decaying == {"tok_embeddings.weight"} | ({"output.weight"} if not tied else set())
    assert not_decaying == {name for name in dict(model.named_parameters()) if "norm" in name}
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.3, 0]
    assert muon.param_groups[0]["weight_decay"] == 0.3
    (alone,) = build_optimizers(model, TrainArgs(optimizer="adamw"))
    assert group_names(model, alone) == [decaying | hidden, not_decaying]


def test_the_learning_rate_of_every_optimizer_is_a_fraction_of_the_peak():
    optimizers = build_optimizers(Transformer(ARGS), TrainArgs(lr=0.004))
    set_learning_rate(optimizers, 0.5)
    set_learning_rate(optimizers, 0.25)
    assert [group["lr"] for o in optimizers for group in o.param_groups] == pytest.approx([0.001] * 3)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1.0), (torch.float16, 1e-7)])
def test_muon_steps_like_torchs_muon_up_to_its_lower_precision(dtype, size):
    """Also in float16, which rounds gradients as small as these to one of a few numbers."""
    start = [torch.randn(12, 30), torch.randn(30, 12), torch.randn(12, 30)]
    outcomes = []
    for optimizer in (partial(Muon, dtype=dtype), torch.optim.Muon):
        weights = [torch.nn.Parameter(w.clone()) for w in start]
        muon = optimizer(weights, lr=0.1, weight_decay=0.1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            for w in weights:
                w.grad = size * torch.randn(w.shape, generator=generator)
            muon.step()
        outcomes.append(weights)
    for ours, torchs, before in zip(*outcomes, start):
        assert (ours - torchs).norm() < 0.02 * (ours - before).norm()  # torch multiplies in bfloat16


def test_muon_multiplies_in_the_dtype_of_the_run(tmp_path, each_processor):
    """In bfloat16 its products are slow on a processor that emulates it, and less accurate than in float32."""
    native = torch.bfloat16 if each_processor else torch.float32
    for name, dtype in (("auto", native), ("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        _, muon = trainer(tmp_path, dtype=name, device="cpu").optimizers
        assert muon.dtype == dtype


SHARE = st.floats(0, 0.999)


@given(SHARE, SHARE, SHARE, st.floats(0, 1.2))
def test_the_learning_rate_warms_up_stays_at_its_peak_and_decays_to_min_lr(warmup, decay_start, min_lr, done):
    """With minutes, the last step may end past 1. The decay cannot begin before the warm-up ends."""
    args = TrainArgs(warmup=warmup, decay_start=decay_start, min_lr=min_lr)
    expected = np.interp(done, [0, warmup, max(warmup, decay_start), 1], [0, 1, 1, min_lr])
    if done < warmup:
        expected = max(expected, 0.05)  # never 0
    assert lr_fraction(args, done) == pytest.approx(expected, abs=1e-9)
