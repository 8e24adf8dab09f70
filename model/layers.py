"""The two layers that both attention and the rest of the network consist of: a matrix and a norm."""

import torch
from torch import Tensor, nn

from . import kernels


class Linear(nn.Linear):
    """x (..., in) -> (..., out). kernels.py has faster ways to the result of nn.Linear."""

    def forward(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """Divide by the root mean square, computed in float32, and scale (arXiv:1910.07467)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight
