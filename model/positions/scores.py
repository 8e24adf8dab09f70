"""Schemes that compute the scores from positions too: T5, ALiBi, Shaw, Transformer-XL, TUPE, DeBERTa."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..attention import Attention
from ..config import ModelArgs
from ..transformer import Transformer
from .encodings import check_at_least, distances, sinusoids, t5_buckets


def by_distance(scores: Tensor, index: Tensor) -> Tensor:
    """Scores for each of N distances, (B, H, T, N), picked for each key by ``index`` (T, S) -> (B, H, T, S)."""
    return scores.gather(-1, index.expand(*scores.shape[:2], *index.shape))


class ScoringAttention(Attention):
    """Attention whose scores are its own. A subclass gives ``scores``; softmax, causality and values are here."""

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        """xq (B, H, T, D), keys (B, H, S, D), distance (T, S) -> scaled scores (B, H, T, S)."""
        raise NotImplementedError

    def mix(self, weights: Tensor, values: Tensor, distance: Tensor) -> Tensor:
        """weights (B, H, T, S), values (B, H, S, D) -> (B, H, T, D)."""
        return weights @ values

    def attend(self, xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        group = xq.shape[1] // keys.shape[1]
        keys, values = (t.repeat_interleave(group, 1) for t in (keys, values))  # (B, H, S, D)
        distance = distances(xq.shape[2], keys.shape[2], xq.device)  # (T, S)
        visible = distance >= 0
        if mask is not None:
            visible = visible & mask  # (T, S), or (B, 1, T, S) where rows have padding
        scores = self.scores(xq, keys, distance).float().masked_fill(~visible, float("-inf"))
        return self.mix(scores.softmax(-1).type_as(values), values, distance)


def replace_attention(model: Transformer, attentions: Sequence[ScoringAttention]) -> None:
    """Put them in place of the layers' own, whose matrices they take over. Nothing is rotated any more."""
    for layer, attention in zip(model.layers, attentions, strict=True):
        for name in ("wq", "wk", "wv", "wo"):
            setattr(attention, name, getattr(layer.attention, name))
        layer.attention = attention
    model.freqs_cis = torch.ones_like(model.freqs_cis)


class BiasedAttention(ScoringAttention):
    """q k / sqrt(D) plus a bias, which the network gives for all its layers."""

    def __init__(self, args: ModelArgs, layer_id: int, network: "Biased") -> None:
        super().__init__(args, layer_id)
        self.network = (network,)  # in a tuple, because it is no part of this layer

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        bias = self.network[0].bias(distance.clamp(min=0))  # (H, T, S)
        return xq @ keys.mT * self.head_dim**-0.5 + bias.type_as(xq)


class Biased(Transformer):
    """A number that depends on head and distance is added to each score."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        replace_attention(self, [BiasedAttention(args, layer_id, self) for layer_id in range(args.n_layers)])

    def bias(self, distance: Tensor) -> Tensor:
        """distance (T, S), none negative -> (H, T, S)."""
        raise NotImplementedError


class T5(Biased):
    """A learned number for each head and bucket of distances, the same in all layers.

    T5 leaves out 1/sqrt(D); it stays here, as everywhere in this network.
    """

    def __init__(self, args: ModelArgs, buckets: int = 32, farthest: int = 128) -> None:
        t5_buckets(torch.arange(1), buckets, farthest)  # raises ValueError for an impossible number of buckets
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


class ShawAttention(ScoringAttention):
    """e_ij = q_i (k_j + a^K_ij) / sqrt(D), and a^V_ij goes along with the values.

    Each layer has its own a, shared by its heads as in the paper's big model (its base model has one for each head).
    RoFormer's account adds the embedding before W_k; the paper, and this, after it.
    """

    def __init__(self, args: ModelArgs, layer_id: int, farthest: int) -> None:
        super().__init__(args, layer_id)
        # Keys behind only, so distances 0 .. farthest. One tensor of three axes: no matrix, for the optimizer.
        self.relative = nn.Parameter(0.02 * torch.randn(2, farthest + 1, args.head_dim))  # for keys, for values

    def clipped(self, distance: Tensor) -> Tensor:
        return distance.clamp(0, self.relative.shape[1] - 1)

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        relative = by_distance(xq @ self.relative[0].T, self.clipped(distance))  # (B, H, T, S)
        return (xq @ keys.mT + relative) * self.head_dim**-0.5

    def mix(self, weights: Tensor, values: Tensor, distance: Tensor) -> Tensor:
        relative = self.relative[1][self.clipped(distance)]  # (T, S, D)
        return weights @ values + torch.einsum("bhts,tsd->bhtd", weights, relative)


class Shaw(Transformer):
    """A learned vector for each distance up to ``farthest``, beyond which all are one."""

    def __init__(self, args: ModelArgs, farthest: int = 16) -> None:
        check_at_least("farthest", farthest, 0)
        super().__init__(args)
        replace_attention(self, [ShawAttention(args, layer_id, farthest) for layer_id in range(args.n_layers)])


class TransformerXLAttention(ScoringAttention):
    """(q_i + u) k_j + (q_i + v) W_kR r_(i-j): terms a and c, b and d of the paper.

    u and v replace W_q p_i, so they are not multiplied by W_q. Each layer has its own,
    as in the authors' TensorFlow runs (untie_r); their PyTorch code shares them.
    """

    def __init__(self, args: ModelArgs, layer_id: int) -> None:
        super().__init__(args, layer_id)
        self.wr = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.u = nn.Parameter(torch.zeros(args.n_heads, 1, args.head_dim))
        self.v = nn.Parameter(torch.zeros(args.n_heads, 1, args.head_dim))
        nn.init.normal_(self.wr.weight, std=0.02)
        self.sinusoids = sinusoids(args.dim, args.max_seq_len)  # (max_seq_len, dim): row n for distance n

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        encoded = self.wr(self.sinusoids[: keys.shape[2]].to(xq)).unflatten(-1, (-1, self.head_dim))  # (S, H, D)
        content = (xq + self.u) @ keys.mT  # (B, H, T, S)
        position = by_distance((xq + self.v) @ encoded.permute(1, 2, 0), distance.clamp(min=0))  # (B, H, T, S)
        return (content + position) * self.head_dim**-0.5


class TransformerXL(Transformer):
    """Sinusoids of the distance, through a matrix of their own. The KV cache takes the place of the segment memory."""

    def __init__(self, args: ModelArgs) -> None:
        if args.dim % 2:
            raise ValueError(f"dim is {args.dim}: make it even, because a sine and a cosine share a frequency")
        super().__init__(args)
        replace_attention(self, [TransformerXLAttention(args, layer_id) for layer_id in range(args.n_layers)])


class PositionTerm(nn.Module):
    """p_i U_Q (p_j U_K)^T / sqrt(2 D) + b_(i-j), the same for all layers: its matrices and its numbers.

    The norm of p is the authors' code's, not the paper's. b has T5's buckets, for keys behind only.
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
        q, k = (u(p).unflatten(-1, (-1, self.head_dim)).transpose(0, 1) for u in (self.uq, self.uk))  # (H, S, D)
        bias = self.relative_bias(t5_buckets(distance.clamp(min=0))).permute(2, 0, 1)  # (H, T, S)
        return q[:, S - T :] @ k.mT * (2 * self.head_dim) ** -0.5 + bias


class TupeAttention(ScoringAttention):
    """The content term, over sqrt(2 D) since two terms of one size are added, and the model's one position term."""

    def __init__(self, args: ModelArgs, layer_id: int, term: PositionTerm) -> None:
        super().__init__(args, layer_id)
        self.term = (term,)  # in a tuple, because it belongs to the model and not to each layer

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        return xq @ keys.mT * (2 * self.head_dim) ** -0.5 + self.term[0](distance)


class Tupe(Transformer):
    """TUPE-R: absolute and relative. What the paper unties for [CLS] has no counterpart in a decoder."""

    shift_invariant = False

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self.position_term = PositionTerm(args)
        attentions = [TupeAttention(args, layer_id, self.position_term) for layer_id in range(args.n_layers)]
        replace_attention(self, attentions)


class DebertaAttention(ScoringAttention):
    """(Qc_i Kc_j + Qc_i Kr_d(i,j) + Kc_j Qr_d(j,i)) / sqrt(3 D), with d(i, j) = i - j + k clipped to 0 .. 2k - 1.

    That is the paper; its authors' code comes to d(i, j) in the third term too. Their biases of q and v are left out.
    """

    def __init__(self, args: ModelArgs, layer_id: int, table: nn.Embedding) -> None:
        super().__init__(args, layer_id)
        self.table = (table,)  # in a tuple, because it belongs to the model and not to each layer
        self.wqr = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wkr = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        for matrix in (self.wqr, self.wkr):
            nn.init.normal_(matrix.weight, std=0.02)

    def scores(self, xq: Tensor, keys: Tensor, distance: Tensor) -> Tensor:
        table = self.table[0].weight  # (2k, dim)
        k = table.shape[0] // 2
        qr, kr = (w(table).unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0) for w in (self.wqr, self.wkr))
        to_position = by_distance(xq @ kr, (distance + k).clamp(0, 2 * k - 1))  # (B, H, T, S), from (B, H, T, 2k)
        from_position = by_distance(keys @ qr, (k - distance.T).clamp(0, 2 * k - 1))  # (B, H, S, T)
        return (xq @ keys.mT + to_position + from_position.mT) * (3 * self.head_dim) ** -0.5


class Deberta(Transformer):
    """Disentangled attention over distances up to ``k`` (the paper's is 512, as long as its texts). The absolute
    positions that DeBERTa's mask decoder adds at the end belong to its training task and have no counterpart here.
    """

    def __init__(self, args: ModelArgs, k: int = 64) -> None:
        check_at_least("k", k, 1)
        super().__init__(args)
        self.rel_embeddings = nn.Embedding(2 * k, args.dim)
        nn.init.normal_(self.rel_embeddings.weight, std=0.02)
        attentions = [DebertaAttention(args, layer_id, self.rel_embeddings) for layer_id in range(args.n_layers)]
        replace_attention(self, attentions)
