"""Right versions of all functions, which replace the reader's where the function being judged calls them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from model.attention import attention
from model.config import ModelArgs

from .forms import FORMS, Form, read_table
from .mask import visible
from .reshape import for_broadcast
from .rotation import RECIPES, rotate
from .table import angles, unit


class KVCache:
    """Keys, already rotated, and values of every layer, allocated once: (L, B, K, max_seq_len, D) each.

    The cache does not count its tokens: the caller passes ``start_pos``. To overwrite slots or to begin another text,
    pass a lower one. Nothing needs to be cleared, because slots at ``start_pos + T`` and above are never read.
    """

    def __init__(
        self,
        args: ModelArgs,
        batch_size: int = 1,
        max_seq_len: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """``max_seq_len`` defaults to the network's, and a larger one raises ValueError."""
        self.batch_size = batch_size
        self.max_seq_len = args.max_seq_len if max_seq_len is None else max_seq_len
        if not 1 <= self.max_seq_len <= args.max_seq_len:
            raise ValueError(f"max_seq_len is {self.max_seq_len}: the network allows 1 to {args.max_seq_len}")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give at least 1")
        shape = (args.n_layers, batch_size, args.n_kv_heads, self.max_seq_len, args.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # (L, B, K, max_seq_len, D)
        self.values = torch.zeros(shape, dtype=dtype, device=device)  # (L, B, K, max_seq_len, D)

    def update(self, layer_id: int, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of T new tokens, (B, K, T, D), and return those of all S = start_pos + T.

        They are detached before they are stored; otherwise the cache would keep the activations of every step alive. So
        wk and wv get no gradient in a forward pass with a cache.
        """
        end = start_pos + xk.shape[2]
        keys, values = self.keys[layer_id], self.values[layer_id]  # (B, K, max_seq_len, D)
        keys[:, :, start_pos:end] = xk.detach()
        values[:, :, start_pos:end] = xv.detach()
        return keys[:, :, :end].type_as(xk), values[:, :, :end].type_as(xv)  # (B, K, S, D)


def counterparts(form: Form | None, layout: str) -> dict[str, Callable[..., Any]]:
    """Right functions that write tables in this form and rotate in this layout."""

    def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Any:
        return (form or FORMS[0]).write(unit(angles(dim, end, theta)))

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *table: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = [*table, *named.values()]
        T, D = xq.shape[1], xq.shape[3]
        rows, _ = read_table(parts[0] if len(parts) == 1 else tuple(parts), D, T)
        if rows is None or xk.shape[1] != T:
            shapes = " and ".join(str(tuple(part.shape)) for part in parts if isinstance(part, Tensor))
            raise ValueError(
                f"apply_rotary_emb is called with xq {tuple(xq.shape)}, xk {tuple(xk.shape)} and a table of {shapes}: "
                "it needs (B, T, H, D), (B, T, K, D) and a table of T rows"
            )
        angle = rows.angle()
        return rotate(xq, angle, RECIPES[layout]).type_as(xq), rotate(xk, angle, RECIPES[layout]).type_as(xk)

    def attend(xq: Tensor, xk: Tensor, xv: Tensor, freqs_cis: Any, mask: Tensor) -> Tensor:
        q, k = apply_rotary_emb(xq, xk, freqs_cis)
        return attention(q.transpose(1, 2), k.transpose(1, 2), xv.transpose(1, 2), mask).transpose(1, 2)

    return {
        "precompute_freqs_cis": precompute_freqs_cis,
        "reshape_for_broadcast": for_broadcast,
        "apply_rotary_emb": apply_rotary_emb,
        "causal_mask": visible,
        "KVCache": KVCache,
        "attention": attend,
    }
