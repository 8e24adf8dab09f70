"""The files of the exercise: signatures and docstrings of RoPE, the cache and attention, without bodies."""

from pathlib import Path
from shlex import quote
from typing import Annotated

from model.cli.files import write_text

from .topic import Report

ROPE_FILE = '''"""Exercise: rotary position embedding. Write the bodies, then run: {check}

B batch, T tokens, H query heads, K key/value heads, D width of one head. You may use complex numbers, tables of cosines
and sines, or the half-split layout, if all three functions agree.
"""

import torch
from torch import Tensor


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    """The rotations of positions 0 .. end - 1: (end, dim // 2).

    Row p, column i is exp(j p theta^(-2i / dim)) = cos(...) + j sin(...). dim is the width of one head. A real table
    is the tuple (cos, sin), each (end, dim // 2), or (end, dim) with every angle twice.
    """
    raise NotImplementedError


def reshape_for_broadcast(freqs_cis: Tensor, x: Tensor) -> Tensor:
    """Reshape the table (T, D/2) to broadcast with x (B, T, H, D/2): (1, T, 1, D/2). ValueError for other shapes."""
    raise NotImplementedError


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries (B, T, H, D) and keys (B, T, K, D) by their positions, keeping shapes and dtypes.

    freqs_cis are the rows of the table that belong to these T tokens. Pair (x, y) at angle a becomes
    (x cos a - y sin a, x sin a + y cos a).
    """
    raise NotImplementedError
'''

CACHE_FILE = '''"""Exercise: a causal mask and a KV cache. Write the bodies, then run: {check}

B batch, T new tokens, S = start_pos + T keys, K key/value heads, D width of one head, L layers.
"""

import torch
from torch import Tensor


def causal_mask(start_pos: int, T: int) -> Tensor:
    """The causal mask of T new tokens after start_pos cached ones: bool (T, S), True where a token may see a key."""
    raise NotImplementedError


class KVCache:
    """Keys, already rotated, and values of every layer, allocated once."""

    def __init__(self, args, batch_size: int = 1) -> None:
        """args has n_layers, n_kv_heads, max_seq_len and head_dim."""
        shape = (args.n_layers, batch_size, args.n_kv_heads, args.max_seq_len, args.head_dim)
        self.max_seq_len = args.max_seq_len
        self.keys = torch.zeros(shape)  # (L, B, K, max_seq_len, D)
        self.values = torch.zeros(shape)  # (L, B, K, max_seq_len, D)

    def update(self, layer: int, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of T new tokens, (B, K, T, D), and return those of all S: (B, K, S, D) each.

        They go to slots start_pos .. start_pos + T - 1. The cache keeps no count, so a new text may start at 0.
        Stored keys and values carry no gradient. Raises ValueError if start_pos + T exceeds max_seq_len.
        """
        raise NotImplementedError
'''

ATTENTION_FILE = '''"""Exercise: attention with grouped heads. Write the body, then run: {check}

Write the softmax out, without scaled_dot_product_attention. You may use the functions of rope.py.
"""

import torch
from torch import Tensor

# from rope import apply_rotary_emb


def attention(xq: Tensor, xk: Tensor, xv: Tensor, freqs_cis: Tensor, mask: Tensor) -> Tensor:
    """Rotate, score, mask, softmax, sum the values: xq (B, T, H, D), xk and xv (B, T, K, D) -> (B, T, H, D).

    H / K neighbouring query heads share one key/value head. If H / K is 2, query heads 0 and 1 use head 0, 2 and 3 use
    head 1, and so on. freqs_cis are the rows of these T tokens. mask is boolean (T, T), True where a token may see a
    key; it is not always a triangle.
    """
    raise NotImplementedError
'''


def exercise(
    directory: Annotated[Path | None, "directory for the files; existing files are not overwritten"] = None,
) -> Report:
    """Files with docstrings and no bodies, to write RoPE, a mask, a cache and attention yourself.

    Raises ValueError, and writes nothing, if one of the files exists.
    """
    if directory is None:
        raise ValueError("no directory is given: write python -m study exercise DIR")
    texts = {
        directory / "rope.py": ROPE_FILE,
        directory / "cache.py": CACHE_FILE,
        directory / "attention.py": ATTENTION_FILE,
    }
    for path in texts:
        if path.exists():
            raise ValueError(f"{path} exists and is not overwritten: give another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_text(path, text.replace("{check}", in_docstring(check_command(path))))
    lines = [f"written: {path}" for path in texts]
    return Report(["\n".join([*lines, f"Write the bodies, then: {check_command(directory)} --hint"])])


def check_command(path: Path) -> str:
    """The command that checks a file or a directory; on Windows too, slashes need no quotes."""
    return f"python -m study check {quote(path.as_posix())}"


def in_docstring(text: str) -> str:
    """Escape backslashes and quotes, so that Python reads them as they are."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
