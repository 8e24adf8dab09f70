"""Grouped-query attention: where RoPE and the KV cache slot in, and the softmax, written out and fused."""

from collections.abc import Iterator
from itertools import starmap

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import KVCache
from .config import ModelArgs
from .rope import apply_rotary_emb, apply_rotary_emb_real

QUERIES = 128  # in a block: their scores stay in the processor's caches
LONGEST_WRITTEN_OUT = 512  # keys, in training: up to here the scores take less memory than the rest of a layer


class Attention(nn.Module):
    """Every token compares its query with the keys of the tokens up to and including itself, and sums their values.

    ``n_kv_heads`` below ``n_heads`` lets a group of query heads share one key/value head, which shrinks the cache
    (GQA, arXiv:2305.13245).
    """

    def __init__(self, args: ModelArgs, layer_id: int) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.head_dim = args.head_dim
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """x (B, T, dim) -> (B, T, dim). ``freqs_cis`` and ``mask`` are what Transformer made for these positions."""
        xq, xk, xv = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))  # (B, T, H or K, D)

        rotate = apply_rotary_emb_real if torch.compiler.is_compiling() else apply_rotary_emb
        xq, xk = rotate(xq, xk, freqs_cis)  # values are not rotated: RoPE affects the scores only

        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
        keys, values = (xk, xv) if cache is None else cache.update(self.layer_id, start_pos, xk, xv)  # (B, K, S, D)

        out = self.attend(xq, keys, values, mask)  # (B, H, T, D)
        return self.wo(out.transpose(1, 2).flatten(2))  # (B, T, dim)

    def attend(self, xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(q k^T / sqrt(D) + mask) v: xq (B, H, T, D), keys and values (B, K, S, D) -> (B, H, T, D).

        ``mask`` broadcasts to (B, H, T, S): True where a query may see a key, or a number added to each score. Without
        one, T == S is causal, and a single query sees every key.

        One rule chooses between two forms of the same thing. In bfloat16 on a CPU the formula is written out, for
        QUERIES queries at a time, and in training, which keeps all scores, for up to LONGEST_WRITTEN_OUT keys. Fused it
        took twice as long, forward and backward of 16 x 256 tokens, and for a prompt of 512 (benchmarks/README.md). In
        float32 fused was never slower from 256 tokens on, and on CUDA it never forms the scores.
        """
        T, S = xq.shape[2], keys.shape[2]
        faster = xq.device.type == "cpu" and xq.dtype == torch.bfloat16 and T > 1
        if faster and (S <= LONGEST_WRITTEN_OUT or not xq.requires_grad):
            return torch.cat(list(starmap(attention, in_blocks(xq, keys, values, mask))), 2)  # (B, H, T, D)
        return fused_attention(xq, keys, values, mask)


def in_blocks(
    xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """What ``attention`` takes, QUERIES queries at a time: no keys that none of them sees, no mask of those all see."""
    T, S = xq.shape[2], keys.shape[2]
    for start in range(0, T, QUERIES):
        own, end, part = S - T + start, S - T + min(start + QUERIES, T), None  # the keys of these queries' own tokens
        if mask is not None:
            part = mask.expand(*mask.shape[:-2], T, S)[..., start : start + QUERIES, :]
            end = end if mask.dtype == torch.bool and not part[..., end:].any() else S
            own = own if mask.dtype == torch.bool and part[..., :own].all() else 0
            part = part[..., own:end]
        yield xq[:, :, start : start + QUERIES], keys[:, :, :end], values[:, :, :end], part


def attention(xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """The formula as it is read; shapes are those of ``Attention.attend``. A mask of fewer keys is for the last."""
    B, H, T, D = xq.shape
    K, S = keys.shape[1:3]
    if mask is None:
        mask = torch.ones(T, T, dtype=torch.bool, device=xq.device).tril()  # (T, T)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=xq.dtype, device=xq.device).masked_fill(~mask, float("-inf"))

    # The H / K query heads of a group become rows of one product with the keys they share: no key is repeated.
    xq = xq.reshape(B, K, H // K * T, D)  # (B, K, H/K * T, D)
    scores = (xq * D**-0.5 @ keys.mT).view(B, H, T, S)  # (B, H, T, S)
    # In place: a copy takes 7% of a prompt's time. Detached: a constant changes no gradient, but autograd would copy.
    in_place = scores if mask.requires_grad else scores.detach()
    in_place[..., -mask.shape[-1] :] += mask
    weights = scores.softmax(-1).type_as(values)  # (B, H, T, S); PyTorch sums 16-bit numbers in float32
    return (weights.view(B, K, H // K * T, S) @ values).view(B, H, T, -1)  # (B, H, T, D)


def fused_attention(xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """The same through PyTorch's kernel, which goes over the keys in blocks and never holds all scores."""
    B, H, T, D = xq.shape
    K, S = keys.shape[1:3]
    if T == 1:
        # As above, a group's heads become rows. One bfloat16 query after 1900 tokens, 32 heads, 4 key/value heads, two
        # cores: 0.21 ms. With `enable_gqa` 4.2, because the kernel then repeats the keys.
        mask = None if mask is None else mask.expand(B, H, 1, S).reshape(B, K, H // K, S)  # (B, K, H/K, S)
        xq = xq.reshape(B, K, H // K, D)  # (B, K, H/K, D)
        return F.scaled_dot_product_attention(xq, keys, values, mask).reshape(B, H, 1, -1)  # (B, H, T, D)
    # PyTorch's causal flag is for T == S alone: with more keys it would align the triangle to the wrong corner.
    return F.scaled_dot_product_attention(xq, keys, values, mask, is_causal=mask is None, enable_gqa=K != H)
