"""What the schemes share that look at distances: how far each key is, and an attention that scores by itself."""

import torch
from torch import Tensor

from ..attention import Attention
from ..transformer import Transformer


def distances(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """How far back each key lies from each of the last T positions: int64 (T, S), negative for keys to come."""
    keys = torch.arange(S, device=device)
    return keys[S - T :, None] - keys


def by_distance(scores: Tensor, index: Tensor) -> Tensor:
    """Scores for each of N distances, (B, H, T, N), laid on the keys: ``index`` (T, S) says which -> (B, H, T, S)."""
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


def replace_attention(model: Transformer, attentions: list[ScoringAttention]) -> None:
    """Put them in place of the layers' own, whose matrices they take over. Nothing turns any more."""
    for layer, attention in zip(model.layers, attentions, strict=True):
        for name in ("wq", "wk", "wv", "wo"):
            setattr(attention, name, getattr(layer.attention, name))
        layer.attention = attention
    model.freqs_cis = torch.ones_like(model.freqs_cis)
