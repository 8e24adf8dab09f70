"""The step on a CPU: one token of each row, compiled ahead of time into files that later processes load.

The compiled code is a function of tensors alone. It reads the position from the length of one of them, the rotations up
to this position, so that it is compiled once for all lengths, and attention reads only the filled part of the cache.
"""

import hashlib
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..cache import KVCache, LayerCache
from ..cli import machine, print_note
from ..cli.files import cache_home, write_atomically
from ..transformer import Transformer
from . import kernels
from .direct import same_with_any_threads
from .token import logits_of_token, with_loop_products

LIBRARY = Path(__file__).parents[1]
# The files of the code that is compiled, and of the code that compiles it. If one changes, the step is compiled again.
SOURCES = ("*.py", "fast/*.py")
UNUSED_DAYS = 30  # after which a file is removed: other code or another PyTorch has taken its place
# By default the compiler fuses a norm into the matrix product that follows it, and so computes the norm again for every
# row of the weights. With a threshold of 0 it computes the norm once and stores it. With "fast" it multiplies and adds
# in one instruction, as PyTorch's own products do: up to a seventh faster with int8. Loops of fewer steps than
# MIN_STEPS_OF_THREAD for each thread are not divided: then no sum of a norm is, and the results do not depend on the
# number of threads. What one loop computes for the next is on the stack, if it is at most 100,000 numbers in all and no
# library reads it: a token of the 2.9M network takes 190 us instead of 240. The weights are not copied into the file:
# the code reads them where the network has them.
MIN_STEPS_OF_THREAD = 4096
COMPILE_OPTIONS: dict[str, Any] = {
    "realize_reads_threshold": 0,
    "cpp.enable_floating_point_contract_flag": "fast",
    "cpp.min_chunk_size": MIN_STEPS_OF_THREAD,
    "aot_inductor.allow_stack_allocation": True,
    "aot_inductor.package_constants_in_so": False,
}
# The sizes of the example that is traced. The compiler takes them for typical: with a few keys it would not divide the
# loops of attention among the threads.
TRACED_KEYS, TRACED_SLOTS = 127, 251

Code = Callable[[Tensor, Tensor, Tensor | None, list[Tensor]], Tensor]  # of ``TracedStep.forward``


class BatchKind(NamedTuple):
    """What a batch is like; each kind needs code of its own."""

    one_row: bool
    padded: bool


class CompiledStep:
    """The step of a network, compiled or loaded from a file at the first token of each kind of batch."""

    def __init__(self, network: Transformer) -> None:
        self.traced = TracedStep(network)
        self.rotations = torch.view_as_real(network.freqs_cis)  # (max_seq_len, D/2, 2)
        self.code: dict[BatchKind, Code] = {}
        self.threads = torch.get_num_threads()  # for which it is compiled, although a token may take fewer
        self.compile_seconds = 0.0

    def __call__(self, tokens: Tensor, start_pos: int, cache: KVCache, mask: Tensor | None) -> Tensor:
        """tokens (B, 1) -> (B, 1, V)."""
        kind = BatchKind(len(tokens) == 1, mask is not None)
        if kind not in self.code:
            with machine.threads(self.threads):
                self.code[kind], seconds = compile_or_load(self.traced, kind)
            self.compile_seconds += seconds
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return self.code[kind](tokens.long(), self.rotations[: start_pos + 1], mask, tensors)

    def same_with_any_threads(self, rows: int) -> bool:
        """Whether the number of threads changes no bit of the logits. Products of several rows are not compiled."""
        network = self.traced.network
        return network.args.dim < 2 * MIN_STEPS_OF_THREAD and (rows == 1 or same_with_any_threads(network, rows))


class TracedStep(nn.Module):
    """What is compiled: ``logits_of_token`` with tensors as its only inputs."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = kernels.replace_modules(network, with_loop_products)

    def forward(self, tokens: Tensor, rotations: Tensor, mask: Tensor | None, cache: list[Tensor]) -> Tensor:
        """tokens (B, 1), rotations (S, D/2, 2) -> (B, 1, V).

        ``cache`` has the keys and values of each layer, which are changed in place.
        """
        start_pos = rotations.shape[0] - 1
        caches = [filled_cache(keys, values) for keys, values in zip(cache[::2], cache[1::2])]
        freqs_cis = torch.view_as_complex(rotations[start_pos:])  # (1, D/2); the compiler takes no complex input
        return logits_of_token(self.network, tokens, start_pos, freqs_cis, mask, caches)


def filled_cache(keys: Tensor, values: Tensor) -> LayerCache:
    cache = LayerCache(keys.shape[2])
    cache.keys, cache.values = keys, values
    return cache


def compile_or_load(step: TracedStep, kind: BatchKind) -> tuple[Code, float]:
    """The code, and the seconds of compiling it, 0 if it was loaded."""
    weights = step.state_dict(keep_vars=True)
    path = file_of(step, kind, weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # if two processes need the same file, the second waits for it
        with suppress(RuntimeError):  # no such file, or a damaged one
            code = load(path, weights)
            path.touch()  # so that it is not removed
            return code, 0.0
        started = time.perf_counter()
        # On a line of its own, because the prompt and a first token may be printed already.
        print_note("\n(compiling the network: half a minute or more, once; later launches load it)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # from one part of PyTorch about another
            program = export(step, kind)
            write_atomically(path, lambda temporary: build(program, temporary))
        remove_unused_files(path.parent)
        return load(path, weights), time.perf_counter() - started


def remove_unused_files(directory: Path) -> None:
    for file in directory.iterdir():
        with suppress(OSError):  # another process has removed it, or Windows has it open
            if file.stat().st_mtime < time.time() - UNUSED_DAYS * 24 * 60 * 60:
                file.unlink()


@torch.no_grad()
def export(step: TracedStep, kind: BatchKind) -> ExportedProgram:
    """Trace the step with a symbolic position, cache length and, unless it is 1, batch size.

    The filled slice of the cache is shorter than the cache, because the whole cache would be a special case.
    """
    network, args = step.network, step.network.args
    rotations = torch.view_as_real(network.freqs_cis)
    B, batch = (1, {}) if kind.one_row else (2, {0: Dim.DYNAMIC})
    keys = network.norm.weight.new_zeros(B, args.n_kv_heads, TRACED_SLOTS, args.head_dim)
    inputs = (
        torch.zeros(B, 1, dtype=torch.long, device="cpu"),
        rotations.new_zeros(TRACED_KEYS, *rotations.shape[1:]),
        torch.ones(B, 1, 1, TRACED_KEYS, dtype=torch.bool, device="cpu") if kind.padded else None,
        [keys.clone() for _ in range(2 * args.n_layers)],
    )
    shapes = (
        batch,
        {0: Dim.DYNAMIC},
        {**batch, 3: Dim.DYNAMIC} if kind.padded else None,
        [{**batch, 2: Dim.DYNAMIC}] * len(inputs[-1]),
    )
    program = torch.export.export(step, inputs, dynamic_shapes=shapes, strict=False)
    for node in program.graph.nodes:  # the compiler generates no code for complex numbers
        if node.target is torch.ops.aten.view_as_real.default:
            pairs = node.args[0].args[0]  # of view_as_complex
            node.replace_all_uses_with(pairs)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def file_of(step: TracedStep, kind: BatchKind, weights: dict[str, Tensor]) -> Path:
    """The path of the compiled code, named after everything that it depends on."""
    source = b"".join(file.read_bytes() for pattern in SOURCES for file in sorted(LIBRARY.glob(pattern)))
    processor = (torch.__version__, torch.cpu.get_capabilities(), machine.CPU, torch.get_num_threads())
    stored = [(name, weight.shape, weight.stride(), weight.dtype) for name, weight in weights.items()]
    text = repr((step, step.network.args, kind, stored, processor))
    return cache_home() / "compiled" / f"{hashlib.sha256(source + text.encode()).hexdigest()[:32]}.pt2"


def build(program: ExportedProgram, path: Path) -> None:
    """Compile the program into the file ``path``."""
    with path.open("w+b") as file:
        torch._inductor.aoti_compile_and_package(program, package_path=file, inductor_configs=COMPILE_OPTIONS)


def load(path: Path, weights: dict[str, Tensor]) -> Code:
    """The compiled code. Raises RuntimeError without an intact file.

    The class is used directly because torch._inductor.aoti_load_package imports the compiler, which takes a second.
    """
    compiled = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    used = {name: weights[name] for name in compiled.get_constant_fqns()}
    compiled.load_constants(used, False, True, True)  # all of them, and read where they are instead of copied

    def run(tokens: Tensor, rotations: Tensor, mask: Tensor | None, cache: list[Tensor]) -> Tensor:
        (logits,) = compiled.boxed_run([tokens, rotations, *([] if mask is None else [mask]), *cache])
        return logits.clone()  # the next token may overwrite them

    return run
