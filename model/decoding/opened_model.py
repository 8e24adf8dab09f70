"""A model for generate.py, chat.py and evaluate.py: opened first, so that mistakes are found, and loaded later."""

from dataclasses import dataclass
from typing import Any

import torch

from ..cli import print_note, quantity
from ..cli.machine import choose_threads, pick_device, pick_dtype
from ..fast.step import for_decoding
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from ..weights import Checkpoint, find_network, open_checkpoint
from ..weights.checkpoint import newest_run
from .batches import gpu_slots
from .options import ModelOptions


@dataclass(frozen=True)
class OpenedModel:
    """A model whose weights have not been read, so that mistakes are found first."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    options: ModelOptions
    device: torch.device
    dtype: torch.dtype  # of weights and cache

    def load(self, **memory: Any) -> Transformer:
        """Read the weights. ``memory`` is ``beside``, ``purpose`` and ``advice`` of ``Checkpoint.model``."""
        int8 = self.options.dtype == "int8"
        if int8 and self.device.type == "cuda":
            print_note("note: on a GPU int8 saves memory only: it gives fewer tokens a second than bfloat16")
        variant = find_network(self.options.network) if self.options.network else None
        return self.checkpoint.model(self.device, self.dtype, variant, int8=int8, **memory)

    def load_for_decoding(self, compile: bool, rows: int, length: int, advice: str) -> Transformer:
        """Read the weights, and choose PyTorch's threads for ``rows`` texts of ``length`` tokens at a time.

        Compiled code keeps all threads: with two, a token of 2.9 million parameters takes a fifth less time.

        Raises ValueError with ``advice`` if there is too little memory for the weights, the cache, and the logits.
        """
        args = self.checkpoint.args
        slots = length if self.device.type == "cpu" else gpu_slots(length, args)
        cache_size = 2 * args.n_layers * args.n_kv_heads * args.head_dim * slots * self.dtype.itemsize
        logits_size = args.vocab_size * torch.float32.itemsize
        model = self.load(
            beside=rows * (cache_size + logits_size),
            purpose=f"the model with a batch of {quantity(rows, 'text')} of {quantity(length, 'token')}",
            advice=advice,
        )
        if not compile:
            choose_threads(self.device, rows * sum(weight.numel() for weight in model.state_dict().values()))
        return for_decoding(model, compile)


def open_model(options: ModelOptions) -> OpenedModel:
    """Open the model of the options: by default the newest run, which is then named on stderr."""
    device = pick_device(options.device)
    path = options.model
    if path is None:
        path = newest_run()
        print_note(f"the model is {path}, the newest run")
    checkpoint = open_checkpoint(path)
    dtype = pick_dtype(options.dtype, device, checkpoint.dtype)
    return OpenedModel(checkpoint, checkpoint.tokenizer(options.tokenizer), options, device, dtype)
