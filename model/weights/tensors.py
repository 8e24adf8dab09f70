"""Read, write and memory-map safetensors files."""

import errno
import json
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..cli.files import check_is_file, short_repr, write_atomically

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class TensorEntry(NamedTuple):
    """The entry of one tensor in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # the tensor's first byte in the file


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read names, dtypes, shapes and offsets of the tensors in a safetensors file, without reading the tensors.

    The format is 8 bytes with the length of the header, a JSON header, then the data. Raises ValueError if the file is
    not valid.
    """
    check_is_file(path)
    # The library checks the file, including its size, but does not give the offsets of the tensors.
    with _name_file_in_errors(path), safe_open(path, "numpy"):
        pass
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:  # the library does not check all fields
        raise ValueError(f"{path} is corrupt ({error}): get the file again") from None
    header.pop("__metadata__", None)
    entries = {}
    for name, info in header.items():
        if info["dtype"] not in DTYPES:
            raise ValueError(f"{path} stores {short_repr(name)} as {info['dtype']}: supported are {', '.join(DTYPES)}")
        entries[name] = TensorEntry(info["dtype"], tuple(info["shape"]), 8 + length + info["data_offsets"][0])
    return entries


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. Tensors are made contiguous. Two tensors must not share memory."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode  # by the user's umask; the library would make the file private
        try:
            save_file(contiguous, temporary, metadata)
        except SafetensorError as error:  # the library raises this if the disk is full
            raise OSError(errno.EIO, str(error), str(path)) from None
        temporary.chmod(mode)

    write_atomically(path, write)


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    """Turn the library's errors into a ValueError that names the file."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is corrupt ({error}): get the file again") from None


def map_tensor(path: Path, entry: TensorEntry) -> Tensor:
    """One tensor of a safetensors file, memory-mapped, so nothing is read before it is used.

    Each tensor has a separate mapping, so its memory is released with it. The library maps the whole file. If that
    mapping stays open, everything that was read stays in memory. If the whole file is mapped again for each tensor, a
    file of 0.57 GB with 180 tensors reserves 102 GB of address space.
    """
    dtype = DTYPES[entry.dtype]
    size = dtype.itemsize * math.prod(entry.shape)
    if not size:  # mmap does not support empty mappings
        return torch.empty(entry.shape, dtype=dtype)
    skipped = entry.start % mmap.ALLOCATIONGRANULARITY  # because a mapping must begin at a page
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), skipped + size, access=mmap.ACCESS_COPY, offset=entry.start - skipped)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} has become shorter since it was opened ({error}): get the file again") from None
    return torch.frombuffer(content, dtype=dtype, offset=skipped, count=math.prod(entry.shape)).view(entry.shape)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file to the CPU. Raises ValueError if it is corrupt."""
    read_header(path)
    with _name_file_in_errors(path):
        return load_file(path)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata that ``save_tensors`` wrote."""
    check_is_file(path)
    with _name_file_in_errors(path), safe_open(path, "numpy") as file:
        return file.metadata() or {}
