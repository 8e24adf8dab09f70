"""Past the context with a cache that forgets: the loss by position, and what is and is not remembered."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import EndlessCache
from ..cli.machine import check_memory
from ..decoding.batches import check_endless
from ..transformer import Transformer
from .extrapolate import draw, full, spans, windowed
from .inputs import check_at_least, open_model, open_text, windows_of
from .options import Endless
from .report import Report, Table, short
from .scheme_training import stretched


def run(options: Endless) -> Report:
    check_at_least(2, options, "factor")
    check_at_least(1, options, "windows")
    check_at_least(0, options, "keep")
    model, tokenizer, scheme = open_model(options.model)
    check_endless(model, [[0]])
    length = model.args.max_seq_len
    longest = options.factor * length
    check_memory(4 * (3 * model.args.n_heads * longest**2 + longest * model.args.vocab_size), f"a text of {longest}")
    ids, name = open_text(options.model, options.data, tokenizer, options.windows * (longest + 1))
    texts = windows_of(ids, options.windows, longest + 1)  # (windows, longest + 1)

    keep = EndlessCache(model.args, model.freqs_cis, keep=options.keep).keep
    losses = {
        f"{scheme}, as it is": full(stretched(model, scheme, options.factor), texts),
        f"windows of {length}": windowed(model, texts, length),
        "endless, none kept": losses_of(model, texts, 0),
        f"endless, first {keep} kept": losses_of(model, texts, keep),
        "the same, computed anew": losses_of(model, texts, keep, anew=True),
    }
    return Report(
        [loss_table(losses, length, options, name), memory_table(model, texts, keep)],
        lambda figure: draw(figure, losses, length),
    )


def steps(model: Transformer, length: int, keep: int) -> Iterator[tuple[int, list[int], EndlessCache]]:
    """A text of ``length`` tokens through an ``EndlessCache``, in as few forwards as there are drops.

    Yields ``start_pos`` and the places in the text that the cache has after the forward, those before it first.
    """
    cache = EndlessCache(model.args, model.freqs_cis, keep=keep)
    held: list[int] = []
    done = 0
    while done < length:
        start_pos = cache.make_room(len(held))
        del held[cache.keep : cache.keep + len(held) - start_pos]
        held += range(done, min(done + cache.max_seq_len - start_pos, length))
        done = held[-1] + 1
        yield start_pos, held, cache


@torch.no_grad()
def logits(model: Transformer, text: Tensor, keep: int, anew: bool = False) -> Tensor:
    """The logits after each token of a text (N,) of any length, through an ``EndlessCache``: (N, V).

    ``anew``: what the cache has tokens of is instead put through the network from the beginning, each time.
    """
    parts = []
    for start_pos, held, cache in steps(model, len(text), keep):
        tokens = text[None, held]  # (1, S)
        out = model(tokens) if anew else model(tokens[:, start_pos:], start_pos, cache)
        parts.append(out[0, start_pos - len(held) :].float())  # (T, V)
    return torch.cat(parts)


def losses_of(model: Transformer, texts: Tensor, keep: int, anew: bool = False) -> Tensor:
    """Nats of each token but the first of texts (windows, longest + 1): (windows, longest)."""
    rows = []
    for text in texts:
        rows.append(F.cross_entropy(logits(model, text[:-1], keep, anew), text[1:], reduction="none"))
    return torch.stack(rows)


def loss_table(losses: dict[str, Tensor], length: int, options: Endless, text: str) -> Table:
    parts = spans(length, options.factor)
    rows = [
        (name, *(f"{loss[:, a:b].mean():.3f}" for a, b in parts), f"{loss.mean():.3f}") for name, loss in losses.items()
    ]
    return Table(
        f"Loss, nats per token, by position; trained on {length} tokens, and a cache of as many",
        ("method", *(f"{a}-{b - 1}" for a, b in parts), "all"),
        rows,
        [
            f"text: {options.windows} pieces of {options.factor * length} tokens of {text}.",
            f"A full cache drops {max(1, length // 4)} tokens and rotates the keys of the later ones back by as many.",
        ],
    )


def memory_table(model: Transformer, texts: Tensor, keep: int) -> Table:
    """How much the last prediction of each text changes when one token, so far back, is another one."""
    texts, V = texts[:, :-1], model.args.vocab_size
    longest, length = texts.shape[1], model.args.max_seq_len
    *_, (_, held, _) = steps(model, longest, keep)
    distances = [length // 16, length // 4, 3 * length // 4, *range(length, longest - keep, length // 2)]
    rows = []
    for back in (*distances[:8], longest - 1):
        other = texts.clone()
        other[:, longest - 1 - back] = (other[:, longest - 1 - back] + V // 2) % V
        changes = [mean_change(model, texts, other, keep, anew) for anew in (False, True)]
        state = "yes" if longest - 1 - back in held else "no"
        rows.append((back, state, *(short(change, 6) if change else "0" for change in changes)))
    return Table(
        "What is remembered: KL divergence, in nats, of the last prediction when one token is replaced",
        ("tokens back", "in the cache", "endless", "computed anew"),
        rows,
        [f"mean of {len(texts)} texts of {longest} tokens; {longest - 1} back is the first token of the text."],
    )


def mean_change(model: Transformer, texts: Tensor, others: Tensor, keep: int, anew: bool) -> float:
    divergences = []
    for pair in zip(texts, others):
        a, b = (logits(model, text, keep, anew)[-1].double().log_softmax(-1) for text in pair)  # (V,)
        divergences.append(F.kl_div(b, a, reduction="sum", log_target=True).item())
    return sum(divergences) / len(divergences)
