"""Open and load checkpoints of any format, recognized by their files; save them in Hugging Face's."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from ..config import ModelArgs
from ..rope import precompute_freqs_cis
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from . import huggingface
from .huggingface import HuggingFace
from .int8 import Quantized, check_device, load_matrices
from .layout import check_context, check_shapes
from .llama2c import Llama2c, find_model
from .memory import gather
from .meta import Meta
from .tokenizers import load_tokenizer, read_ids
from .variants import check_rebuilds, make_network, name_of

MODEL_CONFIGS = ("config.json", "params.json")  # of Hugging Face and Meta; a directory with one of them is a model
RUNS = Path("runs")

# ``tensors`` yields (name, tensor), memory-mapped if the format allows it; ``dtype`` is that of the matrices,
# ``shapes`` are those of all tensors. ``subclass_name`` is module:Class if the weights are those of a subclass of
# Transformer.
Format = HuggingFace | Meta | Llama2c


class Checkpoint:
    """An opened checkpoint: its configuration and headers have been read and checked, its weights not.

    Raises ValueError if the path is not a checkpoint, or one that this network does not support.
    """

    def __init__(self, path: str | Path) -> None:
        self._format = _open_format(Path(path))
        self.path = self._format.path
        self.args = self._format.args
        self.dtype = self._format.dtype  # in which the weights are stored; float32 if they are stored in int8
        self.subclass_name = self._format.subclass_name
        check_context(self.args, self.path)

    def tokenizer(self, file: str | Path | None = None) -> Tokenizer:
        """Load the tokenizer in ``file`` or beside the weights. Raises ValueError if the vocabulary sizes differ."""
        return load_tokenizer(file or self.path, self.args.vocab_size)

    def model(
        self,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | Literal["stored"] | None = None,
        network: type[Transformer] | None = None,
        int8: bool = False,
        group_size: int | None = None,
        check_finite: bool = True,
    ) -> Transformer:
        """Load the network; see ``load_model``.

        With ``int8``, each group of ``group_size`` neighbours in a row shares a scale; by default the whole row does.
        A llama2.c file that is already in int8 keeps its own groups.
        """
        network = network or Transformer
        if self.subclass_name and name_of(network) != self.subclass_name:
            raise ValueError(
                f"{self.path} holds the weights of {self.subclass_name}: they load only with the same network; give "
                f"--network {self.subclass_name}"
            )
        new_dtype: torch.dtype | None = None  # keeps the file's
        if dtype != "stored":
            new_dtype = dtype or torch.float32
        if int8 and network is not Transformer:
            raise ValueError(f"int8 is for the plain network, not for {name_of(network)}: leave it out")
        if int8:
            check_device(torch.device(device))
            model = make_network(network, self.args)
            load_matrices(model, self._format.tensors(), device, new_dtype, group_size)
        else:
            model = self._load(make_network(network, self.args), device, new_dtype)
        if torch.device(device).type == "cpu":
            gather(model)
        if check_finite:
            check_weights_finite(model, self.path)
        return model.eval()

    def _load(self, model: Transformer, device: str | torch.device, dtype: torch.dtype | None) -> Transformer:
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        check_shapes(expected, self._format.shapes, self.path)  # a subclass may have other tensors
        state = {}
        for name, tensor in self._format.tensors():
            if isinstance(tensor, Quantized):
                tensor = tensor.dequantize(torch.float32)
            state[name] = tensor.to(device, dtype if tensor.is_floating_point() else None)
            del tensor  # before the next one is read, so that only one is in memory
        model.load_state_dict(state, assign=True)
        return model.to(device)  # what a subclass has beside its state


def check_weights_finite(model: Transformer, path: Path) -> None:
    """Raise ValueError for the first tensor with NaN or infinity. A quantized matrix has it in its scales."""
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not all(bound.isfinite() for bound in tensor.aminmax()):  # NaN is both bounds of a tensor that contains it
            too_large = ", or load them in float32 if their numbers are too large for float16"
            raise ValueError(
                f"{path}: {name} contains NaN or infinity: get the weights again"
                + (too_large if tensor.dtype == torch.float16 else "")
            )


def _open_format(path: Path) -> Format:
    if not os.path.exists(path):  # Path.exists raises OSError for a name that is too long
        raise ValueError(
            f"{path} does not exist: {_advice(path)}give a run, Hugging Face or Meta directory, or a llama2.c .bin"
        )
    if (path / "config.json").is_file():
        return HuggingFace(path)
    if (path / "params.json").is_file():
        return Meta(path)
    if path.is_dir():
        model, others = find_model(path), models_in(path)
        if model is None and others:
            raise ValueError(f"{path} is not a model, but contains {len(others)}: give one, for example {others[0]}")
        if model is None:
            raise ValueError(
                f"{path} has neither config.json nor params.json: give a run, Hugging Face or Meta directory"
            )
        return model
    if path.suffix == ".gguf":
        raise ValueError(f"{path} is a GGUF file, which is not supported: give the directory that it was made from")
    if path.suffix in (".safetensors", ".pth", ".pt", ".json"):
        raise ValueError(f"{path} is one file of a model: give the directory, {path.parent}")
    if not path.is_file():  # opening a pipe would block
        raise ValueError(f"{path} is neither a file nor a directory: give a directory, or a llama2.c .bin")
    return Llama2c(path)


def _advice(path: Path) -> str:
    """The beginning of advice for a path that does not exist.

    It names the run with the most similar name, or the command for a model on the Hugging Face Hub, whose name is
    "owner/model". Otherwise it is "".
    """
    runs = {run.name: run for run in models_in(RUNS)}
    close = difflib.get_close_matches(path.name, runs, n=1)
    if close:
        return f"did you mean {runs[close[0]]}? Otherwise "
    if len(path.parts) == 2 and not path.is_absolute() and not path.parent.exists():
        return (
            f"if it is a model on the Hugging Face Hub, run `pip install huggingface_hub tokenizers` and "
            f"`hf download {path.as_posix()} --local-dir {path.name}`, then give {path.name}; otherwise "
        )
    return ""


def models_in(directory: Path) -> list[Path]:
    """The models one level below a directory."""
    return sorted(path.parent for name in MODEL_CONFIGS for path in directory.glob(f"*/{name}"))


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a run, Hugging Face or Meta directory, or a llama2.c .bin, without reading its weights."""
    return Checkpoint(path)


def load_args(path: str | Path) -> ModelArgs:
    """The architecture of a checkpoint."""
    return open_checkpoint(path).args


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | Literal["stored"] | None = None,
    network: type[Transformer] | None = None,
    int8: bool = False,
    check_finite: bool = True,
) -> Transformer:
    """Load a network in eval mode. ``dtype`` None converts to float32, which is exact; "stored" keeps the file's dtype.

    With ``int8``, for generating and scoring, the matrices are held in int8, and ``dtype`` is for everything else.

    The weights of a subclass of ``Transformer`` need that class as ``network``. A plain model's weights can be loaded
    into any subclass with the same tensors. Tensors are read one by one, so the peak memory is the network and one
    tensor; a subclass is first built in full, which takes the same memory once more.

    Raises ValueError if the tensors do not match the configuration, or if one contains NaN or infinity. With
    ``check_finite=False`` the latter is not checked.
    """
    return open_checkpoint(path).model(device, dtype, network, int8, check_finite=check_finite)


def save_model(
    model: Transformer, directory: str | Path, *, dtype: torch.dtype | None = None, ids: Mapping[str, Any] | None = None
) -> None:
    """Write config.json and model.safetensors into a directory, which is created if necessary.

    The plain network is written in the Hugging Face layout. For a subclass, config.json has its name, ``module:Class``,
    and only that class can load it. ``dtype`` None keeps the dtype of the weights. ``ids`` are bos_token_id and
    eos_token_id, by default those that are in the directory already, as from ``save_tokenizer``. Raises ValueError if
    config.json cannot express the network.
    """
    model = getattr(model, "_orig_mod", model)  # the module that torch.compile has wrapped
    check_savable(model)
    write_model(model, directory, dtype=dtype, ids=ids)


def check_savable(model: Transformer) -> None:
    """Raise ValueError if config.json cannot express the network: ``load_model`` would build a different one."""
    args = model.args
    if type(model) is Transformer:
        table = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta, args.rope_scaling)
        if not torch.equal(model.freqs_cis.to(table), table):
            raise ValueError(
                "freqs_cis is not the table of rope_theta and rope_scaling: config.json cannot express another one"
            )
    else:
        check_rebuilds(model)


def write_model(
    model: Transformer, directory: str | Path, *, dtype: torch.dtype | None = None, ids: Mapping[str, Any] | None = None
) -> None:
    """``save_model`` without its checks, for a model that is saved repeatedly and was checked once."""
    directory = Path(directory)
    huggingface.save(model, directory, dtype, read_ids(directory) if ids is None else ids)


def newest_run(file_name: str = "model.safetensors") -> Path:
    """The run below ``runs/`` whose ``file_name`` was written last. Raises ValueError if there is none."""
    files = sorted(RUNS.glob(f"*/{file_name}"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ValueError(f"there is no run in {RUNS}/ yet: start one with `python train.py`, or name a directory")
    return files[-1].parent
