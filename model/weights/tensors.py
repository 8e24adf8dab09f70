"""Tensors on disk: safetensors files, checked before they are opened."""

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

from ..cli.files import TABLE, TEXT, check_fields, check_is_file, shortened, write_atomically

MAX_HEADER = 100_000_000  # bytes of JSON that the safetensors format allows

TYPES = {
    **{"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16},
    **{"U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
}


class Entry(NamedTuple):
    """What a safetensors header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # the tensor's first byte in the file


def read_header(path: Path) -> dict[str, Entry]:
    """Names, dtypes and shapes of a safetensors file, checked against its size. Reads the header only.

    The format: 8 bytes with the header's length, a JSON header, then the data; ``data_offsets`` of all tensors
    together cover the data without gap or overlap. Raises ValueError on anything else.
    """
    check_is_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
            raise ValueError(f"{path} is not a safetensors file, or is cut short ({size} bytes): get it again")
        raw = file.read(length)
    try:
        header = json.loads(raw, parse_constant=_refuse_constant)
        check_fields(header, dict.fromkeys(header, TABLE))
        metadata = header.pop("__metadata__", None) or {}
        check_fields(metadata, dict.fromkeys(metadata, TEXT))
        entries = {
            name: Entry(info["dtype"], tuple(info["shape"]), 8 + length + info["data_offsets"][0])
            for name, info in header.items()
        }
        spans = sorted((*info["data_offsets"], name) for name, info in header.items())
        _check_spans(entries, spans, size - 8 - length)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} has a corrupt header ({error}): get the file again") from None
    return entries


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _check_spans(entries: Mapping[str, Entry], spans: list[tuple[int, int, str]], size: int) -> None:
    position = 0
    for begin, end, name in spans:
        dtype, shape, _ = entries[name]
        if dtype not in TYPES or any(type(n) is not int or not 0 <= n < 2**63 for n in (*shape, begin, end)):
            raise ValueError(
                f"{name} has dtype {shortened(dtype)}, shape {shortened(shape)}, bytes {shortened([begin, end])}"
            )
        if begin != position or end - begin != TYPES[dtype].itemsize * math.prod(shape):
            raise ValueError(f"{name} of {shape} {dtype} does not fit bytes {begin} to {end}")
        position = end
    if position != size:
        raise ValueError(f"it describes {position} bytes of data, the file has {size}")


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
    """What the library refuses in a file that looked sound here."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is corrupt ({error}): get the file again") from None


def map_tensor(path: Path, entry: Entry) -> Tensor:
    """One tensor of a safetensors file, mapped into memory: nothing is read before it is used.

    Each has a mapping of its own, so that what was read of it leaves the memory with it.
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
    read_header(path)
    with _explained(path), safe_open(path, "numpy") as file:
        return file.metadata() or {}
