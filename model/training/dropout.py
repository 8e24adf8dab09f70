"""Dropout without a trace in the network: it belongs to training, so it is hung onto the modules from outside."""

import torch.nn.functional as F
from torch import nn

from ..attention import Attention
from ..transformer import FeedForward, Transformer


def add_dropout(model: Transformer, share: float) -> None:
    """Drop ``share`` of the embedding and of what each block adds to the residual stream, in training mode only."""
    if share:
        for module in model.modules():
            if isinstance(module, nn.Embedding | Attention | FeedForward):
                module.register_forward_hook(lambda module, _, out: F.dropout(out, share, module.training))
