"""The latest state of a run: weights, optimizer state and progress in one file.

PyTorch's ``torch.distributed.checkpoint.state_dict`` names and gathers the tensors, in the same way for one process,
DDP and FSDP, so a state can be loaded by any number of processes. It is imported in the functions, because the import
takes more than a second of processor time, and many programs import this file without using a state.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..ranges import raise_problems, range_problems
from ..transformer import Transformer
from ..weights.tensors import load_tensors, read_metadata, save_tensors

STATE = "training_state.safetensors"
Optimizers = list[torch.optim.Optimizer]


@dataclass
class Progress:
    """The state of a run besides weights and optimizer.

    It needs no generator state, because batches depend only on seed and step, and dropout on these and the rank.
    """

    text: str  # the fingerprint of the text, because a run cannot be resumed with another one
    step: int = 0
    tokens: int = 0
    train_seconds: float = 0.0  # training steps only
    wall_seconds: float = 0.0  # including validation, samples and checkpoints
    val_loss: float | None = None
    best_val_loss: float | None = None
    best_step: int = 0


def full_state(model: Transformer, optimizers: Optimizers) -> dict[str, Tensor]:
    """Unsharded weights and optimizer state by name, in main memory; empty in all processes but the first.

    Every process must call it, after at least one step, which makes the optimizers' state.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return flat_names(*get_state_dict(model, optimizers, options=options))


def flat_names(weights: Mapping[str, Any], optimizer: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by their names in the file: ``model.norm.weight``, ``optimizer.exp_avg.norm.weight``."""
    tensors = {f"model.{name}": weight for name, weight in weights.items()}
    for name, state in optimizer.get("state", {}).items():
        tensors |= {f"optimizer.{key}.{name}": value for key, value in state.items()}
    return tensors


def save_state(directory: Path, tensors: dict[str, Tensor], progress: Progress) -> None:
    """Save to a single file, so that weights, optimizer and step still match after a kill."""
    save_tensors(directory / STATE, tensors, {"progress": json.dumps(asdict(progress))})


def read_progress(directory: Path) -> Progress | None:
    """The saved progress, without reading a tensor; None before the first checkpoint.

    Raises ValueError if the file is damaged.
    """
    path = directory / STATE
    if not path.exists():
        return None
    try:
        progress = Progress(**json.loads(read_metadata(path)["progress"]))
        raise_problems(range_problems(progress))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged(path) from None
    return progress


def load_state(directory: Path, model: Transformer, optimizers: Optimizers) -> None:
    """Restore the state that ``full_state`` collected, bit for bit. The model may be sharded differently now.

    The hyperparameters of the optimizers stay as they are. Every tensor is copied, because the file is memory-mapped,
    and Windows cannot replace a mapped file. Raises ValueError if the file does not have exactly the tensors of this
    model and its optimizers.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    path = directory / STATE
    tensors = load_tensors(path)
    now: Any = get_state_dict(model, optimizers)  # also makes the state of optimizers that have not taken a step
    weights, optimizer = now
    expected = flat_names(weights, optimizer)
    if shapes(tensors) != shapes(expected):
        raise damaged(path)
    for name, state in optimizer.get("state", {}).items():
        optimizer["state"][name] = {key: tensors[f"optimizer.{key}.{name}"].clone() for key in state}
    set_state_dict(
        model,
        optimizers,
        model_state_dict={name: tensors[f"model.{name}"] for name in weights},
        optim_state_dict=optimizer,
        options=StateDictOptions(full_state_dict=True),
    )


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged or belongs to another model: restore the file, or start a new run")
