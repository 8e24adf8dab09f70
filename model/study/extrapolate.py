"""Does RoPE extrapolate past the length it was trained on? Loss by position, and the remedies."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cli.machine import check_memory
from ..positions import SCALINGS
from ..transformer import Transformer
from .inputs import check_at_least, open_model, open_text, windows_of
from .options import Extrapolate
from .report import COLORS, DASHES, Report, Table, label_ends
from .scheme_training import stretched

NAMES = {"linear": "position interpolation", "ntk": "NTK-aware", "yarn": "YaRN"}


def run(options: Extrapolate) -> Report:
    check_at_least(2, options, "factor")
    check_at_least(1, options, "windows")
    model, tokenizer, scheme = open_model(options.model)
    if model.args.rope_scaling is not None:
        raise ValueError(f"{options.model} is scaled already ({model.args.rope_scaling.type}): name one that is not")
    length = model.args.max_seq_len
    longest = options.factor * length
    check_memory(4 * (3 * model.args.n_heads * longest**2 + longest * model.args.vocab_size), f"a text of {longest}")
    ids, name = open_text(options.model, options.data, tokenizer, options.windows * (longest + 1))
    texts = windows_of(ids, options.windows, longest + 1)  # (windows, longest + 1)

    losses = {f"{scheme}, as it is": full(stretched(model, scheme, options.factor), texts)}
    for scaling in SCALINGS if scheme == "rope" else ():
        losses[NAMES[scaling]] = full(stretched(model, scaling, options.factor), texts)
    losses[f"windows of {length}"] = windowed(model, texts, length)
    losses[f"sliding by {length // 2}"] = windowed(model, texts, length // 2)
    return Report([table(losses, length, options, name)], lambda figure: draw(figure, losses, length))


@torch.no_grad()
def full(model: Transformer, texts: Tensor) -> Tensor:
    """Loss at each position, each text in one call: (windows, longest)."""
    return torch.cat([losses_of(model, text[None]) for text in texts])


@torch.no_grad()
def windowed(model: Transformer, texts: Tensor, stride: int) -> Tensor:
    """The same targets, but each inside a window of the trained length, of which the last ``stride`` count.

    With ``stride`` the window's length, windows do not overlap, and a token after a border knows nothing before it.
    """
    length, longest = model.args.max_seq_len, texts.shape[1] - 1
    parts: list[Tensor] = []
    done = 0
    while done < longest:
        end = min(done + (stride if done else length), longest)
        losses = losses_of(model, texts[:, end - length : end + 1])  # (windows, length)
        parts.append(losses[:, length - (end - done) :])
        done = end
    return torch.cat(parts, 1)  # (windows, longest)


def losses_of(model: Transformer, tokens: Tensor) -> Tensor:
    """(N, T + 1) -> nats of each of the last T tokens, (N, T)."""
    logits = model(tokens[:, :-1]).float()  # (N, T, V)
    return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def spans(length: int, factor: int) -> list[tuple[int, int]]:
    """The trained length in halves, then twice as far each time."""
    edges = [0, length // 2, length]
    while edges[-1] < factor * length:
        edges.append(min(2 * edges[-1], factor * length))
    return list(pairwise(edges))


def table(losses: dict[str, Tensor], length: int, options: Extrapolate, text: str) -> Table:
    parts = spans(length, options.factor)
    rows = [
        (name, *(f"{loss[:, a:b].mean():.3f}" for a, b in parts), f"{loss.mean():.3f}") for name, loss in losses.items()
    ]
    return Table(
        f"Loss, nats per token, by position; trained on {length} tokens",
        ("method", *(f"{a}-{b - 1}" for a, b in parts), "all"),
        rows,
        [
            f"text: {options.windows} pieces of {options.factor * length} tokens of {text}.",
            f"Scalings are for {options.factor} x, without fine-tuning; they cost something inside the trained length.",
        ],
    )


def draw(figure: Any, losses: dict[str, Tensor], length: int) -> None:
    figure.set_size_inches(9, 5)
    axes = figure.subplots()
    width, step = max(1, length // 2), max(1, length // 4)
    lines = []
    for (name, loss), color, dash in zip(losses.items(), COLORS, DASHES):
        smooth = loss.mean(0).unfold(0, width, step).mean(-1)
        middles = torch.arange(len(smooth)) * step + (width - 1) / 2
        axes.plot(middles, smooth, color=color, linestyle=dash, linewidth=1.8)
        lines.append((name, color, float(middles[-1]), float(smooth[-1])))
    longest = next(iter(losses.values())).shape[1]
    axes.axvline(length, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(" end of the trained length", (length, 1), xycoords=("data", "axes fraction"), va="top", fontsize=9)
    label_ends(axes, lines)
    axes.set(xlim=(0, longest), xlabel=f"position, in tokens (mean over {width} positions)")
    axes.set(ylabel="loss, nats per token", title=f"a model trained on {length} tokens, tested up to {longest}")
    axes.grid(alpha=0.3)
