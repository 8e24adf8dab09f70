"""Exercise: a causal mask and a KV cache. Write the bodies, then run `python -m study check` on the file.

B batch, T new tokens, S = start_pos + T keys, K key/value heads, D width of one head.
"""

import torch
from torch import Tensor


def causal_mask(start_pos: int, T: int) -> Tensor:
    """The causal mask of T new tokens after start_pos cached ones: bool (T, S), True where a token may see a key."""
    raise NotImplementedError


class KVCache:
    """Keys, already rotated, and values of one layer, allocated once. Each layer of a network has a cache."""

    def __init__(self, batch_size: int, n_kv_heads: int, max_seq_len: int, head_dim: int) -> None:
        self.keys = torch.zeros(batch_size, n_kv_heads, max_seq_len, head_dim)  # (B, K, max_seq_len, D)
        self.values = torch.zeros(batch_size, n_kv_heads, max_seq_len, head_dim)  # (B, K, max_seq_len, D)

    def update(self, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of T new tokens, (B, K, T, D), and return those of all S: (B, K, S, D) each.

        The caller has transposed them, so that a head's slots are adjacent. They go to slots start_pos to start_pos +
        T - 1. The cache keeps no count, so a new text may start at 0. Stored keys and values carry no gradient. Raises
        ValueError if start_pos + T exceeds max_seq_len.
        """
        raise NotImplementedError
