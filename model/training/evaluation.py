"""The loss, its mean on the validation text, and the loss of guesses by frequency.

Evaluation draws no random numbers, so it does not change the run.
"""

import math
from itertools import islice

import numpy as np
import torch
from torch import nn

from ..text.dataset import UNCOUNTED, Dataset
from .config import TrainArgs
from .distributed import Ranks

SAMPLED_TOKENS, SAMPLED_BLOCKS = 5_000_000, 100  # of a long text, to count tokens in


@torch.no_grad()
def validation_loss(loss: nn.Module, dataset: Dataset, args: TrainArgs, context: int, ranks: Ranks) -> float:
    """Mean nats per token over about ``eval_tokens`` tokens of the validation text, in windows of ``context`` tokens.

    Separators between documents do not count, and of conversations only what the assistant has to write.
    ``loss`` maps tokens and targets to the sum of nats, as ``NextTokenLoss`` does. The windows do not overlap, and the
    processes take batches of them in turn. A process that has no batch left repeats one without counting it, because a
    sharded network runs only if all processes run it.
    """
    device = next(loss.parameters()).device
    training = loss.training
    loss.eval()
    batches = dataset.val_batches(
        args.micro_batch_rows(context, device.type, ranks.world_size), context, args.eval_tokens
    )
    total = count = 0.0
    while group := list(islice(batches, ranks.world_size)):
        batch = group[min(ranks.rank, len(group) - 1)]
        inputs, targets = (torch.from_numpy(part).to(device) for part in batch)  # (B, T) each
        nats = loss(inputs, targets)
        if ranks.rank < len(group):
            total += nats.item()
            count += int((batch[1] != UNCOUNTED).sum())
    loss.train(training)
    totals, counts = ranks.gather(total, count)
    return sum(totals) / sum(counts)


def bits_per_byte(nats_per_token: float, dataset: Dataset) -> float:
    """Bits per byte of the validation text: a loss that does not depend on the tokenizer."""
    return nats_per_token / math.log(2) * dataset.val_tokens / dataset.val_bytes


def unigram_loss(dataset: Dataset, vocab_size: int) -> float:
    """Nats per validation token when each is guessed by its frequency in the training text, with add-one smoothing."""
    train, val = sampled_blocks(dataset.train), sampled_blocks(dataset.val[1:])  # the first token is never predicted
    train, val = train[train >= 0], val[val >= 0]  # of conversations, what the loss counts
    val = val[~np.isin(val, dataset.separators)]
    counts = np.bincount(train, minlength=vocab_size) + 1  # (V,)
    return float(-np.log(counts[val] / counts.sum()).mean())


def sampled_blocks(ids: np.ndarray) -> np.ndarray:
    """At most SAMPLED_TOKENS of the ids, in evenly spaced blocks, because single ids are on all pages of the file."""
    if len(ids) <= SAMPLED_TOKENS:
        return np.asarray(ids)
    length = SAMPLED_TOKENS // SAMPLED_BLOCKS
    starts = np.linspace(0, len(ids) - length, SAMPLED_BLOCKS, dtype=np.int64)
    return np.concatenate([ids[start : start + length] for start in starts])
