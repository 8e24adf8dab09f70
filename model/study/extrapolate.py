"""Does RoPE reach past the length it was trained on? Loss by position, and the remedies."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import SCALINGS
from ..text.sources import open_documents
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .inputs import check_memory, open_model
from .options import Extrapolate
from .report import Report, Table
from .scheme_training import stretched

NAMES = {"linear": "position interpolation", "ntk": "NTK-aware", "yarn": "YaRN"}


def run(options: Extrapolate) -> Report:
    for name, least in (("factor", 2), ("windows", 1)):
        if getattr(options, name) < least:
            raise ValueError(f"{name} is {getattr(options, name)}: give at least {least}")
    model, tokenizer, scheme = open_model(options.model)
    if model.args.rope_scaling is not None:
        raise ValueError(f"{options.model} is scaled already ({model.args.rope_scaling.type}): name one that is not")
    length = model.args.max_seq_len
    longest = options.factor * length
    check_memory(4 * (3 * model.args.n_heads * longest**2 + longest * model.args.vocab_size), f"a text of {longest}")
    texts = read(options, tokenizer, longest)  # (windows, longest + 1)

    losses = {f"{scheme}, as it is": full(stretched(model, scheme, options.factor), texts)}
    for scaling in SCALINGS if scheme == "rope" else ():
        losses[NAMES[scaling]] = full(stretched(model, scaling, options.factor), texts)
    losses[f"windows of {length}"] = windowed(model, texts, length)
    losses[f"sliding by {length // 2}"] = windowed(model, texts, length // 2)
    return Report([table(losses, length, options)], lambda figure: draw(figure, losses, length))


def read(options: Extrapolate, tokenizer: Tokenizer, longest: int) -> Tensor:
    """The last tokens of the text, in pieces: (windows, longest + 1)."""
    text = "".join(open_documents(options.data).texts())
    needed = options.windows * (longest + 1)
    ids = tokenizer.encode(text[-16 * needed :])  # more characters than any token has on average
    if len(ids) < needed:
        raise ValueError(
            f"the text has {len(ids)} tokens, {needed} are needed: give more text, or lower windows or factor"
        )
    return torch.tensor(ids[-needed:]).view(options.windows, longest + 1)  # (windows, longest + 1)


@torch.no_grad()
def full(model: Transformer, texts: Tensor) -> Tensor:
    """Loss at each position, each text read as a whole: (windows, longest)."""
    return torch.cat([losses_of(model, text[None]) for text in texts])


@torch.no_grad()
def windowed(model: Transformer, texts: Tensor, stride: int) -> Tensor:
    """The same targets, but each read inside a window of the trained length, of which the last ``stride`` count.

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


def table(losses: dict[str, Tensor], length: int, options: Extrapolate) -> Table:
    parts = spans(length, options.factor)
    rows = [
        (name, *(f"{loss[:, a:b].mean():.3f}" for a, b in parts), f"{loss.mean():.3f}") for name, loss in losses.items()
    ]
    return Table(
        f"Loss, nats per token, by position; trained on {length} tokens, {options.windows} texts of {options.factor} x",
        ("method", *(f"{a}-{b - 1}" for a, b in parts), "all"),
        rows,
        [f"Scalings are for {options.factor} x, without fine-tuning; they cost something inside the trained length."],
    )


def draw(figure: Any, losses: dict[str, Tensor], length: int) -> None:
    axes = figure.subplots()
    for name, loss in losses.items():
        mean = loss.mean(0)  # (longest,)
        smooth = mean.unfold(0, length // 2, length // 4).mean(-1)
        places = torch.arange(len(smooth)) * (length // 4) + length // 4
        axes.plot(places, smooth, label=name)
    axes.axvline(length, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="position", ylabel="loss, nats per token", title=f"trained on {length} tokens (dashed)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes.grid(alpha=0.3)
