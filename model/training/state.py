"""The latest state of a run: weights, optimizer state and progress in one safetensors file, to resume from.

A sharded model (--fsdp) is gathered by the first process, so the file does not depend on the number of processes.
torch.distributed.checkpoint would write a pickle. Its safetensors writer holds the whole file in memory once more, and
none of its writers replaces the previous state atomically.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..transformer import Transformer
from ..weights.tensors import load_tensors, read_metadata, save_tensors
from .distributed import Ranks, copy_whole, gather_tensors
from .optimizer import create_state

STATE = "training_state.safetensors"
Optimizers = list[torch.optim.Optimizer]


@dataclass
class Progress:
    """The state of a run besides weights and optimizer.

    It needs no generator state, because batches depend only on seed and step, and dropout on these and the rank.
    """

    step: int = 0
    tokens: int = 0
    train_seconds: float = 0.0  # training steps only
    wall_seconds: float = 0.0  # including validation, samples and checkpoints
    val_loss: float = math.inf  # before the first validation
    best_val_loss: float = math.inf
    best_step: int = 0


def state_tensors(model: Transformer, optimizers: Optimizers) -> dict[str, Tensor]:
    """The tensors by their names in the file: ``model.norm.weight``, ``optimizer.exp_avg.norm.weight``."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            tensors |= {f"optimizer.{key}.{names[parameter]}": value for key, value in state.items()}
    return tensors


def save_state(directory: Path, model: Transformer, optimizers: Optimizers, progress: Progress, ranks: Ranks) -> None:
    """Save the state, so that weights, optimizer and step still match after a kill. Every process must call it."""
    tensors = gather_tensors(state_tensors(model, optimizers), ranks)
    if ranks.is_first:
        save_tensors(directory / STATE, tensors, {"progress": json.dumps(asdict(progress))})


def read_progress(directory: Path) -> Progress | None:
    """The saved progress, without reading a tensor; None before the first checkpoint.

    Raises ValueError if the file is damaged.
    """
    path = directory / STATE
    if not path.exists():
        return None
    try:
        return Progress(**json.loads(read_metadata(path)["progress"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged(path) from None


def load_state(directory: Path, model: Transformer, optimizers: Optimizers) -> None:
    """Restore what ``save_state`` saved, bit for bit. The model may be sharded differently now.

    Every process reads the file. The hyperparameters of the optimizers stay as they are. Raises ValueError if the file
    does not have exactly the tensors of this model and its optimizers.
    """
    saved = load_tensors(directory / STATE)
    with_state = {name.split(".", 2)[-1] for name in saved if name.startswith("optimizer.")}
    create_state(optimizers, [parameter for name, parameter in model.named_parameters() if name in with_state])
    tensors = state_tensors(model, optimizers)
    if shapes(saved) != shapes(tensors):
        raise damaged(directory / STATE)
    for name, tensor in tensors.items():
        copy_whole(tensor, saved[name])


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged or belongs to another model: restore the file, or start a new run")
