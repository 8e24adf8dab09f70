"""The decoding network: another Transformer over the same weights, built for one token of each text at a time.

Its forward for one token can go through torch.compile. ``start_pos`` goes in as a symbol, so the code is compiled once,
whatever the length of the text, and attention reads the filled part of the cache only. What the compiler made stays on
disk, where the next process finds it.
"""

import copy
import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import kernels
from ..cache import KVCache
from ..transformer import Transformer, TransformerBlock
from .endless import is_shift_invariant

FIRST_COMPILED = 2  # torch.compile specialises on the numbers 0 and 1, so those positions are decoded eagerly
RECOMPILATIONS = 1000  # of one function in a process: architectures, dtypes, batches with and without padding
# Weights in a layer. From here on one layer is compiled, and its code runs for all: 22 layers of 44 million weights
# compile in 8 s instead of 48. Each call costs some 60 us, which at 1 million weights is half a layer's time: below,
# the whole network is compiled as one. (`benchmarks/generate.py --shape 1.1B --only launch` shows the seconds.)
ONE_LAYER_FROM = 8_000_000


def for_decoding(model: Transformer, compile: bool = False) -> Transformer:
    """Build the decoding network of ``model``: a copy of its modules that shares its weights, in eval mode.

    On a CPU its linear layers are fast for a few rows. For several tokens its output is that of the last one only, if
    the last block is a plain TransformerBlock without hooks: callers use ``[:, -1]``. With
    ``compile`` its forward for one token a row goes through torch.compile; networks of one architecture share the
    compiled code. The model itself is not touched, and a change of its weights in place shows in the next token. Raises
    ValueError if nothing can be compiled.
    """
    network = copy_modules(model)
    last = network.layers[-1]
    hooked = any(has_hooks(module) for module in [*last.modules(), network.norm])
    if type(model).hidden is Transformer.hidden and type(last) is TransformerBlock and not hooked:
        network.layers[-1] = LastBlock(last).eval()
    return CompiledNetwork(copy_modules(model), network) if compile else network


def copy_modules(model: Transformer) -> Transformer:
    """A copy of the modules over the same weights, in eval mode, with linear layers that suit a few rows."""
    device = model.tok_embeddings.weight.device
    shared = [*model.parameters(), *model.buffers(), model.freqs_cis]
    network = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    network.freqs_cis = network.freqs_cis.to(device)  # once, and not at every token
    if device.type == "cpu":
        replace_linear_layers(network)
    return network.eval()


def replace_linear_layers(network: Transformer) -> None:
    """Put a ``DecodingLinear`` in place of each plain linear layer. One with a hook or of another class stays."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear and module.bias is None and not has_hooks(module):
                setattr(parent, name, DecodingLinear(module.weight))
    if network.output is None:  # tied: the embedding is the output matrix, too
        network.output = DecodingLinear(network.tok_embeddings.weight)


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class LastBlock(TransformerBlock):
    """The last block, of which only the last token's output is needed: (B, T, dim) -> (B, 1, dim)."""

    def __init__(self, block: TransformerBlock) -> None:
        nn.Module.__init__(self)
        for name, module in block.named_children():
            self.add_module(name, module)

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, mask, cache)  # (B, T, dim), for the cache
        x = x[:, -1:]  # (B, 1, dim)
        return x + self.feed_forward(self.ffn_norm(x))


class DecodingLinear(nn.Module):
    """A linear layer that is fast for a few rows, such as one token of each text: x (..., in) -> (..., out)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # (out, in), shared with the layer it replaces

    def forward(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.weight)


class CompiledNetwork(Transformer):
    """Two networks over the same weights: ``network`` for one token of each row, compiled, ``prefill`` for prompts."""

    def __init__(self, network: Transformer, prefill: Transformer) -> None:
        nn.Module.__init__(self)  # has no weights of its own
        self.args, self.freqs_cis = network.args, network.freqs_cis
        self.shift_invariant = is_shift_invariant(network)
        self.network, self.prefill = network, prefill
        self.tok_embeddings, self.norm = network.tok_embeddings, network.norm
        on_cpu = network.tok_embeddings.weight.device.type == "cpu"
        if on_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "c++", "clang++")):
            raise ValueError("compile needs a C++ compiler, and there is none: install g++ or leave compile out")
        self.step = forward_one
        if sum(weight.numel() for weight in network.layers[0].state_dict().values()) < ONE_LAYER_FROM:
            self.step = compiled(forward_one, on_cpu)
        else:
            compile_layers(network, on_cpu)

    def hidden(
        self, tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return self.prefill.hidden(tokens, start_pos, cache, mask)  # (B, 1, dim), see LastBlock

    def logits(self, h: Tensor) -> Tensor:
        return self.prefill.logits(h)  # (..., V)

    def forward(
        self, tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """tokens (B, T) -> logits of the last of them. One token a row goes through the compiled code."""
        if cache is None or tokens.shape[1] > 1 or start_pos < FIRST_COMPILED:
            return self.prefill(tokens, start_pos, cache, mask)
        self.prefill.check_positions(tokens, start_pos, cache)  # before the compiler would find it
        # With `dynamic`, torch.compile first takes norm_eps for a symbol, then finds it constant and traces all again.
        with warnings.catch_warnings(), torch._dynamo.config.patch(specialize_float=True):
            warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")
            return self.step(self.network, tokens, start_pos, LayerCache.of(cache), mask)  # (B, 1, V)


def compiled(function: Callable[..., Tensor], on_cpu: bool) -> Callable[..., Tensor]:
    # Without the second option, what a product reads, such as the norm before it, is computed again for every
    # row of its weights: 3.1 ms a token in bfloat16 instead of 2.5, for 15M parameters on two cores.
    options: dict[str, Any] = {"cpp_wrapper": True, "realize_reads_threshold": 0} if on_cpu else {}
    return torch.compile(  # type: ignore[call-overload,no-any-return]
        function, dynamic=True, fullgraph=True, options=options, recompile_limit=RECOMPILATIONS
    )


class LayerCache(KVCache):
    """Another cache's keys and values as one tensor for each layer, (B, K, max_seq_len, D), which share its memory.

    torch.compile writes in place only into a tensor that nothing else reads later on. With one tensor for all layers it
    would copy the whole cache at every second layer.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], max_seq_len: int) -> None:
        self.keys, self.values, self.max_seq_len = keys, values, max_seq_len  # type: ignore[assignment]
        self.batch_size = len(keys[0])

    @classmethod
    def of(cls, cache: KVCache) -> "LayerCache":
        return cls(list(cache.keys.unbind()), list(cache.values.unbind()), cache.max_seq_len)


def forward_one(network: Transformer, tokens: Tensor, start_pos: int, cache: LayerCache, mask: Tensor | None) -> Tensor:
    return network(tokens, start_pos, cache, mask)  # (B, 1, V)


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

    def forward(self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: LayerCache) -> Tensor:
        keys, values = cache.keys[self.number], cache.values[self.number]  # (B, K, max_seq_len, D)
        return self.compiled(self.block, x, start_pos, freqs_cis, mask, keys, values)


class CompiledOutput(nn.Module):
    """The output matrix, compiled."""

    def __init__(self, output: nn.Module, compiled: Callable[..., Tensor]) -> None:
        super().__init__()
        self.output, self.compiled = output, compiled

    def forward(self, h: Tensor) -> Tensor:
        return self.compiled(self.output, h)  # (B, 1, V)


class OneLayerCache(LayerCache):
    """One layer's part of a cache. The compiled code gets it alone, and so cannot depend on the layer's number."""

    def update(self, layer_id: int, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        return super().update(0, start_pos, xk, xv)


def forward_block(
    block: nn.Module, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, keys: Tensor, values: Tensor
) -> Tensor:
    cache = OneLayerCache([keys], [values], keys.shape[2])
    out: Tensor = block(x, start_pos, freqs_cis, mask, cache)  # (B, 1, dim)
    return out


def forward_output(output: nn.Module, h: Tensor) -> Tensor:
    logits: Tensor = output(h)  # (B, 1, V)
    return logits
