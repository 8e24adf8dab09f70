"""The decoding network: another Transformer over the same weights, built for one token of each text at a time.

Its forward for one token can go through torch.compile: compiled once, whatever the length of the text. ``start_pos``
goes in as a symbol, so the code is the network's own, attention reads the filled part of the cache only, and nothing is
compiled anew as the text grows. What the compiler made stays on disk, and the next process finds it.
"""

import copy
import math
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention
from ..cache import KVCache
from ..transformer import Transformer, TransformerBlock
from .few_rows import WithoutOneDNN, has_hooks, use_few_rows_linear

FIRST_COMPILED = 2  # compilers take the numbers 0 and 1 for constants: those positions are the other network's
# Weights in a layer. From here on one layer is compiled, and its code runs for all: 22 layers of 44 million weights
# compile in 8 s instead of 48. Each call costs some 60 us, which at 1 million weights is half a layer's time: below,
# the whole network is compiled as one.
ONE_LAYER_FROM = 8_000_000


def for_decoding(model: Transformer, compile: bool = False) -> "Transformer | CompiledNetwork":
    """Build the decoding network of ``model``: a copy of its modules that shares its weights, in eval mode.

    On a CPU its linear layers are ``FewRowsLinear``; of a prompt it gives the last token's output only. With
    ``compile`` its forward for one token a row goes through torch.compile; networks of equal architecture share what
    was compiled. The model itself is not touched, and a change of its weights in place shows in the next token.
    Raises ValueError where nothing can be compiled.
    """
    network = copy_modules(model)
    last = network.layers[-1]
    watched = any(map(has_hooks, [*last.modules(), network.norm]))
    if type(model).hidden is Transformer.hidden and type(last) is TransformerBlock and not watched:
        last.add_module("feed_forward", LastToken(last.feed_forward))
        if type(last.attention) is Attention:
            for name in ("wq", "wo"):
                last.attention.add_module(name, LastToken(last.attention.get_submodule(name)))
    network.eval()
    return CompiledNetwork(copy_modules(model).eval(), network) if compile else network


def copy_modules(model: Transformer) -> Transformer:
    """A copy of the modules over the same weights, with linear layers that suit a few rows."""
    shared = [*model.parameters(), *model.buffers(), model.freqs_cis]
    network = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    if model.tok_embeddings.weight.device.type == "cpu":
        use_few_rows_linear(network)
    return network


class LastToken(nn.Module):
    """What the last block computes for each token by itself: of a prompt only the last token's output is needed.

    For the other tokens, of which the cache needs keys and values alone, it gives NaN, so that nobody takes them for
    outputs. Of the block's work on a prompt, wk, wv and the attention itself are left.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, in) -> (B, T, out)."""
        last: Tensor = self.module(x[:, -1:])  # (B, 1, out)
        return F.pad(last, (0, 0, x.shape[1] - 1, 0), value=math.nan)


class CompiledNetwork:
    """Two networks of the same weights: one for a token of each row, compiled, the other for prompts, as it is."""

    def __init__(self, network: Transformer, prefill: Transformer) -> None:
        on_cpu = network.tok_embeddings.weight.device.type == "cpu"
        if on_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "c++", "clang++")):
            raise ValueError("compile needs a C++ compiler, and there is none: install g++ or leave compile out")
        self.network, self.prefill = network, prefill
        self.args, self.shift_invariant, self.freqs_cis = network.args, network.shift_invariant, network.freqs_cis
        self.tok_embeddings, self.norm = network.tok_embeddings, network.norm
        self.hidden, self.logits = prefill.hidden, prefill.logits
        # Networks of one architecture share the compiled code: torch keeps it with the function, not with `self`.
        self.forward = forward_one
        if sum(weight.numel() for weight in network.layers[0].state_dict().values()) < ONE_LAYER_FROM:
            self.forward = compiled(forward_one, on_cpu)
        else:
            compile_layers(network, on_cpu)

    def __call__(self, tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
        """tokens (B, 1) -> logits (B, 1, V)."""
        if start_pos < FIRST_COMPILED:
            return self.prefill(tokens, start_pos, cache)  # (B, 1, V)
        rows, weight = tokens.shape[0], self.tok_embeddings.weight
        products = WithoutOneDNN() if rows == 1 and weight.dtype == torch.bfloat16 else nullcontext()
        with products, warnings.catch_warnings(), torch._dynamo.config.patch(specialize_float=True):
            # `dynamic` takes floats for symbols, too; finds later that norm_eps is constant, and traces all again.
            warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")
            return self.forward(self.network, tokens, start_pos, cache)  # (B, 1, V)


def compiled(function: Callable[..., Tensor], on_cpu: bool) -> Callable[..., Tensor]:
    # Without the second option, what a product reads, such as the norm before it, is computed anew for every
    # row of its weights: 3.1 ms a token in bfloat16 instead of 2.5, for 15M parameters on two cores.
    options: dict[str, Any] = {"cpp_wrapper": True, "realize_reads_threshold": 0} if on_cpu else {}
    return torch.compile(function, dynamic=True, fullgraph=True, options=options)


def forward_one(network: Transformer, tokens: Tensor, start_pos: int, cache: KVCache) -> Tensor:
    return network(tokens, start_pos, cache)  # (B, 1, V)


def compile_layers(network: Transformer, on_cpu: bool) -> None:
    """Put compiled blocks and a compiled output matrix into a network that is the caller's own copy."""
    block, product = compiled(forward_block, on_cpu), compiled(forward_output, on_cpu)
    network.layers = nn.ModuleList(CompiledBlock(layer, number, block) for number, layer in enumerate(network.layers))
    if network.output is not None:
        network.output = CompiledOutput(network.output, product)


class CompiledBlock(nn.Module):
    """A block for one token of each row, compiled. All blocks of a network run the same code."""

    def __init__(self, block: nn.Module, number: int, compiled: Callable[..., Tensor]) -> None:
        super().__init__()
        self.block, self.number, self.compiled = block, number, compiled

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        assert cache is not None
        keys, values = cache.layers[self.number]  # (B, K, max_seq_len, D)
        return self.compiled(self.block, x, start_pos, torch.view_as_real(freqs_cis), mask, keys, values)


class CompiledOutput(nn.Module):
    def __init__(self, output: nn.Module, compiled: Callable[..., Tensor]) -> None:
        super().__init__()
        self.output, self.compiled = output, compiled

    def forward(self, h: Tensor) -> Tensor:
        return self.compiled(self.output, h)  # (B, 1, V)


class OneLayerCache(KVCache):
    """One layer's part of a cache. The compiled code gets it alone, and so cannot depend on the layer's number."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.layers = [(keys, values)]

    def update(self, layer: int, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        return super().update(0, start_pos, xk, xv)


def forward_block(
    block: nn.Module, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, keys: Tensor, values: Tensor
) -> Tensor:
    out: Tensor = block(x, start_pos, freqs_cis, mask, OneLayerCache(keys, values))  # (B, 1, dim)
    return out


def forward_output(output: nn.Module, h: Tensor) -> Tensor:
    logits: Tensor = output(h)  # (B, 1, V)
    return logits
