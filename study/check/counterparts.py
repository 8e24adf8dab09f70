"""Right versions of all functions, which replace the reader's where the function being judged calls them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from model.attention import attention
from model.cache import KVCache

from .forms import FORMS, Form, read_table
from .mask import visible
from .reshape import for_broadcast
from .rotation import RECIPES, rotate
from .table import angles, unit


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
