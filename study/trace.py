"""One attention call, expression by expression as the library's source has them, with the values of one pair."""

import cmath
import math
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from model import rope
from model.cache import KVCache
from model.cli.machine import check_memory
from model.config import ModelArgs
from model.ranges import Range
from model.transformer import Transformer

from .arrows import arc, arrow, plane
from .positions import scheme_of
from .topic import BLUE, MAX_HEAD_DIM, ORANGE, Report, Table, open_model

ROOT = Path(rope.__file__).parent  # the network
LONGEST = 72  # characters of an expression in the table


def trace(
    model: Annotated[Path | None, "a trained model (default: random weights)"] = None,
    prompt: Annotated[str, "prompt of the trained model"] = "Once upon a time",
    batch: Annotated[int, "rows", Range(1)] = 2,
    length: Annotated[int, "tokens", Range(1)] = 512,
    heads: Annotated[int, "heads", Range(1)] = 12,
    head_dim: Annotated[int, "width of one head", Range(2, MAX_HEAD_DIM)] = 64,
    position: Annotated[int, "token whose values are shown (a negative one counts from the end)"] = 2,
    head: Annotated[int, "head whose values are shown", Range(0)] = 0,
    pair: Annotated[int, "pair whose values are shown", Range(0)] = 1,
) -> Report:
    """One attention call step by step: expression, shape, dtype and the values of one pair."""
    network, tokens = _random(batch, length, heads, head_dim) if model is None else _trained(model, prompt)
    B, T = tokens.shape
    p = position if position >= 0 else position + T
    args = network.args
    check_below("position", position, p, T)
    check_below("head", head, head, args.n_heads)
    check_below("pair", pair, pair, args.head_dim // 2)
    steps = Steps()
    with torch.no_grad():
        pairs = attention_call(steps, network, tokens, p, head, pair)
    table = Table(
        f"One attention call: B={B} T={T} H={args.n_heads} K={args.n_kv_heads} D={args.head_dim}; "
        f"values: row 0, position {p}, head {head}, pair {pair}",
        ("line", "expression", "shape", "dtype", "values"),
        steps.rows,
        [f"values of mask, scores and weights: for the keys at positions {', '.join(map(str, keys_around(p, T)))}."],
    )
    return Report([table], lambda figure: draw(figure, pairs, p, head, pair))


class Steps:
    """Evaluates expressions of the library's source, and keeps a row of the table for each."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def show(self, file: str, expression: str, index: tuple[Any, ...], /, **names: Any) -> Tensor:
        """The result of an expression that ``file`` has in one of its lines; the values at ``index`` are shown."""
        result: Tensor = eval(expression, {"torch": torch, "math": math} | names)
        shown = expression if len(expression) <= LONGEST else expression[: LONGEST - 3] + "..."
        values = result[index].flatten().tolist()
        row = (line_of(file, expression), shown, tuple(result.shape), str(result.dtype)[6:])
        self.rows.append((*row, " ".join(map(_number, values))))
        return result


def line_of(file: str, expression: str) -> str:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return f"{file}:{next(number for number, line in enumerate(lines, 1) if expression in line)}"


def attention_call(
    steps: Steps, network: Transformer, tokens: Tensor, p: int, head: int, i: int
) -> list[tuple[complex, complex]]:
    """Go through the first layer's attention, and show pair ``i`` of one head at position ``p`` of row 0.

    Returns the pair of q at ``p`` and that of k at the position before it, as projected and rotated.
    """
    show, args = steps.show, network.args
    layer: Any = network.layers[0]
    attention = layer.attention
    B, T = tokens.shape
    group = args.n_heads // args.n_kv_heads
    kv_head = head // group
    channels = slice(2 * i, 2 * i + 2)
    keys = slice(keys_around(p, T).start, keys_around(p, T).stop)

    dim, theta, scaling, magnitude = args.head_dim, args.rope_theta, args.rope_scaling, 1.0
    frequency = 'theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)'
    freqs = show("rope.py", frequency, (i,), theta=theta, dim=dim)  # (D/2,)
    if scaling is not None:
        freqs = show("rope.py", "scaling(freqs)", (i,), scaling=scaling, freqs=freqs)  # (D/2,)
        magnitude = scaling.attention_factor
    count = 'torch.arange(end, dtype=torch.float64, device="cpu")'
    positions = show("rope.py", count, (p,), end=args.max_seq_len)  # (max_seq_len,)
    angles = show("rope.py", "torch.outer(positions, freqs)", (p, i), positions=positions, freqs=freqs)
    polar = "torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)"
    show("rope.py", polar, (p, i), angles=angles, magnitude=magnitude)  # (max_seq_len, D/2)
    part = "self.freqs_cis[start_pos : start_pos + T]"
    freqs_cis = show("transformer.py", part, (p, i), self=network, start_pos=0, T=T)  # (T, D/2)

    x = layer.attention_norm(network.embed(tokens, 0))  # (B, T, dim)
    names = {"self": attention, "x": x, "B": B, "T": T}
    xq = show("attention.py", "self.wq(x).view(B, T, -1, self.head_dim)", (0, p, head, channels), **names)
    xk = show("attention.py", "self.wk(x).view(B, T, -1, self.head_dim)", (0, p, kv_head, channels), **names)
    xv = show("attention.py", "self.wv(x).view(B, T, -1, self.head_dim)", (0, p, kv_head, channels), **names)
    if args.qk_norm:
        xq = show("attention.py", "self.q_norm(xq)", (0, p, head, channels), self=attention, xq=xq)
        xk = show("attention.py", "self.k_norm(xk)", (0, p, kv_head, channels), self=attention, xk=xk)

    q_pairs, q_rotated, xq = rotation(steps, xq, freqs_cis, (0, p, head), i)
    k_pairs, k_rotated, xk = rotation(steps, xk, freqs_cis, (0, p, kv_head), i)
    before = max(p - 1, 0)
    pairs = [
        (complex(q[0, p, head, i]), complex(k[0, before, kv_head, i]))
        for q, k in ((q_pairs, k_pairs), (q_rotated, k_rotated))
    ]

    xq = show("attention.py", "t.transpose(1, 2)", (0, head, p, channels), t=xq)  # (B, H, T, D)
    xk, xv = xk.transpose(1, 2), xv.transpose(1, 2)  # (B, K, T, D)
    cache = KVCache(args, B).layers[0]
    cache.update(0, xk, xv)
    k = show("cache.py", "self.keys[:, :, :end].type_as(xk)", (0, kv_head, p, channels), self=cache, end=T, xk=xk)
    v = show("cache.py", "self.values[:, :, :end].type_as(xv)", (0, kv_head, p, channels), self=cache, end=T, xv=xv)

    k = show("attention.py", "k.repeat_interleave(group, 1)", (0, head, p, channels), k=k, group=group)  # (B, H, S, D)
    v = show("attention.py", "v.repeat_interleave(group, 1)", (0, head, p, channels), v=v, group=group)  # (B, H, S, D)
    triangle = "torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)"
    mask = show("attention.py", triangle, (p, keys), T=T, S=T, q=xq)  # (T, S)
    scores = show("attention.py", "q @ k.mT / math.sqrt(q.shape[-1])", (0, head, p, keys), q=xq, k=k)  # (B, H, T, S)
    masked = "scores.masked_fill(~mask, -math.inf)"
    show("attention.py", masked, (0, head, p, keys), scores=scores, mask=mask)  # (B, H, T, S)
    softmax = f"{masked}.softmax(-1, dtype=torch.float32)"
    weights = show("attention.py", softmax, (0, head, p, keys), scores=scores, mask=mask)  # (B, H, T, S)
    out = show("attention.py", "weights @ v", (0, head, p, channels), weights=weights, v=v)  # (B, H, T, D)
    columns = slice(head * dim + 2 * i, head * dim + 2 * i + 2)
    show("attention.py", "out.transpose(1, 2).flatten(2)", (0, p, columns), out=out)  # (B, T, H * D)
    return pairs


def rotation(
    steps: Steps, x: Tensor, freqs_cis: Tensor, place: tuple[int, ...], i: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate x (B, T, H, D): its pairs and the rotated pairs, complex (B, T, H, D/2), and the result (B, T, H, D)."""
    as_complex = "torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))"
    pairs = steps.show("rope.py", as_complex, (*place, i), x=x)
    steps.show("rope.py", "freqs_cis[None, :, None, :]", (0, place[1], 0, i), freqs_cis=freqs_cis)
    names = {"freqs_cis": freqs_cis, "pairs": pairs, "reshape_for_broadcast": rope.reshape_for_broadcast}
    rotated = steps.show("rope.py", "pairs * reshape_for_broadcast(freqs_cis, pairs)", (*place, i), **names)
    as_real = "torch.view_as_real(rotated).flatten(3).type_as(x)"
    result = steps.show("rope.py", as_real, (*place, slice(2 * i, 2 * i + 2)), rotated=rotated, x=x)
    return pairs, rotated, result


def keys_around(p: int, T: int) -> range:
    """The positions of three keys: the one before ``p``, this one, and the next, which the mask hides."""
    return range(max(p - 1, 0), min(p + 2, T))


def check_below(name: str, given: int, index: int, limit: int) -> None:
    if not 0 <= index < limit:
        raise ValueError(f"{name} is {given}: give one of 0 to {limit - 1}")


def _random(batch: int, length: int, heads: int, head_dim: int) -> tuple[Transformer, Tensor]:
    """Random weights and tokens. The table has twice as many rows as tokens, so that the slice can be seen."""
    args = ModelArgs(
        dim=heads * head_dim,
        n_heads=heads,
        n_layers=1,
        vocab_size=256,
        head_dim=head_dim,
        max_seq_len=2 * length,
    )
    scores = batch * heads * length**2
    check_memory(4 * (6 * scores + 20 * batch * length * args.dim), f"length {length}")
    torch.manual_seed(0)
    return Transformer(args), torch.randint(256, (batch, length))


def _trained(path: Path, prompt: str) -> tuple[Transformer, Tensor]:
    model, tokenizer = open_model(path)
    if type(model) is not Transformer:
        raise ValueError(f"scheme {scheme_of(model)} is not plain RoPE: name a model trained with RoPE")
    tokens = torch.tensor([tokenizer.encode(prompt)])
    model.check_positions(tokens, 0, None)
    return model, tokens


def _number(value: complex) -> str:
    return f"{value.real:+.4f}{value.imag:+.4f}j" if isinstance(value, complex) else f"{value:+.4f}"


def draw(figure: Any, pairs: list[tuple[complex, complex]], p: int, head: int, pair: int) -> None:
    """The pair of a query and of the key before it, before and after the rotation."""
    figure.set_size_inches(9, 4.6)
    (q, k), (new_q, new_k) = pairs
    reach = 1.35 * max(abs(q), abs(k))
    turns = [cmath.phase(new / old) if old else 0.0 for old, new in ((q, new_q), (k, new_k))]
    after = f"rotated: q by {turns[0]:+.2f} rad, k by {turns[1]:+.2f} rad"
    left, right = figure.subplots(1, 2)
    for axes, tips, title in ((left, (q, k), "as projected"), (right, (new_q, new_k), after)):
        plane(axes, reach)
        for name, token, color, tip in zip("qk", (p, max(p - 1, 0)), (BLUE, ORANGE), tips):
            arrow(axes, tip, color)
            axes.text(1.18 * tip.real, 1.18 * tip.imag, f"{name} at {token}", color=color, ha="center", va="center")
        axes.set(xlabel=f"channel {2 * pair}", ylabel=f"channel {2 * pair + 1}", title=title)
    for old, turn, color, radius in ((q, turns[0], BLUE, 0.3), (k, turns[1], ORANGE, 0.2)):
        arrow(right, old, color, alpha=0.3)
        arc(right, cmath.phase(old), cmath.phase(old) + turn, radius * reach, color)
    figure.suptitle(f"head {head}, pair {pair}", fontsize=11)
