"""The directory a run lives in: who may write there, and its latest state."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..transformer import Transformer
from ..weights.tensors import load_tensors, read_metadata, save_tensors
from .distributed import gather, shard_like

STATE = "training_state.safetensors"
Optimizers = list[torch.optim.Optimizer]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a second trainer out. The lock is the system's: it goes with the process, however that ends."""
    try:
        lock = FileLock(directory / ".lock").acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{directory}: another trainer is at work there; give another --out_dir") from None
    with lock:
        for unfinished in directory.glob(".*.tmp"):  # what a kill left half-written
            unfinished.unlink()
        yield


def named_states(model: Transformer, optimizers: Optimizers) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each parameter's optimizer state, under the parameter's name: no grouping or order to go wrong."""
    names = {id(p): name for name, p in model.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                yield names[id(p)], optimizer.state[p]


def full_state(model: Transformer, optimizers: Optimizers, keep: bool = True) -> dict[str, Tensor]:
    """Weights and optimizer state by name, whole, in main memory; empty where they are not to be kept.

    Every process must call it. One tensor at a time is whole on the device.
    """
    parts = {f"model.{name}": p for name, p in model.named_parameters()}
    for name, state in named_states(model, optimizers):
        parts |= {f"optimizer.{key}.{name}": value for key, value in state.items()}
    tensors = {}
    for name, part in parts.items():
        tensor = gather(part.detach())
        if keep:
            tensors[name] = tensor.cpu()
    return tensors


def save_state(directory: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """One file, so that weights, optimizer and step cannot disagree after a kill."""
    save_tensors(directory / STATE, tensors, {"notes": json.dumps(notes)})


def load_state(directory: Path, model: Transformer, optimizers: Optimizers) -> None:
    """Put back what ``full_state`` took, bit for bit, however the model is sharded now."""
    tensors = load_tensors(directory / STATE)
    weights = dict(model.named_parameters())
    missing = [name for name in weights if f"model.{name}" not in tensors]
    if missing:
        raise ValueError(f"{directory / STATE} has no {missing[0]}: it is of another model; start a new run")
    with torch.no_grad():
        for name, p in weights.items():
            p.copy_(shard_like(tensors.pop(f"model.{name}"), p))
    states = dict(named_states(model, optimizers))
    for name, value in tensors.items():
        _, key, parameter = name.split(".", 2)
        p = weights[parameter]
        states[parameter][key] = shard_like(value, p) if value.shape == p.shape else value.to(p.device)


def read_notes(directory: Path) -> dict[str, Any] | None:
    """``progress`` and ``identity`` of the saved state, without reading a tensor; None before the first checkpoint."""
    path = directory / STATE
    if not path.exists():
        return None
    notes = read_metadata(path).get("notes")
    if notes is None:
        raise ValueError(f"{path} was not written by this trainer: give another --out_dir")
    return json.loads(notes)
