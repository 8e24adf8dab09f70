"""The loss, its mean on the validation text, and the losses of n-gram models.

Evaluation draws no random numbers, so it does not change the run.
"""

import math
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..text.dataset import Dataset
from .config import TrainArgs
from .distributed import Ranks

SAMPLED_TOKENS, SAMPLED_BLOCKS = 5_000_000, 100  # of a long text, to count tokens in
PRIOR_COUNT = 5  # in an n-gram model, the (n-1)-gram prediction weighs as much as this many occurrences


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Nats per token, or their sum, in float32: logits (B, T, V), targets (B, T)."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction=reduction)


@torch.no_grad()
def validation_loss(network: nn.Module, dataset: Dataset, args: TrainArgs, context: int, ranks: Ranks) -> float:
    """Mean nats per token over about ``eval_tokens`` tokens of the validation text, in windows of ``context`` tokens.

    The windows do not overlap, and the processes take batches of them in turn. A process that has no batch left repeats
    one without counting it, because a sharded network runs only if all processes run it.
    """
    device = next(network.parameters()).device
    training = network.training
    network.eval()
    batches = dataset.val_batches(args.micro_batch_rows(ranks.world_size), context, args.eval_tokens)
    total = count = 0.0
    while group := list(islice(batches, ranks.world_size)):
        batch = group[min(ranks.rank, len(group) - 1)]
        inputs, targets = (torch.from_numpy(part).to(device) for part in batch)  # (B, T) each
        loss = cross_entropy(network(inputs), targets, "sum")
        if ranks.rank < len(group):
            total += loss.item()
            count += targets.numel()
    network.train(training)
    totals, counts = ranks.gather(total, count)
    return sum(totals) / sum(counts)


def bits_per_byte(nats_per_token: float, dataset: Dataset) -> float:
    """Bits per byte of the validation text: a loss that does not depend on the tokenizer."""
    return nats_per_token / math.log(2) * (len(dataset.val) - 1) / dataset.val_bytes


def ngram_losses(dataset: Dataset, vocab_size: int, order: int = 1) -> list[float]:
    """Nats per validation token of n-gram models, for n = 1 (unigrams: token frequencies alone), 2, 3 …

    The list stops before the first n at which the loss rises, and at ``order`` at the latest. Of a long text, the
    tokens of ``sampled_blocks`` are counted. Unigrams have add-one smoothing. For larger n, the prediction of
    the (n-1)-gram model is added to the counts like PRIOR_COUNT occurrences.
    """
    train, val = (sampled_blocks(ids).astype(np.int64) for ids in (dataset.train, dataset.val))
    ids = np.concatenate([train, val])
    ngrams = ids  # a number for the n-gram that begins at each token; equal n-grams have equal numbers
    probability = np.full(len(val), 1 / vocab_size)  # of each validation token, by the (n-1)-gram model
    # How often the context of each validation token, the n-1 tokens before it, occurs in train. For n = 1 the context
    # is empty, so every token of train counts.
    context_counts = np.array(len(train))
    prior = vocab_size  # times the first probability, 1 / vocab_size, this adds 1 to each count
    losses: list[float] = []
    for n in range(1, min(order, len(train), len(val)) + 1):
        train_counts = np.bincount(ngrams[: len(train) - n + 1], minlength=int(ngrams.max()) + 1)
        counts = train_counts[ngrams[len(train) :]]  # (len(val) - n + 1,)
        probability = (counts + prior * probability[-len(counts) :]) / (context_counts + prior)
        scored = probability[1:] if n == 1 else probability  # the first token is never predicted
        losses.append(float(-np.log(scored).mean()))
        if losses[-1] > min(losses):
            return losses[:-1]
        # For n + 1, the context of a token is the n-gram before it. The last n-gram has no token after it.
        context_counts = counts[:-1]
        prior = PRIOR_COUNT
        if n < order:
            ngrams = np.unique(ngrams[:-1] * vocab_size + ids[n:], return_inverse=True)[1]
    return losses


def sampled_blocks(ids: np.ndarray) -> np.ndarray:
    """At most SAMPLED_TOKENS of the ids, in SAMPLED_BLOCKS evenly spaced blocks; all of them if there are no more."""
    if len(ids) <= SAMPLED_TOKENS:
        return np.asarray(ids)
    length = SAMPLED_TOKENS // SAMPLED_BLOCKS
    starts = np.linspace(0, len(ids) - length, SAMPLED_BLOCKS, dtype=np.int64)
    return np.concatenate([ids[start : start + length] for start in starts])
