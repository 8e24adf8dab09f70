"""Schemes that add a number to each score, by head and distance, and leave q and k alone."""

import math

import torch
from torch import Tensor, nn

from ..config import ModelArgs
from .tables import NoPositions, check_at_least


def distances(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """How far back each key lies from each of the last T positions: int64 (T, S), negative for later keys."""
    keys = torch.arange(S, device=device)
    return keys[S - T :, None] - keys


class Biased(NoPositions):
    """Where the mask would be, a bias with the mask in it: float (1, H, T, S), -inf for later keys."""

    def bias(self, distance: Tensor) -> Tensor:
        """distance (T, S), none negative -> (H, T, S)."""
        raise NotImplementedError

    def mask(self, start_pos: int, T: int) -> Tensor:
        weight = self.tok_embeddings.weight
        distance = distances(T, start_pos + T, weight.device)  # (T, S)
        bias = self.bias(distance.clamp(min=0)).to(weight.dtype)  # (H, T, S)
        return bias.masked_fill(distance < 0, float("-inf"))[None]  # (1, H, T, S)


def t5_buckets(distance: Tensor, buckets: int = 32, farthest: int = 128) -> Tensor:
    """Half of the buckets hold one distance each, the rest wider and wider spans up to ``farthest``: int64.

    What is farther still is in the last bucket. Section 2.1 of arXiv:1910.10683, for a decoder, whose keys all lie
    behind. Raises ValueError for fewer than 2 buckets, or a ``farthest`` within the first half.
    """
    check_at_least("buckets", buckets, 2)
    exact = buckets // 2
    check_at_least("farthest", farthest, exact + 1, f": half of the {buckets} buckets hold one distance each")
    octaves = (distance.clamp(min=1) / exact).log() / math.log(farthest / exact)
    wide = exact + (octaves * (buckets - exact)).long()
    return torch.where(distance < exact, distance, wide.clamp(max=buckets - 1))


class T5(Biased):
    """A learned number for each head and bucket of distances, the same in all layers.

    T5 leaves out 1/sqrt(D); it stays here, as everywhere in this network.
    """

    def __init__(self, args: ModelArgs, buckets: int = 32, farthest: int = 128) -> None:
        t5_buckets(torch.arange(1), buckets, farthest)  # refuses what is no number of buckets
        super().__init__(args)
        self.farthest = farthest
        self.relative_bias = nn.Embedding(buckets, args.n_heads)
        nn.init.normal_(self.relative_bias.weight, std=0.02)

    def bias(self, distance: Tensor) -> Tensor:
        index = t5_buckets(distance, self.relative_bias.num_embeddings, self.farthest)  # (T, S)
        return self.relative_bias(index).permute(2, 0, 1)  # (H, T, S)


def alibi_slopes(n_heads: int) -> Tensor:
    """(H,): a geometric series from 2^(-8/H) to 2^-8; between powers of two, every second one of the next series."""
    whole = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2 ** (-4 * (i + 1) / whole) for i in range(0, 2 * (n_heads - whole), 2)]
    return torch.tensor(slopes)


class Alibi(Biased):
    """Minus distance times a fixed slope for each head (arXiv:2108.12409)."""

    def bias(self, distance: Tensor) -> Tensor:
        return -alibi_slopes(self.args.n_heads).to(distance.device)[:, None, None] * distance  # (H, T, S)
