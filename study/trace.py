"""One attention call, expression by expression as the library's source has them, with the values of one pair."""

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

ROOT = Path(rope.__file__).parent  # the network
LONGEST = 72  # characters of an expression in the table


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
        ("line", "expression", "shape", "dtype", "values"),
        attention_call(network, tokens, p, head, pair),
        [f"values of mask, scores and weights: for the keys at positions {', '.join(map(str, keys_around(p, T)))}."],
    )
    return Report([table])


@torch.no_grad()
def attention_call(network: Transformer, tokens: Tensor, p: int, head: int, i: int) -> list[Any]:
    """Go through the first layer's attention: the rows that show pair ``i`` of one head at position ``p`` of row 0."""
    layer: Any = network.layers[0]
    args = network.args
    B, T = tokens.shape
    D = args.head_dim
    kv_head = head // (args.n_heads // args.n_kv_heads)
    channels = slice(2 * i, 2 * i + 2)
    keys = slice(keys_around(p, T).start, keys_around(p, T).stop)
    cache = KVCache(args, B).layers[0]
    rows: list[Any] = []
    # The names of the expressions below. Every result gets the name that it has in the library.
    names: dict[str, Any] = {"torch": torch, "math": math, "reshape_for_broadcast": rope.reshape_for_broadcast}
    names |= {"dim": D, "theta": args.rope_theta, "scale": scale, "scaling": args.rope_scaling, "magnitude": 1.0}
    names |= {"end": args.max_seq_len, "start_pos": 0, "B": B, "T": T, "S": T}
    names["group"] = args.n_heads // args.n_kv_heads
    objects = {"transformer.py": network, "attention.py": layer.attention, "cache.py": cache}

    def show(file: str, result: str, expression: str, *index: Any) -> None:
        """Evaluate an expression that ``file`` has in one of its lines, and show its values at ``index``."""
        names["self"] = objects.get(file)
        value: Tensor = eval(expression, names)
        names[result] = value
        shown = expression if len(expression) <= LONGEST else expression[: LONGEST - 3] + "..."
        numbers = " ".join(map(_number, value[index].flatten().tolist()))
        rows.append((line_of(file, expression), shown, tuple(value.shape), str(value.dtype)[6:], numbers))

    show("rope.py", "freqs", 'theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)', i)
    if args.rope_scaling is not None:
        show("rope.py", "freqs", "scale(freqs, scaling)", i)  # (D/2,)
        names["magnitude"] = args.rope_scaling.attention_factor
    show("rope.py", "positions", 'torch.arange(end, dtype=torch.float64, device="cpu")', p)  # (max_seq_len,)
    show("rope.py", "angles", "torch.outer(positions, freqs)", p, i)  # (max_seq_len, D/2)
    show("rope.py", "table", "torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)", p, i)
    show("transformer.py", "freqs_cis", "self.freqs_cis[start_pos : start_pos + T]", p, i)  # (T, D/2)

    names["x"] = layer.attention_norm(network.embed(tokens, 0))  # (B, T, dim)
    show("attention.py", "xq", "self.wq(x).view(B, T, -1, self.head_dim)", 0, p, head, channels)  # (B, T, H, D)
    show("attention.py", "xk", "self.wk(x).view(B, T, -1, self.head_dim)", 0, p, kv_head, channels)  # (B, T, K, D)
    show("attention.py", "xv", "self.wv(x).view(B, T, -1, self.head_dim)", 0, p, kv_head, channels)  # (B, T, K, D)
    if args.qk_norm:
        show("attention.py", "xq", "self.q_norm(xq)", 0, p, head, channels)
        show("attention.py", "xk", "self.k_norm(xk)", 0, p, kv_head, channels)

    for name, h in (("xq", head), ("xk", kv_head)):  # the rotation
        names["x"] = names[name]
        show("rope.py", "pairs", "torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))", 0, p, h, i)
        show("rope.py", "row", "freqs_cis[None, :, None, :]", 0, p, 0, i)  # (1, T, 1, D/2)
        show("rope.py", "rotated", "pairs * reshape_for_broadcast(freqs_cis, pairs)", 0, p, h, i)
        show("rope.py", name, "torch.view_as_real(rotated).flatten(3).type_as(x)", 0, p, h, channels)

    names["t"] = names["xq"]
    show("attention.py", "q", "t.transpose(1, 2)", 0, head, p, channels)  # (B, H, T, D)
    names["xk"], names["xv"] = names["xk"].transpose(1, 2), names["xv"].transpose(1, 2)  # (B, K, T, D)
    cache.update(0, names["xk"], names["xv"])
    names["end"] = T
    show("cache.py", "k", "self.keys[:, :, :end].type_as(xk)", 0, kv_head, p, channels)
    show("cache.py", "v", "self.values[:, :, :end].type_as(xv)", 0, kv_head, p, channels)

    show("attention.py", "k", "k.repeat_interleave(group, 1)", 0, head, p, channels)  # (B, H, S, D)
    show("attention.py", "v", "v.repeat_interleave(group, 1)", 0, head, p, channels)  # (B, H, S, D)
    show("attention.py", "mask", "torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)", p, keys)  # (T, S)
    show("attention.py", "scores", "q @ k.mT / math.sqrt(q.shape[-1])", 0, head, p, keys)  # (B, H, T, S)
    masked = "scores.masked_fill(~mask, -math.inf)"
    show("attention.py", "masked", masked, 0, head, p, keys)
    show("attention.py", "weights", f"{masked}.softmax(-1, dtype=torch.float32)", 0, head, p, keys)
    show("attention.py", "out", "weights @ v", 0, head, p, channels)  # (B, H, T, D)
    columns = slice(head * D + 2 * i, head * D + 2 * i + 2)
    show("attention.py", "out", "out.transpose(1, 2).flatten(2)", 0, p, columns)  # (B, T, H * D)
    return rows


def line_of(file: str, expression: str) -> str:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return f"{file}:{next(number for number, line in enumerate(lines, 1) if expression in line)}"


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
