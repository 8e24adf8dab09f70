"""One attention call step by step, as the library computes it, with the values of one pair."""

import math
from typing import Any

import torch
from torch import Tensor

from model import rope
from model.cache import KVCache
from model.config import ModelArgs
from model.transformer import Transformer

from .topic import Report, Table
from .word_order import KEY, QUERY

SENTENCE = ("dog", "of", "the", "old", "man", "bites", "me")
DOG, BITES = 0, 5  # positions of the key and of the query whose values are shown, of head 0 and its only pair


@torch.no_grad()
def trace() -> Report:
    """One attention call step by step: expression, shape, dtype and the values of one pair."""
    torch.manual_seed(0)
    args = ModelArgs(dim=8, n_layers=1, n_heads=4, n_kv_heads=2, vocab_size=len(SENTENCE), max_seq_len=16)
    network = Transformer(args)
    tokens = torch.arange(len(SENTENCE))[None]  # (1, T)
    layer: Any = network.layers[0]
    x = layer.attention_norm(network.embed(tokens, 0))[0]  # (T, dim)
    for w, p, pair in ((layer.attention.wq, BITES, QUERY), (layer.attention.wk, DOG, KEY)):
        missing = torch.tensor([pair.real, pair.imag]) - w.weight[:2] @ x[p]  # (2,)
        w.weight[:2] += torch.outer(missing, x[p] / x[p].square().sum())  # so that this token has the pair of the walk
    B, T = tokens.shape
    keys = ", ".join(f"{SENTENCE[p]} ({p})" for p in (DOG, BITES, BITES + 1))
    sizes = f"B={B} T={T} H={args.n_heads} K={args.n_kv_heads} D={args.head_dim}"
    table = Table(
        f'One attention call for "{" ".join(SENTENCE)}": {sizes}',
        ("name", "values", "shape", "dtype", "file", "expression"),
        attention_call(network, tokens),
        [
            f"values: of {SENTENCE[BITES]} ({BITES}) in head 0; in rows of k and v, of {SENTENCE[DOG]} ({DOG}).",
            f"mask, scores and weights: for the keys {keys}.",
        ],
    )
    return Report([table])


@torch.no_grad()
def attention_call(network: Transformer, tokens: Tensor) -> list[Any]:
    """Go through the first layer's attention: the rows of the table."""
    layer: Any = network.layers[0]
    attention, args = layer.attention, network.args
    B, T = tokens.shape
    D, p, i = args.head_dim, BITES, 0
    group = args.n_heads // args.n_kv_heads
    channels = slice(2)
    keys = [DOG, BITES, BITES + 1]  # the mask hides the last one
    rows: list[Any] = []

    def show(name: str, file: str, expression: str, value: Tensor, *index: Any) -> Tensor:
        """Add a row: the expression in the library's file, and the value at ``index``."""
        numbers = " ".join(map(_number, value[index].flatten().tolist()))
        rows.append((name, numbers, tuple(value.shape), str(value.dtype)[6:], file, expression))
        return value

    freqs = args.rope_theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
    show("freqs", "rope.py", 'theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)', freqs, i)
    positions = torch.arange(args.max_seq_len, dtype=torch.float64)  # (max_seq_len,)
    show("positions", "rope.py", 'torch.arange(end, dtype=torch.float64, device="cpu")', positions, p)
    angles = show("angles", "rope.py", "torch.outer(positions, freqs)", torch.outer(positions, freqs), p, i)
    table = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)  # (max_seq_len, D/2)
    expression = "torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)"
    show("table", "rope.py", expression, table, p, i)
    freqs_cis = network.freqs_cis[:T]  # (T, D/2)
    show("freqs_cis", "transformer.py", "self.freqs_cis[start_pos : start_pos + T]", freqs_cis, p, i)

    x = layer.attention_norm(network.embed(tokens, 0))  # (B, T, dim)
    xq = attention.wq(x).view(B, T, -1, D)  # (B, T, H, D)
    xk = attention.wk(x).view(B, T, -1, D)  # (B, T, K, D)
    xv = attention.wv(x).view(B, T, -1, D)  # (B, T, K, D)
    show("xq", "attention.py", "self.wq(x).view(B, T, -1, self.head_dim)", xq, 0, p, 0, channels)
    show("xk", "attention.py", "self.wk(x).view(B, T, -1, self.head_dim)", xk, 0, DOG, 0, channels)
    show("xv", "attention.py", "self.wv(x).view(B, T, -1, self.head_dim)", xv, 0, DOG, 0, channels)

    def rotated(name: str, x: Tensor, p: int) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))  # (B, T, H or K, D/2)
        show(
            f"{name} pairs",
            "rope.py",
            "torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))",
            pairs,
            0,
            p,
            0,
            i,
        )
        row = rope.reshape_for_broadcast(freqs_cis, pairs)  # (1, T, 1, D/2)
        show(f"{name} table", "rope.py", "freqs_cis[None, :, None, :]", row, 0, p, 0, i)
        turned = pairs * row
        show(f"{name} product", "rope.py", "pairs * reshape_for_broadcast(freqs_cis, pairs)", turned, 0, p, 0, i)
        out = torch.view_as_real(turned).flatten(3).type_as(x)  # (B, T, H or K, D)
        expression = "torch.view_as_real(rotated).flatten(3).type_as(x)"
        return show(f"{name} rotated", "rope.py", expression, out, 0, p, 0, channels)

    xq, xk = rotated("xq", xq, p), rotated("xk", xk, DOG)
    q, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
    show("xq", "attention.py", "t.transpose(1, 2)", q, 0, 0, p, channels)
    k, v = KVCache(args, B).layers[0].update(0, xk, xv)  # (B, K, S, D)
    show("cached keys", "cache.py", "self.keys[:, :, :end].type_as(xk)", k, 0, 0, DOG, channels)
    show("cached values", "cache.py", "self.values[:, :, :end].type_as(xv)", v, 0, 0, DOG, channels)

    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # (B, H, S, D)
    show("k", "attention.py", "k.repeat_interleave(group, 1)", k, 0, 0, DOG, channels)
    show("v", "attention.py", "v.repeat_interleave(group, 1)", v, 0, 0, DOG, channels)
    mask = torch.ones(T, T, dtype=torch.bool).tril()  # (T, S)
    show("mask", "attention.py", "torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)", mask, p, keys)
    scores = q @ k.mT / math.sqrt(D)  # (B, H, T, S)
    show("scores", "attention.py", "q @ k.mT / math.sqrt(q.shape[-1])", scores, 0, 0, p, keys)
    masked = scores.masked_fill(~mask, -math.inf)
    show("masked", "attention.py", "scores.masked_fill(~mask, -math.inf)", masked, 0, 0, p, keys)
    weights = masked.softmax(-1, dtype=torch.float32).type_as(v)
    expression = "scores.masked_fill(~mask, -math.inf).softmax(-1, dtype=torch.float32)"
    show("weights", "attention.py", expression, weights, 0, 0, p, keys)
    out = show("out", "attention.py", "weights @ v", weights @ v, 0, 0, p, channels)  # (B, H, T, D)
    out = out.transpose(1, 2).flatten(2)  # (B, T, H * D)
    show("all heads", "attention.py", "out.transpose(1, 2).flatten(2)", out, 0, p, channels)
    return rows


def _number(value: complex) -> str:
    return f"{value.real:+.4f}{value.imag:+.4f}j" if isinstance(value, complex) else f"{value:+.4f}"
