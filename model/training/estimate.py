"""Parameters and memory of a run, computed before anything is allocated."""

import dataclasses
import math
from typing import NamedTuple

import torch

from ..cli.machine import check_memory, readable_size
from ..config import ModelArgs
from ..fast.loss import chunk_rows
from ..weights.layout import tensor_shapes
from .config import TrainArgs
from .distributed import Machine

# Bytes of Python with PyTorch 2.13 on a CPU, and of the libraries that the first step and the loss plot import
PROCESS = 400_000_000
# Peak of a backward pass, as a multiple of the activations
BACKWARD_PEAK = {torch.float32: 1.25, torch.bfloat16: 1.45, torch.float16: 1.45}


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
    activations: int  # of one micro-batch, kept for the backward pass, with copies of the matrices
    peak: int  # at most, of the whole process


def training_memory(model: ModelArgs, train: TrainArgs, machine: Machine) -> Memory:
    """Estimate the memory of training.

    The peak is within 15% of measurements; for one wide layer with a large vocabulary it is up to a quarter too high.
    Weights and gradients take 4 bytes per parameter each, AdamW's state 8, Muon's 4. The size of the activations was
    measured for ``hidden_dim`` of 8/3 ``dim``, that of the logits with vocabularies of 4,096 to 151,936 tokens, and
    what FSDP gathers in two processes, all on a CPU (benchmarks/README.md). A card's activations were not measured but
    counted. The peak includes temporary tensors of the backward pass, Muon's copies of all matrices of one shape, and
    the libraries that are imported later.
    """
    parameters, hidden = count_parameters(model)
    dtype, device, processes = machine.dtype, machine.device.type, machine.processes
    state = 16 * parameters
    stacked = 0
    if train.optimizer == "muon":
        state -= 4 * hidden
        stacked = 2 * model.n_layers * model.dim * model.hidden_dim  # w1 and w3
    if train.fsdp:
        state //= processes
    tokens = train.micro_batch_rows(model.max_seq_len, device, processes) * model.max_seq_len
    # Bytes per token and layer, for each unit of dim and of hidden_dim; and per logit
    per_dim, per_hidden_dim, per_logit = (41, 16, 8) if dtype == torch.float32 else (40, 8, 10)
    copies = 0
    if device == "cuda":  # its norms and its attention are single kernels, which keep their inputs and results only
        # Attention keeps its values, and with them the queries and keys that were computed in one product with them.
        per_dim = 40 if dtype == torch.float32 else 24
        if not train.fsdp:  # a copy of each matrix, by autocast or because it is concatenated with others
            copies = dtype.itemsize * hidden
    activations = tokens * model.n_layers * (per_dim * model.dim + per_hidden_dim * model.hidden_dim)
    # The logits and their gradients, and the gradient of the output matrix, when the backward pass begins
    logits = per_logit * min(tokens, chunk_rows(model.vocab_size, device)) * model.vocab_size
    logits += (4 + dtype.itemsize) * model.vocab_size * model.dim
    backward = copies + round(BACKWARD_PEAK[dtype] * activations)
    if train.fsdp and processes > 1:
        # What is gathered: the vocabulary matrices and a few layers, their gradients, and buffers to add these up
        outside, layer = parameters - hidden, hidden // model.n_layers
        backward += 10 * outside + min(4, model.n_layers) * layer * (4 if dtype == torch.float32 else 9)
        logits += dtype.itemsize * outside
    backward = max(backward, copies + activations + logits)
    return Memory(state, activations + copies, PROCESS + state + backward + (4 + 4 * dtype.itemsize) * stacked)


def check_training_memory(model: ModelArgs, train: TrainArgs, machine: Machine) -> None:
    """Raise ValueError if the run needs more memory than is free. The message says what to lower."""
    memory = training_memory(model, train, machine)
    rows = train.micro_batch_rows(model.max_seq_len, machine.device.type, machine.processes)
    processes = machine.local_processes if machine.device.type == "cpu" else 1  # on a GPU each has one of its own
    advice = (
        f"{readable_size(memory.state)} for {count_parameters(model).total:,} parameters with gradients and optimizer "
        "state (lower dim, n_layers or vocab_size), the rest mainly for "
        f"{rows:,} x {model.max_seq_len:,} tokens at once (lower micro_batch_size, batch_size or max_seq_len)"
    )
    check_memory(processes * memory.peak, "this run", advice, machine.device, machine.memory)
