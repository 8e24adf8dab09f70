"""The step on NVIDIA's and AMD's GPUs: the kernels of one token of each row, recorded once and then started together.

A token runs hundreds of kernels, and starting them one by one takes longer than running them. A recording (a CUDA
graph) starts all of them at once, but always on the same memory. So the token, its position and its rotations are
copied into tensors that stay where they are, and attention reads every slot of the cache, with a mask for the filled
ones.
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from threading import Lock
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..cache import KVCache, LayerCache
from ..cli import print_note
from ..transformer import Transformer
from .merged import merge_products
from .token import logits_of_token

# For one row, products become sums in the same kernels as the norms, SiLU and additions around them, and the compiler
# times several ways to divide each kernel among the processors of the card.
COMPILE_OPTIONS: dict[str, Any] = {"coordinate_descent_tuning": True}

Inputs = tuple[Tensor, int, Tensor, Tensor | None]  # tokens (B, 1), start_pos, freqs_cis (1, D/2), mask (B, 1, 1, S)


class SlotCache(LayerCache):
    """Keys and values of one layer; those of a new token go into the slot that a tensor names, (1,)."""

    def __init__(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        super().__init__(keys.shape[2])
        self.keys, self.values, self.slot = keys, values, slot

    def update(self, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of one token, (B, K, 1, D), and return those of all slots, (B, K, slots, D)."""
        self.keys.index_copy_(2, self.slot, xk.detach().type_as(self.keys))
        self.values.index_copy_(2, self.slot, xv.detach().type_as(self.values))
        return self.keys.type_as(xk), self.values.type_as(xv)


class RecordedStep:
    """The step of a network, with a recording for each cache, which lives as long as the cache.

    With ``compile``, torch.compile first turns it into fewer kernels, once for each number of rows and of slots.
    """

    def __init__(self, network: Transformer, compile: bool = False) -> None:
        self.network, self.compile = merge_products(network, move=True), compile
        self.compiled: dict[torch.Size, Callable[..., Tensor]] = {}  # by the size of a layer's keys
        self.recordings: WeakKeyDictionary[KVCache, Recording] = WeakKeyDictionary()
        self.compile_seconds = 0.0

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start_pos: int, cache: KVCache, mask: Tensor | None) -> Tensor:
        """tokens (B, 1) -> (B, 1, V). Recorded at the first token, and when the cache has grown."""
        inputs = (tokens, start_pos, self.network.freqs_cis[start_pos : start_pos + 1], mask)
        if not (cache in self.recordings and self.recordings[cache].is_of(cache)):
            self.recordings.pop(cache, None)  # first, because it keeps the tensors of the smaller cache alive
            self.recordings[cache] = self.record(cache, inputs)
        return self.recordings[cache].run(*inputs)

    def record(self, cache: KVCache, inputs: Inputs) -> "Recording":
        size = cache.layers[0].keys.shape
        compiles = self.compile and size not in self.compiled
        started = time.perf_counter()
        if compiles:
            print_note("\n(compiling the network for this size of a cache: a minute or more)")
            self.compiled[size] = torch.compile(copy_of(logits_of_token), dynamic=False, options=COMPILE_OPTIONS)
        compute = self.compiled.get(size, logits_of_token)
        with warnings.catch_warnings():  # of the compiler, about the table of rotations, which is only viewed as real
            warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")
            recording = Recording(partial(compute, self.network), cache, inputs)
        if compiles:
            self.compile_seconds += time.perf_counter() - started
        return recording


def copy_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function with another code object. After compiling one 8 times, torch.compile would run it eagerly."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(), function.__globals__)


class Recording:
    """The kernels of a token, which read and write the tensors of one cache."""

    def __init__(self, compute: Callable[..., Tensor], cache: KVCache, inputs: Inputs) -> None:
        """``compute`` is ``logits_of_token`` of a network, which also runs once before it is recorded."""
        tokens, _, freqs_cis, _ = inputs
        device = tokens.device
        self.layers = [(layer.keys, layer.values) for layer in cache.layers]
        slots = self.layers[0][0].shape[2]
        self.tokens, self.freqs_cis = torch.zeros_like(tokens), torch.zeros_like(freqs_cis, device=device)
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        self.visible = torch.zeros(len(tokens), 1, 1, slots, dtype=torch.bool, device=device)
        caches = [SlotCache(keys, values, self.slot) for keys, values in self.layers]
        self.set_inputs(*inputs)
        step = partial(compute, self.tokens, 0, self.freqs_cis, self.visible, caches)
        self.replay, self.logits = capture(step, device)

    def is_of(self, cache: KVCache) -> bool:
        """Whether the cache still has the tensors that were recorded; an ``EndlessCache`` gets larger ones."""
        return all(layer.keys is keys for layer, (keys, _) in zip(cache.layers, self.layers))

    def set_inputs(self, tokens: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None) -> None:
        self.tokens.copy_(tokens)
        self.freqs_cis.copy_(freqs_cis)
        self.slot.fill_(start_pos)
        self.visible[..., : start_pos + 1] = True if mask is None else mask
        self.visible[..., start_pos + 1 :] = False

    def run(self, *inputs: *Inputs) -> Tensor:
        self.set_inputs(*inputs)
        self.replay()
        return self.logits.clone()  # (B, 1, V)


ONE_AT_A_TIME = Lock()  # CUDA allows one recording in a process


def capture(step: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """A function that repeats the kernels of ``step`` on this GPU, and the tensor with their result.

    The step runs once before, because a kernel cannot be recorded while it is being loaded. It runs on the stream that
    is recorded. If none is given, PyTorch takes a stream of the card on which it made its first recording.

    Matrix products need some memory to work in. PyTorch keeps it for each stream, and frees it with any recording of
    that stream, though others still use it (pytorch issue 193402). So it is cleared before a recording, which then
    allocates its own, and after the recording, so that only the recording uses that memory.
    """
    current = torch.cuda.current_stream(device)
    with ONE_AT_A_TIME, torch.cuda.stream(current):  # also after a recording that failed
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            step()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        torch._C._cuda_clearCublasWorkspaces()
        try:
            # Other threads may start kernels meanwhile, but not wait for the whole card
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                out = step()
        finally:
            torch._C._cuda_clearCublasWorkspaces()
    return graph.replay, out
