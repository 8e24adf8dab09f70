"""Loss by position past the trained length, and the remedies.

``extrapolate`` compares RoPE as it is, its scalings, and windows; ``endless`` uses a cache that evicts old tokens.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cli.machine import check_memory
from model.decoding.endless import SINKS, EndlessCache, quarter_of
from model.ranges import Range
from model.transformer import Transformer

from .positions import SCALINGS, scaled, scheme_of, with_more_positions
from .topic import COLORS, ModelPath, Report, Table, losses_of, open_model, open_windows, short

SCALING_NAMES = {"linear": "position interpolation", "ntk": "NTK-aware", "yarn": "YaRN"}


Data = Annotated[tuple[str, ...], "text whose end is tested (default: the model's validation text)"]
Factor = Annotated[int, "length of the tested texts, as a multiple of the trained length", Range(2)]
Windows = Annotated[int, "number of test texts", Range(1)]


def extrapolate(model: ModelPath = None, data: Data = (), factor: Factor = 8, windows: Windows = 16) -> Report:
    """Loss by position, within and far past the trained length, with position scaling and with windows."""
    network, texts, name = open_long_texts(model, data, factor, windows)
    if network.args.rope_scaling is not None:
        raise ValueError(f"the model is already scaled ({network.args.rope_scaling.type}): name an unscaled model")
    length = network.args.max_seq_len
    losses = {f"{scheme_of(network)}, as it is": full(with_more_positions(network, factor), texts)}
    notes = [name]
    if scheme_of(network) == "rope":
        for scaling in SCALINGS:
            losses[SCALING_NAMES[scaling]] = full(scaled(network, scaling, factor), texts)
        notes.append(
            f"Scalings are for {factor} x, without fine-tuning; they cost something inside the trained length."
        )
    losses[f"windows of {length}"] = windowed(network, texts, length)
    stride = max(1, length // 2)
    losses[f"sliding by {stride}"] = windowed(network, texts, stride)
    title = f"Loss, nats per token, by position; trained length {length} tokens"
    return Report([loss_table(title, losses, length, notes)], lambda figure: draw(figure, losses, length))


def endless(
    model: ModelPath = None,
    data: Data = (),
    factor: Factor = 8,
    windows: Windows = 16,
    keep: Annotated[int, "first tokens of a text that are never evicted (attention sinks)", Range(0)] = SINKS,
) -> Report:
    """Loss far past the context with a cache that evicts old tokens, and the influence evicted tokens still have."""
    network, texts, name = open_long_texts(model, data, factor, windows)
    length = network.args.max_seq_len
    keep = EndlessCache(network, keep=keep).keep  # fewer in a tiny context
    losses = {
        f"{scheme_of(network)}, as it is": full(with_more_positions(network, factor), texts),
        f"windows of {length}": windowed(network, texts, length),
    }
    names = {keep: f"first {keep} kept"} | {0: "none kept"}
    for kept in sorted(names):
        losses[f"endless, {names[kept]}"] = endless_losses(network, texts, kept)
    losses[f"{names[keep]}, recomputed"] = endless_losses(network, texts, keep, recompute=True)
    title = f"Loss, nats per token, by position; trained length {length} tokens, cache of {length} tokens"
    note = f"A full cache evicts {quarter_of(length)} tokens and rotates the keys of the later ones back by as many."
    tables = [loss_table(title, losses, length, [name, note]), memory_table(network, texts, keep)]
    return Report(tables, lambda figure: draw(figure, losses, length))


def open_long_texts(
    path: Path | None, data: tuple[str, ...], factor: int, windows: int
) -> tuple[Transformer, Tensor, str]:
    """The model, texts of ``factor`` times its context, (texts, longest + 1), and a note on them."""
    model, tokenizer = open_model(path)
    longest = factor * model.args.max_seq_len
    check_memory(4 * (3 * model.args.n_heads * longest**2 + longest * model.args.vocab_size), f"a text of {longest}")
    texts, name = open_windows(path, data, tokenizer, windows, longest + 1)
    return model, texts, f"text: {windows} texts of {longest} tokens from {name}."


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


def endless_steps(model: Transformer, length: int, keep: int) -> Iterator[tuple[int, list[int], EndlessCache]]:
    """Split a text of ``length`` tokens into the fewest forward calls: one to fill the cache, one for each eviction.

    Yields ``start_pos``, the indices in the text of all tokens that are in the cache after the forward, and the cache.
    """
    cache = EndlessCache(model, keep=keep)
    cached: list[int] = []
    done = 0
    while done < length:
        start_pos = cache.make_room(len(cached))
        del cached[cache.keep : cache.keep + len(cached) - start_pos]
        T = min(cache.context - start_pos, length - done)
        cache.make_room(start_pos, T)
        cached += range(done, done + T)
        done = cached[-1] + 1
        yield start_pos, cached.copy(), cache


@torch.no_grad()
def endless_logits(model: Transformer, text: Tensor, keep: int, recompute: bool = False) -> Tensor:
    """The logits after each token of a text (N,) of any length, with an ``EndlessCache``: (N, V).

    With ``recompute``, each forward instead processes all tokens that are in the cache again, without the cache.
    """
    parts = []
    for start_pos, cached, cache in endless_steps(model, len(text), keep):
        tokens = text[None, cached]  # (1, S)
        out = model(tokens) if recompute else model(tokens[:, start_pos:], start_pos, cache)
        parts.append(out[0, start_pos - len(cached) :].float())  # (T, V)
    return torch.cat(parts)


def endless_losses(model: Transformer, texts: Tensor, keep: int, recompute: bool = False) -> Tensor:
    """The loss of each token except the first of texts (N, longest + 1), in nats: (N, longest)."""
    losses = torch.empty(len(texts), texts.shape[1] - 1)  # (N, longest), allocated first, as in losses_of
    for text, out in zip(texts, losses):
        logits = endless_logits(model, text[:-1], keep, recompute)  # (longest, V)
        out.copy_(F.cross_entropy(logits, text[1:], reduction="none"))
    return losses


def loss_table(title: str, losses: dict[str, Tensor], length: int, notes: list[str]) -> Table:
    """A row for each method: its mean loss, from losses (texts, longest), in ranges of positions.

    The ranges are the two halves of the trained length, and then double the length.
    """
    longest = next(iter(losses.values())).shape[1]
    edges = [0, length // 2, length]
    while edges[-1] < longest:
        edges.append(min(2 * edges[-1], longest))
    spans = list(pairwise(edges))
    table = Table(title, ("method", *(f"{a}-{b - 1}" for a, b in spans), "all"), notes=notes)
    for name, loss in losses.items():
        table.rows.append((name, *(f"{loss[:, a:b].mean():.3f}" for a, b in spans), f"{loss.mean():.3f}"))
    return table


def memory_table(model: Transformer, texts: Tensor, keep: int) -> Table:
    """How much the last prediction of each text changes if one earlier token is replaced, by its distance."""
    texts = texts[:, :-1]
    V = model.args.vocab_size
    longest = texts.shape[1]
    length = model.args.max_seq_len
    _, cached, _ = list(endless_steps(model, longest, keep))[-1]  # after the last call
    plain = last_predictions(model, texts, keep, cached)
    table = Table(
        "Influence of an earlier token: KL divergence, in nats, of the last prediction when it is replaced",
        ("tokens back", "in the cache", "endless", "recomputed"),
        notes=[f"mean of {len(texts)} texts of {longest} tokens; {longest - 1} back is the first token of the text."],
    )
    distances = [length // 16, length // 4, 3 * length // 4, *range(length, longest - keep, length // 2)]
    for back in (*distances[:8], longest - 1):
        place = longest - 1 - back
        changed = texts.clone()
        changed[:, place] = (changed[:, place] + V // 2) % V
        cells = []
        for before, after in zip(plain, last_predictions(model, changed, keep, cached)):
            divergence = F.kl_div(after, before, reduction="batchmean", log_target=True).item()
            cells.append(short(divergence, 6) if divergence else "0")
        table.rows.append((back, "yes" if place in cached else "no", *cells))
    return table


@torch.no_grad()
def last_predictions(model: Transformer, texts: Tensor, keep: int, cached: list[int]) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the token after each text (N, longest): float64 (N, V) each.

    First with an ``EndlessCache``, then from the tokens at the indices ``cached`` of each text, without the cache.
    """
    endless = torch.stack([endless_logits(model, text, keep)[-1] for text in texts])  # (N, V)
    recomputed = torch.stack([model(text[None, cached])[0, -1].float() for text in texts])  # (N, V)
    return endless.double().log_softmax(-1), recomputed.double().log_softmax(-1)


def draw(figure: Any, losses: dict[str, Tensor], length: int) -> None:
    """A curve for each method, the first one widest, so that curves that coincide show as one inside another."""
    figure.set_size_inches(9, 5)
    axes = figure.subplots()
    width = max(1, length // 2)
    step = max(1, length // 4)
    for number, (name, loss) in enumerate(losses.items()):
        smooth = loss.mean(0).unfold(0, width, step).mean(-1)
        middles = torch.arange(len(smooth)) * step + (width - 1) / 2
        linewidth = 1.2 + 1.3 * (len(losses) - 1 - number)
        axes.plot(middles, smooth, color=COLORS[number % len(COLORS)], linewidth=linewidth, label=name)
    longest = next(iter(losses.values())).shape[1]
    axes.axvline(length, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(" end of the trained length", (length, 1), xycoords=("data", "axes fraction"), va="top", fontsize=9)
    axes.set(xlim=(0, longest), xlabel=f"position, in tokens (mean over {width} positions)")
    axes.set(ylabel="loss, nats per token", title=f"trained length {length} tokens, tested at up to {longest}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
