"""Read, write and memory-map safetensors files."""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..cli.files import check_is_file, write_atomically

# The format's names of the dtypes that weights may have
WEIGHT_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class TensorEntry(NamedTuple):
    """The entry of one tensor in the header of a safetensors file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


@contextmanager
def open_tensors(path: Path) -> Iterator[safe_open]:
    """Map a safetensors file: ``get_tensor`` returns views of the mapping, and nothing is read before it is used.

    The mapping is private, so changing a tensor does not change the file. It lasts as long as any of its tensors.
    Raises ValueError if the file is not valid.
    """
    check_is_file(path)
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, TypeError):  # TypeError for a size of 2**63, which an empty tensor may have
        raise ValueError(f"{path} is corrupt or cut short: get the file again") from None


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read dtypes and shapes of the tensors in a safetensors file, without reading the tensors."""
    entries = {}
    with open_tensors(path) as file:
        for name in file.keys():  # noqa: SIM118  it is not a dict
            part = file.get_slice(name)
            entries[name] = TensorEntry(path, name, part.get_dtype(), tuple(part.get_shape()))
    return entries


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Map all tensors of a safetensors file. Raises ValueError if it is corrupt."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a dict


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata that ``save_tensors`` wrote."""
    with open_tensors(path) as file:
        return file.metadata() or {}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. Tensors are made contiguous. Two tensors must not share memory."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode  # by the user's umask; the library would make the file private
        try:
            save_file(contiguous, temporary, metadata)
        except SafetensorError as error:  # the library raises this if the disk is full
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code), str(path)) from None
        temporary.chmod(mode)

    write_atomically(path, write)
