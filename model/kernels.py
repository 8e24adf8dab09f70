"""Faster implementations of attention and matrix products, and the rules that choose one. Skip on first reading.

``attend`` computes what ``attention`` in attention.py defines, ``linear`` computes ``nn.Linear``, and ``int8_linear``
the same for eight-bit weights. Which implementation is fastest depends on the dtype, the shape, the features of the
processor (``CPU``), and whether gradients are needed or torch.compile is tracing. The rules never measure time, because
the same command must give the same text every time. benchmarks/kernels.py times every implementation on your machine
and reports where a rule does not choose the fastest.

All inputs must be finite, also those of padding tokens. Some libraries read past the end of a row into the next one and
multiply the numbers there by zero, and zero times NaN is NaN.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Processor(NamedTuple):
    """The features of a CPU that the rules look at."""

    bfloat16: bool = False  # has instructions that multiply bfloat16: AVX512-BF16, AMX, or those of ARM
    amx: bool = False  # has AMX, which PyTorch's fused attention and oneDNN use
    avx512: bool = False  # has AVX-512; without it torch.compile converts eight-bit numbers one by one


def this_processor() -> Processor:
    """The features of this machine's CPU; a feature that PyTorch does not report counts as absent."""
    capabilities = torch.cpu.get_capabilities()
    amx = bool(capabilities.get("amx_tile") and capabilities.get("amx_bf16"))
    bfloat16 = amx or any(capabilities.get(name) for name in ("avx512_bf16", "bf16", "arm_bf16"))
    avx512 = all(capabilities.get(name) for name in ("avx512_f", "avx512_bw", "avx512_vl"))
    return Processor(bfloat16, amx, avx512)


CPU = this_processor()

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]
Int8Product = Callable[[Tensor, Tensor, Tensor], Tensor]

# --- Attention: q (B, H, T, D), k and v (B, K, S, D), mask as in ``attention`` -> (B, H, T, D)

QUERY_BLOCK = 128  # queries: the scores of one block stay in the processor's caches
MAX_TRAINING_KEYS = 512  # with more, the scores kept for the backward pass take more memory than the rest of a layer


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, as ``attention`` defines it, with the implementation from ``choose_attention``."""
    return choose_attention(q, k.shape[2])(q, k, v, mask)


def choose_attention(q: Tensor, S: int) -> Attend:
    """``blockwise_attention`` for several bfloat16 queries on a CPU with native bfloat16, else ``fused_attention``.

    On such a CPU two cases use ``fused_attention``, too: prompts if it has AMX, and training with more than
    MAX_TRAINING_KEYS keys. The table has milliseconds in bfloat16, blockwise / fused, on two cores with torch 2.13
    (benchmarks/kernels.py). A row names batch x length, and H / K heads of width D. Blank cells were not measured; one
    cell is a ratio without times:

                                                 AMX (Intel)   AVX512-BF16 (AMD)   AVX2 (AMD)
        training, 16 x 256, 8 / 8 heads of 32    24.4 / 34.4   19.8 / 43.3          483 / 150
        training, 4 x 1024, 8 / 8 heads of 32     103 / 67     95.8 / 105          1460 / 444
        prompt of 512, 32 / 4 heads of 64         5.0 / 3.3    ratio 1 : 2          362 / 17
        the same after 1,536 tokens              31.2 / 15.1                       2266 / 72

    In training with more than MAX_TRAINING_KEYS keys, fused attention is chosen to save memory, even where it is
    slower: without a mask it never holds all scores. In float32 it was as fast or faster on all three.
    """
    if q.device.type != "cpu" or q.dtype != torch.bfloat16 or q.shape[2] == 1 or not CPU.bfloat16:
        return fused_attention
    if q.requires_grad:
        return blockwise_attention if S <= MAX_TRAINING_KEYS else fused_attention
    return fused_attention if CPU.amx else blockwise_attention


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The formula in blocks of QUERY_BLOCK queries, so that a causal mask is needed for each block's last keys only."""
    T, S = q.shape[2], k.shape[2]
    blocks = []
    for start in range(0, T, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, T)
        if mask is None:
            stop = S - T + end  # the last query of this block sees keys[:stop], the earlier ones fewer
            keys, values, visible = k[:, :, :stop], v[:, :, :stop], None
        else:
            keys, values, visible = k, v, mask.expand(*mask.shape[:-2], T, S)[..., start:end, :]
        blocks.append(_attend_block(q[:, :, start:end], keys, values, visible))
    return torch.cat(blocks, 2)  # (B, H, T, D)


def _attend_block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # The H / K query heads of a group become rows of one product with the keys they share, so that no key is repeated.
    rows = q.reshape(B, K, H // K * T, D)  # (B, K, H/K * T, D)
    scores = (rows * D**-0.5 @ k.mT).view(B, H, T, S)  # (B, H, T, S)
    # Mask in place, because a copy of the scores takes 7% of a prompt's time. The detached view shares the memory of
    # the scores and hides the masking from autograd, so that the backward pass does not mask the gradient. It need not:
    # softmax gives hidden keys weight 0, and so gradient 0.
    detached = scores.detach()
    if mask is None:
        later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)  # (T, T), for the last T keys
        detached[..., S - T :].masked_fill_(later, -math.inf)
    else:
        detached.masked_fill_(~mask, -math.inf)
    weights = scores.softmax(-1).type_as(v)  # (B, H, T, S); PyTorch sums 16-bit numbers in float32
    return (weights.view(B, K, H // K * T, S) @ v).view(B, H, T, D)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch's scaled_dot_product_attention, which processes the keys in blocks."""
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    if T == 1:
        # A group's heads become rows, as above. One bfloat16 query after 1,900 tokens, with 32 heads and 4 key/value
        # heads, takes 0.21 ms on two cores of an AMD EPYC; `enable_gqa` takes 4.2, because it repeats the keys.
        visible = None if mask is None else mask.expand(B, H, 1, S).reshape(B, K, H // K, S)  # (B, K, H/K, S)
        rows = q.reshape(B, K, H // K, D)  # (B, K, H/K, D)
        return F.scaled_dot_product_attention(rows, k, v, visible).reshape(B, H, 1, D)
    if mask is None and T == S:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=K != H)
    if mask is None:  # is_causal would align the mask to the first key, not to the last
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)  # (T, S)
    mask = torch.atleast_2d(mask)  # (S,) becomes (1, S), because PyTorch needs both dimensions
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=K != H)


ATTENTION: dict[str, Attend] = {"blockwise": blockwise_attention, "fused": fused_attention}

# --- Products: x (..., in), weight (out, in) -> (..., out)

SLICES = 8  # of a weight matrix, read by up to 8 cores at a time; more slices than cores cost nothing
MAX_SLICED_ROWS = 128  # up to here a float32 product is faster in slices; measured on AVX2, used on every CPU


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, with the fastest implementation for the dtype and the number of rows in x.

    Training uses F.linear: it has many rows, and autocast casts its arguments.
    """
    if torch.is_grad_enabled() or x.dtype != weight.dtype:
        return F.linear(x, weight, bias)
    out = choose_linear(x)(x, weight)
    return out if bias is None else out + bias


def choose_linear(x: Tensor) -> Product:
    """Choose ``linear_mv``, ``linear_in_slices`` or ``F.linear``.

    float32: ``linear_mv`` for one row under torch.compile, else ``linear_in_slices`` for up to MAX_SLICED_ROWS rows,
    ``F.linear`` for more. Other dtypes: ``linear_mv`` for one row, ``F.linear`` for more.

    A product of few rows takes the time of reading the weights, which is shortest if every core reads a part of them.

    GB/s of weights for one row, two cores, torch 2.13, F.linear / mv / slices (benchmarks/kernels.py):

                                    AMX (Intel)            AVX2 (AMD)
        bfloat16, 32000 x 288        9 / 28 / 14            16 / 17 / 16
        bfloat16, 5632 x 2048       19 / 24 / 19            20 / 20 / 20
        float32, 32000 x 288        all as fast as memory   12 / 12 / 22
        float32, 5632 x 2048        all as fast as memory   23 / 23 / 32
        reading memory, float32     29                      38

    For several rows of bfloat16, F.linear is chosen, because on AMX it takes as long for 16 rows as for one.
    torch.compile turns ``mv`` into one loop over the weights, which reads 28 GB/s in float32 on AVX2 (32000 x 288).
    """
    rows = x.shape[:-1].numel()
    if rows == 1 and (x.dtype != torch.float32 or torch.compiler.is_compiling()):
        return linear_mv
    return linear_in_slices if x.dtype == torch.float32 and rows <= MAX_SLICED_ROWS else F.linear


def linear_in_slices(x: Tensor, weight: Tensor) -> Tensor:
    """One batched product over slices of the weight matrix."""
    slices = math.gcd(weight.shape[0], SLICES)
    weights = weight.unflatten(0, (slices, -1))  # (slices, out / slices, in)
    rows = x.reshape(-1, x.shape[-1])  # (rows, in)
    products = torch.bmm(rows.expand(slices, -1, -1), weights.mT)  # (slices, rows, out / slices)
    return products.transpose(0, 1).contiguous().view(*x.shape[:-1], -1)  # (..., out)


def linear_mv(x: Tensor, weight: Tensor) -> Tensor:
    """The matrix times a vector, for one row."""
    return torch.mv(weight, x.reshape(-1)).view(*x.shape[:-1], -1)  # (..., out)


LINEAR: dict[str, Product] = {"F.linear": F.linear, "slices": linear_in_slices, "mv": linear_mv}

# --- Products with eight-bit numbers: x (..., in), weight (out, in) int8, scales (out, groups) -> (..., out)
# A row of the weight consists of groups of ``group_size`` neighbouring numbers, and each group has a scale. Often a row
# is one group.

# PyTorch's product, torch._weight_int8pack_mm, needs rows whose length is a multiple of INT8_MULTIPLE, or it reads past
# their end. With AVX-512, it crashes unless x starts at a multiple of X_ALIGNMENT bytes, and the weight at a multiple
# of WEIGHT_ALIGNMENT bytes.
INT8_MULTIPLE = 32
X_ALIGNMENT = 32
WEIGHT_ALIGNMENT = 16
MAX_PACKED_ROWS = 8  # of x: up to here the product with eight-bit numbers is faster than dequantizing them
# For x in bfloat16 with at least this many numbers, int8_packed is faster than a compiled int8_elementwise.
WIDE_ROW = 4096
# int8_elementwise splits the weight into this many parts. The compiler makes one loop of their products, which reads x
# once for all parts.
WEIGHT_PARTS = 2


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x times the dequantized weight, with the fastest implementation for this case."""
    return choose_int8(x, scales)(x, weight, scales)


def choose_int8(x: Tensor, scales: Tensor) -> Int8Product:
    """``int8_packed`` if x has few rows, ``int8_dequantized`` if many; under torch.compile, one row has its own rules.

    ``int8_packed``, PyTorch's product, takes only weights whose rows have one bfloat16 scale and a length that is a
    multiple of INT8_MULTIPLE. For other weights, ``int8_dequantized`` is chosen even if x has few rows.

    Under torch.compile, if x has one row, ``int8_elementwise`` is chosen for all weights that ``int8_packed`` cannot
    take. With AVX-512 it is also chosen for the others, unless x is bfloat16 and has WIDE_ROW numbers or more.

    GB/s of weights for one row, x in bfloat16, two cores, torch 2.13: ``int8_packed`` in eager mode /
    ``int8_elementwise`` compiled; - is not measured.

                           AVX512-BF16 (AMD)    AVX2 (AMD)
        32000 x 288          - / -              20 / 0.5
        5632 x 2048          - / 27             13 / 1.9
        2048 x 5632         19 / 15             20 / 1.8
    """
    rows = x.shape[:-1].numel()
    packable = scales.shape[1] == 1 and scales.dtype == torch.bfloat16 and x.shape[-1] % INT8_MULTIPLE == 0
    wide = x.shape[-1] >= WIDE_ROW and x.dtype == torch.bfloat16
    if rows == 1 and torch.compiler.is_compiling():
        if not packable:
            return int8_elementwise
        if CPU.avx512 and not wide:
            return int8_elementwise
    return int8_packed if packable and rows <= MAX_PACKED_ROWS else int8_dequantized


def int8_packed(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """PyTorch's product, which takes x in bfloat16 and one scale for each row of the weight."""
    rows = x.reshape(-1, x.shape[-1]).bfloat16()  # (rows, in)
    # Compiled code cannot check the address of x, so it always copies x: a new tensor is aligned. The compiler would
    # remove a plain copy as unnecessary, so a row is added and cut off again.
    compiling = torch.compiler.is_compiling()
    rows = F.pad(rows, (0, 0, 0, 1))[:-1] if compiling else aligned(rows, X_ALIGNMENT)
    out = torch._weight_int8pack_mm(rows, weight, scales[:, 0])  # (rows, out)
    return out.type_as(x).view(*x.shape[:-1], -1)  # (..., out)


def int8_elementwise(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """One row, in elementwise arithmetic that torch.compile turns into one loop over the weights."""
    # By default the compiler would convert x to float32 again for every row of the weight. `as_strided` forces it to
    # store the converted x first. On two cores with AVX512-BF16, x in bfloat16 and 5632 x 2048 weights, this takes 0.42
    # ms. Converting for every row takes a third more, WEIGHT_PARTS = 1 takes 0.49, and bfloat16 weights take 0.72.
    x32 = x.float().contiguous().as_strided((x.shape[-1],), (1,))
    if scales.shape[1] == 1:
        sums = [(part.float() * x32).sum(-1) for part in weight.chunk(WEIGHT_PARTS)]  # (out / WEIGHT_PARTS,) each
        out = torch.cat(sums) * scales[:, 0].float()  # (out,)
    else:
        grouped = weight.unflatten(1, (scales.shape[1], -1)).float()  # (out, groups, group_size)
        out = ((grouped * x32.view(grouped.shape[1:])).sum(-1) * scales.float()).sum(-1)  # (out,)
    return out.type_as(x).view(*x.shape[:-1], -1)  # (..., out)


def int8_dequantized(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Convert the weight to floating point first, which for many rows takes a small part of the time."""
    if scales.shape[1] == 1 and x.dtype != torch.float16:  # a float16 sum could overflow before it is scaled
        return F.linear(x, weight.to(x.dtype)) * scales[:, 0].to(x.dtype)  # (..., out)
    return F.linear(x, dequantize(weight, scales, x.dtype))  # (..., out)


def dequantize(weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """weight[r, c] * scales[r, c // group_size], (out, in) in floating point."""
    grouped = weight.unflatten(1, (scales.shape[1], -1))  # (out, groups, group_size)
    return (grouped.to(dtype) * scales.to(dtype)[..., None]).flatten(1)


def aligned(tensor: Tensor, alignment: int) -> Tensor:
    """The tensor, or a copy if it is not contiguous or its address is not a multiple of ``alignment`` bytes.

    PyTorch's eight-bit product does not check the address: a wrong one ends the process with a segmentation fault.
    """
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % alignment == 0 else tensor.clone()


INT8: dict[str, Int8Product] = {
    "packed": int8_packed,
    "elementwise": int8_elementwise,
    "dequantized": int8_dequantized,
}
