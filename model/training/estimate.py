"""What a run will take, computed before anything is allocated: parameters, memory."""

import dataclasses
import math

import torch

from ..cli import quantity
from ..cli.machine import available_memory, pick_dtype
from ..config import ModelArgs
from ..weights.layout import tensor_shapes
from .config import TrainArgs

OBJECTS = 170_000  # bytes a layer beside its tensors: modules, the optimizer's tables, autograd's nodes; as measured
PROCESS = 230_000_000  # Python with PyTorch 2.13 on a CPU, before anything is computed
LIBRARIES = 170_000_000  # what training loads on top, and what choosing a model and drawing its losses take
USUAL_VOCABULARY = 32768  # pieces: the most that are learnt unless more are asked for
MOMENTARY = {torch.float32: 1.25, torch.bfloat16: 1.45}  # the highest point of a backward pass, in activations


def count_parameters(args: ModelArgs) -> tuple[int, int]:
    """All parameters, and those of them in the layers' matrices, without building the network."""
    total = layer = norms = 0
    for name, shape in tensor_shapes(dataclasses.replace(args, n_layers=1)).items():
        count = math.prod(shape)
        total += count
        if name.startswith("layers."):
            layer += count
            if "norm" in name:
                norms += count
    return total + (args.n_layers - 1) * layer, args.n_layers * (layer - norms)


def state_and_activation_bytes(
    model: ModelArgs, train: TrainArgs, dtype: torch.dtype, world_size: int = 1
) -> tuple[int, int]:
    """Bytes of one process for weights, gradients and optimizer state, and for the activations of one micro-batch.

    Weights and gradients have 4 bytes a parameter, AdamW's state 8, Muon's 4. The activations are those that the
    backward pass needs, measured for ``hidden_dim`` of 8/3 ``dim`` (docs/scaling.md), and what Python and autograd
    keep for each layer; the batch itself is int64.
    """
    parameters, hidden = count_parameters(model)
    state = 16 * parameters
    if train.optimizer == "muon":
        state -= 4 * hidden
    if world_size > 1:
        state = state // world_size if train.fsdp else state + 4 * parameters  # DDP's buckets hold the gradients again
    rows = train.batch_size // world_size
    tokens = min(train.micro_batch_size or rows, rows) * model.max_seq_len
    by_dim, by_hidden = (41, 16) if dtype == torch.float32 else (46, 8)
    activations = tokens * (model.n_layers * (by_dim * model.dim + by_hidden * model.hidden_dim) + 6 * model.vocab_size)
    return state, activations + OBJECTS * model.n_layers + 24 * rows * (model.max_seq_len + 1)


def build_seconds(args: ModelArgs) -> float:
    """About how long it takes to build the network: a millisecond a layer, and every weight drawn twice."""
    return args.n_layers / 1000 + count_parameters(args)[0] / 1e8


def peak_memory(model: ModelArgs, train: TrainArgs, dtype: torch.dtype, world_size: int = 1) -> int:
    """Bytes that training adds to a process at its highest, within 15% of what was measured (docs/scaling.md).

    Beside state and activations: what the backward pass needs for a moment, Muon's copies of all matrices of one
    shape, and the libraries that the first step loads.
    """
    state, activations = state_and_activation_bytes(model, train, dtype, world_size)
    stacked = 2 * model.n_layers * model.dim * model.hidden_dim if train.optimizer == "muon" else 0  # w1 and w3
    return LIBRARIES + state + round(MOMENTARY[dtype] * activations) + (4 + 4 * dtype.itemsize) * stacked


def disk_needed(model: ModelArgs, train: TrainArgs) -> int:
    """Bytes of a run directory: the latest state, one more of it while it is replaced, and the best model."""
    parameters, hidden = count_parameters(model)
    state = 12 * parameters
    if train.optimizer == "muon":
        state -= 4 * hidden
    return 2 * state + 4 * parameters


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be had on this device; None where nothing tells."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def fits_memory(model: ModelArgs, train: TrainArgs, device: torch.device, world_size: int = 1) -> bool:
    """Whether the memory is enough, as far as anything tells how much there is."""
    available = free_memory(device)
    return available is None or peak_memory(model, train, pick_dtype(train.dtype, device), world_size) <= available


def check_training_memory(model: ModelArgs, train: TrainArgs, device: torch.device, world_size: int = 1) -> None:
    """Raises ValueError when the run needs more memory than there is, with what to lower."""
    if fits_memory(model, train, device, world_size):
        return
    dtype = pick_dtype(train.dtype, device)
    available = free_memory(device)
    needed = peak_memory(model, train, dtype, world_size)
    state, _ = state_and_activation_bytes(model, train, dtype, world_size)
    smaller = dataclasses.replace(model, vocab_size=USUAL_VOCABULARY)
    is_vocabulary = model.vocab_size > USUAL_VOCABULARY and not train.init_from
    if is_vocabulary and fits_memory(smaller, train, device, world_size):
        what = f"a vocabulary of {model.vocab_size:,} pieces is too large"
        advice = f"lower vocab_size ({model.vocab_size}), or leave it out: it is then chosen to fit the text"
    elif available is None or state > available:
        what = f"{count_parameters(model)[0]:,} parameters with gradients and optimizer state are too many"
        advice = f"lower dim ({model.dim}), n_layers ({model.n_layers}) or vocab_size ({model.vocab_size})"
    else:
        rows = train.micro_batch_size or train.batch_size // world_size
        what = f"there is no room for {quantity(rows, 'sequence')} of {quantity(model.max_seq_len, 'token')} at once"
        advice = "lower micro_batch_size (by default all of batch_size), batch_size or max_seq_len"
    free = readable_size(available or 0)
    raise ValueError(
        f"this run needs about {readable_size(needed)} of memory, {free} are free on {device}; {what}: {advice}"
    )


def readable_size(size: int) -> str:
    """Human-readable: megabytes rounded up, or gigabytes."""
    return f"{math.ceil(size / 1e6):,} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"
