"""Loss by position past the trained length, and the remedies.

``extrapolate`` compares RoPE as it is, its scalings, and windows; ``endless`` uses a cache that evicts old tokens.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cli.machine import check_memory
from model.decoding.endless import EndlessCache, quarter_of
from model.transformer import Transformer

from .positions import scaled, scheme_of, with_more_positions
from .topic import COLORS, ModelPath, Report, Table, losses_of, open_scheme, open_windows

FACTOR = 8  # the length of the tested texts, as a multiple of the trained length
DASHES = ("-", "-", "-", (0, (4, 4)), (4, (4, 4)), (0, (1, 2)))  # of the curves, in their order; 4 fills the gaps of 3
METHODS = {"linear": "position interpolation", "ntk": "NTK-aware", "yarn": "YaRN"}


def extrapolate(model: ModelPath = None) -> Report:
    """Loss within and past the trained length, with scaled positions and with windows."""
    network, texts, name = open_long_texts(model)
    if network.args.rope_scaling is not None:
        raise ValueError(f"the model is already scaled ({network.args.rope_scaling.type}): name an unscaled model")
    length = network.args.max_seq_len
    losses = {f"{scheme_of(network)}, as it is": full(with_more_positions(network, FACTOR), texts)}
    notes = [name]
    if scheme_of(network) == "rope":
        for scaling, method in METHODS.items():
            losses[method] = full(scaled(network, scaling, FACTOR), texts)
        notes.append(
            f"Scalings are for {FACTOR} x, without fine-tuning; they cost something inside the trained length."
        )
    losses[f"windows of {length}"] = windowed(network, texts, length)
    stride = max(1, length // 2)
    losses[f"sliding by {stride}"] = windowed(network, texts, stride)
    title = f"Loss, nats per token, by position; trained length {length} tokens"
    return Report([loss_table(title, losses, length, notes)], lambda figure: draw(figure, losses, length))


def endless(model: ModelPath = None) -> Report:
    """Loss far past the context with a cache that evicts old tokens."""
    network, texts, name = open_long_texts(model)
    length = network.args.max_seq_len
    keep = EndlessCache(network).keep  # fewer than SINKS in a tiny context
    losses = {
        f"{scheme_of(network)}, as it is": full(with_more_positions(network, FACTOR), texts),
        f"windows of {length}": windowed(network, texts, length),
        "endless, none kept": endless_losses(network, texts, 0),
        f"endless, first {keep} kept": endless_losses(network, texts, keep),
        f"first {keep} kept, recomputed": endless_losses(network, texts, keep, recompute=True),
    }
    title = f"Loss, nats per token, by position; trained length {length} tokens, cache of {length} tokens"
    note = f"A full cache evicts {quarter_of(length)} tokens and rotates the keys of the later ones back by as many."
    return Report([loss_table(title, losses, length, [name, note])], lambda figure: draw(figure, losses, length))


def open_long_texts(path: Path | None) -> tuple[Transformer, Tensor, str]:
    """The model, texts of FACTOR times its context, (texts, longest + 1), and a note on them."""
    model, tokenizer = open_scheme(path)
    longest = FACTOR * model.args.max_seq_len
    check_memory(4 * (3 * model.args.n_heads * longest**2 + longest * model.args.vocab_size), f"a text of {longest}")
    texts, name = open_windows(path, tokenizer, longest + 1)
    return model, texts, f"text: {len(texts)} texts of {longest} tokens from {name}."


@torch.no_grad()
def full(model: Transformer, texts: Tensor) -> Tensor:
    """Loss at each position, each text in one call: (texts, longest)."""
    return losses_of(model, texts[:, :-1], texts[:, 1:], rows=1)


@torch.no_grad()
def windowed(model: Transformer, texts: Tensor, stride: int) -> Tensor:
    """Loss at each position from windows of the trained length, of which the last ``stride`` tokens count.

    If ``stride`` is the window's length, windows do not overlap, and the first prediction of a window sees one token
    only. Texts are computed in batches of at most as many tokens as ``full`` computes at a time.
    """
    length, longest = model.args.max_seq_len, texts.shape[1] - 1
    rows = max(1, longest // length)
    parts: list[Tensor] = []
    done = 0
    while done < longest:
        end = min(done + (stride if done else length), longest)
        window = texts[:, end - length : end + 1]  # (texts, length + 1)
        losses = losses_of(model, window[:, :-1], window[:, 1:], rows)  # (texts, length)
        parts.append(losses[:, length - (end - done) :])
        done = end
    return torch.cat(parts, 1)  # (texts, longest)


@torch.no_grad()
def endless_losses(model: Transformer, texts: Tensor, keep: int, recompute: bool = False) -> Tensor:
    """The loss of each token except the first of texts (N, longest + 1), in nats: (N, longest).

    The texts pass through an ``EndlessCache`` in the fewest forward calls: one to fill it, and one for each eviction.
    With ``recompute``, the loss is that of all tokens in the cache, processed again without it.
    """
    longest = texts.shape[1] - 1
    cache = EndlessCache(model, len(texts), keep=keep)
    cached: list[int] = []  # the indices of the tokens in the cache
    parts = []
    done = 0
    while done < longest:
        start_pos = cache.make_room(len(cached))
        del cached[cache.keep : cache.keep + len(cached) - start_pos]
        T = min(cache.context - start_pos, longest - done)
        cache.make_room(start_pos, T)
        cached += range(done, done + T)
        tokens = texts[:, cached]  # (N, S)
        logits = model(tokens[:, start_pos:], start_pos, cache)  # (N, T, V)
        if recompute:
            logits = model(tokens)[:, start_pos:]
        targets = texts[:, done + 1 : done + T + 1]  # (N, T)
        parts.append(F.cross_entropy(logits.float().mT, targets, reduction="none"))  # (N, T)
        done += T
    return torch.cat(parts, 1)


def loss_table(title: str, losses: dict[str, Tensor], length: int, notes: list[str]) -> Table:
    """A row for each method: its mean loss, from losses (texts, longest), in ranges of positions.

    The ranges are the two halves of the trained length, and then double the length.
    """
    edges = [0, length // 2, *(times * length for times in (1, 2, 4, 8))]
    spans = list(pairwise(edges))
    table = Table(title, ("method", *(f"{a}-{b - 1}" for a, b in spans), "all"), notes=notes)
    for name, loss in losses.items():
        table.rows.append((name, *(f"{loss[:, a:b].mean():.3f}" for a, b in spans), f"{loss.mean():.3f}"))
    return table


def draw(figure: Any, losses: dict[str, Tensor], length: int) -> None:
    """A curve for each method; later ones are dashed, so that curves that coincide are all seen."""
    figure.set_size_inches(5.8, 5.6)
    axes = figure.subplots()
    width = max(1, length // 2)
    step = max(1, length // 4)
    for (name, loss), color, dash in zip(losses.items(), COLORS, DASHES):
        smooth = loss.mean(0).unfold(0, width, step).mean(-1)
        middles = torch.arange(len(smooth)) * step + (width - 1) / 2
        axes.plot(middles, smooth, color=color, linestyle=dash, linewidth=2, label=name)
    longest = next(iter(losses.values())).shape[1]
    axes.axvspan(0, length, color="0.92", zorder=0)
    axes.text(length / 2, 0.98, "trained\nlength", transform=axes.get_xaxis_transform(), ha="center", va="top")
    axes.set(xlim=(0, longest), xlabel=f"position, in tokens (mean over {width} positions)")
    axes.set(ylabel="loss, nats per token", title=f"trained length {length}, tested at up to {longest} tokens")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncol=2)
