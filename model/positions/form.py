"""What a way of writing RoPE is: a choice of pairs and of angles, and nothing else.

So each is LLaMA's rotation on reordered channels with a table of its own, which is what the tests hold it to.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """One way of writing RoPE, for T positions and a head of D channels."""

    name: str
    rotate: Callable[[Tensor], Tensor]  # (B, T, H, D) -> (B, T, H, D)
    kept: tuple[Tensor, ...]  # what it keeps between calls
    pairs: Tensor  # (D/2, 2): the channels of each pair, in LLaMA's order
    angles: Tensor  # float64 (T, D/2): by how much each pair turns

    def exact(self, x: Tensor) -> Tensor:
        """What ``rotate`` would give without rounding: 2 x 2 rotations in float64."""
        a, b = (x.double()[..., channels] for channels in self.pairs.T)  # (B, T, H, D/2) each
        cos, sin = (f(self.angles)[None, :, None] for f in (torch.cos, torch.sin))  # (1, T, 1, D/2) each
        turned = torch.empty_like(x, dtype=torch.float64)
        turned[..., self.pairs[:, 0]] = a * cos - b * sin
        turned[..., self.pairs[:, 1]] = a * sin + b * cos
        return turned


def exact_angles(dim: int, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """float64 (T, dim/2): position times theta^(-2i/dim), written apart from the library's table to check it."""
    rows = [[p * theta ** (-2 * i / dim) for i in range(dim // 2)] for p in positions.tolist()]
    return torch.tensor(rows, dtype=torch.float64)  # (T, dim/2)


def neighbours(dim: int) -> Tensor:
    """(dim/2, 2): channels (0, 1), (2, 3) ..., as in RoFormer and LLaMA."""
    return torch.arange(dim).view(-1, 2)  # (dim/2, 2)


def halves(dim: int) -> Tensor:
    """(dim/2, 2): channels (0, dim/2), (1, dim/2 + 1) ..., as in GPT-NeoX and Hugging Face."""
    return torch.arange(dim).view(2, -1).T  # (dim/2, 2)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)  # (..., D/2) each
    return torch.cat((-b, a), -1)  # (..., D)


def half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Channel i pairs with channel i + D/2. cos and sin: (T, D), the angles written one after the other, twice."""
    return x * cos[:, None] + rotate_half(x) * sin[:, None]
