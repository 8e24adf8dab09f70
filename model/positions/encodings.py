"""Schemes that change the rotation table, or add the position to the embedding or a bias to the scores instead."""

import math

import torch
from torch import Tensor, nn

from ..config import ModelArgs
from ..rope import precompute_freqs_cis
from ..transformer import Transformer


def check_at_least(name: str, value: int, least: int, why: str = "") -> None:
    """Raises ValueError for an option of a scheme that is too small."""
    if value < least:
        raise ValueError(f"{name} is {value}: give at least {least}{why}")


class NoPositions(Transformer):
    """No rotation at all: order is seen through the causal mask only (NoPE, arXiv:2305.19466)."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.freqs_cis = torch.ones_like(self.freqs_cis)


class PartialRope(Transformer):
    """Only the first ``rotary_dim`` channels of a head are rotated, by default half (ChatGLM2; GPT-J a quarter)."""

    def __init__(self, args: ModelArgs, rotary_dim: int | None = None) -> None:
        rotated = args.head_dim // 2 if rotary_dim is None else rotary_dim
        if rotated % 2 or not 2 <= rotated <= args.head_dim:
            raise ValueError(f"rotary_dim is {rotated}: give an even number from 2 to head_dim {args.head_dim}")
        super().__init__(args)
        self.freqs_cis = torch.ones_like(self.freqs_cis)
        self.freqs_cis[:, : rotated // 2] = precompute_freqs_cis(rotated, args.max_seq_len, args.rope_theta)


class GridRope(Transformer):
    """Two position ids, each for half of the head, as ChatGLM-6B has them: here the row and column of a grid.

    ChatGLM counts positions outside and inside the blank it fills; running text has no blank, so it is laid in lines of
    ``width`` tokens. A shift moves tokens across line ends: scores depend on more than the distance.
    """

    shift_invariant = False

    def __init__(self, args: ModelArgs, width: int = 16) -> None:
        if args.head_dim % 4:
            raise ValueError(f"head_dim is {args.head_dim}: each half must hold whole pairs, give a multiple of 4")
        check_at_least("width", width, 1)
        super().__init__(args)
        positions = torch.arange(args.max_seq_len)
        half = precompute_freqs_cis(args.head_dim // 2, args.max_seq_len, args.rope_theta)  # (max_seq_len, D/4)
        self.freqs_cis = torch.cat((half[positions // width], half[positions % width]), -1)  # (max_seq_len, D/2)


class LearnableRope(Transformer):
    """Frequencies that are trained, starting from RoPE's; the table is made from them whenever it is asked for."""

    def __init__(self, args: ModelArgs) -> None:
        if args.rope_theta < 1:
            raise ValueError(f"rope_theta is {args.rope_theta}: give at least 1, so that no pair passes one radian")
        super().__init__(args)
        first = precompute_freqs_cis(args.head_dim, 2, args.rope_theta)[1]  # (D/2,): the angles of position 1
        self.frequencies = nn.Parameter(first.angle())

    @property
    def freqs_cis(self) -> Tensor:  # type: ignore[override]
        positions = torch.arange(self.args.max_seq_len, dtype=torch.float64, device=self.frequencies.device)
        angles = torch.outer(positions, self.frequencies.double())  # (max_seq_len, D/2)
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    @freqs_cis.setter
    def freqs_cis(self, table: Tensor) -> None:
        """The parent's table is not kept."""


def sinusoids(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    """float32 (end, dim): sin(p / theta^(2t/dim)), cos of the same, next to each other (arXiv:1706.03762, 3.5).

    They are the imaginary and the real part of RoPE's own table for a head of ``dim``.
    """
    return torch.view_as_real(precompute_freqs_cis(dim, end, theta)).flip(-1).flatten(1)  # (end, dim)


class Sinusoidal(NoPositions):
    """Fixed sinusoids. The embedding has std dim^-1/2 and is scaled by sqrt(dim), so that both are of one size."""

    shift_invariant = False

    def __init__(self, args: ModelArgs) -> None:
        if args.dim % 2:
            raise ValueError(f"dim is {args.dim}: make it even, because a sine and a cosine share a frequency")
        super().__init__(args)
        nn.init.normal_(self.tok_embeddings.weight, std=args.dim**-0.5)
        self.sinusoids = sinusoids(args.dim, args.max_seq_len)

    def embed(self, tokens: Tensor, start_pos: int) -> Tensor:
        h = super().embed(tokens, start_pos) * self.args.dim**0.5  # (B, T, dim)
        return h + self.sinusoids[start_pos : start_pos + tokens.shape[1]].to(h)


class Learned(NoPositions):
    """A vector for each position, trained like any weight (GPT-2, BERT). There is none beyond the last."""

    shift_invariant = False

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.pos_embeddings = nn.Embedding(args.max_seq_len, args.dim)
        nn.init.normal_(self.pos_embeddings.weight, std=0.02)

    def embed(self, tokens: Tensor, start_pos: int) -> Tensor:
        return super().embed(tokens, start_pos) + self.pos_embeddings.weight[start_pos : start_pos + tokens.shape[1]]


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
