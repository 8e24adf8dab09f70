"""The KV cache: keys and values of all earlier tokens, so that a forward pass computes only those of the new tokens."""

import torch
from torch import Tensor

from .config import UNSET, ModelArgs


class LayerCache:
    """Keys, already rotated, and values of one layer: (B, K, slots, D) each, with the dtype of the first keys."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.keys: Tensor = UNSET  # both are allocated by the first update
        self.values: Tensor = UNSET

    def update(self, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of T new tokens, (B, K, T, D), and return those of all S = start_pos + T.

        They are detached before they are stored; otherwise the cache would keep the activations of every step alive. So
        wk and wv get no gradient in a forward pass with a cache.
        """
        B, K, T, D = xk.shape
        if self.keys is None:
            with torch.inference_mode(False):  # later tokens may be written outside of it
                self.keys = torch.zeros(B, K, self.slots, D, dtype=xk.dtype, device=xk.device)
                self.values = torch.zeros_like(self.keys)
        end = start_pos + T
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

    def __init__(self, args: ModelArgs, batch_size: int = 1, max_seq_len: int | None = None) -> None:
        """``max_seq_len`` defaults to the network's, and a larger one raises ValueError."""
        self.batch_size = batch_size
        self.max_seq_len = args.max_seq_len if max_seq_len is None else max_seq_len
        if not 1 <= self.max_seq_len <= args.max_seq_len:
            raise ValueError(f"max_seq_len is {self.max_seq_len}: the network allows 1 to {args.max_seq_len}")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give at least 1")
        self.layers = [LayerCache(self.max_seq_len) for _ in range(args.n_layers)]

    def make_room(self, start_pos: int, T: int) -> int:
        """The position of the next T tokens: ``start_pos``, unless a subclass (``EndlessCache``) evicts earlier tokens.

        Raises ValueError if they do not fit.
        """
        if start_pos + T > self.max_seq_len:
            raise ValueError(f"start_pos {start_pos} with T = {T} new tokens: the cache has {self.max_seq_len} slots")
        return start_pos
