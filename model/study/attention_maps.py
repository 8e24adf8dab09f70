"""Who looks at whom in a trained model. The weights are what the network's own ``attend`` computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..transformer import Transformer
from .inputs import check_memory, open_model
from .options import Attention
from .report import Report, Table


@contextmanager
def watched(model: Transformer) -> Iterator[list[Tensor]]:
    """Collect each layer's attention weights (H, T, S) while the model runs.

    ``attend`` gives weights times values; asked a second time, with the identity for values, it gives the weights.
    """
    maps: list[Tensor] = []

    def ask_twice(attend: Any) -> Any:
        def both(xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
            S = keys.shape[2]
            identity = torch.eye(S).to(values).expand(*keys.shape[:2], S, S)  # (B, K, S, S)
            maps.append(attend(xq, keys, identity, mask)[0])  # (H, T, S)
            return attend(xq, keys, values, mask)

        return both

    attentions: list[Any] = [layer.attention for layer in model.layers]
    for attention in attentions:
        attention.attend = ask_twice(attention.attend)
    try:
        yield maps
    finally:
        for attention in attentions:
            del attention.attend  # the class's own is visible again


@torch.no_grad()
def look(model: Transformer, tokens: Tensor) -> tuple[Tensor, float]:
    """Attention weights (L, H, T, S) of a text (1, T), and the loss on it in nats per token."""
    with watched(model) as maps:
        logits = model(tokens)  # (1, T, V)
    return torch.stack(maps), F.cross_entropy(logits[0, :-1].float(), tokens[0, 1:]).item()


def run(options: Attention) -> Report:
    model, tokenizer, scheme = open_model(options.model)
    tokens = torch.tensor([tokenizer.encode(options.prompt)])
    T, args = tokens.shape[1], model.args
    if not 2 <= T <= args.max_seq_len:
        raise ValueError(f"the prompt has {T} tokens: give 2 to {args.max_seq_len}, the model's context")
    check_memory(2 * 4 * args.n_layers * args.n_heads * T**2, f"a prompt of {T} tokens")
    turned, loss = look(model, tokens)
    if scheme == "learnable" or torch.equal(model.freqs_cis, torch.ones_like(model.freqs_cis)):
        raise ValueError(f"scheme {scheme} keeps no rotation table: nothing to switch off, name another model")
    model.freqs_cis = torch.ones_like(model.freqs_cis)
    plain, plain_loss = look(model, tokens)
    words = [tokenizer.decode([token]) or "·" for token in tokens[0].tolist()]
    tables = [by_head(turned, plain), by_distance(turned, plain)]
    tables[1].notes.append(f"loss on the prompt, nats per token: {loss:.3f} with rotation, {plain_loss:.3f} without.")
    return Report(tables, lambda figure: draw(figure, turned, plain, words))


def mean_distance(weights: Tensor) -> Tensor:
    """(..., T, S) -> (...): how many tokens back a token looks on average."""
    T = weights.shape[-1]
    distance = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    return (weights * distance).sum(-1).mean(-1)


def by_head(turned: Tensor, plain: Tensor) -> Table:
    table = Table(
        "Each head: how far back it looks (tokens), and what share goes to the token itself, the one before, the first",
        ("layer", "head", "far", "self", "before", "first", "far, off", "self, off", "before, off", "first, off"),
        notes=["off: the same weights with the rotation switched off."],
    )
    for layer in range(turned.shape[0]):
        for head in range(turned.shape[1]):
            cells = [cell for maps in (turned, plain) for cell in _shares(maps[layer, head])]
            table.rows.append((layer, head, *cells))
    return table


def _shares(weights: Tensor) -> tuple[str, ...]:
    itself, before = weights.diagonal()[1:].mean(), weights.diagonal(-1).mean()
    return f"{mean_distance(weights):.1f}", f"{itself:.0%}", f"{before:.0%}", f"{weights[1:, 0].mean():.0%}"


def profile(maps: Tensor) -> Tensor:
    """Mean weight at each distance, over layers, heads and the tokens that have a key so far back: (T,)."""
    return torch.stack([maps.diagonal(-n, -2, -1).mean() for n in range(maps.shape[-1])])


def by_distance(turned: Tensor, plain: Tensor) -> Table:
    on, off = profile(turned), profile(plain)
    steps = [n for n in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if n < len(on)]
    rows = [(n, f"{on[n]:.4f}", f"{off[n]:.4f}") for n in steps]
    return Table("Mean weight by distance, over all layers and heads", ("distance", "rotation", "off"), rows)


def draw(figure: Any, turned: Tensor, plain: Tensor, words: list[str]) -> None:
    L, H = turned.shape[:2]
    figure.set_size_inches(2.2 + 1.8 * H, 1.2 + 1.5 * L)
    left, right = figure.subfigures(1, 2, width_ratios=(2, 1))
    grid = left.subplots(L, H, squeeze=False)
    for layer in range(L):
        for head in range(H):
            axes = grid[layer, head]
            axes.imshow(turned[layer, head].sqrt().numpy(), cmap="magma", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if head == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=8)
            if layer == 0:
                axes.set_title(f"head {head}", fontsize=8)
    left.suptitle(f"rows look at columns: {len(words)} tokens (square root of the weight)", fontsize=9)
    axes = right.subplots()
    axes.plot(profile(turned), label="rotation")
    axes.plot(profile(plain), label="rotation off")
    axes.set(xlabel="distance", ylabel="mean weight", yscale="log")
    axes.legend()
    axes.grid(alpha=0.3)
