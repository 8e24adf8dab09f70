"""Linear layers that are fast for one token of each text."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cli.machine import has_native_bfloat16
from ..transformer import Transformer

SLICES = 8  # of a weight matrix, for as many cores; a few more slices than cores cost nothing


def use_few_rows_linear(network: Transformer) -> None:
    """Replace the network's plain linear layers; one with a hook, or of another class, is left as it is."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear and module.bias is None and not has_hooks(module):
                setattr(parent, name, FewRowsLinear(module.weight))
    if network.output is None:  # tied: the embedding is the output matrix, too
        network.output = FewRowsLinear(network.tok_embeddings.weight)


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class FewRowsLinear(nn.Module):
    """A linear layer that is fast for one token of each text, (B, 1, in) -> (B, 1, out), and equal for any shape.

    Matrix libraries are built for many rows. With a few, the time goes into reading the weights, and this reads each
    once, in order, with every core.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # (out, in), shared with the layer it replaces
        self.widened = weight.dtype != torch.bfloat16 or not has_native_bfloat16(weight.device)  # when compiled

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[1] != 1:
            return F.linear(x, self.weight)  # (..., out)
        rows = x.shape[0]
        if rows == 1 and self.widened and torch.compiler.is_compiling():
            # Compilers make one loop over the weights of this, and it widens 16-bit ones on the way, which processors
            # without 16-bit arithmetic need.
            return (self.weight.float() * x.float()).sum(-1).type_as(x)[None]  # (1, 1, out)
        if x.dtype != torch.float32:
            if rows > 1 or torch.compiler.is_compiling():
                return F.linear(x, self.weight)  # (B, 1, out)
            with WithoutOneDNN():
                return F.linear(x, self.weight)  # (1, 1, out)
        # One product for each slice of the weights. Measured on two cores, for 32000 x 288 weights: 1.6 ms instead of
        # the 3.5 of a single product for one row, 5.1 instead of 7.7 for sixteen, and the same from 256 rows on.
        slices = math.gcd(self.weight.shape[0], SLICES)
        weights = self.weight.unflatten(0, (slices, -1))  # (slices, out / slices, in)
        products = torch.bmm(x[:, 0].expand(slices, -1, -1), weights.mT)  # (slices, B, out / slices)
        return products.transpose(0, 1).contiguous().view(rows, 1, -1)  # (B, 1, out)


class WithoutOneDNN:
    """Within it PyTorch's own code multiplies a single row of 16-bit numbers, and not oneDNN's, which reads slower.

    Measured on two cores with native bfloat16, in GB/s of 5632 x 2048 weights out of memory: oneDNN 18, PyTorch 36, and
    the memory gives 31 to a sum. There is no other way to choose than this switch, which is the process's: only who
    finds it on puts it off and on again, so that it is on in the end whichever thread comes last.
    """

    def __enter__(self) -> None:
        self.found_on = torch.backends.mkldnn.enabled
        if self.found_on:
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]

    def __exit__(self, *exception: object) -> None:
        if self.found_on:
            torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
