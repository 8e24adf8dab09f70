"""Ropewalk: a LLaMA-style decoder-only transformer, small enough to read in one sitting.

Read in this order:

    config.py        ModelArgs: every number that shapes the network
    rope.py          rotary position embedding (rope_scaling.py: for contexts longer than trained on)
    cache.py         keys and values of earlier tokens
    attention.py     RMSNorm; grouped-query attention and its formula
    transformer.py   the block around it, and the whole network
    generation.py    the decode loop: forward, sample, yield

These seven files import nothing but torch and each other. The folders beside them serve the programs.

Shape letters, used in the comments at the ends of lines that change a shape:

    B  batch                     H  query heads
    T  new tokens                K  key/value heads
    S  keys, start_pos + T       D  head_dim
    L  layers                    V  vocabulary
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import ModelArgs

if TYPE_CHECKING:
    from .cache import KVCache
    from .decoding.batches import generate
    from .rope import apply_rotary_emb, precompute_freqs_cis, reshape_for_broadcast
    from .training.trainer import Trainer
    from .transformer import Transformer
    from .weights import load_model, load_tokenizer, save_model

__version__ = "0.1.0"

# Imported at first use: the network needs PyTorch, for which --help should not wait, and the others more than that
LATER = {
    "KVCache": ".cache",
    "Trainer": ".training.trainer",
    "Transformer": ".transformer",
    "apply_rotary_emb": ".rope",
    "generate": ".decoding.batches",
    "load_model": ".weights",
    "load_tokenizer": ".weights",
    "precompute_freqs_cis": ".rope",
    "reshape_for_broadcast": ".rope",
    "save_model": ".weights",
}

__all__ = [
    "KVCache",
    "ModelArgs",
    "Trainer",
    "Transformer",
    "apply_rotary_emb",
    "generate",
    "load_model",
    "load_tokenizer",
    "precompute_freqs_cis",
    "reshape_for_broadcast",
    "save_model",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LATER[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})
