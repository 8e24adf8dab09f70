"""Schemes whose attention scores depend on positions: T5, ALiBi, Shaw, Transformer-XL, TUPE, DeBERTa.

In the formulas, e_ij is the score of query i and key j of one head, before the softmax. q_i, k_j and v_j are the query,
the key and the value, row vectors of D channels. A query sees no later key, so the distance i - j is at least 0.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import Attention
from model.config import ModelArgs
from model.transformer import Transformer

from .encodings import distances, sinusoids, t5_buckets


def gather_by_distance(scores: Tensor, index: Tensor) -> Tensor:
    """For query t and key s, pick column index[t, s]: scores (B, H, T, N), index (T, S) -> (B, H, T, S)."""
    return scores.gather(-1, index.expand(*scores.shape[:2], *index.shape))  # (B, H, T, S)


class ScoringAttention(Attention):
    """Attention with another formula for the scores. A subclass defines ``scores``; mask and softmax are here.

    ``shared`` is a module that all layers use. It is kept in a tuple, so that no layer registers it as a submodule.
    """

    def __init__(self, args: ModelArgs, shared: Any = None) -> None:
        super().__init__(args)
        self.shared = (shared,)

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        """xq (B, H, T, D), keys (B, H, S, D), distance (T, S) -> scaled scores (B, H, T, S)."""
        raise NotImplementedError

    def weighted_sum(self, weights: Tensor, values: Tensor, distance: Tensor) -> Tensor:
        """weights (B, H, T, S), values (B, H, S, D), distance (T, S) -> (B, H, T, D)."""
        return weights @ values

    def attend(self, xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        group = xq.shape[1] // keys.shape[1]
        keys, values = (t.repeat_interleave(group, 1) for t in (keys, values))  # (B, H, S, D)
        distance = distances(xq.shape[2], keys.shape[2], xq.device)  # (T, S)
        visible = distance >= 0  # the causal mask
        if mask is not None:
            visible = visible & mask  # (T, S), or (B, 1, T, S) if rows have padding
        scores = self.scores(xq, keys, distance).float().masked_fill(~visible, float("-inf"))  # (B, H, T, S)
        return self.weighted_sum(scores.softmax(-1).type_as(values), values, distance)


def replace_attention(model: Transformer, kind: Callable[..., ScoringAttention], *extra: Any) -> None:
    """Replace each layer's attention by ``kind(args, *extra)``, with the same matrices, and switch off the rotation."""
    attentions = [kind(model.args, *extra) for _ in model.layers]
    for layer, attention in zip(model.layers, attentions):
        for name in ("wq", "wk", "wv", "wo"):
            setattr(attention, name, getattr(layer.attention, name))
        layer.attention = attention
    model.freqs_cis = torch.ones_like(model.freqs_cis)


class BiasedAttention(ScoringAttention):
    """e_ij = q_i k_j^T / sqrt(D) + b(i - j). b is the same in all layers, so the network computes it."""

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        bias = self.shared[0].bias(distance.clamp(min=0))  # (H, T, S)
        return xq @ keys.mT * self.head_dim**-0.5 + bias.type_as(xq)


class BiasedTransformer(Transformer):
    """A bias b(i - j) for each head is added to the scores of all layers."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        replace_attention(self, BiasedAttention, self)

    def bias(self, distance: Tensor) -> Tensor:
        """distance (T, S), none negative -> b (H, T, S)."""
        raise NotImplementedError


class T5(BiasedTransformer):
    """b(i - j) is learned for each head and each bucket of distances (T5, arXiv:1910.10683, section 2.1).

    T5 does not divide by sqrt(D). This class does, like the rest of the network.
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.relative_bias = nn.Embedding(32, args.n_heads)  # the same in all layers
        nn.init.normal_(self.relative_bias.weight, std=0.02)

    def bias(self, distance: Tensor) -> Tensor:
        return self.relative_bias(t5_buckets(distance)).permute(2, 0, 1)  # (H, T, S)


def alibi_slopes(n_heads: int) -> Tensor:
    """The slope of each head, (H,): the geometric sequence 2^(-8/H), 2^(-16/H) ... 2^-8 if H is a power of two.

    Otherwise the first slopes are those of P heads, where P is the largest power of two below H. The others are every
    second slope of 2P heads.
    """
    power = 2 ** int(math.log2(n_heads))  # the largest power of two up to H
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (n_heads - power), 2)]
    return torch.tensor(slopes)  # (H,)


class Alibi(BiasedTransformer):
    """b(i - j) = -slope (i - j), with a fixed slope for each head (ALiBi, arXiv:2108.12409, section 3)."""

    def bias(self, distance: Tensor) -> Tensor:
        slopes = alibi_slopes(self.args.n_heads).to(distance.device)  # (H,)
        return -slopes[:, None, None] * distance  # (H, T, S)


class ShawAttention(ScoringAttention):
    """e_ij = q_i (k_j + a^K_ij)^T / sqrt(D), and the output is z_i = sum_j softmax(e_i)_j (v_j + a^V_ij).

    These are equations 4 and 3 of Shaw et al. (arXiv:1803.02155). a_ij is a learned vector of D channels for the
    distance i - j, clipped to ``farthest``. Each layer has different ones, which its heads share as in the paper's big
    model; the base model has one for each head. RoFormer describes the scheme with a^K added before W_k, but the paper
    adds it after W_k, as this class does.
    """

    def __init__(self, args: ModelArgs, farthest: int) -> None:
        super().__init__(args)
        # a^K and a^V for the distances 0 .. farthest. One tensor with three axes, because the trainer uses Muon for the
        # two-axis parameters of the layers, and Muon is for the matrices of linear layers.
        self.relative = nn.Parameter(0.02 * torch.randn(2, farthest + 1, args.head_dim))  # (2, farthest + 1, D)

    def clipped(self, distance: Tensor) -> Tensor:
        return distance.clamp(0, self.relative.shape[1] - 1)

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        relative = gather_by_distance(xq @ self.relative[0].T, self.clipped(distance))  # (B, H, T, S)
        return (xq @ keys.mT + relative) * self.head_dim**-0.5

    def weighted_sum(self, weights: Tensor, values: Tensor, distance: Tensor) -> Tensor:
        relative = self.relative[1][self.clipped(distance)]  # (T, S, D)
        return weights @ values + torch.einsum("bhts,tsd->bhtd", weights, relative)


class Shaw(Transformer):
    """Relative position representations of Shaw et al.: learned vectors for the distances up to ``farthest``."""

    farthest = 16

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        replace_attention(self, ShawAttention, self.farthest)


class TransformerXLAttention(ScoringAttention):
    """e_ij = ((q_i + u) k_j^T + (q_i + v) (W_kR R_(i-j))^T) / sqrt(D): terms a and c, then b and d of the paper.

    Transformer-XL, arXiv:1901.02860, section 3.3. R_(i-j) is the sinusoid of the distance. u and v replace the query of
    the absolute position, W_q p_i, so they are not multiplied by W_q. Each layer has a different u and v, as in the
    authors' TensorFlow runs (untie_r); their PyTorch code shares them.
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.wr = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.u = nn.Parameter(torch.zeros(args.n_heads, 1, args.head_dim))
        self.v = nn.Parameter(torch.zeros(args.n_heads, 1, args.head_dim))
        nn.init.normal_(self.wr.weight, std=0.02)
        self.sinusoids = sinusoids(args.dim, args.max_seq_len)  # (max_seq_len, dim): row n for distance n

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        S = keys.shape[2]
        relative = self.wr(self.sinusoids[:S].to(xq)).unflatten(-1, (-1, self.head_dim))  # (S, H, D)
        content = (xq + self.u) @ keys.mT  # (B, H, T, S)
        by_distance = (xq + self.v) @ relative.permute(1, 2, 0)  # (B, H, T, S), a column for each distance
        position = gather_by_distance(by_distance, distance.clamp(min=0))  # (B, H, T, S), a column for each key
        return (content + position) * self.head_dim**-0.5


class TransformerXL(Transformer):
    """Transformer-XL: keys made from sinusoids of the distance. The KV cache takes the place of its segment memory."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        replace_attention(self, TransformerXLAttention)


class PositionTerm(nn.Module):
    """(p_i U_Q) (p_j U_K)^T / sqrt(2 D) + b(i - j), computed with the same weights in all layers (see ``Tupe``).

    p is a learned vector for each position, and b(i - j) is T5's bias. p is normalized as in the authors' code; the
    paper does not mention that.
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.head_dim = args.head_dim
        self.pos_embeddings = nn.Embedding(args.max_seq_len, args.dim)
        self.norm = nn.LayerNorm(args.dim)
        self.uq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.uk = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.relative_bias = nn.Embedding(32, args.n_heads)
        for part in (self.pos_embeddings, self.uq, self.uk, self.relative_bias):
            nn.init.normal_(part.weight, std=0.02)

    def forward(self, distance: Tensor) -> Tensor:
        """distance (T, S) -> (H, T, S)."""
        T, S = distance.shape
        p = self.norm(self.pos_embeddings.weight[:S])  # (S, dim)
        q = self.uq(p).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)  # (H, S, D)
        k = self.uk(p).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)  # (H, S, D)
        bias = self.relative_bias(t5_buckets(distance.clamp(min=0))).permute(2, 0, 1)  # (H, T, S)
        return q[:, S - T :] @ k.mT * (2 * self.head_dim) ** -0.5 + bias


class TupeAttention(ScoringAttention):
    """e_ij = q_i k_j^T / sqrt(2 D) + the position term. The 2 is there because two terms of the same size are added."""

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        return xq @ keys.mT * (2 * self.head_dim) ** -0.5 + self.shared[0](distance)


class Tupe(Transformer):
    """TUPE-R: absolute and relative positions in a separate term, untied from the words (arXiv:2006.15595).

    e_ij = q_i k_j^T / sqrt(2 D) + (p_i U_Q) (p_j U_K)^T / sqrt(2 D) + b(i - j). The paper also treats the [CLS] token
    separately, which a decoder does not have.
    """

    shift_invariant = False

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.position_term = PositionTerm(args)
        replace_attention(self, TupeAttention, self.position_term)


class DebertaAttention(ScoringAttention):
    """e_ij = (Qc_i Kc_j^T + Qc_i Kr_d(i,j)^T + Kc_j Qr_d(j,i)^T) / sqrt(3 D), with d(i, j) = i - j + k in 0 .. 2k - 1.

    DeBERTa, arXiv:2006.03654, equations 3 and 4. d(i, j) is clipped to its range. Qc and Kc are the queries and keys of
    the tokens, Qr and Kr those of the 2k learned vectors for distances. The third term has d(j, i) as in the paper; the
    authors' code has d(i, j), and adds biases to q and v, which are left out here.
    """

    def __init__(self, args: ModelArgs, table: nn.Embedding) -> None:
        super().__init__(args, table)
        self.wqr = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wkr = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        for matrix in (self.wqr, self.wkr):
            nn.init.normal_(matrix.weight, std=0.02)

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        table = self.shared[0].weight  # (2k, dim)
        k = table.shape[0] // 2
        qr = self.wqr(table).unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0)  # (H, D, 2k)
        kr = self.wkr(table).unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0)  # (H, D, 2k)
        d_ij = (distance + k).clamp(0, 2 * k - 1)  # (T, S)
        d_ji = (k - distance.T).clamp(0, 2 * k - 1)  # (S, T)
        content_to_position = gather_by_distance(xq @ kr, d_ij)  # (B, H, T, 2k) -> (B, H, T, S)
        position_to_content = gather_by_distance(keys @ qr, d_ji).mT  # (B, H, S, 2k) -> (B, H, T, S)
        return (xq @ keys.mT + content_to_position + position_to_content) * (3 * self.head_dim) ** -0.5


class Deberta(Transformer):
    """DeBERTa: disentangled attention to contents and to distances up to ``k``, which is 512 in the paper.

    Its mask decoder also adds absolute positions at the end. That belongs to masked language modelling and is left out.
    """

    k = 64

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.rel_embeddings = nn.Embedding(2 * self.k, args.dim)
        nn.init.normal_(self.rel_embeddings.weight, std=0.02)
        replace_attention(self, DebertaAttention, self.rel_embeddings)
