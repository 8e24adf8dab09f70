"""The estimates match what a run really needs, and a run that does not fit is refused before anything is allocated."""

import dataclasses
from pathlib import Path

import pytest
import torch

from model import ModelArgs, Transformer
from model.training import estimate
from model.training.config import TrainArgs
from model.training.estimate import (
    check_training_memory,
    count_parameters,
    disk_needed,
    peak_memory,
    readable_size,
    state_and_activation_bytes,
)
from model.training.evaluation import cross_entropy
from model.training.optimizer import build_optimizers

pytestmark = pytest.mark.usefixtures("each_processor")

ARGS = ModelArgs(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, vocab_size=300, max_seq_len=96)
CPU = torch.device("cpu")


def step(model: Transformer, optimizers: list, rows: int, autocast: bool) -> int:
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
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
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


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_matches_what_a_step_allocates(optimizer, dtype):
    train = TrainArgs(batch_size=8, micro_batch_size=4, optimizer=optimizer)
    model = Transformer(ARGS)
    optimizers = build_optimizers(model, train, dtype)
    activations = step(model, optimizers, rows=4, autocast=dtype == torch.bfloat16)
    tensors = [tensor for p in model.parameters() for tensor in (p, p.grad)]
    tensors += [t for o in optimizers for state in o.state.values() for name, t in state.items() if name != "step"]
    state, expected = state_and_activation_bytes(ARGS, train, dtype)
    assert state == sum(tensor.nbytes for tensor in tensors)
    assert expected == pytest.approx(activations, rel=0.25)


def test_the_estimate_includes_memory_and_time_per_layer():
    """10,000 layers of width 16 have 0.5 GB of weights and optimizer state; they took 3.3 GB."""
    deep, train = dataclasses.replace(ARGS, dim=16, n_layers=10_000), TrainArgs(batch_size=1, max_steps=1)
    assert sum(state_and_activation_bytes(deep, train, torch.float32)) > 2 * 10**9


@pytest.mark.parametrize(
    ("dim", "n_layers", "heads", "rows", "measured"),
    [(128, 3, 4, 3, 426), (256, 6, 8, 16, 1104), (512, 6, 8, 16, 1825)],
)
def test_the_peak_memory_is_within_15_percent_of_the_measured_one(dim, n_layers, heads, rows, measured):
    """``measured`` is in MB, for complete runs of train.py (docs/scaling.md)."""
    args = ModelArgs(dim=dim, n_layers=n_layers, n_heads=heads, vocab_size=1024, max_seq_len=256)
    peak = estimate.PROCESS + peak_memory(args, TrainArgs(batch_size=rows), torch.bfloat16)
    assert peak / 1e6 == pytest.approx(measured, rel=0.15)


def test_fsdp_divides_the_state_between_processes_and_ddp_does_not():
    single, _ = state_and_activation_bytes(ARGS, TrainArgs(), torch.float32)
    fsdp, _ = state_and_activation_bytes(ARGS, TrainArgs(fsdp=True), torch.float32, world_size=4)
    ddp, _ = state_and_activation_bytes(ARGS, TrainArgs(fsdp=False), torch.float32, world_size=4)
    assert fsdp == single // 4
    assert ddp == single + 4 * count_parameters(ARGS).total, "DDP's buckets copy the gradients"


@pytest.mark.parametrize(
    ("model", "train", "advice"),
    [
        ({"n_layers": 10**9}, {}, "lower dim (64), n_layers (1000000000) or vocab_size (300)"),
        ({"dim": 2**20}, {}, "lower dim (1048576)"),
        (
            {"vocab_size": 2**40},
            {},
            "a vocabulary of 1,099,511,627,776 pieces is too large: lower vocab_size (1099511627776), or",
        ),
        ({"vocab_size": 2**40}, {"init_from": Path("m")}, "lower dim (64), n_layers (3) or vocab_size (1099511627776)"),
        ({}, {"batch_size": 10**7}, "10,000,000 sequences of 96 tokens at once"),
        ({}, {"batch_size": 10**10, "micro_batch_size": 1}, "batch_size or max_seq_len"),
        ({"max_seq_len": 10**9}, {"batch_size": 1}, "no room for 1 sequence of 1,000,000,000 tokens at once"),
    ],
)
def test_the_error_for_too_little_memory_says_what_to_lower(monkeypatch, model, train, advice):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 8 * 10**9)
    with pytest.raises(ValueError, match=r"^this run needs about [\d,.]+ GB of memory, but 8\.0 GB are free") as raised:
        check_training_memory(dataclasses.replace(ARGS, **model), TrainArgs(**train, dtype="bfloat16"), CPU)
    assert advice in str(raised.value)


def test_a_run_is_allowed_if_it_just_fits_or_if_the_free_memory_is_unknown(monkeypatch):
    needed = peak_memory(ARGS, TrainArgs(), torch.float32)
    for available in (needed, None):
        monkeypatch.setattr(estimate, "free_memory", lambda device, free=available: free)
        check_training_memory(ARGS, TrainArgs(dtype="float32"), CPU)
    monkeypatch.setattr(estimate, "free_memory", lambda device: needed - 1)
    with pytest.raises(ValueError, match="this run needs"):
        check_training_memory(ARGS, TrainArgs(dtype="float32"), CPU)


def test_sizes_are_human_readable():
    assert [readable_size(n) for n in (4_784_000, 999_000_000, 1_234_000_000, 10**13)] == [
        "5 MB", "999 MB", "1.2 GB", "10,000.0 GB",
    ]  # fmt: skip


def test_on_a_gpu_the_free_memory_counts_and_not_the_total(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3_000, 9_000))
    assert estimate.free_memory(torch.device("cuda")) == 3_000


def test_the_run_directory_needs_space_for_two_states_and_the_best_model():
    parameters, hidden = count_parameters(ARGS)
    assert disk_needed(ARGS, TrainArgs(optimizer="adamw")) == 2 * (4 + 8) * parameters + 4 * parameters
    saved = 2 * 4 * hidden  # for each hidden parameter, Muon stores one number and AdamW two
    assert disk_needed(ARGS, TrainArgs(optimizer="muon")) == disk_needed(ARGS, TrainArgs(optimizer="adamw")) - saved
