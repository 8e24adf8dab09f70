"""The compiled step: one token of each text at a time, by torch.compile.

``start_pos`` is symbolic in the compiled code, so it is compiled once for all lengths, and attention reads only the
filled part of the cache. torch.compile caches the code on disk, so later processes reuse it.
"""

import copy
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..cache import KVCache, LayerCache
from ..transformer import Transformer

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

Step = Callable[[Transformer, Tensor, int, KVCache, Tensor | None], Tensor]


def for_decoding(model: Transformer, compile: bool = False) -> Transformer:
    """``model`` itself, or with ``compile`` a shallow copy whose forward for one token of each row is compiled.

    The copy shares all modules, so changing weights in place takes effect at the next token. Networks of the same
    architecture share the compiled code. If a subclass computes its rotation table from weights, the copy keeps the
    present table. Raises ValueError if there is no compiler.
    """
    if not compile:
        return model
    network = copy.copy(model)
    network.freqs_cis = model.freqs_cis.detach()
    step = compile_step(network)

    def forward(tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None) -> Tensor:
        if cache is None or tokens.shape[1] > 1 or start_pos < FIRST_COMPILED_POSITION:
            return type(network).forward(network, tokens, start_pos, cache, mask)
        network.check_positions(tokens, start_pos, cache)  # raises ValueError before the compiler fails
        # With `dynamic`, torch.compile treats the float norm_eps as variable, finds that it must be constant, and
        # traces a second time. `specialize_float` avoids this.
        with warnings.catch_warnings(), torch._dynamo.config.patch(specialize_float=True):
            warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")
            return step(network, tokens, start_pos, cache, mask)  # (B, 1, V)

    network.forward = forward  # type: ignore[method-assign]
    return network


def in_eval_mode(network: nn.Module, steps: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same steps, each computed in eval mode. Between two steps the network is as the caller left it."""
    while True:
        training = [module for module in network.modules() if module.training] if network.training else []
        for module in training:
            module.training = False
        try:
            tokens = next(steps, None)
        finally:
            for module in training:
                module.training = True
        if tokens is None:
            return
        yield tokens


def compile_step(network: Transformer) -> Step:
    """Compile the forward for one token of each row: as a whole, or layer by layer if the layers are large."""
    on_cpu = network.tok_embeddings.weight.device.type == "cpu"
    if on_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "c++", "clang++")):
        raise ValueError("compile needs a C++ compiler, and there is none: install g++ or leave compile out")
    compiled_whole = compile_function(forward_whole, on_cpu)
    layer_weights = sum(weight.numel() for weight in network.layers[0].parameters())
    if layer_weights < LAYER_WEIGHTS_TO_COMPILE_BY_LAYER or type(network).hidden is not Transformer.hidden:
        return compiled_whole
    compiled_layer = compile_function(forward_layer, on_cpu)
    compiled_logits = compile_function(forward_logits, on_cpu)

    def forward_by_layers(
        network: Transformer, tokens: Tensor, start_pos: int, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        freqs_cis = network.freqs_cis[start_pos : start_pos + 1]  # (1, D/2)
        h = network.embed(tokens, start_pos)  # (B, 1, dim)
        for layer, layer_cache in zip(network.layers, cache.layers):
            h = compiled_layer(layer, h, start_pos, freqs_cis, mask, layer_cache)
        return compiled_logits(network, h)

    return forward_by_layers


def forward_whole(network: Transformer, tokens: Tensor, start_pos: int, cache: KVCache, mask: Tensor | None) -> Tensor:
    return network.logits(network.hidden(tokens, start_pos, cache, mask))  # (B, 1, V)


def forward_layer(
    layer: nn.Module, h: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: LayerCache
) -> Tensor:
    out: Tensor = layer(h, start_pos, freqs_cis, mask, cache)  # (B, 1, dim)
    return out


def forward_logits(network: Transformer, h: Tensor) -> Tensor:
    return network.logits(network.norm(h))  # (B, 1, V)


def compile_function(function: Callable[..., Tensor], on_cpu: bool) -> Callable[..., Tensor]:
    """Compile a function with the options for decoding."""
    options = COMPILE_OPTIONS_ON_CPU if on_cpu else {}
    return torch.compile(  # type: ignore[call-overload,no-any-return]
        function, dynamic=True, fullgraph=True, options=options, recompile_limit=RECOMPILE_LIMIT
    )
