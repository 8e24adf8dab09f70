"""Training in several processes, started by torchrun. Each process computes its slice of every batch.

DDP keeps a full copy of the model in each process and averages the gradients. FSDP2 (``fully_shard``) shards every
parameter, gradient and optimizer state over the processes, and gathers the weights of a block just before it runs.

A model that is sharded is never built whole in one process: it is built on the meta device, sharded, and filled row by
row (``fill_shards``).

FSDP is imported only in the functions that shard; elsewhere a sharded tensor is recognized by its attributes. The
import takes 0.75 s of processor time on top of 1.6 s for torch, because it imports sympy and torch.fx, and few runs
need it.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.overrides import TorchFunctionMode

from ..cli.machine import pick_device
from ..config import ModelArgs
from ..fast.loss import NextTokenLoss
from ..transformer import Transformer
from ..weights.variants import make_network

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and the number of processes.

    ``local_rank`` is the rank among the ``local_world_size`` processes of this machine. ``patient`` is a process group
    that waits for hours, None for the one of training.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    patient: Any = None

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

    def first(self, work: Callable[[], T]) -> T:
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
            dist.broadcast_object_list(answer, group=self.patient)
        if answer[0] is None:
            sys.exit(2)
        return answer[0][0]


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
        yield replace(ranks, patient=dist.new_group(backend="gloo", timeout=timedelta(hours=12)))
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # which would keep DDP
        raise
    finally:
        dist.destroy_process_group()


def parallelize(
    loss: NextTokenLoss, ranks: Ranks, device: torch.device, dtype: torch.dtype, *, fsdp: bool
) -> nn.Module:
    """Wrap the loss of a network in DDP, or shard it with FSDP; unchanged for one process.

    All processes have the same weights before; with FSDP they are on the CPU or the meta device, and each process keeps
    its rows of them on ``device``. The names of the parameters do not change. ``dtype`` is that of the matrix products
    with FSDP.
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
    return loss


def fill_shards(
    loss: nn.Module, model: Transformer, device: torch.device, weights: Iterable[tuple[str, Tensor]]
) -> None:
    """Allocate the shards of a model on the meta device, and copy to each process its rows of the weights."""
    loss.to_empty(device=device)
    shards = model.state_dict()
    for name, whole in weights:
        copy_whole(shards[name], whole)


class InitialWeights(TorchFunctionMode):
    """While a network is built on the meta device: how each of its parameters was initialized last.

    Random numbers are drawn as on the CPU, one parameter at a time, and thrown away, so that the generator is in the
    same state before each parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.initializations: dict[Tensor, tuple[Tensor, Callable[[Tensor], object]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) != nn.init.__name__:
            return func(*args, **kwargs)
        tensor, *args = args or [kwargs.pop("tensor")]
        state = torch.get_rng_state()
        self.initializations[tensor] = state, lambda whole: func(whole, *args, **kwargs)
        func(torch.empty(tensor.shape, device="cpu"), *args, **kwargs)
        return tensor


def random_weights(args: ModelArgs, seed: int) -> Iterator[tuple[str, Tensor]]:
    """The weights of ``Transformer(args)`` after ``torch.manual_seed(seed)``, one at a time."""
    torch.manual_seed(seed)
    with torch.device("meta"), InitialWeights() as initial:
        model = Transformer(args)
    for name, parameter in model.named_parameters():
        state, initialize = initial.initializations[parameter]
        torch.set_rng_state(state)
        whole = torch.empty(parameter.shape, device="cpu")
        initialize(whole)
        yield name, whole


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
def copy_whole(target: Any, whole: Tensor) -> None:
    """Copy ``whole`` to ``target``, or if that is sharded, to each process its rows."""
    if is_sharded(target):
        from torch.distributed.tensor import distribute_tensor

        whole = distribute_tensor(
            whole.to(target.device),
            target.device_mesh,
            target.placements,
            src_data_rank=None,  # each process has the whole
        )
    target.copy_(whole)


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
