"""A checkpoint of any format, recognized by its files: opened once, for its architecture, tokenizer and weights."""

import difflib
import errno
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..cli import script_command
from ..config import ModelArgs
from ..rope import precompute_freqs_cis
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from . import huggingface
from .huggingface import HuggingFace
from .int8 import Quantized, check_device, put_in, quantize
from .layout import Shapes, check_context, compare
from .llama2c import Llama2c, find_model
from .meta import Meta
from .tokenizers import find_tokenizer, load_tokenizer, read_ids
from .variants import check_rebuilds, make_network, name_of

# What stays on the CPU in the file's dtype is the file itself, mapped into memory: loading copies nothing, and writing
# to a weight does not reach the file. Windows does not let a file be replaced while it is mapped.
COPIED = sys.platform == "win32"
CONFIGURATIONS = ("config.json", "params.json")  # of Hugging Face and Meta: what makes a directory a model
RUNS = Path("runs")
MOST_LISTED = 10  # models of a directory that a message names


class Format(Protocol):
    """What opening a path of some format gives. No weights have been read yet."""

    args: ModelArgs
    network: str | None  # the module:Class of a subclass of Transformer
    shapes: Shapes  # of ``tensors``

    @property
    def dtype(self) -> torch.dtype:
        """In which the matrices are stored."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the state dict once, under the network's name and in the file's dtype, or a window on it."""
        ...


class Checkpoint:
    """An opened path: its configuration and headers are read and compared with each other, its weights are not.

    Raises ValueError when the path holds nothing that this network can be.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _locate(Path(path))
        self._format = _open_format(self.path)
        self.args = self._format.args
        check_context(self.args, self.path)
        self.network = self._format.network

    @property
    def dtype(self) -> torch.dtype:
        """In which the weights are stored."""
        return self._format.dtype

    def tie_equal_matrices(self) -> None:
        """Keep a tie that the format cannot express, which is Meta's. Reads both matrices."""
        if isinstance(self._format, Meta):
            self._format.tie_equal_matrices()
            self.args = self._format.args

    def tokenizer(self, file: str | Path | None = None) -> Tokenizer:
        """The one in ``file``, by default the one beside the weights. Raises ValueError when it is not this model's."""
        return load_tokenizer(file or self.path, self.args.vocab_size)

    def has_tokenizer(self) -> bool:
        return find_tokenizer(self.path) is not None

    def model(
        self,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | Literal["stored"] | None = None,
        network: type[Transformer] | None = None,
        int8: bool = False,
        group: int | None = None,
    ) -> Transformer:
        """As ``load_model``. With ``group``, so many numbers share a scale in int8, instead of a row."""
        if int8:
            check_device(torch.device(device))
        model = make_network(self._pick(network), self.args)
        wanted: torch.dtype | None = None  # keeps the file's
        if dtype != "stored":
            wanted = dtype or torch.float32
        state: dict[str, Tensor] = {}
        matrices: dict[str, Quantized] = {}
        broken = []
        for name, tensor in self._tensors(model, int8):
            if int8 and isinstance(tensor, Tensor) and tensor.ndim > 1:
                tensor = quantize(tensor, group)
            if isinstance(tensor, Quantized):
                matrices[name] = Quantized(*(part.to(device) for part in tensor))
                tensor = tensor.scales
            else:
                state[name] = tensor.to(device, wanted if tensor.is_floating_point() else None, copy=COPIED)
                if state[name] is tensor:  # still in the file, and not read yet: ``decode`` refuses NaN
                    continue
                tensor = state[name]
            if not is_finite(tensor):
                broken.append(name)
            del tensor
        if broken:
            warnings.warn(f"{self.path}: {len(broken)} tensors hold NaN or infinity, such as {broken[0]}", stacklevel=3)
        if int8:
            put_in(model, matrices, state["norm.weight"].dtype)
            state = model.state_dict() | state
        model.load_state_dict(state, assign=True)
        return model.to(device).requires_grad_(not int8).eval()

    def _tensors(self, model: Transformer, int8: bool) -> Iterator[tuple[str, Tensor | Quantized]]:
        """Those of the file; what it holds in eight bits stays so for ``int8``."""
        if int8 and type(model) is not Transformer:
            raise ValueError(f"int8 is for the plain network, not for {name_of(type(model))}: leave it out")
        if type(model) is not Transformer:
            expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
            compare(expected, self._format.shapes, self.path)
        if int8 and isinstance(self._format, Llama2c):
            yield from self._format.stored()
        else:
            yield from self._format.tensors()

    def _pick(self, network: type[Transformer] | None) -> type[Transformer]:
        """The class to load into: what the file names has to be passed; a plain Llama's weights may go into any."""
        if self.network is not None and (network is None or name_of(network) != self.network):
            given = f", not of {name_of(network) or 'model:Transformer'}" if network else ""
            raise ValueError(
                f"{self.path} holds the weights of {self.network}{given}: only that network can read them; "
                f"give it (--network {self.network})"
            )
        return network or Transformer


def is_finite(tensor: Tensor) -> bool:
    """A sum is finite only if all are; if it is not, it may have overflowed: look closely, rows at a time."""
    return bool(tensor.sum().isfinite()) or all(bool(rows.isfinite().all()) for rows in tensor.split(256))


def _locate(path: Path) -> Path:
    """The path itself, but for a directory of one llama2.c model: that file. Raises ValueError if it is no model."""
    if is_missing(path):
        raise ValueError(
            f"{path} does not exist: {_similar_run(path)}give a run, Hugging Face or Meta directory, or a llama2.c .bin"
        )
    if not path.is_dir() or any((path / name).is_file() for name in CONFIGURATIONS):
        return path
    found = find_model(path)
    if found:
        return found
    inside = models_in(path)
    if inside:
        names = ", ".join(model.name for model in inside[:MOST_LISTED])
        more = f" and {len(inside) - MOST_LISTED} more" if len(inside) > MOST_LISTED else ""
        raise ValueError(f"{path} is no model: name one in it, such as {inside[0]}; the newest first: {names}{more}")
    raise ValueError(f"{path} has neither config.json nor params.json: give a run, Hugging Face or Meta directory")


def is_missing(path: Path) -> bool:
    """Whether there is nothing of that name; a name too long for any file is missing, too."""
    try:
        return not path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return True
        raise


def _similar_run(path: Path) -> str:
    """The run below runs/ that was probably meant, as the beginning of a remedy."""
    runs = {run.name: run for run in models_in(RUNS)}
    close = difflib.get_close_matches(path.name, runs, n=1)
    return f"did you mean {runs[close[0]]}? Else " if close else ""


def models_in(directory: Path) -> list[Path]:
    """The models one level below a directory, the one that was written last first."""
    found = {path.parent for name in CONFIGURATIONS for path in directory.glob(f"*/{name}")}
    return sorted(found, key=_time_written, reverse=True)


def _time_written(directory: Path) -> float:
    return max((file.stat().st_mtime for file in directory.iterdir() if file.is_file()), default=0.0)


def _open_format(path: Path) -> Format:
    if path.is_dir():
        return HuggingFace(path) if (path / "config.json").is_file() else Meta(path)
    if path.suffix == ".gguf":
        raise ValueError(f"{path} is a GGUF file, which cannot be opened: give the directory that it was made from")
    if path.suffix in (".safetensors", ".pth", ".pt", ".json"):
        raise ValueError(f"{path} is one file of a model: give the directory, {path.parent}")
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"{path} is neither a file nor a directory: give a directory, or a llama2.c .bin")
    return Llama2c(path)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A run, Hugging Face or Meta directory, or a llama2.c .bin, opened once for all that is in it."""
    return Checkpoint(path)


def check(path: str | Path, tokenizer: str | Path | None = None) -> None:
    """Raise ValueError for whatever can be found wrong without reading weights, in the tokenizer, too."""
    checkpoint = open_checkpoint(path)
    if tokenizer is not None or checkpoint.has_tokenizer():
        checkpoint.tokenizer(tokenizer)


def load_args(path: str | Path) -> ModelArgs:
    """The architecture only."""
    return open_checkpoint(path).args


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | Literal["stored"] | None = None,
    network: type[Transformer] | None = None,
    int8: bool = False,
) -> Transformer:
    """A network in eval mode. ``dtype`` None is float32, exact whatever the file holds; "stored" keeps the file's.

    ``int8`` is for generating and scoring: the matrices are held in eight bits, and ``dtype`` is for all else.

    A directory of a subclass of ``Transformer`` needs that class as ``network``; a plain Llama's weights can be loaded
    into any subclass with the same tensors. No weight is ever random: the network takes the tensors one by one, and the
    peak is its size and one tensor. What keeps its dtype is the file itself, mapped into memory, but on Windows: it is
    read when it is used. Warns of weights that are not finite in what is converted; in what is not, generating refuses
    NaN. Raises ValueError for what does not fit.
    """
    return open_checkpoint(path).model(device, dtype, network, int8)


def save_model(
    model: Transformer, directory: str | Path, *, dtype: torch.dtype | None = None, ids: Mapping[str, Any] | None = None
) -> None:
    """Write config.json and model.safetensors into a directory that may be new.

    The plain network goes into the Hugging Face layout. A subclass is written under its name, ``module:Class``, and
    opened by that class alone. ``dtype`` None keeps the weights'. ``ids`` are bos_token_id and eos_token_id; by default
    those that ``save_tokenizer`` put there before. Raises ValueError for what config.json could not say.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    args = model.args
    if type(model) is Transformer:
        table = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta, args.rope_scaling)
        if not torch.equal(model.freqs_cis.to(table), table):
            raise ValueError("freqs_cis is not what rope_theta and rope_scaling give: config.json cannot express it")
    else:
        check_rebuilds(model)
    directory = Path(directory)
    huggingface.save(model, directory, dtype, read_ids(directory) if ids is None else ids)


def newest_run(holding: str = "model.safetensors") -> Path:
    """The run below ``runs/`` whose file ``holding`` was written last. Raises ValueError when there is none."""
    found = sorted(RUNS.glob(f"*/{holding}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(
            f"there is no run in {RUNS}/ yet: start one with `{script_command('train')}`, or name a directory"
        )
    return found[-1].parent
