"""What a run is said to take is what it takes, and what cannot fit is refused before it is allocated."""

import dataclasses
from pathlib import Path

import pytest
import torch

from model import ModelArgs, Transformer
from model.training import estimate
from model.training.config import TrainArgs
from model.training.estimate import (
    build_seconds,
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
    """One optimizer step; returns the bytes that the forward pass kept for the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
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
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_without_building_the_network(tied):
    args = dataclasses.replace(ARGS, tie_embeddings=tied)
    model = Transformer(args)
    total, hidden = count_parameters(args)
    assert total == sum(p.numel() for p in model.parameters())
    assert hidden == sum(p.numel() for p in model.layers.parameters() if p.ndim == 2)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_is_what_a_step_allocates(optimizer, dtype):
    train = TrainArgs(batch_size=8, micro_batch_size=4, optimizer=optimizer)
    model = Transformer(ARGS)
    optimizers = build_optimizers(model, train, dtype)
    activations = step(model, optimizers, rows=4, autocast=dtype == torch.bfloat16)
    tensors = [tensor for p in model.parameters() for tensor in (p, p.grad)]
    tensors += [t for o in optimizers for state in o.state.values() for name, t in state.items() if name != "step"]
    state, expected = state_and_activation_bytes(ARGS, train, dtype)
    assert state == sum(tensor.nbytes for tensor in tensors)
    assert expected == pytest.approx(activations, rel=0.25)


def test_many_small_layers_take_more_memory_and_time_than_their_tensors(monkeypatch):
    """10,000 layers of 16 had 0.5 GB of weights and optimizer state, and took 3.3 GB, and 8 seconds to build."""
    deep, train = dataclasses.replace(ARGS, dim=16, n_layers=10_000), TrainArgs(batch_size=1, max_steps=1)
    assert sum(state_and_activation_bytes(deep, train, torch.float32)) > 2 * 10**9
    assert 5 < build_seconds(deep) < 60
    assert build_seconds(ARGS) < 1


@pytest.mark.parametrize(
    ("dim", "n_layers", "heads", "rows", "measured"),
    [(128, 3, 4, 3, 426), (256, 6, 8, 16, 1104), (512, 6, 8, 16, 1825)],
)
def test_the_highest_point_is_the_one_that_was_measured(dim, n_layers, heads, rows, measured):
    """MB of whole runs of train.py (docs/scaling.md)."""
    args = ModelArgs(dim=dim, n_layers=n_layers, n_heads=heads, vocab_size=1024, max_seq_len=256)
    most = estimate.PROCESS + peak_memory(args, TrainArgs(batch_size=rows), torch.bfloat16)
    assert most / 1e6 == pytest.approx(measured, rel=0.15)


def test_shards_divide_the_state_and_copies_do_not():
    alone, _ = state_and_activation_bytes(ARGS, TrainArgs(), torch.float32)
    sharded, _ = state_and_activation_bytes(ARGS, TrainArgs(fsdp=True), torch.float32, world_size=4)
    copied, _ = state_and_activation_bytes(ARGS, TrainArgs(fsdp=False), torch.float32, world_size=4)
    assert sharded == alone // 4
    assert copied == alone + 4 * count_parameters(ARGS).total, "DDP's buckets hold the gradients again"


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
def test_what_cannot_fit_is_one_line_with_what_to_lower(monkeypatch, model, train, advice):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 8 * 10**9)
    with pytest.raises(ValueError, match=r"^this run needs about [\d,.]+ GB of memory, 8\.0 GB are free") as refused:
        check_training_memory(dataclasses.replace(ARGS, **model), TrainArgs(**train, dtype="bfloat16"), CPU)
    assert advice in str(refused.value)


def test_what_fits_and_what_nobody_can_tell_is_the_users_choice(monkeypatch):
    needed = peak_memory(ARGS, TrainArgs(), torch.float32)
    for available in (needed, None):
        monkeypatch.setattr(estimate, "free_memory", lambda device, free=available: free)
        check_training_memory(ARGS, TrainArgs(dtype="float32"), CPU)
    monkeypatch.setattr(estimate, "free_memory", lambda device: needed - 1)
    with pytest.raises(ValueError, match="this run needs"):
        check_training_memory(ARGS, TrainArgs(dtype="float32"), CPU)


def test_a_size_reads_like_a_size():
    assert [readable_size(n) for n in (4_784_000, 999_000_000, 1_234_000_000, 10**13)] == [
        "5 MB", "999 MB", "1.2 GB", "10,000.0 GB",
    ]  # fmt: skip


def test_on_a_gpu_the_memory_that_is_free_counts_and_not_all_of_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3_000, 9_000))
    assert estimate.free_memory(torch.device("cuda")) == 3_000


def test_the_disk_takes_two_states_and_the_best_model():
    parameters, hidden = count_parameters(ARGS)
    assert disk_needed(ARGS, TrainArgs(optimizer="adamw")) == 2 * (4 + 8) * parameters + 4 * parameters
    saved = 2 * 4 * hidden  # Muon keeps one number for each of the hidden ones, AdamW two
    assert disk_needed(ARGS, TrainArgs(optimizer="muon")) == disk_needed(ARGS, TrainArgs(optimizer="adamw")) - saved
