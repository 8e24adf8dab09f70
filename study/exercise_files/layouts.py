"""Exercise: W_q and W_k in the other layout. Write the bodies, then run `python -m study check` on the file.

A head of D channels has D/2 pairs. In Meta's layout, pair i is channels 2i and 2i + 1: neighbours. In Hugging Face's,
it is channels i and i + D/2: halves. A network with the code of one layout gives the logits of the other if the rows of
W_q and W_k are permuted within each head, so that the code rotates the same two channels together.
"""

import torch
from torch import Tensor


def to_neighbours(wq: Tensor, wk: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, Tensor]:
    """Permute the rows from halves to neighbours: wq (n_heads * D, dim) and wk (n_kv_heads * D, dim), same shapes.

    Row 2i of a head is its row i before, and row 2i + 1 is its row i + D/2.
    """
    raise NotImplementedError


def to_halves(wq: Tensor, wk: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, Tensor]:
    """The inverse: permute the rows from neighbours to halves."""
    raise NotImplementedError
