"""The run directory: its lock, the latest training state, and metrics.jsonl."""

import itertools
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..cli.files import check_is_file, remove_unfinished, write_text
from ..transformer import Transformer
from ..weights.tensors import load_tensors, read_metadata, save_tensors
from ..weights.tokenizers import TEMPLATE
from .config import CONFIG_FILE
from .distributed import gather, shard_like

STATE = "training_state.safetensors"
METRICS = "metrics.jsonl"
MODEL_FILES = (STATE, "model.safetensors", "config.json")  # a directory with any of these holds a model
TOKENIZER_FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
RUN_FILES = (*MODEL_FILES, *TOKENIZER_FILES, TEMPLATE, "generation_config.json", CONFIG_FILE, METRICS, "loss.png")
STATE_KEYS = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")  # the first three are AdamW's, the last is Muon's
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
    val_loss: float | None = None
    best_val_loss: float | None = None
    best_step: int = 0


def check_free(directory: Path) -> None:
    """Raise ValueError if the directory holds a model, so that no run replaces another."""
    for name in MODEL_FILES:
        if (directory / name).exists():
            raise ValueError(f"{directory} holds {name}: give another --out_dir, or --resume to continue that run")


def numbered(base: Path) -> Iterator[Path]:
    """Yield ``base``, base-2, base-3 … endlessly."""
    yield base
    for number in itertools.count(2):
        yield base.with_name(f"{base.name}-{number}")


def make_first_free(base: Path) -> Path:
    """Make the first of the ``numbered`` directories that does not exist. Concurrent processes get different ones."""
    base.parent.mkdir(parents=True, exist_ok=True)
    directories = numbered(base)
    while True:
        directory = next(directories)
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        return directory


@contextmanager
def locked(directory: Path, more_files: Collection[str] = ()) -> Iterator[None]:
    """Lock the directory against a second trainer, and delete the unfinished files of a killed one.

    Only temporary files of RUN_FILES and ``more_files`` are deleted, because the directory may hold the user's files.
    The operating system releases the lock when the process ends, even if it is killed.
    """
    try:
        lock = FileLock(directory / ".lock").acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{directory} is in use by another trainer: give another --out_dir") from None
    with lock:
        remove_unfinished(directory, (*RUN_FILES, *more_files))
        yield


def optimizer_states(model: Transformer, optimizers: Optimizers) -> dict[str, dict[str, Any]]:
    """The optimizer state of each parameter, by its name, so that groups and their order do not matter."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: optimizer.state[p]
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }


def weights_of(model: Transformer) -> dict[str, Tensor]:
    """The parameters (tied ones once) and the persistent buffers, which only a ``--network`` class may have."""
    saved = model.state_dict()
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in saved}


def full_state(model: Transformer, optimizers: Optimizers, keep: bool = True) -> dict[str, Tensor]:
    """Unsharded weights and optimizer state by name, in main memory; empty if ``keep`` is False.

    Every process must call it. Only one tensor at a time is gathered on the device.
    """
    parts = {f"model.{name}": weight for name, weight in weights_of(model).items()}
    for name, state in optimizer_states(model, optimizers).items():
        parts |= {f"optimizer.{key}.{name}": value for key, value in state.items()}
    tensors = {}
    for name, part in parts.items():
        tensor = gather(part.detach())
        if keep:
            tensors[name] = tensor.cpu()
    return tensors


def save_state(directory: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Save to a single file, so that weights, optimizer and step still match after a kill."""
    save_tensors(directory / STATE, tensors, {"notes": json.dumps(notes)})


def load_state(directory: Path, model: Transformer, optimizers: Optimizers) -> None:
    """Restore the state that ``full_state`` collected, bit for bit. The model may be sharded differently now.

    Every tensor is copied, because the file is memory-mapped, and Windows cannot replace a mapped file. Raises
    ValueError for a tensor that this model and its optimizers do not have, or have in another shape.
    """
    tensors = load_tensors(directory / STATE)
    weights, states = weights_of(model), optimizer_states(model, optimizers)
    check_state(directory / STATE, tensors, weights, states)
    with torch.no_grad():
        for name, p in weights.items():
            p.copy_(shard_like(tensors.pop(f"model.{name}"), p))
    for name in list(tensors):
        _, key, parameter = name.split(".", 2)
        value, p = tensors.pop(name).clone(), weights[parameter]
        # AdamW's state ``step`` is a scalar, which is not sharded.
        states[parameter][key] = shard_like(value, p) if value.shape == p.shape else value.to(p.device)


def check_state(
    path: Path, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], states: Mapping[str, Any]
) -> None:
    """Raise ValueError at the first weight that is missing, or tensor that is unknown or of another shape or dtype."""
    for name in weights:
        if f"model.{name}" not in tensors:
            raise ValueError(f"{path} has no {name}: it belongs to another model; start a new run")
    for name, tensor in tensors.items():
        kind, _, parameter = name.partition(".")
        key = ""
        expected = kind == "model"
        if kind == "optimizer":
            key, _, parameter = parameter.partition(".")
            expected = parameter in states and key in STATE_KEYS
        if not (expected and parameter in weights):
            raise ValueError(f"{path} holds {name}, which this model and optimizer do not have: start a new run")
        dtype = weights[parameter].dtype
        shape = () if key == "step" else tuple(weights[parameter].shape)
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(
                f"{path}: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, not {dtype} of {shape}: "
                "the file is damaged or belongs to another model; start a new run"
            )


def read_progress_and_identity(directory: Path) -> tuple[Progress, dict[str, Any]] | None:
    """Progress and identity in the saved state, without reading a tensor; None before the first checkpoint.

    Raises ValueError if the metadata does not have them.
    """
    path = directory / STATE
    if not path.exists():
        return None
    text = read_metadata(path).get("notes")
    if text is None:
        raise ValueError(f"{path} was not written by this trainer: give another --out_dir")
    try:
        notes = json.loads(text)
        progress, identity = notes["progress"], notes["identity"]
        types = get_type_hints(Progress)
        valid = isinstance(identity, dict) and progress.keys() == types.keys()
        valid = valid and all(_fits_type(progress[name], kind) for name, kind in types.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise ValueError(f"{path} has damaged metadata: restore the file, or start a new run")
    return Progress(**progress), identity


def _fits_type(value: Any, kind: Any) -> bool:
    if value is None:
        return isinstance(None, kind)
    if isinstance(value, bool):
        return False
    return isinstance(value, kind) and 0 <= value < 2**63


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, except an unfinished last one. Raises ValueError if the file is damaged."""
    check_is_file(path)
    try:
        lines = [{"step": 0} | json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        values = [value for line in lines for value in line.values()]
        valid = all(isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63) for value in values)
    except (ValueError, TypeError, RecursionError):
        valid = False
    if not valid:
        raise ValueError(f"{path} is damaged: restore or remove it")
    return lines


class Metrics:
    """``metrics.jsonl``: one line per step with the measured values.

    A run that resumes after ``last_step`` drops the lines of later steps, because it takes these steps again.
    """

    def __init__(self, path: Path, last_step: int | None = None) -> None:
        self.path = path
        kept = []
        if last_step is not None and path.exists():
            kept = [line for line in read_metrics(path) if line["step"] <= last_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, step: int, measured: Mapping[str, float]) -> None:
        line = {"step": step} | {name: float(f"{value:.7g}") for name, value in measured.items()}
        with self.path.open("r+b") as file:  # fails, instead of making a new file, if the run was removed
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(line).encode() + b"\n")

    def sync(self) -> None:
        """Sync to disk. Called before a state is saved, so that even a power cut cannot lose the lines before it."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())
