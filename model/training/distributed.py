"""Training in several processes, started by torchrun. Each process computes its slice of every batch.

DDP keeps a full copy of the model in each process and averages the gradients. FSDP2 (``fully_shard``) shards every
parameter, gradient and optimizer state over the processes, and gathers the weights of a block just before it runs.

FSDP is imported only in the functions that shard; elsewhere a sharded tensor is recognized by its attributes. The
import takes 0.75 s of processor time on top of 1.6 s for torch, because it imports sympy and torch.fx, and few runs
need it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from ..cli.machine import pick_device
from ..transformer import Transformer

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and the number of processes.

    ``local_rank`` is the rank among the processes of this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, *values: float) -> list[list[float]]:
        """For each value a list of those of all processes, by rank. Every process must call it."""
        table = torch.zeros(len(values), self.world_size, dtype=torch.float64)  # on the CPU, for gloo
        table[:, self.rank] = torch.tensor(values, dtype=torch.float64)
        if self.world_size > 1:
            dist.all_reduce(table)
        return table.tolist()

    def first(self, work: Callable[[], T]) -> T:
        """Let the first process do the work, and give its result to all, which wait for it.

        If the work fails, the first process raises its error, and the others exit without a word.
        """
        if self.world_size == 1:
            return work()
        answer: list[tuple[T] | None] = [None]
        try:
            if self.is_first:
                answer = [(work(),)]
        finally:
            dist.broadcast_object_list(answer)
        if answer[0] is None:
            sys.exit(2)
        return answer[0][0]

    def in_turn(self, work: Callable[[], T]) -> T:
        """Let the first process do the work, and then the others; each gets its own result."""
        results: list[T] = []
        self.first(lambda: results.append(work()))
        return results[0] if self.is_first else work()


def local_device(name: str, ranks: Ranks) -> torch.device:
    """The device called ``name`` for this process: under torchrun, each process of a machine uses a different GPU.

    Raises ValueError if there is no such device, or if the machine has fewer GPUs than processes.
    """
    device = pick_device(name)
    if device.type == "cuda" and device.index is None and ranks.world_size > 1:
        return pick_device(f"cuda:{ranks.local_rank}")
    return device


@contextmanager
def processes() -> Iterator[Ranks]:
    """Join the processes that torchrun started; without torchrun there is one.

    The body must be a call of a function, so that DDP is freed when it returns. If DDP is the last to free the process
    group, it holds the GIL while it waits for threads of gloo, which may wait for the GIL.
    """
    rank, world_size, local_rank = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    ranks = Ranks(rank, world_size or 1, local_rank)
    if ranks.world_size == 1:
        yield ranks
        return
    # gloo also on machines with GPUs, for settings, and for --device cpu. On Windows it also serves GPUs, because NCCL
    # is not available there. The timeout is long, because the other processes wait while the first one tokenizes, which
    # may take hours.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(hours=12))
    try:
        yield ranks
    finally:
        dist.destroy_process_group()


def parallelize(model: Transformer, ranks: Ranks, fsdp: bool) -> nn.Module:
    """Wrap ``model`` in DDP, or shard it with FSDP; unchanged for one process.

    The names of the parameters of ``model`` do not change.
    """
    if ranks.world_size == 1:
        return model
    device = model.tok_embeddings.weight.device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the one that NCCL uses
    if fsdp:
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (ranks.world_size,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        # By default the weights of the root stay gathered until a backward pass, and a validation has none.
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        return model
    return nn.parallel.DistributedDataParallel(model)


def unsharded(tensor: Tensor) -> Tensor:
    """The whole of ``tensor``, which may be sharded. Every process must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(tensor: Tensor, example: Tensor) -> Tensor:
    """``tensor``, which is whole, sharded in the same way as ``example``."""
    if not hasattr(example, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, example.device_mesh, example.placements, src_data_rank=None)  # type: ignore


def set_gradient_sync(network: nn.Module, on: bool) -> None:
    """Set whether the next backward pass averages gradients; only the last micro-batch needs it."""
    if isinstance(network, nn.parallel.DistributedDataParallel):
        network.require_backward_grad_sync = on
    elif hasattr(network, "set_requires_gradient_sync"):  # FSDP
        network.set_requires_gradient_sync(on)  # type: ignore[operator]
