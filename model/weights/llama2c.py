"""llama2.c's .bin files: a header of seven counts, then the tensors, grouped by kind, all little-endian.

convert.py reads and writes them. Version 0 (float32), which run.c reads, begins with the counts; a negative vocabulary
size means that the embedding is not tied to the output matrix. Version 2 (Q8_0, int8), which runq.c reads, begins with
the magic number 0x616B3432 ("ak42") and the version, pads the header to 256 bytes and stores the norms first. No C
program reads version 1. The format has no field for RoPE's base, which is 10000, nor for the epsilon of the norms,
which is 1e-5.
"""

import dataclasses
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cli.files import write_atomically
from ..config import ModelArgs
from ..transformer import Transformer
from .int8 import Int8Matrix, Quantized
from .layout import check_read_back, tensor_shapes
from .loading import Weights

MAGIC, HEADER_BYTES = 0x616B3432, 256
HEADER_COUNTS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
NORM_EPS = 1e-5
LARGEST_GROUP = 64  # as in llama2.c's export.py
ROTATIONS = "rope"  # version 0 stores cosines and sines between the norm and the output matrix; no program reads them
# The tensors of layers, with a place for the number of the layer. All layers of one kind follow each other.
NORMS = ("layers.{}.attention_norm.weight", "layers.{}.ffn_norm.weight")
ATTENTION = tuple(f"layers.{{}}.attention.{name}.weight" for name in ("wq", "wk", "wv", "wo"))
FEED_FORWARD = tuple(f"layers.{{}}.feed_forward.{name}.weight" for name in ("w1", "w2", "w3"))


class Header(NamedTuple):
    args: ModelArgs
    start: int  # the first byte of the data
    group_size: int  # how many numbers share a scale; 0 in version 0, which is not quantized


class Llama2c(Weights):
    """An opened file: the header has been read and compared with the size of the file."""

    dtype = torch.float32  # of all tensors once they are dequantized

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            raw = file.read(HEADER_BYTES)
        try:
            self.header = parse_header(raw)
        except ValueError as error:
            raise ValueError(
                f"{path} is not a llama2.c model ({error}): give a .bin that export.py or convert.py wrote"
            ) from None
        self.args = self.header.args
        size, expected = path.stat().st_size, self.header.start
        for _, shape, count in layout(self.header):  # not one by one, because a header may claim millions of layers
            expected += count * bytes_of(shape, self.header.group_size)
        if size != expected:
            raise ValueError(
                f"{path} has {size} bytes, its header announces {expected}: not a llama2.c file, or cut short"
            )
        self.shapes = tensor_shapes(self.args)

    def tensors(self) -> Iterator[tuple[str, Tensor | Quantized]]:
        """Yield (name, tensor) in the order of the file. The matrices of version 2 are quantized."""
        with self.path.open("rb") as file:
            file.seek(self.header.start)
            for name, shape in tensor_order(self.header):
                if name == ROTATIONS:
                    file.seek(bytes_of(shape, 0), 1)
                elif self.header.group_size and len(shape) > 1:
                    # Q8_0: all numbers as int8, row by row, then a float32 scale for every ``group_size`` of them
                    numbers = torch.from_numpy(np.fromfile(file, np.int8, math.prod(shape))).view(shape)
                    yield name, Quantized(numbers, _read_floats(file, (shape[0], shape[1] // self.header.group_size)))
                else:
                    yield name, _read_floats(file, shape)


def _read_floats(file: BinaryIO, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.fromfile(file, "<f4", math.prod(shape))).view(shape)


def layout(header: Header) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield (name, shape, count) in the order of the file; ``count`` tensors of layers follow each other."""
    args = header.args
    shapes = tensor_shapes(dataclasses.replace(args, n_layers=1))
    shapes[ROTATIONS] = (2, args.max_seq_len, args.head_dim // 2)
    if not header.group_size:
        names = ["tok_embeddings.weight", NORMS[0], *ATTENTION, NORMS[1], *FEED_FORWARD, "norm.weight", ROTATIONS]
    else:
        names = [*NORMS, "norm.weight", "tok_embeddings.weight", *ATTENTION, *FEED_FORWARD]
    if not args.tie_embeddings:
        names.append("output.weight")
    for name in names:
        yield name, shapes[name.format(0)], args.n_layers if "{}" in name else 1


def tensor_order(header: Header) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, shape) of each tensor in the order of the file."""
    for name, shape, count in layout(header):
        for i in range(count):
            yield name.format(i), shape


def bytes_of(shape: tuple[int, ...], group_size: int) -> int:
    count = math.prod(shape)
    if group_size and len(shape) > 1:
        return count + 4 * (count // group_size)  # a byte for each number, a float32 for each group
    return 4 * count


def parse_header(raw: bytes) -> Header:
    """Raises ValueError if the bytes are not a header of this format."""
    raw = raw.ljust(HEADER_BYTES, b"\0")
    magic, version = struct.unpack_from("<Ii", raw)
    if magic != MAGIC:
        counts = struct.unpack_from("<7i", raw)
        return Header(_args_from_counts(counts, counts[5] > 0), 28, 0)
    if version != 2:
        raise ValueError(f"version {version}: supported are 0 and 2")
    args = _args_from_counts(struct.unpack_from("<7i", raw, 8), tied=bool(raw[36]))
    (group_size,) = struct.unpack_from("<i", raw, 37)
    if group_size < 1 or math.gcd(group_size, *row_lengths(args)) != group_size:
        raise ValueError(f"group size {group_size} does not divide the rows of every matrix")
    return Header(args, HEADER_BYTES, group_size)


def _args_from_counts(counts: Sequence[int], tied: bool) -> ModelArgs:
    values = dict(zip(HEADER_COUNTS, counts))
    values["vocab_size"] = abs(values["vocab_size"])
    return ModelArgs(**values, norm_eps=NORM_EPS, rope_theta=10000.0, tie_embeddings=tied)  # type: ignore[arg-type]


def row_lengths(args: ModelArgs) -> tuple[int, ...]:
    """The lengths of the rows of all matrices."""
    return args.dim, args.hidden_dim, args.n_heads * args.head_dim


def save(model: Transformer, path: Path) -> None:
    """Write version 0, float32, for llama2.c's run.c, or version 2, int8, for runq.c if the model is int8.

    Raises ValueError if the format cannot express the architecture, or the groups of the int8 matrices.
    """
    args, state = model.args, model.state_dict()
    header = header_of(args, _group_of(model))
    table = torch.stack((model.freqs_cis.real, model.freqs_cis.imag))  # (2, max_seq_len, D/2)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(header)
            for name, _ in tensor_order(parse_header(header)):
                tensor = table if name == ROTATIONS else state[name]
                if tensor.dtype == torch.int8:
                    # Not tofile, which ignores a full disk.
                    file.write(np.ascontiguousarray(tensor.cpu().numpy()).data)
                    tensor = state[name.removesuffix("weight") + "scales"]
                file.write(np.ascontiguousarray(tensor.detach().cpu().float().numpy(), "<f4").data)

    write_atomically(path, write)


def _group_of(model: Transformer) -> int:
    """The number of weights that share a scale; 0 without scales. Raises ValueError if matrices differ in it."""
    matrices = [module for module in model.modules() if isinstance(module, Int8Matrix)]
    groups = {matrix.weight.shape[1] // matrix.scales.shape[1] for matrix in matrices}
    if len(groups) > 1:
        raise ValueError(
            f"the groups have sizes {sorted(groups)}, but the format has a single size: quantize with a ``group_size`` "
            "that divides the rows of every matrix"
        )
    return groups.pop() if groups else 0


def header_of(args: ModelArgs, group_size: int = 0) -> bytes:
    """The header of version 0, or of version 2 if there is a group size.

    Raises ValueError if it cannot express ``args``.
    """
    counts = [getattr(args, name) for name in HEADER_COUNTS]
    if group_size:
        raw = struct.pack("<Ii7iBi", MAGIC, 2, *counts, args.tie_embeddings, group_size).ljust(HEADER_BYTES, b"\0")
    else:
        if not args.tie_embeddings:
            counts[HEADER_COUNTS.index("vocab_size")] *= -1
        raw = struct.pack("<7i", *counts)
    check_read_back(args, parse_header(raw).args, "llama2.c's format")
    return raw


def group_size_for(args: ModelArgs) -> int:
    """The group size for a file that we write: 64, or a divisor of it that also divides the length of every row."""
    return math.gcd(LARGEST_GROUP, *row_lengths(args))
