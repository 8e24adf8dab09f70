import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from training_helpers import ARGS, trainer

from model import Transformer
from model.training.config import TrainArgs
from model.training.optimizer import Muon, build_optimizers, orthogonalize, set_learning_rate


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


def test_without_muon_adamw_trains_all_parameters():
    model = Transformer(ARGS)
    (adamw,) = build_optimizers(model, TrainArgs(optimizer="adamw", beta1=0.8, beta2=0.9))
    assert set.union(*group_names(model, adamw)) == set(dict(model.named_parameters()))
    assert all("weight" in name and "norm" not in name for name in group_names(model, adamw)[0])
    assert adamw.defaults["betas"] == (0.8, 0.9)


def test_the_learning_rate_is_a_fraction_of_each_optimizers_peak():
    optimizers = build_optimizers(Transformer(ARGS), TrainArgs(lr=0.004, muon_lr=0.08))
    set_learning_rate(optimizers, 0.5)
    set_learning_rate(optimizers, 0.25)
    assert [group["lr"] for o in optimizers for group in o.param_groups] == pytest.approx([0.001, 0.001, 0.02])


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8), (1, 8, 8)])
def test_orthogonalized_matrices_keep_their_singular_vectors_and_have_singular_values_near_1(shape):
    stack = torch.randn(shape)
    orthogonal = orthogonalize(stack, (3.4445, -4.775, 2.0315), 5, 1e-7)
    u, _, v = torch.linalg.svd(stack, full_matrices=False)
    inner = u.mT @ orthogonal @ v.mT  # diagonal, if the vectors are the same
    values = inner.diagonal(dim1=1, dim2=2)
    assert (inner - values.diag_embed()).abs().max() < 1e-3
    assert ((values > 0.3) & (values < 1.3)).all()


def test_orthogonalizing_a_stack_gives_the_same_as_each_matrix_alone():
    stack = torch.randn(4, 6, 9)
    together = orthogonalize(stack, (3.4445, -4.775, 2.0315), 5, 1e-7)
    alone = torch.cat([orthogonalize(one[None], (3.4445, -4.775, 2.0315), 5, 1e-7) for one in stack])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_muon_steps_like_torchs_muon_up_to_its_lower_precision():
    start = [torch.randn(12, 30), torch.randn(30, 12), torch.randn(12, 30)]
    outcomes = []
    for optimizer in (Muon, torch.optim.Muon):
        weights = [torch.nn.Parameter(w.clone()) for w in start]
        muon = optimizer(weights, lr=0.1, weight_decay=0.1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            for w in weights:
                w.grad = torch.randn(w.shape, generator=generator)
            muon.step()
        outcomes.append(weights)
    for ours, torchs, before in zip(*outcomes, start):
        assert (ours - torchs).norm() < 0.02 * (ours - before).norm()  # torch multiplies in bfloat16


class ProductDtypes(TorchDispatchMode):
    """Records the dtypes of batched matrix products."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "bmm" in func.name():
            self.dtypes |= {arg.dtype for arg in args}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_muon_multiplies_in_the_dtype_of_the_run_on_every_processor(tmp_path, each_processor, dtype):
    run = trainer(tmp_path, dtype=dtype, max_steps=1)
    for p in run.model.parameters():
        p.grad = torch.randn_like(p)
    with ProductDtypes() as products:
        for optimizer in run.optimizers:
            optimizer.step()
    expected = dtype
    if dtype == "auto":
        expected = "bfloat16" if each_processor else "float32"
    assert products.dtypes == {getattr(torch, expected)}
