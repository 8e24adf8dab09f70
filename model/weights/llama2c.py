"""llama2.c's .bin files: a header of seven counts, then the tensors, grouped by kind, all little-endian.

Version 0 begins with the counts; a negative vocabulary size means that the embedding is not tied to the output matrix.
Versions 1 (float32) and 2 (Q8_0, int8) begin with the magic number 0x616B3432 ("ak42") and the version, pad the header
to 256 bytes and store the norms first. The format has no field for RoPE's base, which is 10000, nor for the epsilon of
the norms, which is 1e-5.
"""

import dataclasses
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cli.files import write_atomically
from ..config import ModelArgs
from ..transformer import Transformer
from .int8 import Quantized
from .layout import check_read_back, tensor_shapes

MAGIC, HEADER_BYTES = 0x616B3432, 256
HEADER_COUNTS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
NORM_EPS = 1e-5
LARGEST_GROUP = 64  # as in llama2.c's export.py
ROTATIONS = "rope"  # version 0 stores cosines and sines between the norm and the output matrix; no program reads them
ATTENTION = tuple(f"attention.{w}.weight" for w in ("wq", "wk", "wv", "wo"))
FEED_FORWARD = tuple(f"feed_forward.{w}.weight" for w in ("w1", "w2", "w3"))


class Header(NamedTuple):
    version: int
    args: ModelArgs
    start: int  # the first byte of the data
    group_size: int  # how many numbers share a scale; 0 without quantization


class Llama2c:
    """An opened file: the header has been read and compared with the size of the file."""

    subclass_name: str | None = None
    dtype = torch.float32  # of ``tensors``, also if the file is quantized

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = open_header(path)
        self.args = self.header.args
        size, expected = path.stat().st_size, file_size(self.header)
        if size != expected:
            raise ValueError(
                f"{path} has {size} bytes, its header announces {expected}: not a llama2.c file, or cut short"
            )
        self.shapes = tensor_shapes(self.args)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, float32 tensor) in the order of the file."""
        for name, tensor in self.stored_tensors():
            yield name, tensor.dequantize(torch.float32) if isinstance(tensor, Quantized) else tensor

    def stored_tensors(self) -> Iterator[tuple[str, Tensor | Quantized]]:
        """Yield the tensors as they are stored: quantized in version 2, unless a group spans two rows."""
        group_size = self.header.group_size
        row_lengths = {shape[-1] for shape in self.shapes.values() if len(shape) > 1}
        groups_fit_rows = group_size and all(length % group_size == 0 for length in row_lengths)
        with self.path.open("rb") as file:
            file.seek(self.header.start)
            for name, shape in tensor_order(self.header):
                if name == ROTATIONS:
                    file.seek(bytes_of(name, shape, self.header), 1)
                elif group_size and len(shape) > 1 and groups_fit_rows:
                    yield name, _read_quantized(file, shape, group_size)
                elif group_size and len(shape) > 1:
                    quantized = _read_quantized(file, (math.prod(shape) // group_size, group_size), group_size)
                    yield name, quantized.dequantize(torch.float32).view(shape)
                else:
                    yield name, _read_float(file, shape)


def is_model(path: Path) -> bool:
    """Whether the file is a llama2.c model, judged by its header and its size."""
    try:
        Llama2c(path)
    except (ValueError, OSError):
        return False
    return True


def find_model(path: Path) -> Path | None:
    """The llama2.c model at ``path``: the file itself, or the only one in a directory; None if there is none.

    Raises ValueError if a directory has several.
    """
    files = sorted(path.glob("*.bin")) if path.is_dir() else [path]
    models = [file for file in files if file.is_file() and is_model(file)]
    if len(models) > 1:
        names = ", ".join(file.name for file in models)
        raise ValueError(f"{path} contains {len(models)} llama2.c models, {names}: name one of them")
    return models[0] if models else None


def tensor_order(header: Header, layers: int | None = None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order of the file. ``layers`` replaces the number of layers in the header."""
    args = header.args if layers is None else dataclasses.replace(header.args, n_layers=layers)
    shapes = tensor_shapes(args)

    def of_all_layers(*names: str) -> list[str]:
        return [f"layers.{i}.{name}" for name in names for i in range(args.n_layers)]

    if header.version == 0:
        names = ["tok_embeddings.weight", *of_all_layers("attention_norm.weight", *ATTENTION, "ffn_norm.weight")]
        names += [*of_all_layers(*FEED_FORWARD), "norm.weight", ROTATIONS]
    else:
        names = [*of_all_layers("attention_norm.weight", "ffn_norm.weight"), "norm.weight", "tok_embeddings.weight"]
        names += of_all_layers(*ATTENTION, *FEED_FORWARD)
    if not args.tie_embeddings:
        names.append("output.weight")
    shapes[ROTATIONS] = (2, args.max_seq_len, args.head_dim // 2)
    for name in names:
        yield name, shapes[name]


def file_size(header: Header) -> int:
    """The expected size in bytes.

    A layer's size is the size of a file with two layers minus that of a file with one layer. The layers are not summed
    up one by one, because a header may claim millions of them.
    """
    one = sum(bytes_of(name, shape, header) for name, shape in tensor_order(header, layers=1))
    two = sum(bytes_of(name, shape, header) for name, shape in tensor_order(header, layers=2))
    return header.start + one + (header.args.n_layers - 1) * (two - one)


def bytes_of(name: str, shape: tuple[int, ...], header: Header) -> int:
    count = math.prod(shape)
    if header.group_size and len(shape) > 1:
        return count + 4 * (count // header.group_size)  # a byte for each number, a float32 for each group
    return 4 * count


def open_header(path: Path) -> Header:
    with path.open("rb") as file:
        raw = file.read(HEADER_BYTES)
    try:
        return parse_header(raw)
    except (ValueError, struct.error, IndexError) as error:
        raise ValueError(
            f"{path} is not a llama2.c model ({error}): give a .bin that export.py or convert.py wrote"
        ) from None


def parse_header(raw: bytes) -> Header:
    """Raises ValueError, struct.error or IndexError if the bytes are not a header of this format."""
    magic, version = struct.unpack_from("<Ii", raw)
    if magic != MAGIC:
        counts = struct.unpack_from("<7i", raw)
        return Header(0, _args_from_counts(counts, counts[5] > 0), 28, 0)
    if version not in (1, 2):
        raise ValueError(f"version {version}: supported are 0, 1 and 2")
    counts = struct.unpack_from("<7i", raw, 8)
    tied = bool(raw[36])
    group_size = struct.unpack_from("<i", raw, 37)[0] if version == 2 else 0
    args = _args_from_counts(counts, tied)
    matrices = [shape for shape in tensor_shapes(dataclasses.replace(args, n_layers=1)).values() if len(shape) > 1]
    if version == 2 and (group_size < 1 or any(math.prod(shape) % group_size for shape in matrices)):
        raise ValueError(f"group size {group_size} does not divide the matrices")
    return Header(version, args, HEADER_BYTES, group_size)


def _args_from_counts(counts: tuple[int, ...], tied: bool) -> ModelArgs:
    values = dict(zip(HEADER_COUNTS, counts))
    values["vocab_size"] = abs(values["vocab_size"])
    return ModelArgs(**values, norm_eps=NORM_EPS, rope_theta=10000.0, tie_embeddings=tied)  # type: ignore[arg-type]


def _read_float(file: BinaryIO, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.fromfile(file, "<f4", math.prod(shape))).view(shape)


def _read_quantized(file: BinaryIO, shape: tuple[int, ...], group_size: int) -> Quantized:
    """Q8_0: all numbers as int8, row by row, then a float32 scale for every ``group_size`` of them."""
    numbers = torch.from_numpy(np.fromfile(file, np.int8, math.prod(shape))).view(shape)
    scales = torch.from_numpy(np.fromfile(file, "<f4", math.prod(shape) // group_size)).view(shape[0], -1)
    return Quantized(numbers, scales)


def save(model: Transformer, path: Path) -> None:
    """Write version 0, float32, for llama2.c's run.c, or version 2, int8, for runq.c if the model is int8.

    Raises ValueError if the format cannot express the architecture, or the groups of the int8 matrices.
    """
    args, state = model.args, model.state_dict()
    header = header_of(args, _group_of(state))
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


def _group_of(state: Mapping[str, Tensor]) -> int:
    """The number of weights that share a scale; 0 without scales. Raises ValueError if matrices differ in it."""
    groups = set()
    for name, scales in state.items():
        if name.endswith(".scales"):
            weight = state[name.removesuffix("scales") + "weight"]
            groups.add(weight.shape[1] // scales.shape[1])
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
    signed = args.vocab_size if args.tie_embeddings or group_size else -args.vocab_size
    counts = {name: getattr(args, name) for name in HEADER_COUNTS}
    counts["vocab_size"] = signed
    for name, count in counts.items():
        if abs(count) >= 2**31:
            raise ValueError(f"{name} is {abs(count)}: llama2.c's format holds numbers below 2**31")
    raw = struct.pack("<7i", *counts.values())
    if group_size:
        raw = struct.pack("<Ii", MAGIC, 2) + raw + struct.pack("<Bi", args.tie_embeddings, group_size)
        raw = raw.ljust(HEADER_BYTES, b"\0")
    check_read_back(args, parse_header(raw).args, "llama2.c's format")
    return raw


def group_size_for(args: ModelArgs) -> int:
    """The group size for a file that we write: 64, or a divisor of it that also divides the length of every row."""
    return math.gcd(LARGEST_GROUP, args.dim, args.hidden_dim, args.n_heads * args.head_dim)
