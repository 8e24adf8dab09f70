"""Grouped-query attention, with the two lines in which RoPE and the KV cache slot in."""

import torch.nn.functional as F
from torch import Tensor, nn

from .cache import KVCache
from .config import ModelArgs
from .rope import apply_rotary_emb, apply_rotary_emb_real


class Attention(nn.Module):
    """Each token asks (query), is asked (key) and answers (value); only earlier tokens may answer.

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

        rotate = apply_rotary_emb if freqs_cis.is_complex() else apply_rotary_emb_real
        xq, xk = rotate(xq, xk, freqs_cis)  # values stay as they are: position decides who is heard, not what is said

        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
        keys, values = (xk, xv) if cache is None else cache.update(self.layer_id, start_pos, xk, xv)  # (B, K, S, D)

        out = self.attend(xq, keys, values, mask)  # (B, H, T, D)
        return self.wo(out.transpose(1, 2).flatten(2))  # (B, T, dim)

    def attend(self, xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(q k^T / sqrt(D) + mask) v: xq (B, H, T, D), keys and values (B, K, S, D) -> (B, H, T, D).

        Without a mask, T == S is causal, and one query (T == 1) sees every key. PyTorch's own causal flag is for
        that square alone: on a longer key sequence it would align the triangle to the wrong corner.
        """
        causal = mask is None
        if xq.shape[2] == 1:  # a branch, not `and`: torch.compile would hand on a symbol where a bool must be
            causal = False
        grouped = keys.shape[1] != xq.shape[1]
        return F.scaled_dot_product_attention(xq, keys, values, mask, is_causal=causal, enable_gqa=grouped)
