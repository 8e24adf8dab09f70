"""Grouped-query attention: the layer (``Attention``), the formula in it (``attention``), and RMSNorm."""

import math

import torch
from torch import Tensor, nn

from .cache import LayerCache
from .config import ModelArgs
from .rope import apply_rotary_emb


class RMSNorm(nn.Module):
    """Divide by the root mean square, computed in float32, and scale (arXiv:1910.07467)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class Attention(nn.Module):
    """Causal self-attention: each token attends to itself and to all earlier tokens.

    If ``n_kv_heads`` is below ``n_heads``, a group of query heads shares one key/value head, which shrinks the cache
    (grouped-query attention, arXiv:2305.13245).
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.head_dim = args.head_dim
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=args.qkv_bias)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=args.qkv_bias)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=args.qkv_bias)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)
        self.q_norm = RMSNorm(args.head_dim, args.norm_eps) if args.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(args.head_dim, args.norm_eps) if args.qk_norm else nn.Identity()

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: LayerCache | None
    ) -> Tensor:
        """x (B, T, dim) -> (B, T, dim). ``freqs_cis`` (T, D/2) holds the rotations of these T positions."""
        B, T, _ = x.shape
        xq = self.wq(x).view(B, T, -1, self.head_dim)  # (B, T, H, D)
        xk = self.wk(x).view(B, T, -1, self.head_dim)  # (B, T, K, D)
        xv = self.wv(x).view(B, T, -1, self.head_dim)  # (B, T, K, D)

        xq, xk = self.q_norm(xq), self.k_norm(xk)  # Qwen3; the identity otherwise
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis)  # values are not rotated: RoPE affects the scores only

        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
        if cache is not None:  # the cache of this layer
            xk, xv = cache.update(start_pos, xk, xv)  # (B, K, S, D)

        out = self.attend(xq, xk, xv, mask)  # (B, H, T, D); fast/ has faster ways to the same result
        return self.wo(out.transpose(1, 2).flatten(2))  # (B, T, dim)

    def attend(self, xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """The formula; override this method to try another: (B, H, T, D), (B, K, S, D) twice -> (B, H, T, D)."""
        return attention(xq, keys, values, mask)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, the definition: q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D).

    ``mask`` is boolean, broadcasts to (B, H, T, S), and is True where a query may see a key; every query must see at
    least one. None is causal: the last query sees all S keys, the query before it all but the last key, and so on.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # (B, H, S, D)
    if mask is None:
        T, S = q.shape[2], k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)  # (T, S)
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # (B, H, T, S)
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1, dtype=torch.float32).type_as(v)  # (B, H, T, S)
    return weights @ v
