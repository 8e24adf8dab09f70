"""One attention call step by step, as the library computes it, with the values of one pair."""

import math
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from model import rope
from model.cache import KVCache
from model.config import ModelArgs
from model.ranges import Range
from model.rope_scaling import scale
from model.transformer import Transformer

from .positions import scheme_of
from .topic import Report, Table, open_model


def trace(
    model: Annotated[Path | None, "a trained model (default: random weights)"] = None,
    prompt: Annotated[str, "prompt of the trained model"] = "Once upon a time",
    position: Annotated[int, "token whose values are shown (a negative one counts from the end)"] = 2,
    head: Annotated[int, "head whose values are shown", Range(0)] = 0,
    pair: Annotated[int, "pair whose values are shown", Range(0)] = 1,
) -> Report:
    """One attention call step by step: expression, shape, dtype and the values of one pair."""
    network, tokens = _random() if model is None else _trained(model, prompt)
    B, T = tokens.shape
    p = position if position >= 0 else position + T
    args = network.args
    check_below("position", position, p, T)
    check_below("head", head, head, args.n_heads)
    check_below("pair", pair, pair, args.head_dim // 2)
    table = Table(
        f"One attention call: B={B} T={T} H={args.n_heads} K={args.n_kv_heads} D={args.head_dim}; "
        f"values: row 0, position {p}, head {head}, pair {pair}",
        ("file", "expression", "shape", "dtype", "values"),
        attention_call(network, tokens, p, head, pair),
        [f"values of mask, scores and weights: for the keys at positions {', '.join(map(str, keys_around(p, T)))}."],
    )
    return Report([table])


@torch.no_grad()
def attention_call(network: Transformer, tokens: Tensor, p: int, head: int, i: int) -> list[Any]:
    """Go through the first layer's attention: the rows that show pair ``i`` of one head at position ``p`` of row 0."""
    layer: Any = network.layers[0]
    attention, args = layer.attention, network.args
    B, T = tokens.shape
    D = args.head_dim
    group = args.n_heads // args.n_kv_heads
    kv_head = head // group
    channels = slice(2 * i, 2 * i + 2)
    keys = slice(keys_around(p, T).start, keys_around(p, T).stop)
    rows: list[Any] = []

    def show(file: str, expression: str, value: Tensor, *index: Any) -> Tensor:
        """Add a row: the expression in the library's file, and the value at ``index``."""
        numbers = " ".join(map(_number, value[index].flatten().tolist()))
        rows.append((file, expression, tuple(value.shape), str(value.dtype)[6:], numbers))
        return value

    freqs = args.rope_theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
    show("rope.py", 'theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)', freqs, i)
    magnitude = 1.0
    if args.rope_scaling is not None:
        magnitude = args.rope_scaling.attention_factor
        freqs = show("rope.py", "scale(freqs, scaling)", scale(freqs, args.rope_scaling), i)  # (D/2,)
    positions = torch.arange(args.max_seq_len, dtype=torch.float64)  # (max_seq_len,)
    show("rope.py", 'torch.arange(end, dtype=torch.float64, device="cpu")', positions, p)
    angles = show("rope.py", "torch.outer(positions, freqs)", torch.outer(positions, freqs), p, i)
    table = torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)  # (max_seq_len, D/2)
    show("rope.py", "torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)", table, p, i)
    freqs_cis = network.freqs_cis[:T]  # (T, D/2)
    show("transformer.py", "self.freqs_cis[start_pos : start_pos + T]", freqs_cis, p, i)

    x = layer.attention_norm(network.embed(tokens, 0))  # (B, T, dim)
    xq = attention.wq(x).view(B, T, -1, D)  # (B, T, H, D)
    xk = attention.wk(x).view(B, T, -1, D)  # (B, T, K, D)
    xv = attention.wv(x).view(B, T, -1, D)  # (B, T, K, D)
    show("attention.py", "self.wq(x).view(B, T, -1, self.head_dim)", xq, 0, p, head, channels)
    show("attention.py", "self.wk(x).view(B, T, -1, self.head_dim)", xk, 0, p, kv_head, channels)
    show("attention.py", "self.wv(x).view(B, T, -1, self.head_dim)", xv, 0, p, kv_head, channels)
    if args.qk_norm:
        xq = show("attention.py", "self.q_norm(xq)", attention.q_norm(xq), 0, p, head, channels)
        xk = show("attention.py", "self.k_norm(xk)", attention.k_norm(xk), 0, p, kv_head, channels)

    def rotated(x: Tensor, h: int) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))  # (B, T, H or K, D/2)
        show("rope.py", "torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))", pairs, 0, p, h, i)
        row = rope.reshape_for_broadcast(freqs_cis, pairs)  # (1, T, 1, D/2)
        show("rope.py", "freqs_cis[None, :, None, :]", row, 0, p, 0, i)
        turned = show("rope.py", "pairs * reshape_for_broadcast(freqs_cis, pairs)", pairs * row, 0, p, h, i)
        out = torch.view_as_real(turned).flatten(3).type_as(x)  # (B, T, H or K, D)
        return show("rope.py", "torch.view_as_real(rotated).flatten(3).type_as(x)", out, 0, p, h, channels)

    xq, xk = rotated(xq, head), rotated(xk, kv_head)
    q, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
    show("attention.py", "t.transpose(1, 2)", q, 0, head, p, channels)
    k, v = KVCache(args, B).layers[0].update(0, xk, xv)  # (B, K, S, D)
    show("cache.py", "self.keys[:, :, :end].type_as(xk)", k, 0, kv_head, p, channels)
    show("cache.py", "self.values[:, :, :end].type_as(xv)", v, 0, kv_head, p, channels)

    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # (B, H, S, D)
    show("attention.py", "k.repeat_interleave(group, 1)", k, 0, head, p, channels)
    show("attention.py", "v.repeat_interleave(group, 1)", v, 0, head, p, channels)
    mask = torch.ones(T, T, dtype=torch.bool).tril()  # (T, S)
    show("attention.py", "torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)", mask, p, keys)
    scores = q @ k.mT / math.sqrt(D)  # (B, H, T, S)
    show("attention.py", "q @ k.mT / math.sqrt(q.shape[-1])", scores, 0, head, p, keys)
    masked = scores.masked_fill(~mask, -math.inf)
    show("attention.py", "scores.masked_fill(~mask, -math.inf)", masked, 0, head, p, keys)
    weights = masked.softmax(-1, dtype=torch.float32).type_as(v)
    expression = "scores.masked_fill(~mask, -math.inf).softmax(-1, dtype=torch.float32)"
    show("attention.py", expression, weights, 0, head, p, keys)
    out = show("attention.py", "weights @ v", weights @ v, 0, head, p, channels)  # (B, H, T, D)
    columns = slice(head * D + 2 * i, head * D + 2 * i + 2)
    out = out.transpose(1, 2).flatten(2)  # (B, T, H * D)
    show("attention.py", "out.transpose(1, 2).flatten(2)", out, 0, p, columns)
    return rows


def keys_around(p: int, T: int) -> range:
    """The positions of three keys: the one before ``p``, this one, and the next, which the mask hides."""
    return range(max(p - 1, 0), min(p + 2, T))


def check_below(name: str, given: int, index: int, limit: int) -> None:
    if not 0 <= index < limit:
        raise ValueError(f"{name} is {given}: give one of 0 to {limit - 1}")


def _random() -> tuple[Transformer, Tensor]:
    """Random weights and tokens. The table has twice as many rows as tokens, so that the slice can be seen."""
    torch.manual_seed(0)
    network = Transformer(ModelArgs(dim=768, n_layers=1, n_heads=12, vocab_size=256, max_seq_len=1024))
    return network, torch.randint(256, (2, 512))


def _trained(path: Path, prompt: str) -> tuple[Transformer, Tensor]:
    model, tokenizer = open_model(path)
    if type(model) is not Transformer:
        raise ValueError(f"scheme {scheme_of(model)} is not plain RoPE: name a model trained with RoPE")
    tokens = torch.tensor([tokenizer.encode(prompt)])
    model.check_positions(tokens, 0, None)
    return model, tokens


def _number(value: complex) -> str:
    return f"{value.real:+.4f}{value.imag:+.4f}j" if isinstance(value, complex) else f"{value:+.4f}"
