"""Any checkpoint, told by looking at the path: first what can be checked in no time, then the weights."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, device, dtype
from torch.overrides import TorchFunctionMode

from ..config import ModelArgs
from ..transformer import Transformer
from . import huggingface
from .huggingface import HuggingFace
from .llama2c import Llama2c
from .meta import Meta


class Checkpoint(Protocol):
    path: Path
    args: ModelArgs

    def tensors(self) -> "Iterator[tuple[str, Tensor]]":
        """Every tensor of ``Transformer(args)`` once, under its own name and in the file's dtype, for a moment only."""
        ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Raises ValueError when the path holds nothing that this network can be. Reads no weights."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist: give a run, Hugging Face or Meta directory, or a llama2.c .bin")
    if path.is_dir():
        if (path / "config.json").is_file():
            return HuggingFace(path)
        if (path / "params.json").is_file():
            return Meta(path)
        raise ValueError(f"{path} has neither config.json nor params.json: give a run, Hugging Face or Meta directory")
    if path.suffix in (".safetensors", ".pth", ".pt", ".json", ".gguf"):
        raise ValueError(f"{path} is one file of a model: give the directory with its configuration")
    return Llama2c(path)


def check(path: str | Path, tokenizer: str | Path | None = None) -> None:
    """Whatever of a checkpoint can be found wrong without torch: its tokenizer, or the one given, is compared, too."""
    from .tokenizers import find_tokenizer, load_tokenizer

    args, path = open_checkpoint(path).args, Path(path)
    if tokenizer is not None or (path.is_dir() and find_tokenizer(path) is not None):
        load_tokenizer(tokenizer or path, args.vocab_size)


def load_args(path: str | Path) -> ModelArgs:
    """The architecture only. Without torch, but for a Meta directory that leaves its vocabulary size open."""
    return open_checkpoint(path).args


def load_model(
    path: str | Path, device: "str | device" = "cpu", dtype: "dtype | Literal['stored'] | None" = None
) -> "Transformer":
    """A network in eval mode. ``dtype`` None is float32, exact whatever the file holds; "stored" keeps the file's.

    No weight is ever random: the network is built without memory, and takes the tensors one by one. The peak is the
    network's size and one tensor. Warns of weights that are not finite.
    """
    checkpoint = open_checkpoint(path)
    import torch

    model = empty_network(checkpoint.args)
    wanted = None if dtype == "stored" else dtype or torch.float32
    state, broken = {}, []
    for name, tensor in checkpoint.tensors():
        state[name] = tensor = tensor.to(device, wanted, copy=True)  # it may be a window on the file
        # A sum is finite only if all are; where it is not, it may have overflowed: look closely, some rows at a time.
        if not tensor.sum().isfinite() and not all(rows.isfinite().all() for rows in tensor.split(256)):
            broken.append(name)
        del tensor
    if broken:
        warnings.warn(f"{path}: {len(broken)} tensors hold NaN or infinity, such as {broken[0]}", stacklevel=2)
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True).eval()


def save_model(
    model: "Transformer", directory: str | Path, *, dtype: "dtype | None" = None, ids: Mapping[str, Any] | None = None
) -> None:
    """Write config.json and model.safetensors, in the Hugging Face layout, into a directory that may be new.

    ``dtype`` None keeps the weights'. ``ids`` are bos_token_id and eos_token_id; by default those that
    ``save_tokenizer`` put there before. Raises ValueError for a network that is not this one.
    """
    from torch import equal

    from ..rope import precompute_freqs_cis
    from ..transformer import Transformer
    from .tokenizers import read_ids

    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if type(model) is not Transformer:
        raise ValueError(f"a {type(model).__name__} is not a Llama: other programs would take it for one")
    args = model.args
    table = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta, args.rope_scaling)
    if not equal(model.freqs_cis.to(table), table):
        raise ValueError("freqs_cis is not what rope_theta and rope_scaling give: config.json has no words for it")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    huggingface.save(model, directory, dtype, read_ids(directory) if ids is None else ids)


class _NoInit(TorchFunctionMode):
    """Leaves out ``nn.init``: random numbers for tensors without memory would cost seconds of imports inside torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def empty_network(args: ModelArgs) -> Transformer:
    """On the meta device: shapes and the rotation table, no weights."""
    with torch.device("meta"), _NoInit():
        return Transformer(args)


RUNS = Path("runs")


def newest_run(holding: str = "model.safetensors") -> Path:
    """The run below ``runs/`` whose file ``holding`` was written last. Raises ValueError when there is none."""
    found = sorted(RUNS.glob(f"*/{holding}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(f"there is no run in {RUNS}/ yet: start one with `python train.py`, or name a directory")
    return found[-1].parent
