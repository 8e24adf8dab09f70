"""One attention call, followed step by step through the library's own lines: what each expression makes of one pair.

Nothing is copied out of the library. Every torch call passes through a ``TorchFunctionMode``; from there the stack
leads back to the library's line, whose code object knows from which column to which the running expression reaches.
"""

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..attention import Attention, attention
from ..cache import KVCache
from ..cli.machine import check_memory
from ..config import ModelArgs
from ..rope import _rotate, apply_rotary_emb, precompute_freqs_cis, reshape_for_broadcast
from ..transformer import Transformer
from .inputs import check_at_least, open_model
from .options import Trace
from .report import BLUE, ORANGE, Report, Table

ROOT = Path(__file__).parent.parent
WATCHED: list[Callable[..., Any]] = [
    precompute_freqs_cis,
    reshape_for_broadcast,
    _rotate,
    apply_rotary_emb,
    Attention.forward,
    attention,
    KVCache.update,
    Transformer.hidden,
]


@dataclass(frozen=True)
class Step:
    place: str  # file:line
    expression: str
    value: Tensor


class Recorder(TorchFunctionMode):
    """Keeps, for each watched function of the library, the steps in which it makes a tensor of another kind."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.watched: set[CodeType] = {function.__code__ for function in functions}
        self.steps: list[Step] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        frame = self._library_frame(sys._getframe(1))
        if frame is not None and isinstance(result, Tensor):
            self.steps.append(Step(*_expression(frame), result.detach().clone()))
        return result

    def _library_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the library, if it is a watched function: torch's own frames are looked through."""
        while frame is not None:
            if frame.f_code in self.watched:
                return frame
            if Path(frame.f_code.co_filename).is_relative_to(ROOT):
                return None if frame.f_code.co_name not in ("<genexpr>", "<listcomp>") else self._around(frame)
            frame = frame.f_back
        return None

    def _around(self, frame: FrameType) -> FrameType | None:
        """A generator expression belongs to the function that runs it, and keeps its own place in the text."""
        outer = frame.f_back
        while outer is not None and Path(outer.f_code.co_filename) != Path(frame.f_code.co_filename):
            outer = outer.f_back
        return frame if outer is not None and outer.f_code in self.watched else None


def _expression(frame: FrameType) -> tuple[str, str]:
    """(file:line, source text) of what the frame is evaluating."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None:  # no columns were compiled in: the whole line
        first = last = frame.f_lineno
        start, end = 0, None
    lines = [linecache.getline(frame.f_code.co_filename, n).rstrip("\n") for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return f"{Path(frame.f_code.co_filename).name}:{first}", " ".join(line.strip() for line in lines)


def watch(functions: list[Callable[..., Any]], call: Callable[[], Any]) -> list[Step]:
    """Every step that these functions of the library take while ``call`` runs."""
    with torch.no_grad(), Recorder(*functions) as recorder:
        call()
    return recorder.steps


def run(options: Trace) -> Report:
    check_at_least(1, options, "batch", "length", "heads", "head_dim")
    model, tokens = _given(options) if options.model else _random(options)
    B, T = tokens.shape
    place = options.position + T * (options.position < 0)
    args = model.args
    for name, value, limit in (
        ("position", place, T),
        ("head", options.head, args.n_kv_heads),
        ("pair", options.pair, args.head_dim // 2),
    ):
        if not 0 <= value < limit:
            raise ValueError(f"{name} is {getattr(options, name)}: give one of 0 to {limit - 1}")
    model.layers = model.layers[:1]  # one attention call
    model.layers[0].attention.attend = attention  # type: ignore[union-attr]  # written out, to see the softmax
    cache = KVCache(args, B)

    def call() -> None:
        model.freqs_cis = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta, args.rope_scaling)
        model.hidden(tokens, 0, cache)

    steps = watch(WATCHED, call)
    watched = Watched(args, T, place, options.head, options.pair)
    table = Table(
        f"One attention call: B={B} T={T} H={args.n_heads} K={args.n_kv_heads} D={args.head_dim}; "
        f"values: row 0, position {place}, head {options.head}, pair {options.pair}; of scores, "
        f"keys {watched.keys.start} to {watched.keys.stop - 1}",
        ("line", "expression", "shape", "dtype", "values"),
        [
            (step.place, _cut(step.expression), tuple(step.value.shape), str(step.value.dtype)[6:], watched(step.value))
            for step in steps
        ],
    )
    return Report([table], lambda figure: draw(figure, steps, watched))


def _random(options: Trace) -> tuple[Transformer, Tensor]:
    """Random weights; the table is made for twice the length, so that its slice is seen."""
    args = ModelArgs(
        dim=options.heads * options.head_dim, n_heads=options.heads, n_layers=1, vocab_size=256,
        head_dim=options.head_dim, max_seq_len=2 * options.length,
    )  # fmt: skip
    scores = options.batch * options.heads * options.length**2
    check_memory(4 * (4 * scores + 20 * options.batch * options.length * args.dim), f"length {options.length}")
    torch.manual_seed(0)
    return Transformer(args), torch.randint(256, (options.batch, options.length))


def _given(options: Trace) -> tuple[Transformer, Tensor]:
    model, tokenizer, scheme = open_model(options.model)
    if type(model) is not Transformer:
        raise ValueError(f"scheme {scheme} is not plain RoPE: name a model whose steps are the network's own")
    return model, torch.tensor([tokenizer.encode(options.prompt)])


def _cut(text: str, width: int = 72) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


class Watched:
    """Finds one pair of one head at one position, row 0, in tensors of every shape on the way."""

    def __init__(self, args: ModelArgs, T: int, position: int, head: int, pair: int) -> None:
        if T in (args.n_heads, args.n_kv_heads, args.head_dim, args.head_dim // 2):
            raise ValueError(f"{T} tokens and {T} heads or channels cannot be told apart by shape: give one token more")
        self.args, self.T = args, T
        self.position, self.head, self.pair = position, head, pair
        self.keys = slice(max(position - 2, 0), min(position + 2, T))

    def __call__(self, value: Tensor) -> str:
        found = self.find(value)
        return "-" if found is None else " ".join(map(_number, found.tolist()))

    def find(self, value: Tensor) -> Tensor | None:
        D, p, i = self.args.head_dim, self.position, self.pair
        start = self.head * D + 2 * i
        if value.shape[-2:] == (self.T, self.T):  # (B, H, T, S) or (T, S)
            return (value[0, self.head] if value.ndim == 4 else value)[p, self.keys]
        if value.ndim == 5:
            return value[0, p, self.head, i]  # of (B, T, H, D/2, 2)
        if value.ndim == 4 and self.T not in value.shape[1:3]:  # heads that share keys, as rows of one product
            return None
        if value.ndim == 4:  # of (B, T, H, D), (B, T, H, D/2), (1, T, 1, D/2) or (B, H, T, D)
            rows = value[0] if value.shape[1] == self.T else value[0].transpose(0, 1)
            channels = slice(2 * i, 2 * i + 2) if value.shape[-1] == D else slice(i, i + 1)
            return rows[p, min(self.head, rows.shape[1] - 1), channels]
        if value.ndim == 3:
            return value[0, p, start : start + 2]  # of (B, T, H * D)
        if value.ndim == 2:
            return value[p, i : i + 1]  # of (T, D/2)
        return value[i : i + 1] if len(value) == D // 2 else value[p : p + 1]  # of (D/2,) or (T,)


def _number(value: complex) -> str:
    return f"{value.real:+.4f}{value.imag:+.4f}j" if isinstance(value, complex) else f"{value:+.4f}"


def draw(figure: Any, steps: list[Step], watched: Watched) -> None:
    """The pair of q and of k before and after the rotation."""
    axes, longest = figure.subplots(), 0.0
    before = [step.value for step in steps if step.expression.startswith("torch.view_as_complex")]
    after = [step.value for step in steps if step.expression.startswith("pairs *")]
    for name, color, old, new in zip("qk", (BLUE, ORANGE), before, after):
        for value, style in (
            (old, {"alpha": 0.35, "label": f"{name}, as projected"}),
            (new, {"label": f"{name}, rotated"}),
        ):
            point = complex(watched.find(value))  # type: ignore[arg-type]
            longest = max(longest, abs(point))
            axes.quiver(0, 0, point.real, point.imag, angles="xy", scale_units="xy", scale=1, color=color, **style)
    axes.set(xlim=(-1.2 * longest, 1.2 * longest), ylim=(-1.2 * longest, 1.2 * longest), aspect="equal")
    axes.set(xlabel=f"channel {2 * watched.pair}", ylabel=f"channel {2 * watched.pair + 1}")
    axes.set_title(f"position {watched.position}, head {watched.head}, pair {watched.pair}")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
