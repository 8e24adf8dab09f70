"""The compiled step: one token of each text at a time, compiled ahead of time into files that later processes load.

The compiled code is a function of tensors alone. It reads the position from the length of one of them, the rotations up
to this position, so that it is compiled once for all lengths, and attention reads only the filled part of the cache.
"""

import copy
import hashlib
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from .. import kernels
from ..cache import KVCache, LayerCache
from ..cli import print_note
from ..cli.files import cache_home, write_atomically
from ..transformer import Transformer
from ..weights import int8
from .recording import RecordedStep

LIBRARY = Path(kernels.__file__).parent
SOURCES = (  # if one of these files changes, the step is compiled again: what it runs, and how it is compiled
    "attention.py",
    "cache.py",
    "decoding/network.py",
    "kernels.py",
    "rope.py",
    "transformer.py",
    "weights/int8.py",
)
# By default the compiler fuses a norm into the matrix product that follows it, and so computes the norm again for every
# row of the weights. With a threshold of 0 it computes the norm once and stores it. With "fast" it multiplies and adds
# in one instruction, as PyTorch's own products do: up to a seventh faster with int8. The weights are not copied into
# the file: the code reads them where the network has them.
COMPILE_OPTIONS: dict[str, Any] = {
    "realize_reads_threshold": 0,
    "cpp.enable_floating_point_contract_flag": "fast",
    "aot_inductor.package_constants_in_so": False,
}
# The sizes of the example that is traced. The compiler takes them for typical: with a few keys it would not divide the
# loops of attention among the threads.
TRACED_KEYS, TRACED_SLOTS = 127, 251

Inputs = tuple[Tensor, Tensor, Tensor | None, list[Tensor]]  # of ``Step.forward``
Run = Callable[[Tensor, Tensor, Tensor | None, list[Tensor]], Tensor]
Form = tuple[bool, bool, torch.dtype, torch.dtype]  # whether one row, whether unpadded; dtypes of tokens and cache


def for_decoding(model: Transformer, compile: bool = False) -> Transformer:
    """A copy of ``model`` for the decode loop: accelerated, in eval mode, and with logits after the last token only.

    So the logits of a call are (B, 1, V), because those of a long prompt would take much memory. With ``compile``, the
    forward pass of one token of each row is compiled code, which is compiled at the first token, unless the cache
    directory has it; on a GPU it is recorded instead (``RecordedStep``). Raises ValueError if there is no compiler, and
    if the network has modules that are not of this library, because the file's name cannot tell what they compute. A
    subclass that changes only the table of rotations can be compiled, because the table is an input of the code.

    The copy shares all parameters and hooks, so changing weights in place takes effect at the next token. A network
    that this function has returned is not changed.
    """
    if isinstance(model.output, kernels.LastLogits):
        return model
    if compile:
        check_compilable(model)
    network = kernels.accelerate(model).eval()
    if network.output is not None:  # an accelerated network has one
        network.output = kernels.LastLogits(network.output)
    if not compile:
        return network
    compiled = copy.copy(network)
    compiled.forward = Step(network).run  # type: ignore[method-assign]
    return compiled


def check_compilable(model: Transformer) -> None:
    """Raise ValueError unless ``model`` can be compiled here."""
    own = (__package__.partition(".")[0], "torch")
    changed = [name for name in ("forward", "embed") if getattr(type(model), name) is not getattr(Transformer, name)]
    if changed:
        raise ValueError(f"compile would skip {changed[0]} of {type(model).__name__}: leave compile out")
    for module in model.modules():
        name = type(module).__name__
        if module is not model and type(module).__module__.partition(".")[0] not in own:
            raise ValueError(f"compile is for this library's own layers, and the network has {name}: leave compile out")
        if module._forward_hooks or module._forward_pre_hooks:
            raise ValueError(f"compile would skip the hooks of {name}: remove them or leave compile out")
    device = model.norm.weight.device.type
    if device not in ("cpu", "cuda"):
        raise ValueError(f"compile is for CPUs and for GPUs of NVIDIA and AMD, not for {device}: leave compile out")
    has_compiler = any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "c++", "clang++", "cl")))
    if device == "cpu" and not has_compiler:
        raise ValueError(
            "compile needs a C++ compiler, and there is none on PATH: install g++, clang++ or Microsoft's C++ build "
            "tools, or leave compile out"
        )


class Step(nn.Module):
    """The network for one token of each row, as a function of tensors alone: ``forward``, of which ``run`` has code."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        device = model.norm.weight.device
        self.read_prompt = model.forward
        self.network = kernels.replace_modules(model, in_loops) if device.type == "cpu" else model
        self.rotations = torch.view_as_real(model.freqs_cis).to(device)  # (max_seq_len, D/2, 2)
        self.compiled: dict[Form, Run] = {}

    def run(
        self, tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """``Transformer.forward``: compiled code for one token of each row, and the model's own for prompts."""
        if cache is None or tokens.shape[1] > 1 or start_pos == 0:
            return self.read_prompt(tokens, start_pos, cache, mask)  # (B, 1, V)
        self.network.check_positions(tokens, start_pos, cache)
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        inputs = (tokens, self.rotations[: start_pos + 1], mask, tensors)
        form = (tokens.shape[0] == 1, mask is None, tokens.dtype, tensors[0].dtype)
        if form not in self.compiled:
            self.compiled[form] = compile_step(self, form, inputs)
        return self.compiled[form](*inputs)  # (B, 1, V)

    def forward(self, tokens: Tensor, rotations: Tensor, mask: Tensor | None, cache: list[Tensor]) -> Tensor:
        """tokens (B, 1), rotations (S, D/2, 2) -> (B, 1, V).

        ``cache`` has the keys and values of each layer, which are changed in place.
        """
        start_pos = rotations.shape[0] - 1
        layer_caches = [LayerCache(keys, values) for keys, values in zip(cache[::2], cache[1::2])]
        return self.logits(tokens, start_pos, rotations[start_pos:], mask, layer_caches)

    def logits(
        self, tokens: Tensor, start_pos: int, rotation: Tensor, mask: Tensor | None, caches: Sequence[LayerCache]
    ) -> Tensor:
        """tokens (B, 1), the rotation of their position (1, D/2, 2), and the cache of each layer -> (B, 1, V)."""
        freqs_cis = torch.view_as_complex(rotation)  # (1, D/2)
        h = self.network.tok_embeddings(tokens)  # (B, 1, dim)
        for layer, cache in zip(self.network.layers, caches):
            h = layer(h, start_pos, freqs_cis, mask, cache)
        return self.network.output(self.network.norm(h))  # type: ignore[misc]  # an accelerated network has one


def in_loops(module: nn.Module) -> nn.Module:
    """Change a module to the same computation for one token in arithmetic that the compiler turns into few loops."""
    if isinstance(module, kernels.FastLinear | kernels.FastTiedOutput):
        module.product = linear
    elif isinstance(module, int8.Int8Linear):
        module.product = int8_linear
    elif vars(module).get("attend") is kernels.attend:
        module.attend = attend  # type: ignore[assignment]
    return module


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` for x (B, 1, in); for one row as a loop over the weights, which reads them faster than a library."""
    if x.shape[0] > 1:
        return kernels.linear(x, weight, bias)
    out = row_sums(x, weight).type_as(x).view(1, 1, -1)  # (1, 1, out)
    return out if bias is None else out + bias


PARTS = 4  # of a weight matrix: compiled code reads so many rows at a time, and each number of x once for all of them
MIN_LARGE_WEIGHTS = 1_000_000  # below, the parts gain nothing


def row_sums(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in), one row, times weight (out, in), summed in float32 -> (out,)."""
    parts = PARTS if weight.numel() >= MIN_LARGE_WEIGHTS else 1
    # By default the compiler would convert x to float32 again for every row of the weight. `as_strided` forces it to
    # store the converted x first.
    x32 = x.float().contiguous().as_strided((x.shape[-1],), (1,))
    return torch.cat([(part.float() * x32).sum(-1) for part in weight.chunk(parts)])


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """As ``linear``, with eight-bit weights and their scales.

    Without AVX-512 the compiler converts eight-bit numbers one by one, but shifts eight words of four numbers at once.
    """
    if x.shape[0] > 1 or not (kernels.CPU.avx512 or weight.shape[1] % 4 == 0):
        return int8.int8_linear(x, weight, scales)
    sums = row_sums(x, weight) if kernels.CPU.avx512 else word_sums(x, weight.view(torch.int32))
    return (sums * scales[:, 0].float()).type_as(x).view(1, 1, -1)  # (1, 1, out)


def word_sums(x: Tensor, words: Tensor) -> Tensor:
    """As ``row_sums``: x (..., in), one row, times the numbers in words (out, in / 4) int32 -> (out,)."""
    parts = PARTS if words.numel() * 4 >= MIN_LARGE_WEIGHTS else 1
    columns = words.shape[1]
    # Row i has the numbers of x for number i of each word; ``as_strided`` as above.
    x32 = x.float().view(-1, 4).T.contiguous().as_strided((4, columns), (columns, 1))
    sums = []
    for part in words.chunk(parts):
        # Number i of a little-endian word is its bits from 8 i on; the right shift repeats their sign.
        numbers = [((part << (24 - 8 * i)) >> 24).float() for i in range(4)]  # (out / parts, in / 4) each
        sums.append(sum(each * row for each, row in zip(numbers, x32)).sum(-1))
    return torch.cat(sums)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The formula for one query, in loops over the keys and the values: q (B, H, 1, D) -> (B, H, 1, D).

    So a float32 token of the 2.9M network takes 0.18 instead of 0.24 ms (Zen 4).
    """
    B, H, _, D = q.shape
    K, S = k.shape[1:3]
    rows = q.reshape(B, K, H // K, 1, D).float() * D**-0.5  # (B, K, H/K, 1, D)
    scores = (rows * k[:, :, None].float()).sum(-1)  # (B, K, H/K, S)
    if mask is not None:
        scores = scores.masked_fill(~mask.expand(B, H, 1, S).reshape(B, K, H // K, S), -math.inf)
    weights = scores.softmax(-1)[..., None]  # (B, K, H/K, S, 1)
    out = (weights * v[:, :, None].float()).sum(-2)  # (B, K, H/K, D)
    return out.type_as(v).view(B, H, 1, D)


def compile_step(step: Step, form: Form, inputs: Inputs) -> Run:
    """Compile the step, or load its code from its file. On a GPU, record it."""
    if inputs[0].device.type == "cuda":
        return RecordedStep(step.logits)
    weights = step.state_dict(keep_vars=True)
    path = file_of(step, form, weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # if two processes need the same file, the second waits for it
        with suppress(RuntimeError):  # no such file, or a damaged one
            return load(path, weights)
        # On a line of its own, because the prompt and a first token may be printed already.
        print_note("\n(compiling the network: half a minute or more, once; later launches load it)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, of one of its parts about another
            program = export(step, *inputs)
            write_atomically(path, lambda temporary: build(program, temporary))
        return load(path, weights)


@torch.no_grad()
def export(step: Step, tokens: Tensor, rotations: Tensor, mask: Tensor | None, cache: list[Tensor]) -> ExportedProgram:
    """Trace the step with a symbolic position, cache length and, unless it is 1, batch size.

    It is traced with an example of fixed sizes, so that the file does not depend on those of the first call. The filled
    slice of its cache is shorter than the cache, because the whole cache would be a special case.
    """
    B = min(tokens.shape[0], 2)
    batch = {0: Dim.DYNAMIC} if B > 1 else {}
    inputs = (
        tokens.new_zeros(B, 1),
        rotations.new_zeros(TRACED_KEYS, *rotations.shape[1:]),
        None if mask is None else mask.new_ones(B, 1, 1, TRACED_KEYS),
        [tensor.new_zeros(B, tensor.shape[1], TRACED_SLOTS, tensor.shape[3]) for tensor in cache],
    )
    shapes = (
        batch,
        {0: Dim.DYNAMIC},
        None if mask is None else {**batch, 3: Dim.DYNAMIC},
        [{**batch, 2: Dim.DYNAMIC}] * len(cache),
    )
    program = torch.export.export(step, inputs, dynamic_shapes=shapes, strict=False)
    for node in program.graph.nodes:  # the compiler generates no code for complex numbers
        if node.target is torch.ops.aten.view_as_real.default:
            pairs = node.args[0].args[0]  # of view_as_complex
            node.replace_all_uses_with(pairs)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def file_of(step: Step, form: Form, weights: dict[str, Tensor]) -> Path:
    """The path of the compiled code, named after everything that it depends on."""
    source = b"".join((LIBRARY / name).read_bytes() for name in SOURCES)
    machine = (torch.__version__, torch.cpu.get_capabilities(), kernels.CPU, torch.get_num_threads())
    stored = [(name, weight.shape, weight.stride(), weight.dtype) for name, weight in weights.items()]
    text = repr((step, step.network.args, form, stored, machine))
    return cache_home() / "compiled" / f"{hashlib.sha256(source + text.encode()).hexdigest()[:32]}.pt2"


def build(program: ExportedProgram, path: Path) -> None:
    """Compile the program into the file ``path``."""
    with path.open("w+b") as file:
        torch._inductor.aoti_compile_and_package(program, package_path=file, inductor_configs=COMPILE_OPTIONS)


def load(path: Path, weights: dict[str, Tensor]) -> Run:
    """The compiled code. Raises RuntimeError without an intact file.

    The class is used directly because torch._inductor.aoti_load_package imports the compiler, which takes a second.
    """
    compiled = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    used = {name: weights[name] for name in compiled.get_constant_fqns()}
    compiled.load_constants(used, False, True, True)  # all of them, and read where they are instead of copied

    def run(tokens: Tensor, rotations: Tensor, mask: Tensor | None, cache: list[Tensor]) -> Tensor:
        return compiled.boxed_run([tokens, rotations, *([] if mask is None else [mask]), *cache])[0]

    return run
