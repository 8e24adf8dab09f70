"""Tensors on disk: safetensors files."""

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

TYPES = {
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
    """What a safetensors header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # the tensor's first byte in the file


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Names, dtypes and shapes of a safetensors file, which the library checks against its size. Reads no tensor.

    The format: 8 bytes with the header's length, a JSON header, then the data. Raises ValueError on anything else.
    """
    check_is_file(path)
    with _explained(path), safe_open(path, "numpy"):  # refuses whatever is wrong, but does not tell where tensors are
        pass
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:  # in a field that the library ignores
        raise ValueError(f"{path} is corrupt ({error}): get the file again") from None
    header.pop("__metadata__", None)
    entries = {}
    for name, info in header.items():
        if info["dtype"] not in TYPES:
            raise ValueError(f"{path} stores {short_repr(name)} as {info['dtype']}: known are {', '.join(TYPES)}")
        entries[name] = TensorEntry(info["dtype"], tuple(info["shape"]), 8 + length + info["data_offsets"][0])
    return entries


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. Tensors are made contiguous; two names of one storage are the caller's mistake."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the user's umask allows; the library would keep all others out
        try:
            save_file(whole, temporary, metadata)
        except SafetensorError as error:  # a full disk, but neither an OSError nor with the file's name
            raise OSError(errno.EIO, str(error), str(path)) from None
        temporary.chmod(mode)

    write_atomically(path, write)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """The library's errors as a ValueError that names the file."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is corrupt ({error}): get the file again") from None


def map_tensor(path: Path, entry: TensorEntry) -> Tensor:
    """One tensor of a safetensors file, mapped into memory: nothing is read before it is used.

    Each has a mapping of its own, so that what was read of it leaves the memory with it. The library maps the whole
    file: held open, all that was read stays (1.66 GB at the peak instead of 1.11 for 0.57 GB of bfloat16 converted to
    float32); opened for each of the 180 tensors, 102 GB of addresses are reserved instead of 1.2.
    """
    dtype = TYPES[entry.dtype]
    size = dtype.itemsize * math.prod(entry.shape)
    if not size:  # no file can be mapped for nothing
        return torch.empty(entry.shape, dtype=dtype)
    skipped = entry.start % mmap.ALLOCATIONGRANULARITY  # a mapping begins at a page
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), skipped + size, access=mmap.ACCESS_COPY, offset=entry.start - skipped)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} has become shorter since it was opened ({error}): get the file again") from None
    return torch.frombuffer(content, dtype=dtype, offset=skipped, count=math.prod(entry.shape)).view(entry.shape)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU. Raises ValueError on a corrupt one."""
    read_header(path)
    with _explained(path):
        return load_file(path)


def read_metadata(path: Path) -> dict[str, str]:
    """The texts that ``save_tensors`` put beside the tensors."""
    check_is_file(path)
    with _explained(path), safe_open(path, "numpy") as file:
        return file.metadata() or {}
