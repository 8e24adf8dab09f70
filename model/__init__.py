"""Ropewalk: a LLaMA-style decoder-only transformer, small enough to read in one sitting.

Read in this order:

    config.py        ModelArgs: every number that shapes the network
    rope.py          rotary position embedding (rope_scaling.py: for contexts longer than trained on)
    cache.py         keys and values of earlier tokens
    attention.py     RMSNorm; grouped-query attention and its formula
    transformer.py   the block around it, and the whole network
    generation.py    the decode loop: forward, sample, yield

These seven files compute what they say, and import nothing but torch and each other. kernels.py has faster ways to the
same results, which ``generate``, ``load_model`` and ``Trainer`` put into the network from outside.

Shape letters, used in the comments at the ends of lines that change a shape:

    B  batch                     H  query heads
    T  new tokens                K  key/value heads
    S  keys, start_pos + T       D  head_dim
    L  layers                    V  vocabulary
"""

from .cache import KVCache
from .config import ModelArgs
from .decoding.batches import generate
from .rope import apply_rotary_emb, precompute_freqs_cis, reshape_for_broadcast
from .training.trainer import Trainer
from .transformer import Transformer
from .weights import load_model, load_tokenizer, save_model

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
