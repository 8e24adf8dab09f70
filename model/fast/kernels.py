"""Faster matrix products, attention and norms for the network, put in from outside. Skip it on first reading.

The network computes its definition. ``accelerate`` replaces its attention and its norms, and ``fast_product`` its
matrices, by others with the same results, up to rounding. On a GPU they are PyTorch's own. On a CPU the fastest way
depends on the dtype, the number of rows and the features of the processor (``machine.CPU``). The rules never measure
time, because the same command must give the same text every time. benchmarks/README.md has the measurements behind
them, and benchmarks/kernels.py repeats these.

All inputs must be finite, also those of padding tokens. Some libraries read past the end of a row into the next one and
multiply the numbers there by zero, and zero times NaN is NaN.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends.cuda import SDPAParams, can_use_flash_attention

from ..attention import Attention, RMSNorm
from ..cli import machine
from ..transformer import Transformer

Module = TypeVar("Module", bound=nn.Module)


def accelerate(model: Transformer) -> Transformer:
    """The same network, sharing its parameters and hooks, with faster attention and norms.

    Results, gradients and the names in the state dict are the same. The copy is shallow: changing a parameter in place
    changes it in both, and each has its own modules and its own training mode. An attention with an ``attend`` of its
    own stays as it is, and so does every matrix: libraries that quantize or adapt a network look for nn.Linear.
    """
    fast = replace_modules(model, accelerated_module)
    device = fast.tok_embeddings.weight.device
    if fast.freqs_cis.device != device and device.type != "meta":  # so that ``forward`` need not move its rows
        fast.freqs_cis = fast.freqs_cis.to(device)
    return fast


def accelerated_module(module: nn.Module) -> nn.Module:
    if type(module) is RMSNorm:
        return FastRMSNorm(module)
    has_formula = isinstance(module, Attention) and type(module).attend is Attention.attend
    if has_formula and "attend" not in vars(module):  # neither overridden nor replaced
        module.attend = attend  # type: ignore[assignment]
    return module


def replace_modules(
    module: Module, replace: Callable[[nn.Module], nn.Module], copies: dict[nn.Module, nn.Module] | None = None
) -> Module:
    """A copy of a tree of modules, each of them ``replace(copy of the module)``. Tensors and hooks are shared.

    ``copies`` are those made so far, because a module may be in several places.
    """
    copies = {} if copies is None else copies
    if module not in copies:
        new = type(module).__new__(type(module))  # not copy.copy, which a parametrized module refuses
        vars(new).update(vars(module))
        # A module shares even the dict of its parameters with its copy, so that what FSDP or ``.to()`` put there is
        # seen by both; but the dict of its children is its own.
        new._modules = {
            name: None if child is None else replace_modules(child, replace, copies)
            for name, child in new._modules.items()
        }
        copies[module] = replace(new)
    return copies[module]  # type: ignore[return-value]


# --- Products: x (..., in), weight (out, in) -> (..., out)


def fast_product(module: nn.Module) -> nn.Module:
    """For ``replace_modules``. Only few rows gain by it, so only the decode loop does it."""
    return FastLinear(module) if type(module) is nn.Linear else module


class FastLinear(nn.Linear):
    """``nn.Linear`` with the product that is fastest for the dtype and the number of rows in x."""

    def __init__(self, layer: nn.Linear) -> None:
        vars(self).update(vars(layer))  # instead of super().__init__(), which would allocate new parameters
        self.product = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


class FastTiedOutput(nn.Module):
    """The output matrix of a network with tied embeddings. It has no parameters, so the state dict does not change."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = (embedding,)  # in a tuple, so that it is not registered twice
        self.product = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.embedding[0].weight)


class FastRMSNorm(RMSNorm):
    """On a GPU, the norm in one kernel instead of eight. In 16 bits it is rounded once, after the multiplication."""

    def __init__(self, norm: RMSNorm) -> None:
        vars(self).update(vars(norm))  # instead of super().__init__(), which would allocate a new parameter

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return super().forward(x)
        weight: Tensor = self.weight
        if x.dtype != weight.dtype:  # as under autocast; there is no kernel for two dtypes
            dtype = torch.promote_types(x.dtype, weight.dtype)
            x, weight = x.to(dtype), weight.to(dtype)
        return F.rms_norm(x, weight.shape, weight, self.eps)


Product = Callable[[Tensor, Tensor], Tensor]
SLICES = 8  # of a weight matrix, read by up to 8 cores at a time; more slices than cores cost nothing
MAX_SLICED_ROWS = 128  # of x: up to here a product in slices is faster


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, with the fastest implementation."""
    if x.device.type != "cpu" or x.dtype != weight.dtype:  # the dtypes differ under autocast, which casts both
        return F.linear(x, weight, bias)
    out = choose_linear(x)(x, weight)
    return out if bias is None else out + bias


def choose_linear(x: Tensor) -> Product:
    """For few rows a product takes the time of reading the weights, and other ways are faster on x86; else F.linear.

    MKL, the library for float32, multiplies one row on one core only, unless the processor is Intel's. So float32 needs
    slices on AMD. In bfloat16 F.linear reads the weights at half the speed of ``mv`` or less, except on Zen 4 and 5.
    """
    rows = math.prod(x.shape[:-1])
    ice_lake = machine.CPU.avx512 and not machine.CPU.bfloat16
    if not machine.CPU.avx2:
        return F.linear
    if x.dtype == torch.float32 and rows <= MAX_SLICED_ROWS and not (machine.CPU.amx or ice_lake):
        return linear_in_slices
    if x.dtype == torch.bfloat16 and rows == 1 and (machine.CPU.amx or not machine.CPU.bfloat16):
        return linear_mv
    return F.linear


def linear_in_slices(x: Tensor, weight: Tensor) -> Tensor:
    """One batched product over slices of the weight matrix. One row is faster as the second factor."""
    slices = in_slices(weight)  # (slices, out / slices, in)
    rows = x.reshape(-1, x.shape[-1])  # (rows, in)
    if rows.shape[0] == 1:  # not len(), which makes a symbolic number a constant
        return row_times_slices(x, slices)  # (..., out)
    products = torch.bmm(rows.expand(len(slices), -1, -1), slices.mT)  # (slices, rows, out / slices)
    products = products.transpose(0, 1).contiguous()  # (rows, slices, out / slices)
    return products.view(*x.shape[:-1], -1)  # (..., out)


def in_slices(weight: Tensor) -> Tensor:
    return weight.unflatten(0, (math.gcd(weight.shape[0], SLICES), -1))  # (slices, out / slices, in)


def row_times_slices(x: Tensor, slices: Tensor) -> Tensor:
    """x (..., in), one row, times slices (slices, out / slices, in) -> (..., out)."""
    column = x.reshape(1, -1).mT.expand(len(slices), -1, -1)  # (slices, in, 1); with these strides it is read as a row
    return torch.bmm(slices, column).view(*x.shape[:-1], -1)


def linear_mv(x: Tensor, weight: Tensor) -> Tensor:
    """The matrix times a vector, for one row."""
    return torch.mv(weight, x.reshape(-1)).view(*x.shape[:-1], -1)  # (..., out)


LINEAR: dict[str, Product] = {"F.linear": F.linear, "slices": linear_in_slices, "mv": linear_mv}

# --- Attention: q (B, H, T, D), k and v (B, K, S, D), mask as in ``attention`` -> (B, H, T, D)

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
QUERY_BLOCK = 128  # queries: the scores of one block stay in the processor's caches
MAX_KEPT_KEYS = 512  # with more, the scores kept for the backward pass take more memory than the rest of a layer


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, as ``attention`` defines it, with the fastest implementation."""
    if q.device.type != "cpu":
        return gpu_attention(q, k, v, mask)
    return choose_attention(q, k.shape[2])(q, k, v, mask)


def choose_attention(q: Tensor, S: int) -> Attend:
    """``blockwise_attention`` for several bfloat16 queries on a CPU that multiplies bfloat16, else ``fused_attention``.

    The former keeps all scores if a backward pass follows, so it is for at most MAX_KEPT_KEYS keys then. On a CPU with
    AMX, ``fused_attention`` is faster for prompts.
    """
    if q.dtype != torch.bfloat16 or q.shape[2] == 1 or not machine.CPU.bfloat16:
        return fused_attention
    if q.requires_grad:
        return blockwise_attention if S <= MAX_KEPT_KEYS else fused_attention
    return fused_attention if machine.CPU.amx else blockwise_attention


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
        blocks.append(attend_block(q[:, :, start:end], keys, values, visible))
    return torch.cat(blocks, 2)  # (B, H, T, D)


def attend_block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The formula, with one product for all heads that share keys."""
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # The H / K query heads of a group become rows of one product with the keys they share, so that no key is repeated.
    rows = q.reshape(B, K, H // K * T, D)  # (B, K, H/K * T, D)
    scores = (rows * D**-0.5 @ k.mT).view(B, H, T, S)  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    elif T > 1:  # added, because nothing needs to be kept of it for the backward pass
        scores = scores + scores.new_full((T, S), -math.inf).triu(S - T + 1)
    weights = scores.softmax(-1).type_as(v)  # (B, H, T, S); PyTorch sums 16-bit numbers in float32
    return (weights.view(B, K, H // K * T, S) @ v).view(B, H, T, D)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch's scaled_dot_product_attention, which processes the keys in blocks."""
    H, T = q.shape[1:3]
    K, S = k.shape[1:3]
    if T == 1:
        return one_query(q, k, v, mask)
    enable_gqa = bool(K != H)  # while torch.jit.trace runs, sizes are tensors
    if mask is None and T < S:  # `is_causal` would align the mask to the first key, not to the last
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)  # (T, S)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=enable_gqa)
    mask = torch.atleast_2d(mask)  # (S,) becomes (1, S), because PyTorch needs both dimensions
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=enable_gqa)


def one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """``fused_attention`` for one query, q (B, H, 1, D): a group's heads become rows, as in ``attend_block``.

    One bfloat16 query after 1,900 tokens, with 32 heads and 4 key/value heads, takes 0.21 ms on two cores of an AMD
    EPYC; `enable_gqa` takes 4.2, because it repeats the keys. In float32 the last bits of PyTorch's result depend on
    which thread computes a head, so on a CPU the formula takes its place, for 13 us.
    """
    if q.dtype == torch.float32 and q.device.type == "cpu":
        return attend_block(q, k, v, mask)
    B, H, _, D = q.shape
    K, S = k.shape[1:3]
    visible = None if mask is None else mask.expand(B, H, 1, S).reshape(B, K, H // K, S)  # (B, K, H/K, S)
    rows = q.reshape(B, K, H // K, D)  # (B, K, H/K, D)
    return F.scaled_dot_product_attention(rows, k, v, visible).reshape(B, H, 1, D)


ATTENTION: dict[str, Attend] = {"blockwise": blockwise_attention, "fused": fused_attention}

# --- On a GPU


def gpu_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch's scaled_dot_product_attention, without its slow cases.

    In 16 bits it would take cuDNN's attention on Hopper and Blackwell, which is the fastest in training, but makes a
    plan for each number of queries and keys: 60 ms on an H200 for every token, and for every prompt of a new length. So
    one query takes the formula, and a prompt the flash kernel.

    Its other kernels do not group heads: with `enable_gqa` they keep all scores. 2048 float32 queries of 4 rows with 32
    heads take 4,800 MB and 9 ms with it, 190 MB and 2.3 ms with expanded keys (H200).
    """
    H, T, D = q.shape[1:]
    K, S = k.shape[1:3]
    if T == 1:
        return attend_block(q, k, v, mask) if q.is_cuda and q.dtype != torch.float32 else one_query(q, k, v, mask)
    flash = mask is None and has_flash(q, k, v)
    if flash and D % 8 == 0 and not torch.is_grad_enabled():  # its causal mask is aligned to the last key
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)[0]
    if K != H and not (flash and T == S):
        k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)  # (B, H, S, D)
    return fused_attention(q, k, v, mask)


def has_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether PyTorch has its flash kernel for these: in 16 bits, on cards of NVIDIA from Ampere on and some of AMD.

    Not while torch.compile runs, which cannot ask and would break the network into pieces at every layer.
    """
    return not torch.compiler.is_compiling() and can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, True))
