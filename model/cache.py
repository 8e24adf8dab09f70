"""The KV cache: keys and values of all earlier tokens, so that a forward computes those of the new ones only."""

import torch
from torch import Tensor

from .config import ModelArgs


class KVCache:
    """Keys, already rotated, and values of every layer, allocated once.

    The cache has no position of its own: the caller passes ``start_pos``, and so may overwrite, fork or start anew.
    What lies beyond ``start_pos + T`` is never read, whatever it holds.
    """

    def __init__(
        self,
        args: ModelArgs,
        batch_size: int = 1,
        max_seq_len: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.max_seq_len = args.max_seq_len if max_seq_len is None else max_seq_len
        if not 1 <= self.max_seq_len <= args.max_seq_len:
            raise ValueError(f"max_seq_len is {self.max_seq_len}: the network allows 1 to {args.max_seq_len}")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give at least 1")
        self.batch_size = batch_size
        shape = (args.n_layers, batch_size, args.n_kv_heads, self.max_seq_len, args.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # (L, B, K, max_seq_len, D)
        self.values = torch.zeros_like(self.keys)  # (L, B, K, max_seq_len, D)
        # Views of each layer's part. A compiler writes in place only into a tensor that nothing else reads later on:
        # with one tensor for all layers it would copy the whole cache at every second layer.
        self.layers = list(zip(self.keys.unbind(), self.values.unbind()))  # L pairs of (B, K, max_seq_len, D)

    def update(self, layer: int, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of T new tokens, (B, K, T, D), and return those of all S = start_pos + T.

        They are detached: a cache that held a graph would keep every step's activations alive.
        """
        end = start_pos + xk.shape[2]
        keys, values = self.layers[layer]  # (B, K, max_seq_len, D)
        keys[:, :, start_pos:end] = xk.detach()
        values[:, :, start_pos:end] = xv.detach()
        return keys[:, :, :end].type_as(xk), values[:, :, :end].type_as(xv)  # (B, K, S, D)

    def restrict(self, mask: Tensor | None, start_pos: int, T: int) -> Tensor | None:
        """The network's mask, (T, S) or None, less what this cache hides: nothing, since all its slots are filled."""
        return mask
