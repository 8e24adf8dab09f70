"""Schemes that change the rotation table, or add the position to the embedding instead."""

import math

import torch
from torch import Tensor, nn

from ..cache import KVCache
from ..config import ModelArgs
from ..rope import precompute_freqs_cis
from ..transformer import Transformer, TransformerBlock


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


class PositionedEmbedding(NoPositions):
    """Positions are added to the embedding, which is the input of the first block."""

    shift_invariant = False

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.layers[0] = FirstBlock(self.layers[0], self)

    def add_positions(self, h: Tensor, start_pos: int) -> Tensor:
        """h (B, T, dim), the embedding of tokens at start_pos .. start_pos + T - 1 -> (B, T, dim)."""
        raise NotImplementedError


class FirstBlock(TransformerBlock):
    """A block that adds positions to its input; its layers are those of the block it replaces."""

    def __init__(self, block: nn.Module, network: PositionedEmbedding) -> None:
        nn.Module.__init__(self)
        for name, layer in block.named_children():
            self.add_module(name, layer)
        self.network = (network,)  # in a tuple, because it is no part of this block

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        x = self.network[0].add_positions(x, start_pos)
        return super().forward(x, start_pos, freqs_cis, mask, cache)


class Sinusoidal(PositionedEmbedding):
    """Fixed sinusoids. The embedding has std dim^-1/2 and is scaled by sqrt(dim), so that both are of one size."""

    def __init__(self, args: ModelArgs) -> None:
        if args.dim % 2:
            raise ValueError(f"dim is {args.dim}: make it even, because a sine and a cosine share a frequency")
        super().__init__(args)
        nn.init.normal_(self.tok_embeddings.weight, std=args.dim**-0.5)
        self.sinusoids = sinusoids(args.dim, args.max_seq_len)

    def add_positions(self, h: Tensor, start_pos: int) -> Tensor:
        return h * self.args.dim**0.5 + self.sinusoids[start_pos : start_pos + h.shape[1]].to(h)


class Learned(PositionedEmbedding):
    """A vector for each position, trained like any weight (GPT-2, BERT). There is none beyond the last."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.pos_embeddings = nn.Embedding(args.max_seq_len, args.dim)
        nn.init.normal_(self.pos_embeddings.weight, std=0.02)

    def add_positions(self, h: Tensor, start_pos: int) -> Tensor:
        return h + self.pos_embeddings.weight[start_pos : start_pos + h.shape[1]]


def distances(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """How far back each key lies from each of the last T positions: int64 (T, S), negative for later keys."""
    keys = torch.arange(S, device=device)
    return keys[S - T :, None] - keys


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
