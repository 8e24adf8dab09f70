"""The forward for one token through torch.compile: compiled once, whatever the length of the text.

``start_pos`` goes in as a symbol, so the code is the network's own, attention reads the filled part of the cache only,
and nothing is compiled anew as the text grows. What the compiler made stays on disk, and the next process finds it.
"""

import os
import shutil
import warnings
from typing import Any

import torch
from torch import Tensor

from ..cache import KVCache
from ..transformer import Transformer

FIRST_COMPILED = 2  # compilers take the numbers 0 and 1 for constants: at those positions the network runs as it is


class CompiledNetwork:
    """A decoding network whose forward for one token of each row is compiled; ``hidden`` and ``logits`` are not."""

    def __init__(self, network: Transformer) -> None:
        on_cpu = network.tok_embeddings.weight.device.type == "cpu"
        if on_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "c++", "clang++")):
            raise ValueError("compile needs a C++ compiler, and there is none: install g++ or leave compile out")
        self.network = network
        self.args, self.shift_invariant, self.freqs_cis = network.args, network.shift_invariant, network.freqs_cis
        self.tok_embeddings, self.hidden, self.logits = network.tok_embeddings, network.hidden, network.logits
        # Without the second option, what a product reads, such as the norm before it, is computed anew for every
        # row of its weights: 3.1 ms a token in bfloat16 instead of 2.5, for 15M parameters on two cores.
        options: dict[str, Any] = {"cpp_wrapper": True, "realize_reads_threshold": 0} if on_cpu else {}
        # Networks of one architecture share the compiled code: torch keeps it with `forward_one`, not with `self`.
        self.compiled = torch.compile(forward_one, dynamic=True, fullgraph=True, options=options)

    def __call__(self, tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
        """tokens (B, 1) -> logits (B, 1, V)."""
        if start_pos < FIRST_COMPILED:
            return self.network(tokens, start_pos, cache)  # (B, 1, V)
        with warnings.catch_warnings(), torch._dynamo.config.patch(specialize_float=True):
            # `dynamic` takes floats for symbols, too; finds later that norm_eps is constant, and traces all again.
            warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")
            return self.compiled(self.network, tokens, start_pos, cache)  # (B, 1, V)


def forward_one(network: Transformer, tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
    return network(tokens, start_pos, cache)  # (B, 1, V)
