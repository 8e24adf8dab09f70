"""Parameters and memory of a run, computed before anything is allocated."""

import dataclasses
import math
from typing import NamedTuple

import torch

from ..cli.machine import check_memory, pick_dtype, readable_size
from ..config import ModelArgs
from ..transformer import Transformer
from ..weights import find_network
from ..weights.layout import tensor_shapes
from .config import TrainArgs
from .distributed import Ranks, local_device
from .loss import chunk_rows

# Bytes per layer besides its tensors, as measured: modules, optimizer tables, autograd nodes
LAYER_OBJECTS = 170_000
PROCESS = 230_000_000  # bytes of Python with PyTorch 2.13 on a CPU, before anything is computed
LIBRARIES = 170_000_000  # bytes of the libraries that the first step and the loss plot import
BACKWARD_PEAK = {torch.float32: 1.25, torch.bfloat16: 1.45}  # peak of a backward pass, as a multiple of the activations


class ParameterCount(NamedTuple):
    """``hidden`` parameters are those in the matrices of the layers."""

    total: int
    hidden: int


def count_parameters(args: ModelArgs) -> ParameterCount:
    """Count the parameters without building the network."""
    shapes = tensor_shapes(dataclasses.replace(args, n_layers=1))  # quick, even if n_layers is a billion
    layer = [shape for name, shape in shapes.items() if name.startswith("layers.")]
    total = sum(map(math.prod, shapes.values())) + (args.n_layers - 1) * sum(map(math.prod, layer))
    return ParameterCount(total, args.n_layers * sum(math.prod(shape) for shape in layer if len(shape) == 2))


class Memory(NamedTuple):
    """Bytes of one process."""

    state: int  # weights, gradients and optimizer state
    activations: int  # of one micro-batch, kept for the backward pass
    peak: int  # at most, of all that training adds to the process


def training_memory(
    model: ModelArgs, train: TrainArgs, dtype: torch.dtype, world_size: int = 1, device: str = "cpu"
) -> Memory:
    """Estimate the memory of training. The peak and PROCESS together are within 15% of measurements.

    Weights and gradients take 4 bytes per parameter each, AdamW's state 8, Muon's 4. The size of the activations was
    measured for ``hidden_dim`` of 8/3 ``dim`` (docs/scaling.md). They include the Python and autograd objects of each
    layer, and the int64 tokens of the batch. The peak includes temporary tensors of the backward pass, Muon's copies of
    all matrices of one shape, and the libraries that are imported later.
    """
    parameters, hidden = count_parameters(model)
    uses_muon = train.optimizer == "muon"
    state = 16 * parameters - (4 * hidden if uses_muon else 0)
    rows = train.batch_size // world_size
    micro_batch = train.micro_batch_rows(model.max_seq_len, device, world_size)
    copies = 0
    if world_size > 1 and train.fsdp:
        state //= world_size
    elif world_size > 1 and dtype == torch.bfloat16:
        copies = 2 * parameters  # by autocast, until the backward pass; DDP keeps the gradients meanwhile
    # Bytes per token and layer, for each unit of dim and of hidden_dim
    per_dim, per_hidden_dim = (41, 16) if dtype == torch.float32 else (46, 8)
    layers = model.n_layers * (per_dim * model.dim + per_hidden_dim * model.hidden_dim)
    tokens = micro_batch * model.max_seq_len
    activations = tokens * layers
    activations += LAYER_OBJECTS * model.n_layers + 24 * rows * (model.max_seq_len + 1)
    stacked = 2 * model.n_layers * model.dim * model.hidden_dim if uses_muon else 0  # w1 and w3
    backward = max(round(BACKWARD_PEAK[dtype] * activations), activations + logits_memory(model, train, dtype, tokens))
    peak = LIBRARIES + state + copies + backward + (4 + 4 * dtype.itemsize) * stacked
    return Memory(state, activations, peak)


def logits_memory(model: ModelArgs, train: TrainArgs, dtype: torch.dtype, tokens: int) -> int:
    """The logits and their gradients, and the gradient of the output matrix, when the backward pass begins.

    Measured with vocabularies of 4,096, 32,000 and 151,936 tokens (docs/scaling.md).
    """
    is_float32 = dtype == torch.float32
    if train.network and find_network(train.network).forward is not Transformer.forward:
        return (16 if is_float32 else 14) * tokens * model.vocab_size  # all at once (``NextTokenLoss``)
    matrix = (4 + dtype.itemsize) * model.vocab_size * model.dim
    return (8 if is_float32 else 10) * min(tokens, chunk_rows(model.vocab_size)) * model.vocab_size + matrix


def check_training_memory(model: ModelArgs, train: TrainArgs, ranks: Ranks) -> None:
    """Raise ValueError if the run needs more memory than is free. The message says what to lower."""
    device = local_device(train.device, ranks)
    memory = training_memory(model, train, pick_dtype(train.dtype, device), ranks.world_size, device.type)
    rows = train.micro_batch_rows(model.max_seq_len, device.type, ranks.world_size)
    processes = ranks.local_world_size if device.type == "cpu" else 1  # on a GPU each has one of its own
    advice = (
        f"{readable_size(memory.state)} for {count_parameters(model).total:,} parameters with gradients and optimizer "
        "state (lower dim, n_layers or vocab_size), the rest mainly for "
        f"{rows:,} x {model.max_seq_len:,} tokens at once (lower micro_batch_size, batch_size or max_seq_len)"
    )
    purpose = "this run" if processes == 1 else f"a run in {processes} processes"
    check_memory(processes * memory.peak, purpose, advice, device)
