"""The estimates match what a run really needs, and a run that does not fit is refused before anything is allocated."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from model import ModelArgs, Transformer
from model.fast import kernels
from model.fast.loss import NextTokenLoss
from model.training.config import TrainArgs
from model.training.distributed import Machine
from model.training.estimate import check_training_memory, count_parameters, training_memory
from model.training.optimizer import build_optimizers

ARGS = ModelArgs(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, vocab_size=300, max_seq_len=96)

CPU = torch.device("cpu")


def step(model: Transformer, optimizers: list, rows: int, autocast: bool, merge: bool = False) -> int:
    """Take one optimizer step; returns the bytes that the forward pass saved for the backward pass."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    tokens = torch.randint(model.args.vocab_size, (rows, model.args.max_seq_len + 1))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        network = NextTokenLoss(model, torch.bfloat16 if autocast else torch.float32, merge)
        loss = network(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return sum(size for size, _ in saved.values())


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_without_building_the_network(tied):
    args = dataclasses.replace(ARGS, tie_embeddings=tied)
    model = Transformer(args)
    total, hidden = count_parameters(args)
    assert total == sum(p.numel() for p in model.parameters())
    assert hidden == sum(p.numel() for p in model.layers.parameters() if p.ndim == 2)


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_matches_what_a_step_allocates(optimizer, dtype):
    train = TrainArgs(batch_size=8, micro_batch_size=4, optimizer=optimizer)
    model = Transformer(ARGS)
    optimizers = build_optimizers(model, train, dtype)
    activations = step(model, optimizers, rows=4, autocast=dtype == torch.bfloat16)
    tensors = [tensor for p in model.parameters() for tensor in (p, p.grad)]
    tensors += [t for o in optimizers for state in o.state.values() for name, t in state.items() if name != "step"]
    expected = training_memory(ARGS, train, Machine(CPU, dtype))
    assert expected.state == sum(tensor.nbytes for tensor in tensors)
    assert expected.activations == pytest.approx(activations, rel=0.25)


class OneKernel(torch.autograd.Function):
    """A function as one kernel, which keeps its inputs and perhaps its result for the backward pass."""

    @staticmethod
    def forward(ctx, compute, keeps_result, *inputs):
        out = compute(*inputs)
        ctx.save_for_backward(*inputs, *([out] if keeps_result else []))
        ctx.inputs = len(inputs)
        return out

    @staticmethod
    def backward(ctx, grad):
        return (None, None, *map(torch.zeros_like, ctx.saved_tensors[: ctx.inputs]))


@pytest.mark.parametrize("dim", [64, 192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_for_a_card_matches_what_single_kernels_for_norms_and_attention_keep(monkeypatch, dim, dtype):
    formula = kernels.fused_attention

    def norm(self, x):
        return OneKernel.apply(lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5), False, x, self.weight)

    def attend(q, k, v, mask):
        def compute(q, k, v):
            return formula(q, k, v).transpose(1, 2).contiguous().transpose(1, 2)  # a card's memory has the heads last

        return OneKernel.apply(compute, True, q, k, v)

    monkeypatch.setattr(kernels.FastRMSNorm, "forward", norm)
    monkeypatch.setattr(kernels, "attend", attend)
    args = ModelArgs(dim=dim, n_layers=3, n_heads=4, vocab_size=300, max_seq_len=96)
    activations = step(Transformer(args), [], rows=16, autocast=dtype == torch.bfloat16, merge=True)
    train = TrainArgs(batch_size=16, micro_batch_size=16)
    expected = training_memory(args, train, Machine(torch.device("cuda"), dtype))
    assert expected.activations == pytest.approx(activations, rel=0.06)


@pytest.mark.parametrize(
    ("dim", "n_layers", "rows", "vocab_size", "optimizer", "dtype", "megabytes"),
    [
        (128, 3, 3, 1024, "muon", torch.bfloat16, 435),
        (512, 6, 16, 1024, "muon", torch.bfloat16, 1811),
        (64, 1, 32, 4096, "adamw", torch.float32, 564),
        (64, 1, 6, 151_936, "adamw", torch.bfloat16, 1748),
    ],
)
def test_the_peak_memory_is_within_15_percent_of_the_measured_one(
    dim, n_layers, rows, vocab_size, optimizer, dtype, megabytes
):
    """Of complete runs of train.py (benchmarks/README.md)."""
    args = ModelArgs(dim=dim, n_layers=n_layers, n_heads=dim // 32, vocab_size=vocab_size, max_seq_len=256)
    peak = training_memory(args, TrainArgs(batch_size=rows, optimizer=optimizer), Machine(CPU, dtype)).peak
    assert peak / 1e6 == pytest.approx(megabytes, rel=0.15)


@pytest.mark.parametrize(
    ("dim", "n_layers", "vocab_size", "dtype", "megabytes"),
    [
        (1024, 2, 32_000, torch.bfloat16, 2030),
        (1024, 8, 32_000, torch.float32, 2839),
        (1024, 8, 4096, torch.bfloat16, 2027),
        (1024, 16, 4096, torch.bfloat16, 3036),
        (256, 2, 150_000, torch.float32, 1951),
    ],
)
def test_the_peak_memory_of_a_sharded_model_is_within_20_percent_of_the_measured_one(
    dim, n_layers, vocab_size, dtype, megabytes
):
    """Of each of two processes (benchmarks/README.md). The vocabulary matrices are gathered, however many there are."""
    args = ModelArgs(dim=dim, n_layers=n_layers, n_heads=dim // 32, vocab_size=vocab_size, max_seq_len=256)
    train = TrainArgs(batch_size=4 if vocab_size == 150_000 else 2, fsdp=True)
    assert training_memory(args, train, Machine(CPU, dtype, 2)).peak / 1e6 == pytest.approx(megabytes, rel=0.2)


def test_fsdp_divides_the_state_between_processes_and_ddp_does_not():
    ddp, fsdp = TrainArgs(optimizer="adamw"), TrainArgs(fsdp=True)
    four = Machine(CPU, processes=4)
    single = training_memory(ARGS, ddp, Machine(CPU)).state
    assert training_memory(ARGS, fsdp, four).state == single // 4
    assert training_memory(ARGS, ddp, four).state == single


def test_a_run_that_needs_more_than_the_free_memory_is_refused():
    train = TrainArgs(dtype="float32", device="cpu")
    needed = training_memory(ARGS, train, Machine(CPU)).peak
    check_training_memory(ARGS, train, Machine(CPU, memory=needed))
    with pytest.raises(ValueError, match=r"^this run needs .*: 3 MB for .* parameters .* 16 x 96 tokens at once"):
        check_training_memory(ARGS, train, Machine(CPU, processes=2, local_processes=2, memory=needed))
