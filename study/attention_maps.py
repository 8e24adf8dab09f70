"""Attention weights of a trained model with and without rotation, computed by the network's ``attend``."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.transformer import Transformer

from .topic import BLUE, RED, ModelPath, Report, Table, open_scheme, open_windows

LENGTH = 64  # tokens of a window, if the model's context is as long
# Limits of the picture.
MAX_LAYERS = 4
MAX_HEADS = 8
MAX_LABELS = 16


@torch.no_grad()
def attention_weights(model: Transformer, tokens: Tensor) -> tuple[Tensor, float]:
    """Attention weights (L, B, H, T, S) of B texts (B, T), and the loss on them in nats per token.

    ``attend`` returns weights times values. A second call, with the identity as values, returns the weights.
    """
    maps: list[Tensor] = []

    def attend_and_record(attend: Any, xq: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        S = keys.shape[2]
        identity = torch.eye(S).to(values).expand(*keys.shape[:2], S, S)  # (B, K, S, S)
        maps.append(attend(xq, keys, identity, mask))  # (B, H, T, S)
        return attend(xq, keys, values, mask)

    modules: list[Any] = [layer.attention for layer in model.layers]
    for module in modules:
        module.attend = partial(attend_and_record, module.attend)
    logits = model(tokens)  # (B, T, V)
    for module in modules:
        del module.attend  # the method of the class is visible again
    return torch.stack(maps), F.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten()).item()


def attention(model: ModelPath = None) -> Report:
    """Which tokens each head of a trained model attends to, with rotation and without."""
    network, tokenizer = open_scheme(model)
    T = min(LENGTH, network.args.max_seq_len)
    texts, name = open_windows(model, tokenizer, T)  # (windows, T)
    rotated, loss = attention_weights(network, texts)
    network.freqs_cis = torch.ones_like(network.freqs_cis)
    plain, plain_loss = attention_weights(network, texts)
    heads = by_head(rotated.mean(1), plain.mean(1), f"{len(texts)} windows of {T} tokens of {name}")
    equal = (1 / torch.arange(2, T + 1)).mean()
    heads.notes.append(f"equal weights would give {equal:.0%} to each of self, before and first.")
    heads.notes.append(f"loss, nats per token: {loss:.3f} with rotation, {plain_loss:.3f} without.")
    labels = [readable(tokenizer.decode([token])) for token in texts[0, :MAX_LABELS].tolist()]
    return Report([heads], lambda figure: draw(figure, rotated, plain, labels))


def readable(token: str) -> str:
    """A token as a label in the picture: line ends and spaces visible, dollar signs escaped for matplotlib."""
    return token.replace("\n", "\\n").replace(" ", "·").replace("$", r"\$") or "·"


def by_head(rotated: Tensor, plain: Tensor, name: str) -> Table:
    """A row for each head, from mean weights (L, H, T, S) with and without rotation."""
    columns = ("far", "self", "before", "first")
    table = Table(
        f"Each head on {name}",
        ("layer", "head", *columns, *(f"{column}, off" for column in columns)),
        notes=[
            "far: mean distance of its attention weight, in tokens.",
            "self, before, first: its weight on the token itself, the one before it, the first one of the window.",
            "off: the same weights of the network with the rotation switched off.",
        ],
    )
    positions = torch.arange(rotated.shape[-1])
    distance = (positions[:, None] - positions).clamp(min=0)  # (T, T), from query to key
    for layer in range(rotated.shape[0]):
        for head in range(rotated.shape[1]):
            cells: list[str] = []
            for weights in (rotated[layer, head], plain[layer, head]):  # (T, T) each
                far = (weights * distance).sum(-1).mean()
                shares = (weights.diagonal()[1:].mean(), weights.diagonal(-1).mean(), weights[1:, 0].mean())
                cells += [f"{far:.1f}", *(f"{share:.0%}" for share in shares)]
            table.rows.append((layer, head, *cells))
    return table


def profile(maps: Tensor) -> Tensor:
    """Mean weight at each distance, over layers, heads and the tokens with a key at that distance: (T,)."""
    return torch.stack([maps.diagonal(-n, -2, -1).mean() for n in range(maps.shape[-1])])


def uniform(T: int) -> Tensor:
    """The profile of a causal head with equal weights, 1 / (t + 1) for token t: (T,)."""
    return profile(torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None])


def draw(figure: Any, rotated: Tensor, plain: Tensor, labels: list[str]) -> None:
    """Maps of one window with rotation and without, one head enlarged, and the weight by distance."""
    L = min(rotated.shape[0], MAX_LAYERS)
    H = min(rotated.shape[2], MAX_HEADS)
    width = max(5.5, 1.3 * H + 0.6)
    height = 2 * L * (width - 0.6) / H + 1.2  # so that the maps, which are square, fill their places
    figure.set_size_inches(width, height + 7.4)
    maps, below = figure.subfigures(2, 1, height_ratios=(height, 7.4))
    grid = maps.subplots(2 * L, H, squeeze=False, sharex=True, sharey=True)
    for row, axes_of_heads in enumerate(grid):
        layer, is_plain = divmod(row, 2)
        for head, axes in enumerate(axes_of_heads):
            picture = show_map(axes, (plain if is_plain else rotated)[layer, 0, head])
        axes_of_heads[0].set_ylabel(f"layer {layer}\nrotation{' off' if is_plain else ''}")
    for head, axes in enumerate(grid[0]):
        axes.set_title(f"head {head}")
    maps.supxlabel("position of the key")
    maps.supylabel("position of the query")
    maps.suptitle("attention weights of the first window", fontsize=11)
    maps.colorbar(picture, ax=grid, label="attention weight", location="bottom", shrink=0.6, aspect=40)
    upper, lower = below.subplots(2, 1, height_ratios=(1.4, 1))
    drop = (rotated - plain)[:L, :, :H].diagonal(-1, -2, -1).mean((1, 3))  # (L, H): weight on the token before
    layer, head = divmod(int(drop.argmax()), drop.shape[1])
    show_map(upper, rotated[layer, 0, head, : len(labels), : len(labels)])
    upper.set_xticks(range(len(labels)), labels, rotation=90, fontsize=9)
    upper.set_yticks(range(len(labels)), labels, fontsize=9)
    upper.set(xlabel=f"key, positions 0 to {len(labels) - 1}", ylabel="query")
    upper.set_title(f"layer {layer}, head {head}, with rotation, enlarged")
    lower.plot(uniform(rotated.shape[-1]), color="0.75", linewidth=5, label="equal weights")
    lower.plot(profile(plain), color=RED, linestyle="--", linewidth=2, label="rotation off")
    lower.plot(profile(rotated), color=BLUE, linewidth=2, label="rotation")
    lower.set(xlabel="distance from query to key, in tokens", ylabel="mean attention weight", yscale="log")
    lower.set_title("all layers, heads and windows")
    lower.legend()
    lower.grid(alpha=0.3)


def show_map(axes: Any, weights: Tensor) -> Any:
    """One map, coloured by the square root of the weight, so that small weights are visible."""
    from matplotlib.colors import PowerNorm

    return axes.imshow(weights.numpy(), cmap="viridis", norm=PowerNorm(0.5, 0, 1))
