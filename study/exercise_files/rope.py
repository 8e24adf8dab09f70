"""Exercise: rotary position embedding. Write the bodies, then run `python -m study check` on the file.

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
    """Reshape the table (T, D/2) to broadcast with x (B, T, H, D/2): (1, T, 1, D/2). ValueError for other shapes.

    With a table of cosines and sines, reshape one of them at a time.
    """
    raise NotImplementedError


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries (B, T, H, D) and keys (B, T, K, D) by their positions, keeping shapes and dtypes.

    freqs_cis are the rows of the table that belong to these T tokens. Pair (x, y) at angle a becomes
    (x cos a - y sin a, x sin a + y cos a). Compute in float32, even if xq and xk are bfloat16.
    """
    raise NotImplementedError
