"""Loss on validation text, the same whoever asks: no generator is touched, so that looking does not change a run."""

from collections.abc import Callable
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from ..text.dataset import Dataset
from ..transformer import Transformer
from .config import TrainArgs
from .distributed import Ranks


def loss_of(network: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross entropy in nats, in float32: inputs and targets (B, T)."""
    return F.cross_entropy(network(inputs).float().flatten(0, 1), targets.flatten(), reduction=reduction)


@torch.no_grad()
def evaluate(
    network: Callable[[Tensor], Tensor], model: Transformer, dataset: Dataset, args: TrainArgs, ranks: Ranks
) -> float:
    """Mean nats per token over the validation text, or ``eval_tokens`` tokens of it; ``network`` runs ``model``.

    Windows lie side by side; processes take turns. A process that has no batch left repeats one without counting it,
    since a sharded network runs only where all processes run it.
    """
    device, context = model.tok_embeddings.weight.device, model.args.max_seq_len
    training = model.training
    model.eval()
    batches = dataset.val_batches(args.micro_batch_size or args.batch_size, context, args.eval_tokens)
    total = count = 0.0
    while turn := list(islice(batches, ranks.world_size)):
        inputs, targets = (torch.from_numpy(part).to(device) for part in turn[min(ranks.rank, len(turn) - 1)])
        loss = loss_of(network, inputs, targets, "sum")
        if ranks.rank < len(turn):
            total, count = total + loss.item(), count + targets.numel()
    model.train(training)
    total, count = ranks.sum([total, count], device)
    return total / count
