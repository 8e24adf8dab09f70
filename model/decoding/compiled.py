"""The decoding step through torch.compile: compiled once, whatever the length of the text.

``start_pos`` goes in as a symbol, so the code is the network's own, attention reads the filled part of the cache
only, and nothing is compiled anew as the text grows. What the compiler made stays on disk, and the next process finds
it there.
"""

import copy
import os
import shutil
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..cache import KVCache
from ..transformer import Transformer

FIRST_POS = 2  # compilers take 0 and 1 for constants: at those positions the network runs as it is


class RowLinear(nn.Linear):
    """A linear layer for a single token: as many dot products, of which the compiler makes one loop over the weights.

    Matrix libraries are built for many rows. With one, the time goes into reading the weights, and this loop reads
    each once and in order, 16-bit ones too: it widens them on the way, on processors without 16-bit arithmetic as well.
    """

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight.float() * x.float()).sum(-1).type_as(x)[None]  # (1, 1, out)


class CompiledStep:
    """tokens (B, 1), start_pos from FIRST_POS on, cache -> logits (B, V)."""

    def __init__(self, model: Transformer) -> None:
        on_cpu = model.tok_embeddings.weight.device.type == "cpu"
        if on_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "c++", "clang++")):
            raise ValueError("compile needs a C++ compiler, and there is none: install g++ or leave compile out")
        self.weights = list(model.parameters())
        options = {"cpp_wrapper": True} if on_cpu else {}
        self.many = compiled(sharing(model), options)
        self.one = compiled(for_one_row(sharing(model)), options) if on_cpu else self.many

    def fits(self, model: Transformer) -> bool:
        """Whether these are still the model's own weights, and not those before an assignment."""
        return all(ours is theirs for ours, theirs in zip(self.weights, model.parameters(), strict=True))

    def __call__(self, tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
        return (self.one if len(tokens) == 1 else self.many)(tokens, start_pos, cache)


def compiled(model: Transformer, options: dict[str, Any]) -> Callable[[Tensor, int, KVCache], Tensor]:
    def step(tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
        return model(tokens, start_pos, cache)[:, -1]  # (B, V)

    return torch.compile(step, dynamic=True, fullgraph=True, options=options)


def sharing(model: Transformer) -> Transformer:
    """Another network over the same weights; its table is real, for compilers warn of every complex number."""
    twin = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()
    twin.freqs_cis = torch.view_as_real(model.freqs_cis)  # (max_seq_len, D/2, 2)
    return twin


def for_one_row(model: Transformer) -> Transformer:
    """Make the network's linear layers such as are fast for one token."""
    if model.output is None:
        model.output = nn.Linear(1, 1, bias=False, device="meta")
        model.output.weight = model.tok_embeddings.weight
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = RowLinear
    return model


_kept: "weakref.WeakKeyDictionary[Transformer, CompiledStep]" = weakref.WeakKeyDictionary()


def compiled_step(model: Transformer) -> CompiledStep:
    """The step of this model, the same one each time. Raises ValueError where nothing can be compiled."""
    step = _kept.get(model)
    if step is None or not step.fits(model):
        step = _kept[model] = CompiledStep(model)
    return step
