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

POSITION, PAIR = 2, 1  # whose values are shown, of head 0 in row 0 of the batch


def trace() -> Report:
    """One attention call step by step: expression, shape, dtype and the values of one pair."""
    torch.manual_seed(0)
    # The table has twice as many rows as there are tokens, so that the slice can be seen.
    args = ModelArgs(dim=768, n_layers=1, n_heads=12, vocab_size=256, max_seq_len=1024)
    network, tokens = Transformer(args), torch.randint(256, (2, 512))
    B, T = tokens.shape
    table = Table(
        f"One attention call: B={B} T={T} H={args.n_heads} K={args.n_kv_heads} D={args.head_dim}; "
        f"values: row 0, position {POSITION}, head 0, pair {PAIR}",
        ("file", "expression", "shape", "dtype", "values"),
        attention_call(network, tokens),
        [f"values of mask, scores and weights: for the keys at positions {POSITION - 1}, {POSITION}, {POSITION + 1}."],
    )
    return Report([table])


@torch.no_grad()
def attention_call(network: Transformer, tokens: Tensor) -> list[Any]:
    """Go through the first layer's attention: the rows of the table."""
    layer: Any = network.layers[0]
    attention, args = layer.attention, network.args
    B, T = tokens.shape
    D, p, i = args.head_dim, POSITION, PAIR
    group = args.n_heads // args.n_kv_heads
    channels = slice(2 * i, 2 * i + 2)
    keys = slice(p - 1, p + 2)  # the one before, this one, and the next, which the mask hides
    rows: list[Any] = []

    def show(file: str, expression: str, value: Tensor, *index: Any) -> Tensor:
        """Add a row: the expression in the library's file, and the value at ``index``."""
        numbers = " ".join(map(_number, value[index].flatten().tolist()))
        rows.append((file, expression, tuple(value.shape), str(value.dtype)[6:], numbers))
        return value

    freqs = args.rope_theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
    show("rope.py", 'theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)', freqs, i)
    positions = torch.arange(args.max_seq_len, dtype=torch.float64)  # (max_seq_len,)
    show("rope.py", 'torch.arange(end, dtype=torch.float64, device="cpu")', positions, p)
    angles = show("rope.py", "torch.outer(positions, freqs)", torch.outer(positions, freqs), p, i)
    table = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)  # (max_seq_len, D/2)
    show("rope.py", "torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)", table, p, i)
    freqs_cis = network.freqs_cis[:T]  # (T, D/2)
    show("transformer.py", "self.freqs_cis[start_pos : start_pos + T]", freqs_cis, p, i)

    x = layer.attention_norm(network.embed(tokens, 0))  # (B, T, dim)
    xq = attention.wq(x).view(B, T, -1, D)  # (B, T, H, D)
    xk = attention.wk(x).view(B, T, -1, D)  # (B, T, K, D)
    xv = attention.wv(x).view(B, T, -1, D)  # (B, T, K, D)
    show("attention.py", "self.wq(x).view(B, T, -1, self.head_dim)", xq, 0, p, 0, channels)
    show("attention.py", "self.wk(x).view(B, T, -1, self.head_dim)", xk, 0, p, 0, channels)
    show("attention.py", "self.wv(x).view(B, T, -1, self.head_dim)", xv, 0, p, 0, channels)

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))  # (B, T, H or K, D/2)
        show("rope.py", "torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))", pairs, 0, p, 0, i)
        row = rope.reshape_for_broadcast(freqs_cis, pairs)  # (1, T, 1, D/2)
        show("rope.py", "freqs_cis[None, :, None, :]", row, 0, p, 0, i)
        turned = show("rope.py", "pairs * reshape_for_broadcast(freqs_cis, pairs)", pairs * row, 0, p, 0, i)
        out = torch.view_as_real(turned).flatten(3).type_as(x)  # (B, T, H or K, D)
        return show("rope.py", "torch.view_as_real(rotated).flatten(3).type_as(x)", out, 0, p, 0, channels)

    xq, xk = rotated(xq), rotated(xk)
    q, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
    show("attention.py", "t.transpose(1, 2)", q, 0, 0, p, channels)
    k, v = KVCache(args, B).layers[0].update(0, xk, xv)  # (B, K, S, D)
    show("cache.py", "self.keys[:, :, :end].type_as(xk)", k, 0, 0, p, channels)
    show("cache.py", "self.values[:, :, :end].type_as(xv)", v, 0, 0, p, channels)

    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # (B, H, S, D)
    show("attention.py", "k.repeat_interleave(group, 1)", k, 0, 0, p, channels)
    show("attention.py", "v.repeat_interleave(group, 1)", v, 0, 0, p, channels)
    mask = torch.ones(T, T, dtype=torch.bool).tril()  # (T, S)
    show("attention.py", "torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)", mask, p, keys)
    scores = q @ k.mT / math.sqrt(D)  # (B, H, T, S)
    show("attention.py", "q @ k.mT / math.sqrt(q.shape[-1])", scores, 0, 0, p, keys)
    masked = scores.masked_fill(~mask, -math.inf)
    show("attention.py", "scores.masked_fill(~mask, -math.inf)", masked, 0, 0, p, keys)
    weights = masked.softmax(-1, dtype=torch.float32).type_as(v)
    expression = "scores.masked_fill(~mask, -math.inf).softmax(-1, dtype=torch.float32)"
    show("attention.py", expression, weights, 0, 0, p, keys)
    out = show("attention.py", "weights @ v", weights @ v, 0, 0, p, channels)  # (B, H, T, D)
    out = out.transpose(1, 2).flatten(2)  # (B, T, H * D)
    show("attention.py", "out.transpose(1, 2).flatten(2)", out, 0, p, channels)
    return rows


def _number(value: complex) -> str:
    return f"{value.real:+.4f}{value.imag:+.4f}j" if isinstance(value, complex) else f"{value:+.4f}"
