"""``for_decoding``: the network's own forward pass for prompts, and a faster one for one token of each row."""

import copy
import os
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

from ..cache import KVCache
from ..cli import machine
from ..transformer import Transformer
from . import kernels
from .compiled import CompiledStep
from .direct import DirectStep
from .kernels import FastTiedOutput, accelerate, fast_product, replace_modules
from .recorded import RecordedStep

FastStep = CompiledStep | RecordedStep | DirectStep  # called like Transformer.forward, for one token of each row
RECORDING_DEVICES = ("cuda",)  # devices whose kernels can be recorded: the GPUs of NVIDIA and AMD
LOOK_SECONDS = 1.0  # between looks for free cores, which take 0.1 ms
OWN = (__package__.partition(".")[0], "torch")  # the packages whose modules a fast step can have


def for_decoding(model: Transformer, compile: bool = False, *, record: bool = True) -> Transformer:
    """A copy of ``model`` for the decode loop, which shares all parameters and hooks. It leaves ``model`` as it is.

    The logits of a call are (B, 1, V), because those of a long prompt would take much memory. On a GPU of NVIDIA or
    AMD, the forward pass of one token of each row is recorded, if it can be, unless ``record`` is false, because a
    recording takes memory. Recording moves weights of ``model`` next to each other (``merge_products``). With
    ``compile`` the forward pass is compiled, on a CPU once and for all into a file; raises ValueError if that is
    impossible (``check_compiles``).

    Weights that are changed in place take effect at the next token, and weights that are replaced by others at the next
    prompt. A network that this function has returned is returned as it is.
    """
    if isinstance(model.output, LastLogits):
        return model
    network = replace_modules(accelerate(model), fast_product).eval()
    output = FastTiedOutput(network.tok_embeddings) if network.output is None else network.output
    network.output = LastLogits(output)
    return with_fast_step(network, compile, record)


class LastLogits(nn.Module):
    """The output matrix, times the state of the last token only: (B, T, dim) -> (B, 1, V)."""

    def __init__(self, output: nn.Module) -> None:
        super().__init__()
        self.output = output

    def forward(self, h: Tensor) -> Tensor:
        return self.output(h[:, -1:])


def with_fast_step(network: Transformer, compile: bool, record: bool) -> Transformer:
    """``network``, or a copy with a fast step if the network can have one: recorded on a GPU, direct on a CPU.

    With ``compile`` the step is compiled, even without ``record``; raises ValueError if that is impossible
    (``check_compiles``). Otherwise nothing is recorded without ``record``.
    """
    if compile:
        check_compiles(network)
    elif network.norm.weight.device.type in RECORDING_DEVICES and not record:
        return network
    step = Step(network, compile)
    if step.path.fast is None:
        return network
    fast = copy.copy(network)
    fast.forward = step.forward  # type: ignore[method-assign]
    return fast


class FastPath(NamedTuple):
    """A fast step, if there is one, and the weights that it reads where they are."""

    fast: FastStep | None
    weights: list[Tensor]  # compiled code and recordings know only addresses, so this keeps the memory there


class Step:
    """``Transformer.forward`` for the decode loop: a prompt takes the network's own way, a token a faster one."""

    def __init__(self, network: Transformer, compile: bool) -> None:
        self.network, self.compile = network, compile
        self.path = self.fast_path()
        self.thread_count, self.next_look = 0, 0.0  # of ``threads``

    def fast_path(self) -> FastPath:
        device = self.network.norm.weight.device.type
        fast: FastStep | None = None
        if device in RECORDING_DEVICES and (self.compile or not reason_against(self.network)):
            fast = RecordedStep(self.network, self.compile)
        elif device == "cpu" and self.compile:
            fast = CompiledStep(self.network)
        elif device == "cpu" and not reason_against(self.network):
            fast = DirectStep(self.network)
        return FastPath(fast, [weight.detach() for weight in weights_of(self.network)])

    def forward(
        self, tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """(B, T) -> (B, 1, V)."""
        if cache is None or tokens.shape[1] > 1 or start_pos == 0:
            self.begin_text()
            return self.network.forward(tokens, start_pos, cache, mask)
        path = self.path
        # Autocast keeps converted weights only until it ends, and its keys have another dtype than the weights.
        is_usual = not torch.is_autocast_enabled(tokens.device.type) and matches(cache, self.network.norm.weight)
        if path.fast is None or not is_usual:
            return self.network.forward(tokens, start_pos, cache, mask)
        self.network.check_positions(tokens, start_pos, cache)
        with machine.threads(self.threads(path.fast, len(tokens))):
            return path.fast(tokens, start_pos, cache, mask)

    def threads(self, fast: FastStep, rows: int) -> int:
        """The threads of a token: PyTorch's number, or on a CPU no more than cores are free, if this changes no bit.

        After each of a token's many operators all threads wait for the last one, which is late by milliseconds if it
        shares its core. Beside other work fewer threads take half of the time. Their number is chosen at the beginning
        of a text and every second. OMP_NUM_THREADS, if set, is respected.
        """
        now = time.monotonic()
        if now >= self.next_look:
            self.thread_count, self.next_look = torch.get_num_threads(), now + LOOK_SECONDS
            chosen_by_user = self.thread_count == 1 or "OMP_NUM_THREADS" in os.environ
            if not chosen_by_user and not isinstance(fast, RecordedStep) and fast.same_with_any_threads(rows):
                self.thread_count = min(self.thread_count, machine.free_cores())
        return self.thread_count

    def begin_text(self) -> None:
        """Look for changes since the last prompt that a fast step would miss, and choose again if there are any.

        Weights may have been replaced (``load_state_dict(assign=True)``, ``.to()``), and hooks added.
        """
        self.next_look = 0.0
        fast, weights = self.path
        replaced = any(new.data_ptr() != old.data_ptr() for new, old in zip(weights_of(self.network), weights))
        if replaced or (isinstance(fast, DirectStep) and reason_against(self.network)):
            self.path = self.fast_path()
        elif isinstance(fast, DirectStep):
            fast.begin_text()


def compile_seconds(network: Transformer) -> float:
    """The time that compiling the fast step of a network has taken so far, which its first tokens wait for."""
    fast = fast_step_of(network)
    return fast.compile_seconds if isinstance(fast, CompiledStep | RecordedStep) else 0.0


def compiles_each_size(network: Transformer) -> bool:
    """Whether this network of the decode loop compiles its step for each number of slots of a cache."""
    fast = fast_step_of(network)
    return isinstance(fast, RecordedStep) and fast.compile


def fast_step_of(network: Transformer) -> FastStep | None:
    step = getattr(network.forward, "__self__", None)
    return step.path.fast if isinstance(step, Step) else None


def matches(cache: KVCache, weight: Tensor) -> bool:
    """Whether the cache has keys, of the dtype and on the device of this weight."""
    keys = cache.layers[0].keys
    return keys is not None and keys.dtype == weight.dtype and keys.device == weight.device


def weights_of(network: Transformer) -> Iterator[Tensor]:
    return chain(network.parameters(), network.buffers())


def reason_against(network: Transformer) -> str:
    """Why this network cannot have a fast step; empty if it can.

    A fast step would skip hooks and overridden methods, and it is for modules of this library and of PyTorch only.
    """
    for name in ("forward", "embed"):
        if getattr(type(network), name) is not getattr(Transformer, name):
            return f"compile would skip {name} of {type(network).__name__}"
    for name, module in network.named_modules():
        if module is not network and type(module).__module__.partition(".")[0] not in OWN:
            return f"compile is for this library's own layers, and {name} is a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"compile would skip the hooks of {name or 'the network'}"
        if "forward" in vars(module):
            return f"compile would skip the forward that {name or 'the network'} has been given"
        if vars(module).get("attend", kernels.attend) is not kernels.attend:
            return f"compile is for this library's own attention, and {name} has another"
    return ""


def check_compiles(network: Transformer) -> None:
    """Raise ValueError unless ``network`` can have a compiled step on its device."""
    problem, device = reason_against(network), network.norm.weight.device.type
    if not problem and device not in ("cpu", "cuda"):
        problem = f"compile is for CPUs and for GPUs of NVIDIA and AMD, not for {device}"
    if problem:
        raise ValueError(f"{problem}: leave compile out")
    check_compiler(device, "leave compile out")


def check_compiler(device: str, otherwise: str) -> None:
    """Raise ValueError, which ends with the advice ``otherwise``, unless torch.compile can make code for ``device``."""
    if device == "cuda" and not has_triton():
        raise ValueError(
            "compile on a GPU needs Triton, and there is none: install triton (on Windows triton-windows), or "
            f"{otherwise}"
        )
    if device == "cpu" and shutil.which(compiler()) is None:
        raise ValueError(
            f"compile needs a C++ compiler, and there is no {compiler()!r} on PATH: install it, set CXX to the program "
            f"of another one, or {otherwise}"
        )


def compiler() -> str:
    """The C++ compiler that PyTorch calls: one program, without arguments."""
    return os.environ.get("CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++"))


def could_compile(network: Transformer) -> bool:
    """Whether this network of the decode loop takes a direct step, and could have a compiled one."""
    return isinstance(fast_step_of(network), DirectStep) and shutil.which(compiler()) is not None
