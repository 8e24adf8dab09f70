"""Faster ways to the same results, and the rules that choose among them. Skip this file on first reading.

``attend`` gives what ``attention`` in attention.py defines, ``linear`` what ``nn.Linear`` gives, and ``int8_linear``
the same for weights in eight bits. Which way is the fastest differs by processor, so each rule goes by what the
processor says of itself (``CPU``), by dtype and by shape. No rule goes by the clock, because the same command must give
the same text every time. benchmarks/kernels.py times all ways on the machine at hand and says where a rule does not
choose the fastest one.

Every way gets finite numbers only, masks aside: some libraries read past the end of a row and multiply what they find
there by zero, and zero times NaN is NaN.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Processor(NamedTuple):
    """What the rules need to know of a CPU."""

    bfloat16: bool = False  # has instructions that multiply bfloat16: AVX512-BF16, AMX, or those of ARM
    amx: bool = False  # has AMX, whose tiles PyTorch's fused attention and oneDNN use
    avx512: bool = False  # has AVX-512, without which torch.compile widens eight-bit numbers one by one


def this_processor() -> Processor:
    """What this machine's CPU says of itself; a feature that PyTorch does not know counts as absent."""
    capabilities = torch.cpu.get_capabilities()
    amx = bool(capabilities.get("amx_tile") and capabilities.get("amx_bf16"))
    bfloat16 = amx or any(capabilities.get(name) for name in ("avx512_bf16", "bf16", "arm_bf16"))
    avx512 = all(capabilities.get(name) for name in ("avx512_f", "avx512_bw", "avx512_vl"))
    return Processor(bfloat16, amx, avx512)


CPU = this_processor()

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]
Int8Product = Callable[[Tensor, Tensor, Tensor], Tensor]

# --- Attention: q (B, H, T, D), k and v (B, K, S, D), mask boolean (..., T, S) or None for causal -> (B, H, T, D)

QUERIES = 128  # in a block: their scores stay in the processor's caches
LONGEST_TRAINED = 512  # keys: up to here the scores that training keeps take less memory than the rest of a layer


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, as ``attention`` defines it, by the way that suits processor, dtype and shape."""
    return choose_attention(q, k.shape[2])(q, k, v, mask)


def choose_attention(q: Tensor, S: int) -> Attend:
    """``grouped_attention`` for several bfloat16 queries on a CPU that multiplies bfloat16, except for prompts on
    processors with AMX, and for training on more than LONGEST_TRAINED keys; ``fused_attention`` for all else.

    Milliseconds on two cores with torch 2.13, grouped / fused, batch x length, H / K heads of D; blank is not measured
    (benchmarks/kernels.py):

                                                 AMX (Intel)   AVX512-BF16 (AMD)   AVX2 (AMD)
        training, 16 x 256, 8 / 8 heads of 32    24.4 / 34.4   19.8 / 43.3          483 / 150
        training, 4 x 1024, 8 / 8 heads of 32     103 / 67     95.8 / 105          1460 / 444
        prompt of 512, 32 / 4 heads of 64         5.0 / 3.3    half of fused        362 / 17
        the same after 1,536 tokens              31.2 / 15.1                       2266 / 72

    In float32 fused was faster, or level, on all three. Above LONGEST_TRAINED it is chosen for its memory: without a
    mask it never holds all scores.
    """
    if q.device.type != "cpu" or q.dtype != torch.bfloat16 or q.shape[2] == 1 or not CPU.bfloat16:
        return fused_attention
    if q.requires_grad:
        return grouped_attention if S <= LONGEST_TRAINED else fused_attention
    return fused_attention if CPU.amx else grouped_attention


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The formula in blocks of QUERIES queries. Of the causal mask, a block needs its own triangle only."""
    T, S = q.shape[2], k.shape[2]
    blocks = []
    for start in range(0, T, QUERIES):
        end = min(start + QUERIES, T)
        if mask is None:
            seen = S - T + end  # the keys that the last query of this block sees
            keys, values, visible = k[:, :, :seen], v[:, :, :seen], None
        else:
            keys, values, visible = k, v, mask.expand(*mask.shape[:-2], T, S)[..., start:end, :]
        blocks.append(_grouped_block(q[:, :, start:end], keys, values, visible))
    return torch.cat(blocks, 2)  # (B, H, T, D)


def _grouped_block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # The H / K query heads of a group become rows of one product with the keys that they share: no key is repeated.
    rows = q.reshape(B, K, H // K * T, D)  # (B, K, H/K * T, D)
    scores = (rows * D**-0.5 @ k.mT).view(B, H, T, S)  # (B, H, T, S)
    # In place, because a copy of the scores takes 7% of a prompt's time; and behind autograd's back, which would make
    # that copy. The gradient is still right: hidden keys have weight 0, so softmax passes no gradient to their scores.
    in_place = scores.detach()
    if mask is None:
        later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)  # (T, T), for the last T keys
        in_place[..., S - T :].masked_fill_(later, -math.inf)
    else:
        in_place.masked_fill_(~mask, -math.inf)
    weights = scores.softmax(-1).type_as(v)  # (B, H, T, S); PyTorch sums 16-bit numbers in float32
    return (weights.view(B, K, H // K * T, S) @ v).view(B, H, T, D)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch's kernel, which goes over the keys in blocks."""
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    if T == 1:
        # A group's heads become rows, as above. One bfloat16 query after 1,900 tokens, 32 heads, 4 key/value heads, two
        # cores of an AMD EPYC: 0.21 ms. With `enable_gqa` 4.2, because the kernel then repeats the keys.
        visible = None if mask is None else mask.expand(B, H, 1, S).reshape(B, K, H // K, S)  # (B, K, H/K, S)
        rows = q.reshape(B, K, H // K, D)  # (B, K, H/K, D)
        return F.scaled_dot_product_attention(rows, k, v, visible).reshape(B, H, 1, D)
    if mask is None and T == S:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=K != H)
    if mask is None:  # PyTorch's own causal mask is aligned to the first key, ours to the last
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)  # (T, S)
    return F.scaled_dot_product_attention(q, k, v, torch.atleast_2d(mask), enable_gqa=K != H)


ATTENTION: dict[str, Attend] = {"grouped": grouped_attention, "fused": fused_attention}

# --- Products: x (..., in), weight (out, in) -> (..., out)

SLICES = 8  # of a weight matrix, for as many cores; a few more slices than cores cost nothing
FEW_ROWS = 128  # up to here a float32 product is faster in slices, on AVX2


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``F.linear`` by the way that suits the dtype and the number of rows in x."""
    if x.dtype != weight.dtype:  # under autocast, which casts for F.linear
        return F.linear(x, weight)
    return choose_linear(x)(x, weight)


def choose_linear(x: Tensor) -> Product:
    """With few rows the time goes into reading the weights, so the fastest way is the one with which every core reads.

    GB/s of weights for one row, two cores, torch 2.13, F.linear / mv / slices (benchmarks/kernels.py):

                                    AMX (Intel)            AVX2 (AMD)
        bfloat16, 32000 x 288        9 / 28 / 14            16 / 17 / 16
        bfloat16, 5632 x 2048       19 / 24 / 19            20 / 20 / 20
        float32, 32000 x 288        as fast as memory       12 / 12 / 22
        float32, 5632 x 2048        as fast as memory       23 / 23 / 32
        reading memory, float32     29                      38

    For 16 rows of bfloat16 F.linear is as fast on AMX as for one. torch.compile makes one loop over the weights of
    ``mv``: in float32 on AVX2 it reads 28 GB/s for 32000 x 288.
    """
    rows = x.shape[:-1].numel()
    if rows == 1 and (x.dtype != torch.float32 or torch.compiler.is_compiling()):
        return linear_mv
    return linear_in_slices if x.dtype == torch.float32 and rows <= FEW_ROWS else F.linear


def linear_in_slices(x: Tensor, weight: Tensor) -> Tensor:
    """One product for each slice of the weights."""
    slices = math.gcd(weight.shape[0], SLICES)
    weights = weight.unflatten(0, (slices, -1))  # (slices, out / slices, in)
    rows = x.reshape(-1, x.shape[-1])  # (rows, in)
    products = torch.bmm(rows.expand(slices, -1, -1), weights.mT)  # (slices, rows, out / slices)
    return products.transpose(0, 1).contiguous().view(*x.shape[:-1], -1)  # (..., out)


def linear_mv(x: Tensor, weight: Tensor) -> Tensor:
    """For one row: the matrix times a vector."""
    return torch.mv(weight, x.reshape(-1)).view(*x.shape[:-1], -1)  # (..., out)


LINEAR: dict[str, Product] = {"F.linear": F.linear, "slices": linear_in_slices, "mv": linear_mv}

# --- Products with eight-bit numbers: x (..., in), weight (out, in) int8, scales (out, groups) -> (..., out)

INT8_MULTIPLE = 32  # of numbers in a row: PyTorch's product goes over them in steps, and past the end of what is left
X_ALIGNMENT, WEIGHT_ALIGNMENT = 32, 16  # bytes: with AVX-512 that product's loads fault at any other address
INT8_FEW_ROWS = 8  # of x: up to here the product with eight-bit numbers is faster than widening them
WIDE = 4096  # numbers in a row: from here on x in float32 leaves the weights too little of a core's first cache
ROWS_PER_LOOP = 2  # rows of weights in one loop: x is read once for both, and neither sum waits for the other


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x times the dequantized weight, by the way that suits the processor, the shape and what is compiled."""
    return choose_int8(x, scales)(x, weight, scales)


def choose_int8(x: Tensor, scales: Tensor) -> Int8Product:
    """For one row when compiled ``int8_written_out``, if the compiler has wide instructions for it; else for few rows
    PyTorch's product, ``int8_packed``, if it can take them; else ``int8_widened``.

    GB/s of weights for one row, x in bfloat16, two cores, torch 2.13, packed / written out and compiled:

                           AVX512-BF16 (AMD)    AVX2 (AMD)
        32000 x 288                             20 / 0.5
        5632 x 2048          - / 27             13 / 1.9
        2048 x 5632         19 / 15             20 / 1.8
    """
    rows = x.shape[:-1].numel()
    packable = scales.shape[1] == 1 and scales.dtype == torch.bfloat16 and x.shape[-1] % INT8_MULTIPLE == 0
    if rows == 1 and torch.compiler.is_compiling() and (CPU.avx512 or not packable):
        wide = x.shape[-1] >= WIDE and x.dtype == torch.bfloat16
        return int8_packed if packable and wide else int8_written_out
    return int8_packed if packable and rows <= INT8_FEW_ROWS else int8_widened


def int8_packed(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """PyTorch's product, which takes x in bfloat16 and one scale a row."""
    rows = x.reshape(-1, x.shape[-1]).bfloat16()  # (rows, in)
    # A compiler knows no address yet, and removes a plain copy as needless, but not one that is a row longer.
    compiling = torch.compiler.is_compiling()
    rows = F.pad(rows, (0, 0, 0, 1))[:-1] if compiling else aligned(rows, X_ALIGNMENT)
    out = torch._weight_int8pack_mm(rows, weight, scales[:, 0])  # (rows, out)
    return out.type_as(x).view(*x.shape[:-1], -1)  # (..., out)


def int8_written_out(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """One row, in arithmetic of which a compiler makes one loop over the weights."""
    # Left to itself the compiler widens x again for every row of the weights. It takes `as_strided` for a view of
    # memory, and so computes what is viewed first. Two cores with AVX512-BF16, x in bfloat16, 5632 x 2048 weights: 0.42
    # ms, a third more with x widened for every row, 0.49 with the rows one by one; the bfloat16 product takes 0.72.
    wide = x.float().contiguous().as_strided((x.shape[-1],), (1,))
    if scales.shape[1] == 1:
        sums = [(rows.float() * wide).sum(-1) for rows in weight.chunk(ROWS_PER_LOOP)]  # (out / ROWS_PER_LOOP,) each
        out = torch.cat(sums) * scales[:, 0].float()  # (out,)
    else:
        groups = weight.unflatten(1, (scales.shape[1], -1)).float()  # (out, groups, group)
        out = ((groups * wide.view(groups.shape[1:])).sum(-1) * scales.float()).sum(-1)  # (out,)
    return out.type_as(x).view(*x.shape[:-1], -1)  # (..., out)


def int8_widened(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """The product with the weight in floating point; for many rows, widening it takes the smaller part of the time."""
    if scales.shape[1] == 1 and x.dtype != torch.float16:  # in which a sum may overflow before it is scaled
        return F.linear(x, weight.to(x.dtype)) * scales[:, 0].to(x.dtype)  # (..., out)
    return F.linear(x, dequantize(weight, scales, x.dtype))  # (..., out)


def dequantize(weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """weight[r, c] * scales[r, c // group], (out, in) in floating point."""
    groups = weight.unflatten(1, (scales.shape[1], -1))  # (out, groups, group)
    return (groups.to(dtype) * scales.to(dtype)[..., None]).flatten(1)


def aligned(tensor: Tensor, alignment: int) -> Tensor:
    """The tensor itself, or a copy if it has gaps or begins at another address than a multiple of ``alignment`` bytes.

    PyTorch's product in eight bits does not check the address: it ends the process with a segmentation fault.
    """
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % alignment == 0 else tensor.clone()


INT8: dict[str, Int8Product] = {"packed": int8_packed, "written out": int8_written_out, "widened": int8_widened}
