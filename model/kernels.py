"""Faster implementations of attention and matrix products, and the rules that choose one. Skip on first reading.

``attend`` computes what ``attention`` in attention.py defines, ``linear`` computes ``nn.Linear``, and ``int8_linear``
the same for eight-bit weights. Which implementation is fastest depends on the dtype, the shape, the features of the
processor (``CPU``), and whether gradients are needed or torch.compile is tracing. The rules never measure time, because
the same command must give the same text every time. benchmarks/kernels.py times every implementation on your machine
and reports where a rule does not choose the fastest.

The rules come from this table (two cores, torch 2.13). Products are in GB/s of weights for one row, unless the number
of rows is given, with out x in; attention is in milliseconds, with H / K heads of D. Zen 4 and 5 (AMD) have
AVX512-BF16, Ice Lake (Intel) has AVX-512 without it. A blank cell was not measured, and "same" is the speed of memory,
29 GB/s.

                                               AMX        Zen 5      Zen 4      Ice Lake    AVX2 (AMD)
    F.linear / mv / slices
        float32, 32000 x 288                   same                  7/7/12     18/18/18    12/12/22
        float32, 5632 x 2048                   same                  13/12/19   23/23/21    23/23/32
        float32, 768 x 288, mv in slices / slices                    24/15
        float32, 32000 x 288, mv in slices / slices                  32/17
        float32, 5632 x 2048, mv in slices / slices                  35/29
        float32, 32000 x 2048, compiled (2)                          15/39/46   22/16/16
        float32, 2048 x 5632, compiled (2)                           14/21/31   21/13/13
        float32, 16 rows x 288 x 288                      9.8/-/8.1  4.8/-/4.4  3.3/-/2.2
        float32, 16 rows x 5632 x 2048                               5/-/8
        bfloat16, 32000 x 288                  9/28/14    23/12/23   13/8/12    8.6/9.8/8.5 16/17/16
        bfloat16, 768 x 288                               6.5/3/4.3  5.5/4.5/4  7.6/4.9/4.0
        bfloat16, 5632 x 2048                  19/24/19   27/21/27   14/7/12    10/19/18    20/20/20
        bfloat16, 32000 x 2048                            30/15/29   13/11/14   10/22/22
        bfloat16, 32000 x 2048, compiled (2)              28/40/40   12/37/45   10/12/12
        bfloat16, 2048 x 5632, compiled (2)                          17/22/33
    int8, x in bfloat16: packed / dequantized
        5632 x 2048                                                  14/4.6     8.7/2.3     13/-
        2048 x 5632                                       19/- (1)   19/5.2     13/2.9      20/-
    int8, compiled: packed / elementwise
        2048 x 5632, x in float32 (3)                     24/18      20/23      11/7.4
        5632 x 2048, x in bfloat16                        -/27 (1)   15/29      7.8/9.2     -/1.9
    attention: blockwise / fused
        bfloat16, training 16 x 256, 8/8 of 32 24/34     15/37      32/66      73/113      483/150
        bfloat16, training 4 x 1024, 8/8 of 32 103/67    46/62      94/115     232/191     1460/444
        bfloat16, prompt of 512, 32/4 of 64    5.0/3.3    5.1/15     11/25      35/17       362/17
        bfloat16, the same after 1,536         31/15      21/64      42/74      154/54      2266/72
        float32, prompt of 512, 32/4 of 64                10/13      16/18      28/20
    attention of one token, compiled: elementwise / fused, in microseconds (4)
        bfloat16, after 128, 6/6 of 48                               30/88
        bfloat16, after 1,900, 6/6 of 48                             80/567
        bfloat16, after 1,900, 32/4 of 64                            346/276
        float32, after 128, 6/6 of 48                                39/35
        float32, after 1,900, 32/4 of 64                             547/263

(1) An earlier AMD processor with AVX512-BF16. There the attention of training 16 x 256 took 20/43, of 4 x 1024 96/105.
(2) Zen 4: elementwise instead of slices, in a quiet hour. A token of the 15M network takes 1.81 ms, with mv 2.06.
(3) Zen 5 and Ice Lake: with one sum for a whole row, which on Zen 4 reads 12 GB/s.
(4) Compiled alone. In a token, elementwise becomes part of the loops around it, which saves 10 us for each layer.

Where two differ by less than a tenth, or only in a case that costs little, the rule chooses the simpler one.

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
    """The features of this machine's CPU; a feature that PyTorch does not report counts as absent.

    Products in bfloat16 also need oneDNN, which PyTorch for macOS lacks.
    """
    capabilities = torch.cpu.get_capabilities()
    has_onednn = torch.backends.mkldnn.is_available()
    amx = has_onednn and bool(capabilities.get("amx_tile") and capabilities.get("amx_bf16"))
    bfloat16 = amx or (has_onednn and any(capabilities.get(name) for name in ("avx512_bf16", "bf16", "arm_bf16")))
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
    """``elementwise_attention`` for one query in compiled code on a CPU, and for several bfloat16 queries on a CPU with
    native bfloat16 ``blockwise_attention``, else ``fused_attention``.

    On such a CPU two cases use ``fused_attention``, too: prompts if it has AMX, and training with more than
    MAX_TRAINING_KEYS keys, to save memory: without a mask it never holds all scores.
    """
    if q.device.type != "cpu":
        return fused_attention
    if q.shape[2] == 1:
        return elementwise_attention if torch.compiler.is_compiling() else fused_attention
    if q.dtype != torch.bfloat16 or not CPU.bfloat16:
        return fused_attention
    if torch.is_grad_enabled():
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


def elementwise_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The formula for one query, in arithmetic that torch.compile turns into loops over the keys and the values.

    So a float32 token of the 2.9M network takes 0.18 instead of 0.24 ms (Zen 4).
    """
    B, H, _, D = q.shape
    K, S = k.shape[1:3]
    rows = q.reshape(B, K, H // K, 1, D).float() * D**-0.5  # (B, K, H/K, 1, D)
    scores = (rows * k[:, :, None].float()).sum(-1)  # (B, K, H/K, S)
    if mask is not None:
        scores = scores.masked_fill(~mask.expand(B, H, 1, S).reshape(B, K, H // K, S), -math.inf)
    weights = scores.softmax(-1)[..., None]  # (B, K, H/K, S, 1)
    out = (weights * v[:, :, None].float()).sum(-2)  # (B, K, H/K, D)
    return out.type_as(v).view(B, H, 1, D)


ATTENTION: dict[str, Attend] = {
    "blockwise": blockwise_attention,
    "fused": fused_attention,
    "elementwise": elementwise_attention,
}

# --- Products: x (..., in), weight (out, in) -> (..., out)

SLICES = 8  # of a weight matrix, read by up to 8 cores at a time; more slices than cores cost nothing
PARTS = 4  # of a weight matrix: compiled code reads so many rows at a time, and each number of x once for all of them
LONGEST_SUM = 4096  # the compiler adds up more numbers in a more accurate way, which takes half as long again
ROW_PIECES = 8  # of a longer row of the weight, with a sum each
MIN_LARGE_WEIGHTS = 1_000_000  # below, neither the parts nor a call of the library gain anything
MAX_SLICED_ROWS = 128  # of x: up to here a product in slices is faster


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, with the fastest implementation for the dtype and the number of rows in x.

    Training uses F.linear: it has many rows, and autocast casts its arguments.
    """
    if torch.is_grad_enabled() or x.dtype != weight.dtype:
        return F.linear(x, weight, bias)
    out = choose_linear(x, weight)(x, weight)
    return out if bias is None else out + bias


def choose_linear(x: Tensor, weight: Tensor) -> Product:
    """The choice for few rows, for which a product takes the time of reading the weights; for more rows, F.linear.

    torch.compile turns ``mv`` into one loop over the weights, faster than the library's. A large matrix is read in
    parts by ``elementwise``, except in float32 on Ice Lake: there F.linear generates a token of the 15M network in
    4.9 ms and ``mv`` in 5.8; parts were not measured. Not compiled, bfloat16 needs ``mv`` on all but Zen 4 and Zen 5.

    MKL, the library for float32, multiplies one row on one core only, unless the processor is Intel's. So float32 needs
    slices on AMD. One row is faster as the second factor, several rows as the first.
    """
    rows = math.prod(x.shape[:-1])
    ice_lake = CPU.avx512 and not CPU.bfloat16
    if rows == 1 and torch.compiler.is_compiling():
        if weight.numel() < MIN_LARGE_WEIGHTS:
            return linear_mv
        return F.linear if x.dtype == torch.float32 and ice_lake else linear_elementwise
    if rows == 1 and x.dtype == torch.bfloat16 and (CPU.amx or not CPU.bfloat16):
        return linear_mv
    if rows <= MAX_SLICED_ROWS and x.dtype == torch.float32 and not (CPU.amx or ice_lake):
        return linear_in_slices if rows > 1 else linear_mv_in_slices
    return F.linear


def linear_in_slices(x: Tensor, weight: Tensor) -> Tensor:
    """One batched product over slices of the weight matrix."""
    slices = math.gcd(weight.shape[0], SLICES)
    weights = weight.unflatten(0, (slices, -1))  # (slices, out / slices, in)
    rows = x.reshape(-1, x.shape[-1])  # (rows, in)
    products = torch.bmm(rows.expand(slices, -1, -1), weights.mT)  # (slices, rows, out / slices)
    return products.transpose(0, 1).contiguous().view(*x.shape[:-1], -1)  # (..., out)


def linear_mv_in_slices(x: Tensor, weight: Tensor) -> Tensor:
    """The slices times one row, as a vector."""
    slices = math.gcd(weight.shape[0], SLICES)
    weights = weight.unflatten(0, (slices, -1))  # (slices, out / slices, in)
    column = x.reshape(1, -1).mT  # (in, 1); with the strides of x.reshape(-1, 1) the product takes three times as long
    return torch.bmm(weights, column.expand(slices, -1, -1)).view(*x.shape[:-1], -1)  # (..., out)


def linear_mv(x: Tensor, weight: Tensor) -> Tensor:
    """The matrix times a vector, for one row."""
    return torch.mv(weight, x.reshape(-1)).view(*x.shape[:-1], -1)  # (..., out)


def linear_elementwise(x: Tensor, weight: Tensor) -> Tensor:
    """One row, in arithmetic that torch.compile turns into one loop."""
    return row_sums(x, weight).type_as(x).view(*x.shape[:-1], -1)  # (..., out)


def row_sums(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in), one row, times weight (out, in), summed in float32 -> (out,)."""
    parts = PARTS if weight.numel() >= MIN_LARGE_WEIGHTS else 1
    pieces = math.gcd(weight.shape[1], ROW_PIECES) if weight.shape[1] > LONGEST_SUM else 1
    # By default the compiler would convert x to float32 again for every row of the weight. `as_strided` forces it to
    # store the converted x first.
    x32 = x.float().contiguous().as_strided((pieces, x.shape[-1] // pieces), (x.shape[-1] // pieces, 1))
    weights = weight.unflatten(1, (pieces, -1)).chunk(parts)  # (out / parts, pieces, in / pieces) each
    sums = torch.cat([(part.float() * x32).sum(-1) for part in weights])  # (out, pieces)
    return sums.sum(-1) if pieces > 1 else sums[:, 0]


LINEAR: dict[str, Product] = {
    "F.linear": F.linear,
    "slices": linear_in_slices,
    "mv in slices": linear_mv_in_slices,
    "mv": linear_mv,
    "elementwise": linear_elementwise,
}

# --- Products with eight-bit numbers: x (..., in), weight (out, in) int8, scales (out, groups) -> (..., out)
# A row of the weight consists of groups of ``group_size`` neighbouring numbers, and each group has a scale. A row is
# one group, except in files of llama2.c.

# PyTorch's product, torch._weight_int8pack_mm, needs rows whose length is a multiple of INT8_MULTIPLE, or it reads past
# their end. With AVX-512, it crashes unless x starts at a multiple of X_ALIGNMENT bytes, and the weight at a multiple
# of WEIGHT_ALIGNMENT bytes.
INT8_MULTIPLE = 32
X_ALIGNMENT = 32
WEIGHT_ALIGNMENT = 16
MAX_PACKED_ROWS = 8  # of x: up to here the product with eight-bit numbers is faster than dequantizing them


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x times the dequantized weight, with the fastest implementation for this case."""
    return choose_int8(x, scales)(x, weight, scales)


def choose_int8(x: Tensor, scales: Tensor) -> Int8Product:
    """``int8_elementwise`` for one row compiled with AVX-512, ``int8_packed`` for few rows, else ``int8_dequantized``.

    All but the last need one scale for each row of the weight; ``int8_packed`` also needs it in bfloat16, and a length
    that is a multiple of INT8_MULTIPLE.
    """
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    packable = scales.shape[1] == 1 and scales.dtype == torch.bfloat16 and columns % INT8_MULTIPLE == 0
    one_compiled_row = rows == 1 and scales.shape[1] == 1 and torch.compiler.is_compiling() and CPU.avx512
    if one_compiled_row:
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
    """One row and one scale for each row of the weight, in arithmetic that torch.compile turns into one loop."""
    out = row_sums(x, weight) * scales[:, 0].float()  # (out,)
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
