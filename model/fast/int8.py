"""Int8 weights: matrices of whole numbers from -127 to 127, with one scale for each row.

The original matrix at [r, c] is approximately weight[r, c] * scales[r, 0], where ``weight`` is int8 and ``scales``
bfloat16. All weight matrices are quantized; biases, norms, attention scores, the cache and activations are not. A
quantized network can generate and score, but not train.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..transformer import Transformer

# PyTorch's product, torch._weight_int8pack_mm, needs rows whose length is a multiple of INT8_MULTIPLE, or it reads past
# their end.
INT8_MULTIPLE = 32
X_ALIGNMENT = 32
MAX_PACKED_ROWS = 8  # of x: up to here the product with eight-bit numbers is faster than dequantizing them


class Quantized(NamedTuple):
    weight: Tensor  # (out, in) int8
    scales: Tensor  # (out, 1) bfloat16

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The matrix in floating point, (out, in)."""
        return self.weight.to(dtype) * self.scales.to(dtype)


def quantize(weight: Tensor) -> Quantized:
    """Round each number of a matrix (out, in) to the nearest of 255 multiples of its row's scale.

    The scale is the largest absolute value of the row, divided by 127, and rounded to bfloat16 first, because the int8
    product takes it in that dtype. 256 rows are converted at a time, so that little memory is needed besides the
    result.
    """
    quantized = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), 1, dtype=torch.bfloat16, device=weight.device)
    for rows, target, scale in zip(weight.split(256), quantized.split(256), scales.split(256)):
        values = rows.float()  # (256, in)
        scale.copy_(values.abs().amax(1, keepdim=True) / 127)  # (256, 1)
        steps = values / scale.float().masked_fill(scale == 0, 1)
        target.copy_(steps.round_().clamp_(-127, 127))
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
        super().__init__(quantized)
        self.bias = bias
        self.product = int8_linear

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x, self.weight, self.scales)  # (..., out)
        return out if self.bias is None else out + self.bias


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x (..., in) times the dequantized weight: (..., out). PyTorch's product if it has one for these sizes."""
    if can_pack(math.prod(x.shape[:-1]), x.shape[-1]):
        return packed(x, weight, scales)
    return dequantized(x, weight, scales)


def can_pack(rows: int, columns: int) -> bool:
    """Whether PyTorch's product can take x (rows, columns), and is faster."""
    return columns % INT8_MULTIPLE == 0 and rows <= MAX_PACKED_ROWS


def packed(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """PyTorch's product, which takes x in bfloat16.

    With AVX-512 it ends the process with a segmentation fault unless x starts at a multiple of X_ALIGNMENT bytes, and
    the weight at a multiple of 16. PyTorch puts every new tensor at a multiple of 64, so a copy is aligned.
    """
    rows = x.reshape(-1, x.shape[-1]).bfloat16()  # (rows, in)
    if torch.compiler.is_compiling():  # compiled code cannot look at the address, so it always copies
        # The compiler would remove a plain copy as unnecessary, so a row is added and cut off again.
        rows = F.pad(rows, (0, 0, 0, 1))[:-1]
    elif rows.data_ptr() % X_ALIGNMENT:
        rows = rows.clone()
    out = torch._weight_int8pack_mm(rows, weight, scales[:, 0])  # (rows, out)
    return out.type_as(x).view(*x.shape[:-1], -1)  # (..., out)


def dequantized(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Convert the weight to floating point first, which for many rows takes a small part of the time."""
    if x.dtype == torch.float16:  # a sum could overflow before it is scaled
        return F.linear(x, Quantized(weight, scales).dequantize(x.dtype))  # (..., out)
    return F.linear(x, weight.to(x.dtype)) * scales[:, 0].to(x.dtype)  # (..., out)


class Int8Embedding(Int8Matrix):
    """An embedding with an int8 weight: token ids (B, T) -> (B, T, dim) in ``dtype``."""

    def __init__(self, quantized: Quantized, dtype: torch.dtype) -> None:
        super().__init__(quantized)
        self.dtype = dtype

    def forward(self, tokens: Tensor) -> Tensor:
        return Quantized(self.weight[tokens], self.scales[tokens]).dequantize(self.dtype)  # (B, T, dim)


def put_matrix(network: Transformer, name: str, quantized: Quantized, dtype: torch.dtype) -> None:
    """Replace the layer or the embedding that has this weight by its int8 module. ``dtype`` is that of activations."""
    parent, _, child = name.removesuffix(".weight").rpartition(".")
    owner = network.get_submodule(parent)
    if child == "tok_embeddings":
        setattr(owner, child, Int8Embedding(quantized, dtype))
        if network.output is None:  # tied weights: the embedding is also the output matrix
            network.output = Int8Linear(quantized)
    else:
        setattr(owner, child, Int8Linear(quantized, getattr(owner, child).bias))
