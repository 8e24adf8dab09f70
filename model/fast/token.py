"""The forward pass of one token of each row, as a function of tensors alone, and its arithmetic for the compiler."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..cache import LayerCache
from ..cli import machine
from ..transformer import Transformer
from . import int8, kernels


def logits_of_token(
    network: Transformer,
    tokens: Tensor,
    start_pos: int,
    freqs_cis: Tensor,
    mask: Tensor | None,
    caches: Sequence[LayerCache],
) -> Tensor:
    """tokens (B, 1), the rotations of their position (1, D/2), and the cache of each layer -> (B, 1, V)."""
    h = network.tok_embeddings(tokens)  # (B, 1, dim)
    for layer, cache in zip(network.layers, caches):
        h = layer(h, start_pos, freqs_cis, mask, cache)
    return network.output(network.norm(h))  # type: ignore[misc]  # an accelerated network has one


def with_loop_products(module: nn.Module) -> nn.Module:
    """Change a module to the same computation for one token in arithmetic that the compiler turns into few loops."""
    if isinstance(module, kernels.FastLinear | kernels.FastTiedOutput):
        module.product = linear
    elif isinstance(module, int8.Int8Linear):
        module.product = int8_linear
    elif vars(module).get("attend") is kernels.attend:
        module.attend = attend  # type: ignore[assignment]
    return module


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` for x (B, 1, in); for one row as a loop over the weights, which reads them faster than a library."""
    if x.shape[0] > 1:
        return kernels.linear(x, weight, bias)
    out = row_sums(x, weight).type_as(x).view(1, 1, -1)  # (1, 1, out)
    return out if bias is None else out + bias


PARTS = 4  # of a weight matrix: compiled code reads so many rows at a time, and each number of x once for all of them
MIN_LARGE_WEIGHTS = 1_000_000  # below, the parts gain nothing


def row_sums(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in), one row, times weight (out, in), summed in float32 -> (out,)."""
    parts = PARTS if weight.numel() >= MIN_LARGE_WEIGHTS else 1
    # By default the compiler would convert x to float32 again for every row of the weight. `as_strided` forces it to
    # store the converted x first.
    x32 = x.float().contiguous().as_strided((x.shape[-1],), (1,))
    return torch.cat([(part.float() * x32).sum(-1) for part in weight.chunk(parts)])


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """As ``linear``, with eight-bit weights and their scales.

    Without AVX-512 the compiler converts eight-bit numbers one by one, but shifts eight words of four numbers at once.
    """
    if x.shape[0] > 1 or not (machine.CPU.avx512 or weight.shape[1] % 4 == 0):
        return int8.int8_linear(x, weight, scales)
    sums = row_sums(x, weight) if machine.CPU.avx512 else word_sums(x, weight.view(torch.int32))
    return (sums * scales[:, 0].float()).type_as(x).view(1, 1, -1)  # (1, 1, out)


def word_sums(x: Tensor, words: Tensor) -> Tensor:
    """As ``row_sums``: x (..., in), one row, times the numbers in words (out, in / 4) int32 -> (out,)."""
    parts = PARTS if words.numel() * 4 >= MIN_LARGE_WEIGHTS else 1
    columns = words.shape[1]
    # Row i has the numbers of x for number i of each word; ``as_strided`` as above.
    x32 = x.float().view(-1, 4).T.contiguous().as_strided((4, columns), (columns, 1))
    sums = []
    for part in words.chunk(parts):
        # Number i of a little-endian word is its bits from 8 i on; the right shift repeats their sign.
        numbers = [((part << (24 - 8 * i)) >> 24).float() for i in range(4)]  # (out / parts, in / 4) each
        sums.append(sum(each * row for each, row in zip(numbers, x32)).sum(-1))
    return torch.cat(sums)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The formula for one query, in loops over the keys and the values: q (B, H, 1, D) -> (B, H, 1, D).

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
