"""The loss, its mean on validation text, and what guessing costs. No random number is drawn: a look changes no run."""

import math
from collections.abc import Callable
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..text.dataset import Dataset
from ..transformer import Transformer
from .config import TrainArgs
from .distributed import Ranks

PRIOR = 5  # how often a guess by shorter sequences counts as seen, among those by longer ones


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Nats per token, in float32: logits (B, T, V), targets (B, T)."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction=reduction)


@torch.no_grad()
def validation_loss(
    network: Callable[[Tensor], Tensor], model: Transformer, dataset: Dataset, args: TrainArgs, ranks: Ranks
) -> float:
    """Mean nats per token over the validation text, or ``eval_tokens`` tokens of it; ``network`` runs ``model``.

    Windows lie side by side; processes take them in turn. A process that has no batch left repeats one without counting
    it, since a sharded network runs only where all processes run it.
    """
    device = model.tok_embeddings.weight.device
    training = model.training
    model.eval()
    rows = args.micro_batch_size or args.batch_size
    batches = dataset.val_batches(rows, model.args.max_seq_len, args.eval_tokens)
    total = count = 0.0
    while group := list(islice(batches, ranks.world_size)):
        mine = group[min(ranks.rank, len(group) - 1)]
        inputs, targets = (torch.from_numpy(part).to(device) for part in mine)  # (B, T) each
        loss = cross_entropy(network(inputs), targets, "sum")
        if ranks.rank < len(group):
            total += loss.item()
            count += targets.numel()
    model.train(training)
    total, count = ranks.sum([total, count], device)
    return total / count


def bits_per_byte(nats_per_token: float, dataset: Dataset) -> float:
    """A loss that does not depend on the tokenizer: bits per byte of the validation text."""
    return nats_per_token / math.log(2) * (len(dataset.val) - 1) / dataset.val_bytes


def guessing_losses(dataset: Dataset, vocab_size: int, order: int = 1, tokens: int = 5_000_000) -> list[float]:
    """Nats per validation token of guesses by frequency: of tokens alone, after the one before, after two …

    A model that does no better than the first has learnt nothing but how often tokens occur. The list ends at
    ``order``, or sooner at the best guess. Counted are at most ``tokens`` tokens in 100 blocks spread evenly over each
    text. To each token's count one is added, so that none is impossible; the guess of one order less counts as PRIOR
    more of a longer sequence.
    """
    train = sampled_blocks(dataset.train, tokens).astype(np.int64)
    val = sampled_blocks(dataset.val, tokens).astype(np.int64)
    probability = np.full(len(val), 1 / vocab_size)  # by the guess of one order less
    context = np.array(len(train))  # how often what comes before each token was seen
    prior = vocab_size
    losses: list[float] = []
    longest = int(62 / math.log2(vocab_size))  # a sequence is one number of 63 bits
    for n in range(1, min(order, longest) + 1):
        seen = _occurrences(_sequences(train, n, vocab_size), _sequences(val, n, vocab_size))  # (len(val) - n + 1,)
        probability = (seen + prior * probability[-len(seen) :]) / (context + prior)
        losses.append(float(-np.log(probability[max(0, 2 - n) :]).mean()))
        context = seen[:-1]
        prior = PRIOR
        if losses[-1] > min(losses):
            return losses[:-1]
    return losses


def _sequences(ids: np.ndarray, length: int, vocab_size: int) -> np.ndarray:
    """Each run of so many tokens as one number."""
    count = len(ids) - length + 1
    return sum(ids[place : place + count] * vocab_size ** (length - 1 - place) for place in range(length))


def _occurrences(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """How often each of ``wanted`` is in ``known``."""
    values, counts = np.unique(known, return_counts=True)
    places = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[places] == wanted, counts[places], 0)


def sampled_blocks(ids: np.ndarray, tokens: int, blocks: int = 100) -> np.ndarray:
    """At most so many of the ids, in blocks spread evenly."""
    if len(ids) <= tokens:
        return np.asarray(ids)
    starts = np.linspace(0, len(ids) - tokens // blocks, blocks, dtype=np.int64)
    return np.concatenate([ids[start : start + tokens // blocks] for start in starts])
