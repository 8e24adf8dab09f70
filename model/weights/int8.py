"""Matrices in eight bits: whole numbers from -127 to 127, each row or each group of a row with one scale.

weight[r, c] is about quantized[r, c] * scales[r, c // group]. Norms, attention and everything between the matrices
stay in floating point. What is quantized can be generated from and scored, but not trained.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import kernels
from ..transformer import Transformer


class Quantized(NamedTuple):
    weight: Tensor  # (out, in) int8
    scales: Tensor  # (out, groups), floating point

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """(out, in) in floating point."""
        return kernels.dequantize(self.weight, self.scales, dtype)


def quantize(weight: Tensor, group: int | None = None) -> Quantized:
    """The nearest of 255 multiples of a scale, which is the largest of ``group`` numbers (a row without it) / 127.

    Scales of rows are rounded to bfloat16 first, as the product in eight bits wants them. Some rows at a time, so
    that little memory is needed besides the result.
    """
    scale_dtype = torch.float32 if group else torch.bfloat16
    out, columns = weight.shape
    group = group or columns
    numbers = torch.empty(out, columns, dtype=torch.int8, device=weight.device)
    scales = torch.empty(out, columns // group, dtype=scale_dtype, device=weight.device)
    wide = torch.empty(min(out, 256), columns // group, group, device=weight.device)  # used again for all parts
    for rows, to, scale in zip(weight.split(256), numbers.split(256), scales.split(256)):
        part = wide[: len(rows)].copy_(rows.unflatten(1, (-1, group)))  # (rows, groups, group)
        scale.copy_(torch.maximum(part.amax(-1), -part.amin(-1)) / 127)  # (rows, groups)
        part.div_(scale.float().masked_fill(scale == 0, 1)[..., None])
        to.copy_(part.round_().clamp_(-127, 127).flatten(1))
    return Quantized(numbers, scales)


def check_device(device: torch.device) -> None:
    """Raises ValueError where PyTorch has no product of eight-bit weights."""
    try:
        ones = torch.ones(32, 32, dtype=torch.int8, device=device)
        torch._weight_int8pack_mm(ones[:1].bfloat16(), ones, ones[0].bfloat16())
    except (NotImplementedError, RuntimeError, AttributeError):
        raise ValueError(
            f"dtype is int8: PyTorch {torch.__version__} cannot multiply by eight-bit weights on {device}; "
            "give --dtype auto or --device cpu"
        ) from None


class Int8Matrix(nn.Module):
    """A quantized weight; in the state dict ``weight`` and ``scales``."""

    weight: Tensor
    scales: Tensor

    def __init__(self, quantized: Quantized) -> None:
        super().__init__()
        self.register_buffer("weight", quantized.weight)
        self.register_buffer("scales", quantized.scales)

    @property
    def quantized(self) -> Quantized:
        return Quantized(self.weight, self.scales)

    def train(self, mode: bool = True) -> "Int8Matrix":
        if mode:
            raise ValueError("weights in int8 cannot be trained: load the model in float32 or bfloat16")
        return super().train(mode)


class Int8Linear(Int8Matrix):
    """x (..., in) -> (..., out). kernels.py has the ways to multiply."""

    def __init__(self, quantized: Quantized) -> None:
        weight = kernels.aligned(quantized.weight, kernels.WEIGHT_ALIGNMENT)
        super().__init__(Quantized(weight, quantized.scales.contiguous()))

    def forward(self, x: Tensor) -> Tensor:
        return kernels.int8_linear(x, self.weight, self.scales)


class Int8Embedding(Int8Matrix):
    """Token ids (B, T) -> (B, T, dim) of ``dtype``."""

    def __init__(self, quantized: Quantized, dtype: torch.dtype) -> None:
        super().__init__(quantized)
        self.dtype = dtype

    def forward(self, tokens: Tensor) -> Tensor:
        rows = Quantized(self.weight[tokens.flatten()], self.scales[tokens.flatten()])  # (B * T, dim)
        return rows.dequantize(self.dtype).view(*tokens.shape, -1)  # (B, T, dim)


def put_in(network: Transformer, matrices: dict[str, Quantized], dtype: torch.dtype) -> None:
    """Replace the linear layers and the embedding of a network that has no weights yet. ``dtype`` is for the rest."""
    for name, quantized in matrices.items():
        place, _, child = name.removesuffix(".weight").rpartition(".")
        embedding = child == "tok_embeddings"
        module = Int8Embedding(quantized, dtype) if embedding else Int8Linear(quantized)
        setattr(network.get_submodule(place), child, module)
    if network.output is None:  # tied: the embedding is the output matrix, too
        network.output = Int8Linear(matrices["tok_embeddings.weight"])
