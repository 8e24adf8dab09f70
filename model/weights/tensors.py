"""Weight files, memory-mapped: safetensors, read and written, and PyTorch's pickles, read without running code."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..cli.files import ZIP, kind_of_file, read_json, write_atomically

WEIGHTS = "model.safetensors"
# The format's names of the dtypes that weights may have
WEIGHT_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Stored(NamedTuple):
    """A tensor in a file: what the file's header says of it, and how to read it."""

    shape: tuple[int, ...]
    dtype: torch.dtype | str  # the format's name of a dtype that weights do not have
    read: Callable[[], Tensor]  # memory-mapped if the format allows it


@contextmanager
def open_tensors(path: Path) -> Iterator[safe_open]:
    """Map a safetensors file: ``get_tensor`` returns views of the mapping, and nothing is read before it is used.

    The mapping is private, so changing a tensor does not change the file. It lasts as long as any of its tensors.
    Raises ValueError if the file is not valid.
    """
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, TypeError) as error:  # TypeError for a size of 2**63, which an empty tensor may have
        if "not valid UTF-8" in str(error):
            raise ValueError(f"{path} has a name that is not UTF-8, so safetensors cannot open it: rename it") from None
        kind = kind_of_file(path) or "is corrupt or cut short: get the file again"
        raise ValueError(f"{path} {kind}") from None


def read_header(path: Path) -> dict[str, Stored]:
    """Read dtypes and shapes of the tensors in a safetensors file, without reading the tensors."""
    stored = {}
    with open_tensors(path) as file:
        for name in file.keys():  # noqa: SIM118  it is not a dict
            part = file.get_slice(name)
            dtype = WEIGHT_DTYPES.get(part.get_dtype(), part.get_dtype())
            stored[name] = Stored(tuple(part.get_shape()), dtype, partial(read_tensor, path, name))
    return stored


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a safetensors file. The file is mapped for it alone, so that its mapping ends with the tensor."""
    with open_tensors(path) as file:
        return file.get_tensor(name)


def mapped(tensor: Tensor) -> Stored:
    """A tensor that is memory-mapped already."""
    return Stored(tuple(tensor.shape), tensor.dtype, lambda: tensor)


def read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a .bin or .pth that PyTorch saved, memory-mapped.

    Raises ValueError if it pickles anything else, without running it.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        tensors = {str(name): tensor for name, tensor in state.items()}
        dense = all(tensor.layout == torch.strided and tensor.device.type == "cpu" for tensor in tensors.values())
        is_valid = dense and {tensor.dtype for tensor in tensors.values()} <= set(WEIGHT_DTYPES.values())
    except Exception:  # the commands of a damaged pickle can raise anything
        is_valid = False
    if not is_valid:
        kind = kind_of_file(path)
        if kind in (None, ZIP):  # a pickle of PyTorch is a zip archive
            kind = (
                "is damaged, or pickles more than a table of dense tensors in float32, bfloat16 or float16, and none "
                "of its code was run: get it again"
            )
        raise ValueError(f"{path} {kind}")
    return tensors


def weight_files(path: Path, name: str) -> list[Path]:
    """The file with this name in a directory, or those that its index lists; none if there is neither.

    Raises ValueError if files are missing.
    """
    index = path / f"{name}.index.json"
    if (path / name).is_file():
        return [path / name]
    files = [path / each for each in indexed_names(index)] if index.is_file() else []
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is missing, but {index.name} lists it: get all files of this model")
    return files


def indexed_names(index: Path) -> list[str]:
    """The files that an index lists. Raises ValueError for one in another directory, which an index never needs."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index} has no weight_map from tensors to files: get the file again")
    for name in names.values():
        if Path(name).name != name:
            raise ValueError(f"{index} lists {name!r}: the files of a model must be beside their index; get it again")
    return sorted(set(names.values()))


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
