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


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Nats per token, in float32: logits (B, T, V), targets (B, T)."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction=reduction)


@torch.no_grad()
def evaluate(
    network: Callable[[Tensor], Tensor], model: Transformer, dataset: Dataset, args: TrainArgs, ranks: Ranks
) -> float:
    """Mean nats per token over the validation text, or ``eval_tokens`` tokens of it; ``network`` runs ``model``.

    Windows lie side by side; processes take them in turn. A process that has no batch left repeats one without counting
    it, since a sharded network runs only where all processes run it.
    """
    device, context = model.tok_embeddings.weight.device, model.args.max_seq_len
    training = model.training
    model.eval()
    batches = dataset.val_batches(args.micro_batch_size or args.batch_size, context, args.eval_tokens)
    total = count = 0.0
    while group := list(islice(batches, ranks.world_size)):
        inputs, targets = (torch.from_numpy(part).to(device) for part in group[min(ranks.rank, len(group) - 1)])
        loss = cross_entropy(network(inputs), targets, "sum")
        if ranks.rank < len(group):
            total, count = total + loss.item(), count + targets.numel()
    model.train(training)
    total, count = ranks.sum([total, count], device)
    return total / count


def bits_per_byte(nats_per_token: float, dataset: Dataset) -> float:
    """A loss that does not depend on the tokenizer: bits per byte of the validation text."""
    return nats_per_token / math.log(2) * (len(dataset.val) - 1) / dataset.val_bytes


def unigram_loss(dataset: Dataset, vocab_size: int, tokens: int = 5_000_000) -> float:
    """Nats per validation token of a guess by frequency: each token's probability is its fraction of the training text.

    A model that does no better has learnt nothing but how often tokens occur. Counted are at most ``tokens`` tokens in
    100 blocks spread evenly over each text; one is added to each count, so that no token is impossible.
    """
    counts = [np.bincount(_spread(ids, tokens), minlength=vocab_size) for ids in (dataset.train, dataset.val[1:])]
    probability = (counts[0] + 1) / (counts[0].sum() + vocab_size)
    return float(-(counts[1] * np.log(probability)).sum() / counts[1].sum())


def _spread(ids: np.ndarray, tokens: int, blocks: int = 100) -> np.ndarray:
    if len(ids) <= tokens:
        return np.asarray(ids)
    starts = np.linspace(0, len(ids) - tokens // blocks, blocks, dtype=np.int64)
    return np.concatenate([ids[start : start + tokens // blocks] for start in starts])
