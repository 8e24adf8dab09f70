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
from . import int8, kernels

Function = Callable[[Tensor], Tensor]  # (B, 1, in) -> (B, 1, out)


class DirectStep:
    """The step of a network for which ``reason_against`` finds no reason. It is prepared at the first token."""

    def __init__(self, network: Transformer) -> None:
        self.network = network
        self.prepared: Transformer | None = None
        self.packed: list[Packed] = []

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start_pos: int, cache: KVCache, mask: Tensor | None) -> Tensor:
        """tokens (B, 1) -> (B, 1, V)."""
        if self.prepared is None:
            self.prepared = with_functions(self.network, self.packed if packs_weights(self.network) else None)
        return self.prepared.forward(tokens, start_pos, cache, mask)

    def same_with_any_threads(self, rows: int) -> bool:
        return same_with_any_threads(self.network, rows)

    def begin_text(self) -> None:
        """Look for changes of weights that PyTorch does not count, as by ``weight.data.mul_(2)``."""
        for packed in self.packed:
            packed.check()


def same_with_any_threads(network: Transformer, rows: int) -> bool:
    """Whether the number of threads changes no bit of the logits: each number of a product is summed by one thread.

    True for the products of which this was measured: float32 in slices, and on x86 processors with bfloat16 and without
    AMX those of oneDNN, and PyTorch's of int8.
    """
    x = network.norm.weight.new_empty(rows, 1, 0)
    measured = kernels.choose_linear(x) is kernels.linear_in_slices or (
        x.dtype == torch.bfloat16 and has_packed_product()
    )
    matrices = [module.weight for module in network.modules() if isinstance(module, int8.Int8Linear)]
    return measured and all(int8.can_pack(rows, weight.shape[1]) for weight in matrices)


def packs_weights(network: Transformer) -> bool:
    """Whether matrices are copied for ``Packed``: if the copies take at most half of the free memory.

    The other half is for other programs, and for a cache that grows. Without copies the logits are the same, so it is
    no error if memory is short.
    """
    size = sum(weight.nbytes for weight in network.parameters() if weight.ndim == 2 and weight.dtype == torch.bfloat16)
    free = machine.free_memory(machine.MAIN_MEMORY)
    return has_packed_product() and (free is None or 2 * size <= free)


def has_packed_product() -> bool:
    """Whether this processor gains from ``Packed``: an x86 processor that multiplies bfloat16, but without AMX."""
    cpu = machine.CPU
    gains = cpu.avx2 and cpu.bfloat16 and not cpu.amx
    return gains and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def with_functions(module: Any, packed: "list[Packed] | None") -> Any:
    """A copy of a module of this library that finds functions where it had modules.

    Each ``Packed`` product is added to ``packed``; if that is None, no product copies its weight.
    """
    new = copy.copy(module)
    for name, child in module._modules.items():
        vars(new)[name] = function_of(child, packed)  # attributes are looked up there first
    if vars(new).get("attend") is kernels.attend:
        new.attend = kernels.one_query  # what ``kernels.attend`` calls for one query on a CPU
    return new


def function_of(module: nn.Module, packed: "list[Packed] | None") -> Any:
    """The function that a module computes for one token of each row."""
    if isinstance(module, nn.ModuleList):
        return [function_of(child, packed) for child in module]
    if type(module) is kernels.FastRMSNorm:
        return Norm(module)
    if type(module) is kernels.FastLinear:
        return product(module.weight, module.bias, packed)
    if type(module) is kernels.FastTiedOutput and type(module.embedding[0]) is nn.Embedding:
        return product(module.embedding[0].weight, None, packed)
    if type(module).__module__.startswith("torch."):
        return module.forward
    return with_functions(module, packed).forward


class Norm:
    """``RMSNorm`` in fewer operators, to the last bit: 16-bit numbers are also rounded before they are multiplied."""

    def __init__(self, norm: RMSNorm) -> None:
        self.norm, self.weight, self.eps = norm, norm.weight.detach(), norm.eps
        self.shape = self.weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype == torch.float32:
            return F.rms_norm(x, self.shape, self.weight, self.eps)
        if x.dtype.itemsize == 2:
            return F.rms_norm(x, self.shape, None, self.eps) * self.weight
        return self.norm.forward(x)


def product(weight: Tensor, bias: Tensor | None, packed: "list[Packed] | None") -> Function:
    """``kernels.linear`` with the weight in the form that one row reads fastest."""
    weight = weight.detach()
    chosen = kernels.choose_linear(weight.new_empty(1, 1, 0))  # for one row of this dtype
    function: Function
    if chosen is kernels.linear_in_slices:
        function = Sliced(weight)
    elif packed is not None and weight.dtype == torch.bfloat16 and Packed.takes(weight):
        function = Packed(weight)
        packed.append(function)
    else:
        function = partial(kernels.linear, weight=weight)
    return function if bias is None else partial(plus_bias, function, bias.detach())


def plus_bias(function: Function, bias: Tensor, x: Tensor) -> Tensor:
    return function(x) + bias


class Sliced:
    """``kernels.linear_in_slices`` for one row. The slices are views, so they follow changes in place."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.slices = weight, kernels.in_slices(weight)

    def __call__(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.weight) if len(x) > 1 else kernels.row_times_slices(x, self.slices)


def pack(weight: Tensor) -> Tensor:
    """A copy of a bfloat16 weight in the order in which oneDNN reads it fastest."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 1)


def packed_linear(x: Tensor, packed: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


TOKENS_BEFORE_COPY = 8  # the copy takes about the time that it saves in so many tokens


class Packed:
    """``F.linear`` in bfloat16 with a copy of the weight that is read at up to twice the speed.

    The copy is made after TOKENS_BEFORE_COPY tokens, so that short texts do not wait for it, and made again after the
    weight has changed.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.copied: Tensor | None = None
        self.version = -1
        self.tokens = 0  # since the last change

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Whether four numbers of a row can be read as one integer, which ``sums`` does."""
        return weight.is_contiguous() and weight.shape[1] % 4 == weight.storage_offset() % 4 == 0

    def __call__(self, x: Tensor) -> Tensor:
        copied = self.copied  # a name of its own, because another thread may drop the copy
        if copied is not None and self.weight._version == self.version:
            return packed_linear(x, copied)
        if copied is not None:
            self.copied, self.tokens = None, 0
        self.tokens += 1
        if self.tokens >= TOKENS_BEFORE_COPY:
            self.version, self.copied_sums = self.weight._version, self.sums()
            self.copied = pack(self.weight)
        return kernels.linear(x, self.weight)

    def check(self) -> None:
        """Drop the copy if the weight has changed. For all weights, checks take as long as a token, copies as ten."""
        if self.copied is not None and not all(map(torch.equal, self.sums(), self.copied_sums)):
            self.copied, self.tokens = None, 0

    def sums(self) -> tuple[Tensor, Tensor]:
        """The sums of the columns and of the rows, with bits read as integers: practically any change alters one."""
        bits = self.weight.view(torch.int64)  # (out, in / 4)
        return bits.sum(0), bits.sum(1)
