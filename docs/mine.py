"""An attempt at the exercises, with three mistakes in it: `python -m study check docs/mine.py --hint`."""

import torch
from torch import Tensor


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    freqs = theta ** -(torch.arange(0, dim, 2) / (dim // 2))
    angles = torch.outer(torch.arange(end), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    def rotate(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        rotated = torch.complex(a, b) * freqs_cis[None, :, None, :]
        return torch.view_as_real(rotated).flatten(-2).type_as(x)

    return rotate(xq), rotate(xk)


def causal_mask(start_pos: int, T: int) -> Tensor:
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril()
