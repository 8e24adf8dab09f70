"""Training in several processes, started by torchrun. Each process computes its slice of every batch.

DDP keeps a full copy of the model in each process and averages the gradients. FSDP2 (``fully_shard``) shards every
parameter, gradient and optimizer state over the processes, and gathers the weights of a block just before it runs.

A model that is sharded is whole in the first process only, on the CPU: when it begins, and when it is saved. The other
processes build it on the meta device, and get their rows from the first one.

FSDP is imported only in the functions that shard; elsewhere a sharded tensor is recognized by its attributes. The
import takes 0.75 s of processor time on top of 1.6 s for torch, because it imports sympy and torch.fx, and few runs
need it.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from ..cli.machine import pick_device, pick_dtype
from ..fast.loss import NextTokenLoss
from ..transformer import Transformer
from ..weights.variants import make_network
from .config import TrainArgs

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and the number of processes.

    ``local_rank`` is the rank among the ``local_world_size`` processes of this machine. ``slow_group`` is a process
    group that waits for hours, None for the one of training.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    slow_group: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, *values: float) -> list[list[float]]:
        """For each value a list of those of all processes, by rank. Every process must call it."""
        table = torch.zeros(len(values), self.world_size, dtype=torch.float64, device="cpu")  # for gloo
        for row, value in zip(table, values):
            row[self.rank] = value
        if self.world_size > 1:
            dist.all_reduce(table)
        return table.tolist()

    def on_first_process(self, work: Callable[[], T]) -> T:
        """Let the first process do the work, and give its result to all, which wait for it, for hours if need be.

        If the work fails, the first process raises its error, and the others exit without a word.
        """
        if self.world_size == 1:
            return work()
        answer: list[tuple[T] | None] = [None]
        try:
            if self.is_first:
                answer = [(work(),)]
        finally:
            dist.broadcast_object_list(answer, group=self.slow_group)
        if answer[0] is None:
            sys.exit(2)
        return answer[0][0]


@dataclass(frozen=True)
class Machine:
    """What this process trains on, and with how many others, decided once."""

    device: torch.device
    dtype: torch.dtype = torch.float32  # of matrix products
    processes: int = 1  # of the run
    local_processes: int = 1  # of the run on this machine
    memory: int | None = None  # bytes that are free on the device; None if they are to be asked for when needed


def local_device(name: str, ranks: Ranks) -> torch.device:
    """The device called ``name`` for this process: under torchrun, each process of a machine uses a different GPU.

    Raises ValueError if there is no such device, or if the machine has fewer GPUs than processes.
    """
    device = pick_device(name)
    if device.type == "mps" and ranks.world_size > 1:
        raise ValueError("device is mps, which several processes cannot use: start one process, or give --device cpu")
    if device.type == "cuda" and device.index is None and ranks.world_size > 1:
        return pick_device(f"cuda:{ranks.local_rank}")
    return device


def product_dtype(train: TrainArgs, device: torch.device) -> torch.dtype:
    """The dtype of matrix products on ``device``; with ``fsdp`` never float16."""
    dtype = pick_dtype(train.dtype, device)
    return torch.float32 if train.fsdp and dtype == torch.float16 else dtype


@contextmanager
def processes() -> Iterator[Ranks]:
    """Join the processes that torchrun started; without torchrun there is one.

    The body must be a call of a function, so that DDP is freed when it returns. If DDP is the last to free the process
    group, it holds the GIL while it waits for threads of gloo, which may wait for the GIL.
    """
    defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    try:
        ranks = Ranks(*(int(os.environ.get(name) or default) for name, default in defaults.items()))
        if ranks.world_size > 1:
            # gloo also on machines with GPUs, for settings, and for --device cpu. On Windows it also serves GPUs,
            # because NCCL is not available there. Training has PyTorch's own timeout, so that a lost machine ends the
            # run. But the first process may tokenize for hours, and the others wait for it in a group of their own.
            has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
            dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
    except ValueError as error:  # PyTorch's own names the first variable that is missing
        raise ValueError(
            f"WORLD_SIZE is set, but not as torchrun sets it ({error}): unset it, or start several processes with "
            "torchrun"
        ) from None
    if ranks.world_size <= 1:
        yield Ranks()
        return
    try:
        yield replace(ranks, slow_group=dist.new_group(backend="gloo", timeout=timedelta(hours=12)))
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # which would keep DDP
        raise
    finally:
        dist.destroy_process_group()


def parallelize(
    loss: NextTokenLoss, ranks: Ranks, device: torch.device, dtype: torch.dtype, *, fsdp: bool
) -> nn.Module:
    """Wrap the loss of a network in DDP, or shard it with FSDP; unchanged for one process.

    With DDP all processes have the same weights before. With FSDP they are on the CPU, or without values on the meta
    device, and each process keeps its rows of them on ``device``. The names of the parameters do not change. ``dtype``
    is that of the matrix products with FSDP.
    """
    if ranks.world_size == 1:
        return loss
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the one that NCCL uses
    if not fsdp:
        return nn.parallel.DistributedDataParallel(loss, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (ranks.world_size,))
    # With autocast, the whole matrices of all layers would be kept in bfloat16 until the backward pass.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in loss.network.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    # By default the weights of the root stay gathered until a backward pass, and a validation has none.
    fully_shard(loss, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    if next(loss.parameters()).is_meta:
        loss.to_empty(device=device)
    return loss


def whole_model(model: Transformer, ranks: Ranks) -> Transformer | None:
    """The model in the first process, None in the others; of a sharded model, a whole copy on the CPU.

    Every process must call it.
    """
    if not any(map(is_sharded, model.parameters())):
        return model if ranks.is_first else None
    tensors = gather_tensors(model.state_dict(), ranks)
    if not ranks.is_first:
        return None
    copy = make_network(type(model), model.args)
    copy.load_state_dict(tensors, assign=True)
    return copy


def gather_tensors(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The whole tensors on the CPU of the first process; none in the others, which have one at a time.

    Every process must call it.
    """
    gathered = {}
    for name, tensor in tensors.items():
        whole = unsharded(tensor)
        if ranks.is_first:
            gathered[name] = whole.cpu()
    return gathered


@torch.no_grad()
def scatter_tensors(tensors: Mapping[str, Any], whole: Mapping[str, Tensor]) -> None:
    """Copy whole tensors to ``tensors``. Of those that are sharded, each process gets its rows from the first process.

    Every process must call it. Except in the first process, only the shapes of the whole of sharded tensors are read.
    """
    for name, tensor in tensors.items():
        source = whole[name]
        if is_sharded(tensor):
            from torch.distributed.tensor import distribute_tensor

            if dist.get_rank() != 0:
                source = torch.empty_like(source, device=tensor.device)
            source = distribute_tensor(source, tensor.device_mesh, tensor.placements)
        tensor.copy_(source)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def unsharded(tensor: Any) -> Tensor:
    """The whole of ``tensor``, which may be sharded. Every process must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def set_gradient_sync(network: nn.Module, on: bool) -> None:
    """Set whether the next backward pass averages gradients with DDP; only the last micro-batch needs it.

    FSDP always does, because it would have to keep the gradients of whole matrices until then.
    """
    if isinstance(network, nn.parallel.DistributedDataParallel):
        network.require_backward_grad_sync = on
