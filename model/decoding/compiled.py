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
from torch import Tensor

from ..cache import KVCache
from ..transformer import Transformer
from .reading import Step
from .twins import for_few_rows, sharing

FIRST_POS = 2  # compilers take 0 and 1 for constants: at those positions the network runs as it is


class CompiledStep:
    """The step of one model, for any cache of its kind."""

    def __init__(self, model: Transformer) -> None:
        on_cpu = model.tok_embeddings.weight.device.type == "cpu"
        if on_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "c++", "clang++")):
            raise ValueError("compile needs a C++ compiler, and there is none: install g++ or leave compile out")
        self.weights = list(model.parameters())
        # Without the second option, what a product reads, such as the norm before it, is computed anew for every
        # row of its weights: 3.1 ms a token in bfloat16 instead of 2.5, for 15M parameters on two cores.
        options = {"cpp_wrapper": True, "realize_reads_threshold": 0} if on_cpu else {}
        twin = with_real_table(sharing(model))
        self.run = compiled(for_few_rows(twin) if on_cpu else twin, options)

    def fits(self, model: Transformer) -> bool:
        """Whether these are still the model's own weights, and not those before an assignment."""
        return all(ours is theirs for ours, theirs in zip(self.weights, model.parameters(), strict=True))

    def __call__(self, cache: KVCache) -> Step:
        """tokens (B, 1), start_pos from FIRST_POS on -> logits (B, V)."""
        parts = by_layer(cache)
        return lambda tokens, start_pos: self.run(tokens, start_pos, parts)


def compiled(model: Transformer, options: dict[str, Any]) -> Callable[[Tensor, int, KVCache], Tensor]:
    def step(tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
        return model(tokens, start_pos, cache)[:, -1]  # (B, V)

    run = torch.compile(step, dynamic=True, fullgraph=True, options=options)

    def with_constants(tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
        # `dynamic` takes floats for symbols, too, then finds that norm_eps is constant, and traces everything again.
        with torch._dynamo.config.patch(specialize_float=True):
            return run(tokens, start_pos, cache)

    return with_constants


def with_real_table(model: Transformer) -> Transformer:
    """Compilers warn of every complex number."""
    model.freqs_cis = torch.view_as_real(model.freqs_cis)  # (max_seq_len, D/2, 2)
    return model


def by_layer(cache: KVCache) -> KVCache:
    """The same cache, each layer's part a tensor of its own.

    The compiler writes into a tensor in place only where nothing else reads it later on. With all layers in one tensor
    it would copy the whole cache at every second layer: half of the time, and more for a longer context.
    """
    parts = copy.copy(cache)
    vars(parts).update(keys=cache.keys.unbind(), values=cache.values.unbind())  # L of (B, K, max_seq_len, D)
    return parts


_kept: "weakref.WeakKeyDictionary[Transformer, CompiledStep]" = weakref.WeakKeyDictionary()


def compiled_step(model: Transformer) -> CompiledStep:
    """The step of this model, the same one each time. Raises ValueError where nothing can be compiled."""
    step = _kept.get(model)
    if step is None or not step.fits(model):
        step = _kept[model] = CompiledStep(model)
    return step
