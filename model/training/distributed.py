"""Several processes as one: started by torchrun, each computes its slice of every batch.

DDP keeps a whole copy in each process and averages gradients. FSDP2 (``fully_shard``) keeps a slice of every
parameter, gradient and optimizer state, and gathers a block's weights just before it runs.

FSDP is imported by the functions that shard, and recognized by its methods elsewhere: importing it takes 0.75 s of
processor time on top of 1.6 s for torch (sympy and torch.fx come along), which every script, test and mistyped flag
would pay for what one run in a hundred uses.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from ..transformer import Transformer


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is. ``local_rank`` counts those of this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def highest(self, values: list[float], device: torch.device) -> list[float]:
        """Each value's maximum over the processes: how they agree on the clock and on stopping."""
        return self._reduce(values, device, dist.ReduceOp.MAX)

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        return self._reduce(values, device, dist.ReduceOp.SUM)

    def _reduce(self, values: list[float], device: torch.device, op: dist.ReduceOp.RedOpType) -> list[float]:
        if self.world_size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        dist.all_reduce(tensor, op)
        return tensor.tolist()

    def broadcast(self, text: str) -> str:
        """The first process's text, in all of them, which wait for it."""
        texts = [text]
        if self.world_size > 1:
            dist.broadcast_object_list(texts)
        return texts[0]


def torchrun_ranks(environment: Mapping[str, str]) -> Ranks:
    """What torchrun tells each process it starts; one process where it did not. Raises ValueError for nonsense."""
    numbers = {}
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        text = environment.get(name, default)
        numbers[name] = int(text) if re.fullmatch(r"\d{1,6}", text) else -1
        least = 1 if name == "WORLD_SIZE" else 0
        if numbers[name] < least:
            raise ValueError(f"{name} is {text!r} in the environment: start with torchrun, or unset it")
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise ValueError(f"RANK is {numbers['RANK']} of WORLD_SIZE {numbers['WORLD_SIZE']}: start with torchrun")
    return Ranks(numbers["RANK"], numbers["WORLD_SIZE"], numbers["LOCAL_RANK"])


def own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """Under torchrun each process of a machine has a GPU of its own."""
    if device.type == "cuda" and device.index is None and ranks.world_size > 1:
        return torch.device("cuda", ranks.local_rank)
    return device


@contextmanager
def process_group(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """The group in which the processes talk to each other; none for one process alone."""
    if ranks.world_size == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # The others wait while the first process tokenizes, which takes as long as the text is.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=3))
    try:
        yield
    finally:
        dist.destroy_process_group()


def parallelize(model: Transformer, ranks: Ranks, fsdp: bool) -> nn.Module:
    """What the loop calls in place of ``model``; parameters keep their names, and in DDP their identity."""
    if ranks.world_size == 1:
        return model
    if fsdp:
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(model.tok_embeddings.weight.device.type, (ranks.world_size,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        # By default the root stays whole until a backward pass, which a validation never has.
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        return model
    return nn.parallel.DistributedDataParallel(model)


def gather(tensor: Tensor) -> Tensor:
    """The whole of a tensor, sharded or not. Every process must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(tensor: Tensor, example: Tensor) -> Tensor:
    """``tensor``, which every process has whole, on the device of ``example`` and cut as it is."""
    tensor = tensor.to(example.device)
    if hasattr(example, "device_mesh") and hasattr(example, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, example.device_mesh, example.placements, src_data_rank=None)
    return tensor


def sync_gradients(network: nn.Module, on: bool) -> None:
    """Whether the next backward pass averages gradients; between micro-batches that would be wasted."""
    if isinstance(network, nn.parallel.DistributedDataParallel):
        network.require_backward_grad_sync = on
    elif (set_sync := getattr(network, "set_requires_gradient_sync", None)) is not None:  # FSDP's
        set_sync(on)


def whole(model: Transformer, network_class: type[Transformer]) -> Transformer:
    """``model``, or a copy with whole parameters if they are sharded. Every process must call it.

    ``network_class`` is what ``model`` was before it was sharded.
    """
    weights: dict[str, Any] = dict(model.named_parameters())
    if not any(hasattr(p, "full_tensor") for p in weights.values()):
        return model
    with torch.device("meta"):
        copy = network_class(model.args)
    copy.load_state_dict({name: gather(p).detach() for name, p in weights.items()}, assign=True)
    return copy
