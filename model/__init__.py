"""Ropewalk: a LLaMA-style decoder-only transformer, small enough to read in one sitting.

Read in this order:

    config.py        ModelArgs: every number that shapes the network
    rope.py          where a token is, as a rotation (rope_scaling.py: slowed, for texts longer than trained on)
    cache.py         what attention remembers of earlier tokens
    attention.py     who looks at whom
    transformer.py   the rest of the block, and the whole
    generation.py    from logits to text

Shape letters, used at the end of every line that changes a shape:

    B  batch                     H  query heads
    T  new tokens                K  key/value heads
    S  keys, start_pos + T       D  head_dim
    L  layers                    V  vocabulary

The names below are loaded when first used: importing torch takes seconds, and a mistyped flag is answered at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import KVCache
    from .config import ModelArgs
    from .generation import generate
    from .rope import apply_rotary_emb, precompute_freqs_cis, reshape_for_broadcast
    from .transformer import Transformer

_HOME = {
    "ModelArgs": "config",
    "precompute_freqs_cis": "rope",
    "reshape_for_broadcast": "rope",
    "apply_rotary_emb": "rope",
    "KVCache": "cache",
    "Transformer": "transformer",
    "generate": "generation",
}

__all__ = [
    "KVCache",
    "ModelArgs",
    "Transformer",
    "apply_rotary_emb",
    "generate",
    "precompute_freqs_cis",
    "reshape_for_broadcast",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
