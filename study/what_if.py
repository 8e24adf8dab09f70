"""A trained model with another rotation: which changes raise its loss, and which do not."""

import copy
from typing import Any

import torch

from model.rope import precompute_freqs_cis
from model.transformer import Transformer
from model.weights.layout import is_rotated, to_halves

from .topic import BLUE, ModelPath, Report, Table, losses_of, open_model, open_windows

SHIFT = 1000  # positions by which the whole text is moved
STRETCH = 4  # factor by which all distances grow


def whatif(model: ModelPath = None) -> Report:
    """The loss of a trained model with other positions, another base and the other layout."""
    network, tokenizer = open_model(model)
    args = network.args
    length = args.max_seq_len
    texts, name = open_windows(model, tokenizer, length + 1)

    def table(end: int, theta: float) -> torch.Tensor:
        return precompute_freqs_cis(args.head_dim, end, theta, args.rope_scaling)

    trained = table(SHIFT + STRETCH * length, args.rope_theta)  # the rows of all positions that are needed
    changes = {
        "as trained": (network, trained[:length]),
        f"all positions + {SHIFT}": (network, trained[SHIFT : SHIFT + length]),
        f"positions times {STRETCH}": (network, trained[: STRETCH * length : STRETCH]),
        f"base {100 * args.rope_theta:g}": (network, table(length, 100 * args.rope_theta)),
        "no rotation": (network, torch.ones_like(trained[:length])),
        "layout confused": (in_halves(network), trained[:length]),
    }
    report = Table("Loss, nats per token, of the same weights", ("rotation", "loss", "change"))
    losses: dict[str, float] = {}
    for change, (changed, freqs_cis) in changes.items():
        changed.freqs_cis = freqs_cis
        with torch.no_grad():
            losses[change] = float(losses_of(changed, texts[:, :-1], texts[:, 1:], rows=1).mean())
        report.rows.append((change, f"{losses[change]:.3f}", f"{losses[change] - losses['as trained']:+.3f}"))
    report.notes.append(f"{len(texts)} texts of {length} tokens from {name}.")
    return Report([report], lambda figure: draw(figure, losses))


def in_halves(network: Transformer) -> Transformer:
    """The network with the rows of W_q and W_k in the order of halves, while its code rotates neighbours."""
    mixed = copy.deepcopy(network)
    with torch.no_grad():
        for name, weight in mixed.named_parameters():
            if is_rotated(name):
                weight.copy_(to_halves(weight, network.args.head_dim))
    return mixed


def draw(figure: Any, losses: dict[str, float]) -> None:
    """A bar for the change of the loss that each rotation makes; a bar of the loss would hide it."""
    figure.set_size_inches(5.5, 3)
    axes = figure.subplots()
    trained, *changed = losses
    changes = [losses[name] - losses[trained] for name in changed]
    bars = axes.barh(changed, changes, color=BLUE)
    axes.bar_label(bars, fmt="%+.3f", padding=4)
    axes.axvline(0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set(xlabel="change of the loss, nats per token", title=f"loss as trained: {losses[trained]:.3f}")
    axes.margins(x=0.2)
