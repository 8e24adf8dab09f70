"""The KV cache: keys and values of all earlier tokens, so that a forward pass computes only those of the new tokens."""

import torch
from torch import Tensor

from .config import ModelArgs


class LayerCache:
    """Keys, already rotated, and values of one layer: (B, K, max_seq_len, D) each."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def update(self, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of T new tokens, (B, K, T, D), and return those of all S = start_pos + T.

        They are detached before they are stored; otherwise the cache would keep the activations of every step alive. So
        wk and wv get no gradient in a forward pass with a cache.
        """
        end = start_pos + xk.shape[2]
        self.keys[:, :, start_pos:end] = xk.detach()
        self.values[:, :, start_pos:end] = xv.detach()
        return self.keys[:, :, :end].type_as(xk), self.values[:, :, :end].type_as(xv)  # (B, K, S, D)


class KVCache:
    """One ``LayerCache`` for each layer of the network, allocated once.

    Token p of a text is in slot p. The cache does not count its tokens: the caller passes ``start_pos``. To overwrite
    slots or to begin another text, pass a lower one. Nothing needs to be cleared, because slots at ``start_pos + T``
    and above are never read.
    """

    chunk = 512  # prompt tokens in one forward pass of the decode loop, to bound the memory of a long prompt

    def __init__(
        self,
        args: ModelArgs,
        batch_size: int = 1,
        max_seq_len: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """``max_seq_len`` defaults to the network's, and a larger one raises ValueError.

        ``dtype`` and ``device`` must be those of the network, so that no token converts or moves the cache.
        """
        self.batch_size = batch_size
        self.max_seq_len = args.max_seq_len if max_seq_len is None else max_seq_len
        if not 1 <= self.max_seq_len <= args.max_seq_len:
            raise ValueError(f"max_seq_len is {self.max_seq_len}: the network allows 1 to {args.max_seq_len}")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give at least 1")
        shape = (batch_size, args.n_kv_heads, self.max_seq_len, args.head_dim)

        def zeros() -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)  # (B, K, max_seq_len, D)

        self.layers = [LayerCache(zeros(), zeros()) for _ in range(args.n_layers)]
        self.dtype, self.device = self.layers[0].keys.dtype, self.layers[0].keys.device

    def make_room(self, start_pos: int, T: int) -> int:
        """The position of the next T tokens: ``start_pos``, unless a subclass (``EndlessCache``) evicts earlier tokens.

        Raises ValueError if they do not fit.
        """
        if start_pos + T > self.max_seq_len:
            raise ValueError(f"start_pos {start_pos} with T = {T} new tokens: the cache has {self.max_seq_len} slots")
        return start_pos
