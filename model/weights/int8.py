"""Matrices in eight bits: whole numbers from -127 to 127, each row or each group of a row with one scale.

weight[r, c] is about quantized[r, c] * scales[r, c // group]. Norms, attention and everything between the matrices
stay in floating point. What is quantized can be generated from and scored, but not trained.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..transformer import Transformer

MULTIPLE = 32  # of numbers in a row: PyTorch's product goes over them in steps, and beyond the end of what is left
X_ALIGNMENT, WEIGHT_ALIGNMENT = 32, 16  # bytes: with AVX-512 that product's loads fault at any other address
AT_ONCE = 2  # rows of weights in one loop: x is read once for both, and neither sum waits for the other
WIDE = 4096  # numbers in a row: from here on x in float32 leaves the weights too little of a core's first cache
FEW_ROWS = 8  # of x: up to here the product with eight-bit numbers took less time than widening them, see Int8Linear


class Quantized(NamedTuple):
    weight: Tensor  # (out, in) int8
    scales: Tensor  # (out, groups), floating point

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """(out, in) in floating point."""
        if self.scales.shape[1] == 1:
            return self.weight.to(dtype) * self.scales.to(dtype)
        groups = self.weight.unflatten(1, (self.scales.shape[1], -1))  # (out, groups, group)
        return (groups.to(dtype) * self.scales.to(dtype)[..., None]).flatten(1)


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


def aligned(tensor: Tensor, alignment: int) -> Tensor:
    """The tensor itself, or a copy if it has gaps or begins at another address than a multiple of ``alignment`` bytes.

    PyTorch's product in eight bits does not check the address: it ends the process with a segmentation fault.
    """
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % alignment == 0 else tensor.clone()


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
    """x (..., in) -> (..., out). Which of three ways is the fastest was measured, on two cores with native bfloat16."""

    def __init__(self, quantized: Quantized) -> None:
        super().__init__(Quantized(aligned(quantized.weight, WEIGHT_ALIGNMENT), quantized.scales.contiguous()))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:-1].numel()
        by_rows = self.scales.shape[1] == 1 and self.scales.dtype == torch.bfloat16
        packed = by_rows and x.shape[-1] % MULTIPLE == 0
        wide = packed and x.shape[-1] >= WIDE and x.dtype == torch.bfloat16
        if rows == 1 and torch.compiler.is_compiling() and not wide:
            return self.written_out(x)
        if rows <= FEW_ROWS and packed:
            flat = x.reshape(rows, -1).bfloat16()
            # A compiler knows no address yet and removes a plain copy as needless, but not one that is a row longer.
            compiling = torch.compiler.is_compiling()
            flat = F.pad(flat, (0, 0, 0, 1))[:rows] if compiling else aligned(flat, X_ALIGNMENT)  # (rows, in)
            out = torch._weight_int8pack_mm(flat, self.weight, self.scales[:, 0])  # (rows, out)
            return out.type_as(x).view(*x.shape[:-1], -1)  # (..., out)
        if by_rows and x.dtype != torch.float16:  # whose largest number, 65504, a sum may pass before it is scaled
            return F.linear(x, self.weight.to(x.dtype)) * self.scales[:, 0].to(x.dtype)  # (..., out)
        return F.linear(x, self.quantized.dequantize(x.dtype))  # (..., out)

    def written_out(self, x: Tensor) -> Tensor:
        """One row, in arithmetic of which a compiler makes one loop over the weights: (1, ..., in) -> (1, ..., out)."""
        # Left to itself the compiler widens x anew for every row of the weights. It takes `as_strided` for a view of
        # memory, and so computes what is viewed first. Measured on two cores, x in bfloat16, 5632 x 2048 weights: 0.42
        # ms, a third more with x widened for every row, 0.49 with the rows one by one; the bfloat16 product takes 0.72.
        # 2048 x 5632 weights: 0.78, the rows one by one 0.90; PyTorch's product with eight-bit numbers takes 0.62.
        wide = x.float().contiguous().as_strided((x.shape[-1],), (1,))
        if self.scales.shape[1] == 1:
            sums = [(rows.float() * wide).sum(-1) for rows in self.weight.chunk(AT_ONCE)]  # (out / AT_ONCE,) each
            out = torch.cat(sums) * self.scales[:, 0].float()  # (out,)
        else:
            groups = self.weight.unflatten(1, (self.scales.shape[1], -1)).float()  # (out, groups, group)
            out = ((groups * wide.view(groups.shape[1:])).sum(-1) * self.scales.float()).sum(-1)  # (out,)
        return out.type_as(x).view(*x.shape[:-1], -1)


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
