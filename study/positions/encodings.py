"""Schemes that change the rotation table, or add positions to the embedding instead.

In the formulas, m is the position of a token, i the number of a channel pair, and x a query or a key of one head.
"""

import math

import torch
from torch import Tensor, nn

from model.config import ModelArgs
from model.rope import precompute_freqs_cis
from model.transformer import Transformer


class NoPositions(Transformer):
    """NoPE: R_m is the identity. Only the causal mask depends on the order of tokens (arXiv:2305.19466)."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.freqs_cis = torch.ones_like(self.freqs_cis)


def check_halves(args: ModelArgs) -> None:
    """Raise ValueError if half of a head does not consist of pairs."""
    if args.head_dim % 4:
        raise ValueError(f"head_dim is {args.head_dim}: each half must hold whole pairs, give a multiple of 4")


class PartialRope(Transformer):
    """Partial RoPE: only the first half of a head's channels are rotated, as in ChatGLM2. GPT-J rotates a quarter.

    Pair i is rotated by m theta^(-2i / (D/2)).
    """

    def __init__(self, args: ModelArgs) -> None:
        check_halves(args)
        super().__init__(args)
        table = precompute_freqs_cis(args.head_dim // 2, args.max_seq_len, args.rope_theta)  # (max_seq_len, D/4)
        self.freqs_cis = torch.cat((table, torch.ones_like(table)), -1)  # (max_seq_len, D/2)


class GridRope(Transformer):
    """2D RoPE: the first half of a head is rotated by the row of a token in a grid, the second half by its column.

    GLM and ChatGLM-6B have two position ids too ("2D positional encoding", arXiv:2103.10360). One is the position in
    the text, which is the same for all tokens of a blank; the other is the position inside the blank. Running text has
    no blank, so here tokens fill a grid of ``width`` columns. A shift moves tokens to other rows, so scores depend on
    more than the distance.
    """

    shift_invariant = False
    width = 16

    def __init__(self, args: ModelArgs) -> None:
        check_halves(args)
        super().__init__(args)
        positions = torch.arange(args.max_seq_len)
        table = precompute_freqs_cis(args.head_dim // 2, args.max_seq_len, args.rope_theta)  # (max_seq_len, D/4)
        rows, columns = positions // self.width, positions % self.width  # (max_seq_len,) each
        self.freqs_cis = torch.cat((table[rows], table[columns]), -1)  # (max_seq_len, D/2)


class LearnableRope(Transformer):
    """RoPE with trained frequencies f_i: pair i is rotated by m f_i. They start as RoPE's theta^(-2i/D).

    The table is computed at each access, because the frequencies change in training. Its angles are float32, because
    Apple's GPUs have no float64; at position 2000 they are off by up to 1e-4 radians. A table that is assigned to
    ``freqs_cis`` replaces it.
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.assigned_freqs_cis: Tensor | None = None  # discards the plain table of the parent's constructor
        freqs = args.rope_theta ** -(torch.arange(0, args.head_dim, 2) / args.head_dim)  # (D/2,) radians per token
        self.frequencies = nn.Parameter(freqs)

    @property
    def freqs_cis(self) -> Tensor:  # type: ignore[override]
        if self.assigned_freqs_cis is not None:
            return self.assigned_freqs_cis
        positions = torch.arange(self.args.max_seq_len, dtype=torch.float32, device=self.frequencies.device)
        angles = torch.outer(positions, self.frequencies.float())  # (max_seq_len, D/2)
        return torch.polar(torch.ones_like(angles), angles)

    @freqs_cis.setter
    def freqs_cis(self, table: Tensor) -> None:
        self.assigned_freqs_cis = table


def sinusoids(dim: int, end: int) -> Tensor:
    """Sinusoidal position encodings, float32 (end, dim) (Transformer, arXiv:1706.03762, section 3.5).

    PE(m, 2i) = sin(m / 10000^(2i/dim)) and PE(m, 2i + 1) = cos(m / 10000^(2i/dim)). These are the imaginary and the
    real part of RoPE's table for a head of ``dim`` channels.
    """
    return torch.view_as_real(precompute_freqs_cis(dim, end)).flip(-1).flatten(1)  # (end, dim)


class Sinusoidal(NoPositions):
    """Fixed sinusoids: h_m = sqrt(dim) E_m + PE(m) (Transformer, arXiv:1706.03762, sections 3.4 and 3.5).

    E_m is the embedding of the token at position m. Its numbers have standard deviation dim^-1/2, so that both terms
    are of similar size.
    """

    shift_invariant = False

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        nn.init.normal_(self.tok_embeddings.weight, std=args.dim**-0.5)
        self.sinusoids = sinusoids(args.dim, args.max_seq_len)  # (max_seq_len, dim)

    def embed(self, tokens: Tensor, start_pos: int) -> Tensor:
        h = self.tok_embeddings(tokens)  # (B, T, dim)
        encodings = self.sinusoids[start_pos : start_pos + tokens.shape[1]].to(h)  # (T, dim)
        return h * self.args.dim**0.5 + encodings


class Learned(NoPositions):
    """Learned position embeddings: h_m = E_m + P_m, as in GPT-2 and BERT, for ``max_seq_len`` positions.

    E_m is the embedding of the token at position m, and P_m the vector of the position.
    """

    shift_invariant = False

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.pos_embeddings = nn.Embedding(args.max_seq_len, args.dim)
        nn.init.normal_(self.pos_embeddings.weight, std=0.02)

    def embed(self, tokens: Tensor, start_pos: int) -> Tensor:
        return self.tok_embeddings(tokens) + self.pos_embeddings.weight[start_pos : start_pos + tokens.shape[1]]


def distances(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """i - j for the last T positions i and all S positions j: int64 (T, S), negative for later keys."""
    keys = torch.arange(S, device=device)  # (S,)
    return keys[S - T :, None] - keys  # (T, S)


def t5_buckets(distance: Tensor) -> Tensor:
    """The bucket of each distance, one of 32, int64 of the same shape (T5, arXiv:1910.10683, section 2.1).

    The first 16 buckets hold one distance each. The rest divide the distances up to 128 evenly on a logarithmic scale,
    and the last one holds all larger distances too.
    """
    fraction = (distance.clamp(min=1) / 16).log() / math.log(128 / 16)  # 0 at distance 16, 1 at 128
    return torch.where(distance < 16, distance, (16 + (fraction * 16).long()).clamp(max=31))
