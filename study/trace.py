"""One attention call, expression by expression as the library runs it, with the values of one pair.

No library code is copied. A ``TorchFunctionMode`` intercepts every torch call; the stack leads to the library's line,
and the code object of that line records the first and last column of the running expression.
"""

import cmath
import inspect
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.attention import Attention, attention
from model.cache import KVCache, LayerCache
from model.cli.machine import check_memory
from model.config import ModelArgs
from model.ranges import Range
from model.rope import _rotate, apply_rotary_emb, precompute_freqs_cis, reshape_for_broadcast
from model.transformer import Transformer

from .arrows import arc, arrow, plane
from .topic import BLUE, MAX_HEAD_DIM, ORANGE, Report, Table, open_model

ROOT = Path(inspect.getfile(Transformer)).parent  # the network
WATCHED: list[Callable[..., Any]] = [
    precompute_freqs_cis,
    reshape_for_broadcast,
    _rotate,
    apply_rotary_emb,
    Attention.forward,
    attention,
    LayerCache.update,
    Transformer.hidden,
]


@dataclass(frozen=True)
class Step:
    place: str  # file:line
    expression: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    values: list[complex]  # those of the chosen pair; floats for a real tensor
    at_key: list[complex]  # the same pair of the token before, whose key is drawn


class Recorder(TorchFunctionMode):
    """Records each tensor that a watched function of the library makes, with the values that ``picked`` finds in it."""

    def __init__(self, functions: list[Callable[..., Any]], picked: "Picked", at_key: "Picked") -> None:
        super().__init__()
        self.watched: set[CodeType] = {function.__code__ for function in functions}
        self.picked, self.at_key = picked, at_key
        self.steps: list[Step] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        frame = self._library_frame(sys._getframe(1))
        if frame is not None and isinstance(result, Tensor):
            values, at_key = (place.find(result).tolist() for place in (self.picked, self.at_key))
            self.steps.append(Step(*_expression(frame), tuple(result.shape), result.dtype, values, at_key))
        return result

    def _library_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the library if it is a watched function; frames of torch are skipped."""
        while frame is not None:
            if frame.f_code in self.watched:
                return frame
            if Path(frame.f_code.co_filename).is_relative_to(ROOT):
                return self._around(frame) if frame.f_code.co_name in ("<genexpr>", "<listcomp>") else None
            frame = frame.f_back
        return None

    def _around(self, frame: FrameType) -> FrameType | None:
        """The frame of a generator expression, if the function around it is watched."""
        outer = frame.f_back
        while outer is not None and Path(outer.f_code.co_filename) != Path(frame.f_code.co_filename):
            outer = outer.f_back
        return frame if outer is not None and outer.f_code in self.watched else None


def _expression(frame: FrameType) -> tuple[str, str]:
    """(file:line, source text) of the expression that the frame is evaluating."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None:  # Python was started without column numbers: take the whole line
        first = last = frame.f_lineno
        start, end = 0, None
    lines = [linecache.getline(frame.f_code.co_filename, n).rstrip("\n") for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return f"{Path(frame.f_code.co_filename).name}:{first}", " ".join(line.strip() for line in lines)


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
    from_start = position if position >= 0 else position + T
    args = network.args
    limits = (
        ("position", position, from_start, T),
        ("head", head, head, args.n_heads),
        ("pair", pair, pair, args.head_dim // 2),
    )
    for name, given, value, limit in limits:
        if not 0 <= value < limit:
            raise ValueError(f"{name} is {given}: give one of 0 to {limit - 1}")
    network.layers = network.layers[:1]  # one attention call is enough
    layer: Any = network.layers[0]
    layer.attention.attend = attention  # the formula, because a fused kernel shows no softmax
    picked = Picked(args, T, from_start, head, pair)
    at_key = Picked(args, T, max(from_start - 1, 0), head, pair)
    with torch.no_grad(), Recorder(WATCHED, picked, at_key) as recorder:
        network.freqs_cis = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta, args.rope_scaling)
        network.hidden(tokens, 0, KVCache(args, B))
    table = Table(
        f"One attention call: B={B} T={T} H={args.n_heads} K={args.n_kv_heads} D={args.head_dim}; "
        f"values: row 0, position {from_start}, head {head}, pair {pair}",
        ("line", "expression", "shape", "dtype", "values"),
        [
            (step.place, _cut(step.expression), step.shape, str(step.dtype)[6:], " ".join(map(_number, step.values)))
            for step in recorder.steps
        ],
        [f"values of mask, scores and weights: for the keys at positions {', '.join(map(str, picked.keys()))}."],
    )
    return Report([table], lambda figure: draw(figure, recorder.steps, picked, at_key))


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
    model, tokenizer, settings = open_model(path)
    if type(model) is not Transformer:
        raise ValueError(f"scheme {settings.scheme} is not plain RoPE: name a model trained with RoPE")
    return model, torch.tensor([tokenizer.encode(prompt)])


def _cut(text: str, width: int = 72) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


class Picked:
    """Finds one pair of one head at one position of row 0 in tensors of every shape that attention makes."""

    def __init__(self, args: ModelArgs, T: int, position: int, head: int, pair: int) -> None:
        channels = (args.head_dim, args.head_dim // 2)
        if T in (args.n_heads, args.n_kv_heads, *channels):
            raise ValueError(
                f"T is {T}, also a number of heads or channels, so axes cannot be told apart: give one token more"
            )
        if args.max_seq_len in channels:  # the positions of the rotation table are a tensor of one axis
            raise ValueError(
                f"the rotation table has {args.max_seq_len} rows (max_seq_len), also a number of channels, so axes "
                "cannot be told apart: give one token more, or a model with another context"
            )
        self.args, self.T = args, T
        self.position, self.head, self.pair = position, head, pair

    def keys(self) -> range:
        """The positions of three keys: the one before, this one, and the next, which the mask hides."""
        return range(max(self.position - 1, 0), min(self.position + 2, self.T))

    def find(self, value: Tensor) -> Tensor:
        """The one or two numbers of the pair; of scores and weights, those of ``keys``: (1 to 3,).

        Empty for a tensor (B, T, dim) whose channels are not those of the heads.
        """
        p, i = self.position, self.pair
        group = self.args.n_heads // self.args.n_kv_heads
        # The index of the head among H query heads, among K key/value heads, or in an axis of size 1.
        heads = {self.args.n_heads: self.head, self.args.n_kv_heads: self.head // group, 1: 0}
        if value.ndim == 5:
            return value[0, p, heads[value.shape[2]], i]  # (B, T, H, D/2, 2)
        by_position = value.ndim == 4 and (value.shape[2] == self.T or value.shape[3] == self.args.head_dim)
        if value.ndim == 4 and value.shape[1] == self.T:  # (B, T, H, ..)
            row = value[0, p, heads[value.shape[2]]]
        elif by_position:  # (B, H, T or S, ..)
            row = value[0, heads[value.shape[1]], p]
        elif value.ndim == 4:  # k.mT: (B, H, D, S)
            row = value[0, heads[value.shape[1]], :, p]
        elif value.ndim == 3:  # (B, T, H * D), or (B, T, dim), which may be another number of channels
            count, rest = divmod(value.shape[2], self.args.head_dim)
            if rest or count not in heads:
                return value.new_empty(0)
            row = value[0, p].unflatten(-1, (count, -1))[heads[count]]
        else:  # (T, ..), (D/2,) or (T,)
            row = value[p] if value.ndim == 2 else value
        if row.shape[-1] == self.args.head_dim:
            return row[2 * i : 2 * i + 2]
        if row.shape[-1] == self.args.head_dim // 2:
            return row[i : i + 1]
        return row[self.keys().start : self.keys().stop] if value.ndim > 1 else row[p : p + 1]


def _number(value: complex) -> str:
    return f"{value.real:+.4f}{value.imag:+.4f}j" if isinstance(value, complex) else f"{value:+.4f}"


def draw(figure: Any, steps: list[Step], picked: Picked, at_key: Picked) -> None:
    """The pair of a query and of the key before it, before and after the rotation."""
    figure.set_size_inches(9, 4.6)
    products = [step for step in steps if step.expression.startswith("torch.view_as_complex")]
    rotated = [step for step in steps if step.expression.startswith("pairs *")]
    q, k = products[0].values[0], products[1].at_key[0]
    new_q, new_k = rotated[0].values[0], rotated[1].at_key[0]
    reach = 1.35 * max(abs(q), abs(k))
    turns = [cmath.phase(new / old) if old else 0.0 for old, new in ((q, new_q), (k, new_k))]
    after = f"rotated: q by {turns[0]:+.2f} rad, k by {turns[1]:+.2f} rad"
    left, right = figure.subplots(1, 2)
    for axes, tips, title in ((left, (q, k), "as projected"), (right, (new_q, new_k), after)):
        plane(axes, reach)
        for name, token, color, tip in zip("qk", (picked, at_key), (BLUE, ORANGE), tips):
            arrow(axes, tip, color)
            label = f"{name} at {token.position}"
            axes.text(1.18 * tip.real, 1.18 * tip.imag, label, color=color, ha="center", va="center")
        axes.set(xlabel=f"channel {2 * picked.pair}", ylabel=f"channel {2 * picked.pair + 1}", title=title)
    for old, turn, color, radius in ((q, turns[0], BLUE, 0.3), (k, turns[1], ORANGE, 0.2)):
        arrow(right, old, color, alpha=0.3)
        arc(right, cmath.phase(old), cmath.phase(old) + turn, radius * reach, color)
    figure.suptitle(f"head {picked.head}, pair {picked.pair}", fontsize=11)
