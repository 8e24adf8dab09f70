"""The decoding network: another Transformer with the same weights, fast for one token of each text at a time.

Its forward for one token can be compiled by torch.compile. ``start_pos`` is symbolic in the compiled code, so it is
compiled once for all lengths, and attention reads only the filled part of the cache. torch.compile caches the code on
disk, so later processes reuse it.
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

FIRST_COMPILED_POSITION = 2  # torch.compile specialises on the numbers 0 and 1, so these positions run eagerly
# By default the compiler fuses a norm into the matrix product that follows it, and so computes the norm again for every
# row of the weights. With a threshold of 0 it computes the norm once and stores it.
COMPILE_OPTIONS_ON_CPU: dict[str, Any] = {"cpp_wrapper": True, "realize_reads_threshold": 0}
RECOMPILE_LIMIT = 1000  # per function: each architecture and dtype needs a compilation, with padding and without
# If a layer has this many weights or more, one layer is compiled, and its code runs for all layers: 22 layers with 44
# million weights each compile in 8 s instead of 48 (`benchmarks/generate.py --shape 1.1B --only launch`). But each call
# of compiled code costs about 60 us, and a layer of 1 million weights runs in only twice that time. So networks whose
# layers are below this limit are compiled as a whole.
LAYER_WEIGHTS_TO_COMPILE_BY_LAYER = 8_000_000


def for_decoding(model: Transformer, compile: bool = False) -> Transformer:
    """Build the decoding network of ``model``: a copy of its modules that shares its weights, in eval mode.

    On a CPU its linear layers are fast for few input vectors. Given several tokens per row, it may compute the output
    of the last one only (``LastBlock``), so callers use ``[:, -1]``. It does so if ``hidden`` is not overridden, the
    last block is a TransformerBlock, and neither that block nor the norm has hooks. With ``compile`` its forward for
    one token per row is compiled, and networks of the same architecture share the compiled code. ``model`` itself is
    not changed. Its weights are shared, so changing them in place takes effect at the next token. If a subclass
    computes its rotation table from weights, that is done once, here: changing those weights later does not change the
    table. Raises ValueError if there is no compiler.
    """
    network = copy_modules(model)
    last = network.layers[-1]
    hooked = any(has_hooks(module) for module in [*last.modules(), network.norm])
    if type(model).hidden is Transformer.hidden and type(last) is TransformerBlock and not hooked:
        network.layers[-1] = LastBlock(last).eval()
    if not compile:
        return network
    step_network = copy_modules(model)  # another copy, because it is compiled, and needs no LastBlock
    return CompiledNetwork(step_network, network)


def copy_modules(model: Transformer) -> Transformer:
    """Copy the modules but share the weights, in eval mode. On a CPU the linear layers are fast for few tokens."""
    device = model.tok_embeddings.weight.device
    shared = [*model.parameters(), *model.buffers(), model.freqs_cis]
    network = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    # In a subclass freqs_cis may be a property that computes the table from weights, with a setter that replaces it by
    # a constant. So compute it once here, instead of at every token.
    with torch.no_grad():
        network.freqs_cis = network.freqs_cis.to(device)
    if device.type == "cpu":
        replace_linear_layers(network)
    return network.eval()


def replace_linear_layers(network: Transformer) -> None:
    """Replace each nn.Linear that has neither bias nor hooks by a ``DecodingLinear``; subclasses are left alone."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear and module.bias is None and not has_hooks(module):
                setattr(parent, name, DecodingLinear(module.weight))
    if network.output is None:  # tied weights: the embedding is also the output matrix
        network.output = DecodingLinear(network.tok_embeddings.weight)


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class LastBlock(TransformerBlock):
    """The last block, which computes its output for the last token only: (B, T, dim) -> (B, 1, dim)."""

    def __init__(self, block: TransformerBlock) -> None:
        nn.Module.__init__(self)
        for name, module in block.named_children():
            self.add_module(name, module)

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        # Attention runs for all tokens, because it writes their keys and values into the cache.
        x = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, mask, cache)  # (B, T, dim)
        x = x[:, -1:]  # (B, 1, dim)
        return x + self.feed_forward(self.ffn_norm(x))


class DecodingLinear(nn.Module):
    """A linear layer that is fast for a few rows, for example one token of each text: x (..., in) -> (..., out)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # (out, in), shared with the layer it replaces

    def forward(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.weight)


class CompiledNetwork(Transformer):
    """Two networks with the same weights: a compiled one for one token per row, and one for prefill."""

    def __init__(self, step_network: Transformer, prefill_network: Transformer) -> None:
        nn.Module.__init__(self)  # without creating weights
        self.args, self.freqs_cis = step_network.args, step_network.freqs_cis
        self.shift_invariant = is_shift_invariant(step_network)
        self.step_network, self.prefill_network = step_network, prefill_network
        self.tok_embeddings, self.norm = step_network.tok_embeddings, step_network.norm
        on_cpu = step_network.tok_embeddings.weight.device.type == "cpu"
        if on_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "c++", "clang++")):
            raise ValueError("compile needs a C++ compiler, and there is none: install g++ or leave compile out")
        layer_weights = sum(weight.numel() for weight in step_network.layers[0].state_dict().values())
        if layer_weights < LAYER_WEIGHTS_TO_COMPILE_BY_LAYER:
            self.forward_step = compile_function(forward_step, on_cpu)
        else:
            compile_layers(step_network, on_cpu)
            self.forward_step = forward_step  # calls the compiled layers

    def hidden(
        self, tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return self.prefill_network.hidden(tokens, start_pos, cache, mask)  # (B, T, dim), or (B, 1, dim) with LastBlock

    def logits(self, h: Tensor) -> Tensor:
        return self.prefill_network.logits(h)  # (..., V)

    def forward(
        self, tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """tokens (B, T) -> logits; ``[:, -1]`` are those after the last token. Decoding runs compiled."""
        if cache is None or tokens.shape[1] > 1 or start_pos < FIRST_COMPILED_POSITION:
            return self.prefill_network(tokens, start_pos, cache, mask)
        self.prefill_network.check_positions(tokens, start_pos, cache)  # raises ValueError before the compiler fails
        # With `dynamic`, torch.compile treats the float norm_eps as variable, finds that it must be constant, and
        # traces a second time. `specialize_float` avoids this.
        with warnings.catch_warnings(), torch._dynamo.config.patch(specialize_float=True):
            warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")
            layer_cache = PerLayerCache.from_cache(cache)
            return self.forward_step(self.step_network, tokens, start_pos, layer_cache, mask)  # (B, 1, V)


def compile_function(function: Callable[..., Tensor], on_cpu: bool) -> Callable[..., Tensor]:
    """Compile a function with the options for decoding."""
    options = COMPILE_OPTIONS_ON_CPU if on_cpu else {}
    return torch.compile(  # type: ignore[call-overload,no-any-return]
        function, dynamic=True, fullgraph=True, options=options, recompile_limit=RECOMPILE_LIMIT
    )


class PerLayerCache(KVCache):
    """A view of a cache with one tensor for each layer, (B, K, max_seq_len, D), in the same memory.

    With one tensor for all layers, torch.compile would copy the whole cache many times: each layer writes into a tensor
    that later layers also use.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], max_seq_len: int) -> None:
        self.keys, self.values, self.max_seq_len = keys, values, max_seq_len  # type: ignore[assignment]
        self.batch_size = len(keys[0])

    @classmethod
    def from_cache(cls, cache: KVCache) -> "PerLayerCache":
        return cls(list(cache.keys.unbind()), list(cache.values.unbind()), cache.max_seq_len)


def forward_step(
    network: Transformer, tokens: Tensor, start_pos: int, cache: PerLayerCache, mask: Tensor | None
) -> Tensor:
    return network(tokens, start_pos, cache, mask)  # (B, 1, V)


def compile_layers(network: Transformer, on_cpu: bool) -> None:
    """Replace the blocks and the output matrix of ``network`` by compiled ones, in place."""
    compiled_block = compile_function(forward_block, on_cpu)
    compiled_output = compile_function(forward_output, on_cpu)
    blocks = [CompiledBlock(layer, layer_id, compiled_block) for layer_id, layer in enumerate(network.layers)]
    network.layers = nn.ModuleList(blocks)
    if network.output is not None:
        network.output = CompiledOutput(network.output, compiled_output)


class CompiledBlock(nn.Module):
    """A compiled block for one token of each row. All blocks of a network run the same code."""

    def __init__(self, block: nn.Module, layer_id: int, compiled: Callable[..., Tensor]) -> None:
        super().__init__()
        self.block = block
        self.layer_id = layer_id
        self.compiled = compiled  # forward_block

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: PerLayerCache
    ) -> Tensor:
        keys, values = cache.keys[self.layer_id], cache.values[self.layer_id]  # (B, K, max_seq_len, D)
        return self.compiled(self.block, x, start_pos, freqs_cis, mask, keys, values)  # (B, 1, dim)


class CompiledOutput(nn.Module):
    """The compiled output matrix."""

    def __init__(self, output: nn.Module, compiled: Callable[..., Tensor]) -> None:
        super().__init__()
        self.output = output
        self.compiled = compiled  # forward_output

    def forward(self, h: Tensor) -> Tensor:
        return self.compiled(self.output, h)  # (B, 1, V)


class OneLayerCache(PerLayerCache):
    """The cache of a single layer, so that the compiled code does not depend on the layer's index."""

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
