"""Dropout without a trace in the network: it belongs to training, so it is hung onto the modules from outside."""

import torch.nn.functional as F

from ..transformer import Transformer


def add_dropout(model: Transformer, share: float) -> None:
    """Drop ``share`` of the embedding and of what each block adds to the residual stream, in training mode only."""
    if share:
        blocks = [part for layer in model.layers for part in (layer.attention, layer.feed_forward)]
        for module in (model.tok_embeddings, *blocks):
            module.register_forward_hook(lambda module, _, out: F.dropout(out, share, module.training))
