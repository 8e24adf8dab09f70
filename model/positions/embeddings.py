"""Schemes that add the position to the embedding, once, below the first layer. Both are absolute."""

import torch
from torch import Tensor, nn

from ..config import ModelArgs
from ..rope import precompute_freqs_cis
from .tables import NoPositions


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
