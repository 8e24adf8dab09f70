"""The step on a CPU without a compiler: the network's own forward pass, with functions in place of its modules.

A token of a small network takes longer to start, operator by operator, than to compute, and a third of that time passes
between the operators: a module is looked up and called in 1 to 2 us, and a product is chosen in 5. So a copy of the
network has, under the name of each module, the function that the module computes, prepared for one token of each row.
The arithmetic is still the network's, and its logits are the same to the last bit.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import RMSNorm
from ..cache import KVCache
from ..cli import machine
from ..transformer import Transformer
from . import kernels

Rows = Callable[[Tensor], Tensor]  # (B, 1, in) -> (B, 1, out)


class DirectStep:
    """The step of a network that ``why_not`` has nothing against, for one text: it is prepared at the first token."""

    def __init__(self, network: Transformer) -> None:
        self.network = network
        self.prepared: Transformer | None = None

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start_pos: int, cache: KVCache, mask: Tensor | None) -> Tensor:
        """tokens (B, 1) -> (B, 1, V)."""
        if self.prepared is None:
            self.prepared = with_functions(self.network, packs_weights(self.network))
        return self.prepared.forward(tokens, start_pos, cache, mask)


def packs_weights(network: Transformer) -> bool:
    """Whether matrices are copied into the order in which oneDNN reads them fastest (``Packed``).

    This is for bfloat16 on x86 processors that multiply it, except those with AMX, and if as much memory as the copies
    take stays free beside them, for other programs and for a cache that grows.
    """
    cpu = machine.CPU
    if not (cpu.avx2 and cpu.bfloat16 and not cpu.amx and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return False
    size = sum(weight.nbytes for weight in network.parameters() if weight.ndim == 2 and weight.dtype == torch.bfloat16)
    free = machine.free_memory(machine.MAIN_MEMORY)
    return free is None or 2 * size <= free


def with_functions(module: Any, packs: bool) -> Any:
    """A copy of a module of this library that finds functions where it had modules."""
    new = copy.copy(module)
    for name, child in module._modules.items():
        vars(new)[name] = function_of(child, packs)  # attributes are looked up there first
    if vars(new).get("attend") is kernels.attend:
        new.attend = kernels.one_query  # which it takes for one query on a CPU
    return new


def function_of(module: nn.Module, packs: bool) -> Any:
    """What a module computes for one token of each row."""
    if isinstance(module, nn.ModuleList):
        return [function_of(child, packs) for child in module]
    if type(module) is kernels.FastRMSNorm:
        return Norm(module)
    if type(module) is kernels.FastLinear:
        return product(module.weight, module.bias, packs)
    if type(module) is kernels.FastTiedOutput and type(module.embedding[0]) is nn.Embedding:
        return product(module.embedding[0].weight, None, packs)
    if type(module).__module__.startswith(f"{__package__.partition('.')[0]}."):
        return with_functions(module, packs).forward
    return module.forward  # one of PyTorch's own


class Norm:
    """``RMSNorm`` in fewer operators, to the last bit: in 16 bits it is rounded before the multiplication, too."""

    def __init__(self, norm: RMSNorm) -> None:
        self.norm, self.weight, self.eps = norm, norm.weight.detach(), norm.eps
        self.shape = self.weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype == torch.float32:
            return F.rms_norm(x, self.shape, self.weight, self.eps)
        if x.dtype.itemsize == 2:
            return F.rms_norm(x, self.shape, None, self.eps) * self.weight
        return self.norm.forward(x)


def product(weight: Tensor, bias: Tensor | None, packs: bool) -> Rows:
    """``kernels.linear`` with the weight in the form that one row reads fastest."""
    weight = weight.detach()
    chosen = kernels.choose_linear(weight.new_empty(1, 1, 0))
    rows: Rows
    if chosen is kernels.linear_in_slices:
        rows = Sliced(weight)
    elif packs and weight.dtype == torch.bfloat16:
        rows = Packed(weight)
    else:
        rows = partial(kernels.linear, weight=weight)
    return rows if bias is None else partial(plus_bias, rows, bias.detach())


def plus_bias(rows: Rows, bias: Tensor, x: Tensor) -> Tensor:
    return rows(x) + bias


class Sliced:
    """``kernels.linear_in_slices`` for one row. The slices are views, so they follow changes in place."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.slices = weight, kernels.in_slices(weight)

    def __call__(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.weight) if len(x) > 1 else kernels.row_times_slices(x, self.slices)


class Packed:
    """``F.linear`` in bfloat16 with a copy of the weight, which reads it at up to twice the speed.

    The copy is made again after a change in place. A change that PyTorch does not count, as by ``weight.data.mul_(2)``,
    is seen at the next text, which has a step of its own.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.version = weight, -1

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight._version != self.version:
            self.version = self.weight._version
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, 1)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")
