"""Int8 weights: matrices of whole numbers from -127 to 127, with one scale for each row or each group of a row.

The original matrix at [r, c] is approximately weight[r, c] * scales[r, c // group_size], where ``weight`` is int8. All
weight matrices are quantized; biases, norms, attention scores, the cache and activations are not. A quantized network
can generate and score, but not train.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..transformer import Transformer

# PyTorch's product, torch._weight_int8pack_mm, needs rows whose length is a multiple of INT8_MULTIPLE, or it reads past
# their end. With AVX-512, it crashes unless x starts at a multiple of X_ALIGNMENT bytes, and the weight at a multiple
# of WEIGHT_ALIGNMENT bytes.
INT8_MULTIPLE = 32
X_ALIGNMENT = 32
WEIGHT_ALIGNMENT = 16
MAX_PACKED_ROWS = 8  # of x: up to here the product with eight-bit numbers is faster than dequantizing them


class Quantized(NamedTuple):
    weight: Tensor  # (out, in) int8
    scales: Tensor  # (out, groups), floating point

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The matrix in floating point, (out, in): weight[r, c] * scales[r, c // group_size]."""
        grouped = self.weight.unflatten(1, (self.scales.shape[1], -1))  # (out, groups, group_size)
        return (grouped.to(dtype) * self.scales.to(dtype)[..., None]).flatten(1)


def quantize(weight: Tensor, group_size: int | None = None) -> Quantized:
    """Round each number of a matrix (out, in) to the nearest of 255 multiples of its scale.

    The scale is the largest absolute value of the row, or of a group of ``group_size`` neighbours in it, divided by
    127. Scales of rows are rounded to bfloat16 first, because the int8 product takes them in that dtype. 256 rows are
    converted at a time, so that little memory is needed besides the result.
    """
    scale_dtype = torch.float32 if group_size else torch.bfloat16
    out, columns = weight.shape
    group_size = group_size or columns
    groups = columns // group_size
    quantized = torch.empty(out, columns, dtype=torch.int8, device=weight.device)
    scales = torch.empty(out, groups, dtype=scale_dtype, device=weight.device)
    buffer = torch.empty(min(out, 256), groups, group_size, device=weight.device)  # float32, reused for all rows
    for rows, target, scale in zip(weight.split(256), quantized.split(256), scales.split(256)):
        values = buffer[: len(rows)].copy_(rows.unflatten(1, (-1, group_size)))  # (rows, groups, group_size)
        scale.copy_(torch.maximum(values.amax(-1), -values.amin(-1)) / 127)  # (rows, groups)
        values.div_(scale.float().masked_fill(scale == 0, 1)[..., None])
        target.copy_(values.round_().clamp_(-127, 127).flatten(1))
    return Quantized(quantized, scales)


def check_device(device: torch.device) -> None:
    """Raise ValueError if PyTorch has no product with int8 weights on this device."""
    try:
        ones = torch.ones(32, 32, dtype=torch.int8, device=device)
        torch._weight_int8pack_mm(ones[:1].bfloat16(), ones, ones[0].bfloat16())
    except (NotImplementedError, RuntimeError, AttributeError):
        raise ValueError(
            f"dtype is int8: PyTorch {torch.__version__} cannot multiply by int8 weights on {device}; "
            "give --dtype auto or --device cpu"
        ) from None


class Int8Matrix(nn.Module):
    """A module with a quantized weight: ``weight`` and ``scales`` in the state dict."""

    weight: Tensor
    scales: Tensor

    def __init__(self, quantized: Quantized) -> None:
        super().__init__()
        self.register_buffer("weight", quantized.weight)
        self.register_buffer("scales", quantized.scales)


class Int8Linear(Int8Matrix):
    """A linear layer with an int8 weight: x (..., in) -> (..., out)."""

    def __init__(self, quantized: Quantized, bias: nn.Parameter | None = None) -> None:
        super().__init__(Quantized(aligned(quantized.weight, WEIGHT_ALIGNMENT), quantized.scales.contiguous()))
        self.bias = bias
        self.product = int8_linear

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x, self.weight, self.scales)  # (..., out)
        return out if self.bias is None else out + self.bias


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x (..., in) times the dequantized weight: (..., out). PyTorch's product if it has one for these sizes."""
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    one_scale = scales.shape[1] == 1 and scales.dtype == torch.bfloat16  # for each row
    if one_scale and columns % INT8_MULTIPLE == 0 and rows <= MAX_PACKED_ROWS:
        return packed(x, weight, scales)
    return dequantized(x, weight, scales)


def packed(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """PyTorch's product, which takes x in bfloat16 and one scale for each row of the weight."""
    rows = x.reshape(-1, x.shape[-1]).bfloat16()  # (rows, in)
    # Compiled code cannot check the address of x, so it always copies x: a new tensor is aligned. The compiler would
    # remove a plain copy as unnecessary, so a row is added and cut off again.
    compiling = torch.compiler.is_compiling()
    rows = F.pad(rows, (0, 0, 0, 1))[:-1] if compiling else aligned(rows, X_ALIGNMENT)
    out = torch._weight_int8pack_mm(rows, weight, scales[:, 0])  # (rows, out)
    return out.type_as(x).view(*x.shape[:-1], -1)  # (..., out)


def dequantized(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Convert the weight to floating point first, which for many rows takes a small part of the time."""
    if scales.shape[1] == 1 and x.dtype != torch.float16:  # a float16 sum could overflow before it is scaled
        return F.linear(x, weight.to(x.dtype)) * scales[:, 0].to(x.dtype)  # (..., out)
    return F.linear(x, Quantized(weight, scales).dequantize(x.dtype))  # (..., out)


def aligned(tensor: Tensor, alignment: int) -> Tensor:
    """The tensor, or a copy if it is not contiguous or its address is not a multiple of ``alignment`` bytes.

    PyTorch's eight-bit product does not check the address: a wrong one ends the process with a segmentation fault.
    """
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % alignment == 0 else tensor.clone()


class Int8Embedding(Int8Matrix):
    """An embedding with an int8 weight: token ids (B, T) -> (B, T, dim) in ``dtype``."""

    def __init__(self, quantized: Quantized, dtype: torch.dtype) -> None:
        super().__init__(quantized)
        self.dtype = dtype

    def forward(self, tokens: Tensor) -> Tensor:
        rows = Quantized(self.weight[tokens.flatten()], self.scales[tokens.flatten()])  # (B * T, dim)
        return rows.dequantize(self.dtype).view(*tokens.shape, -1)  # (B, T, dim)


def load_matrices(
    network: Transformer,
    tensors: Iterable[tuple[str, Tensor | Quantized]],
    device: str | torch.device,
    dtype: torch.dtype | None,
    group_size: int | None,
) -> None:
    """Load (name, tensor) into a network, whose linear layers and embedding become int8 modules.

    ``dtype``, by default the stored one, is that of norms and biases, and so of activations. Matrices that are already
    quantized keep their groups.
    """
    others = {}
    matrices = {}
    for name, tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.ndim == 1:
            others[name] = tensor.to(device, dtype, copy=True)
        else:
            quantized = quantize(tensor, group_size) if isinstance(tensor, Tensor) else tensor
            matrices[name] = Quantized(quantized.weight.to(device), quantized.scales.to(device))
        del tensor  # before the next one is read, so that only one is in memory
    for name, quantized in matrices.items():
        parent, _, child = name.removesuffix(".weight").rpartition(".")
        owner = network.get_submodule(parent)
        if child == "tok_embeddings":
            setattr(owner, child, Int8Embedding(quantized, others["norm.weight"].dtype))
        else:
            setattr(owner, child, Int8Linear(quantized, getattr(owner, child).bias))
    if network.output is None:  # tied weights: the embedding is also the output matrix
        network.output = Int8Linear(matrices["tok_embeddings.weight"])
    network.load_state_dict(network.state_dict() | others, assign=True)
    network.requires_grad_(False)
