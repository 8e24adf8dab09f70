"""Exercise: attention with grouped heads. Write the body, then run `python -m study check` on the file.

Write the softmax out, without scaled_dot_product_attention. You may use the functions of rope.py.
"""

import torch
from torch import Tensor

# from rope import apply_rotary_emb


def attention(xq: Tensor, xk: Tensor, xv: Tensor, freqs_cis: Tensor, mask: Tensor) -> Tensor:
    """Rotate, score, mask, softmax, sum the values: xq (B, T, H, D), xk and xv (B, T, K, D) -> (B, T, H, D).

    The scores are q k^T / sqrt(D), and the softmax is over the keys that the mask leaves.
    H / K neighbouring query heads share one key/value head. If H / K is 2, query heads 0 and 1 use head 0, 2 and 3 use
    head 1, and so on. freqs_cis are the rows of these T tokens. mask is boolean (T, T), True where a token may see a
    key; it is not always a triangle.
    """
    raise NotImplementedError
