"""Checkpoints: opened, loaded and saved. Run directories are Hugging Face directories.

A directory has config.json, and its weights in model.safetensors or in several files that an index lists.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Literal

import torch
from torch import Tensor

from ..cli.files import read_json, write_json
from ..config import ModelArgs
from ..kernels import accelerate
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .hf_config import args_from_config, config_from, subclass_in
from .int8 import check_device, put_matrix, quantize
from .layout import (
    Shapes,
    check_shapes,
    check_sizes,
    hugging_face_name,
    is_rotated,
    shapes_of,
    tensor_shapes,
    to_halves,
    to_pairs,
)
from .tensors import WEIGHT_DTYPES, open_tensors, read_header, save_tensors
from .tokenizers import load_tokenizer, read_ids
from .variants import make_network, name_of

MODEL_CONFIGS = ("config.json", "params.json")  # of Hugging Face and Meta; a directory with one of them is a model
RUNS = Path("runs")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Weights:
    """Opened weights: their configuration and headers have been read and checked, the tensors not."""

    path: Path
    args: ModelArgs
    dtype: torch.dtype  # in which the weights are stored
    shapes: Shapes
    subclass_name: str | None = None  # module:Class, if the weights are those of a subclass of Transformer

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name in the network, tensor), memory-mapped if the format allows it."""
        raise NotImplementedError

    def model(
        self,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | Literal["stored"] | None = None,
        network: type[Transformer] | None = None,
        int8: bool = False,
    ) -> Transformer:
        """Load the network; see ``load_model``."""
        network = network or Transformer
        if self.subclass_name and name_of(network) != self.subclass_name:
            raise ValueError(
                f"{self.path} holds the weights of {self.subclass_name}: they load only with the same network; give "
                f"--network {self.subclass_name}"
            )
        if int8 and network is not Transformer:
            raise ValueError(f"int8 is for the plain network, not for {name_of(network)}: leave it out")
        if int8:
            check_device(torch.device(device))
        model = make_network(network, self.args)
        check_shapes(shapes_of(model), self.shapes, self.path)  # a subclass may have other tensors
        # One dtype for all tensors, because some models store their norms in another one.
        new_dtype = self.dtype if dtype == "stored" else dtype or torch.float32
        if not isinstance(new_dtype, torch.dtype):  # transformers also takes names
            raise ValueError(f'dtype is {dtype!r}: give a torch.dtype such as torch.bfloat16, "stored", or int8=True')
        state = {}
        for name, tensor in self.tensors():
            if int8 and tensor.ndim == 2:
                put_matrix(model, name, quantize(tensor.to(device)), new_dtype)
            else:
                # Copied, because a mapped tensor begins anywhere in a cache line, so that vectors of it lie in two, and
                # a token of 1.1B in bfloat16 takes 139 ms instead of 126 (Zen 4). A new one begins at a multiple of 64.
                state[name] = tensor.to(device, new_dtype if tensor.is_floating_point() else None, copy=True)
            del tensor  # before the next one is read, so that only one is in memory
        model.load_state_dict(state, strict=False, assign=True)  # checked above; the matrices in int8 are in place
        model.to(device)  # what a subclass has beside its state
        check_finite(model, self.path)
        if int8:
            model.requires_grad_(False)
        return accelerate(model.eval())


class Checkpoint(Weights):
    """An opened directory: the configuration and the headers have been read and checked, the weights not.

    Raises ValueError if the path is not a checkpoint, or one that this network does not support.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        check_is_checkpoint(path)
        config = read_json(path / "config.json")
        try:
            self.args, self.subclass_name = args_from_config(config), subclass_in(config)
            check_sizes(self.args)
        except (ValueError, TypeError, ArithmeticError) as error:  # a value of the wrong type can raise any of these
            raise ValueError(f"{path / 'config.json'}: {error}") from None
        entries = {name: entry for file in weight_files(path) for name, entry in read_header(file).items()}
        if EMBEDDING in entries and HEAD in entries:  # whatever config.json says: they may differ
            self.args = replace(self.args, tie_embeddings=False)
        if self.subclass_name is None:
            shapes = tensor_shapes(self.args)
            names = {hugging_face_name(name): name for name in shapes}  # theirs -> ours
            if self.args.tie_embeddings and HEAD in entries:
                names[HEAD] = names.pop(EMBEDDING)  # tied weights may be stored under either name
            expected = {theirs: shapes[name] for theirs, name in names.items()}
            # RoPE frequencies, which old files have, are ignored
            found = {name: entry.shape for name, entry in entries.items() if not name.endswith("rotary_emb.inv_freq")}
            check_shapes(expected, found, path)
        else:
            names = {name: name for name in entries}  # no other program reads them
        # In the order of the files, which begin with the largest tensors: the peak of memory comes with the small ones.
        self.entries = {names[theirs]: entry for theirs, entry in entries.items() if theirs in names}
        self.shapes = {name: entry.shape for name, entry in self.entries.items()}
        # A subclass may have stored other tensors in other dtypes.
        for name in ("tok_embeddings.weight",) if self.subclass_name else self.entries:
            dtype = self.entries[name].dtype if name in self.entries else None
            if dtype not in WEIGHT_DTYPES:
                raise ValueError(f"{path} stores {name} as {dtype}: only float32, bfloat16 and float16 are supported")
        self.dtype = WEIGHT_DTYPES[self.entries["tok_embeddings.weight"].dtype]

    def tokenizer(self, file: str | Path | None = None) -> Tokenizer:
        """Load the tokenizer in ``file`` or beside the weights. Raises ValueError if the vocabulary sizes differ."""
        return load_tokenizer(file or self.path, self.args.vocab_size)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name in the network, tensor), memory-mapped, except those whose rows are permuted."""
        for name, entry in self.entries.items():
            with open_tensors(entry.file) as file:  # for each, so that its mapping ends with the tensor
                tensor = file.get_tensor(entry.name)
            if self.subclass_name is None and is_rotated(name):
                tensor = to_pairs(tensor, self.args.head_dim)
            yield name, tensor


def weight_files(path: Path) -> list[Path]:
    """model.safetensors, or the files that its index lists. Raises ValueError if files are missing."""
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if not (path / INDEX).is_file():
        raise ValueError(
            f"{path} has neither {WEIGHTS} nor {INDEX}: get all files of this model; other formats, such as "
            "pytorch_model.bin, are not read"
        )
    names = read_json(path / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path / INDEX} has no weight_map from tensors to files: get the file again")
    files = sorted({path / name for name in names.values()})
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is missing, but {INDEX} lists it: get all files of this model")
    return files


def check_is_checkpoint(path: Path) -> None:
    """Raise ValueError that says how to get a Hugging Face directory, if the path is not one."""
    needed = "give a run or a Hugging Face directory"
    convert = f"convert it with `python convert.py {quote(str(path))} NEW_DIRECTORY`, then give that directory"
    if not os.path.exists(path):  # Path.exists raises OSError for a name that is too long
        is_hub_name = len(path.parts) == 2 and not path.is_absolute() and not path.parent.exists()
        download = (
            f"if it is a model on the Hugging Face Hub, run `pip install huggingface_hub tokenizers` and "
            f"`hf download {path.as_posix()} --local-dir {path.name}`, then give {path.name}; otherwise "
        )
        raise ValueError(f"{path} does not exist: {download if is_hub_name else ''}{needed}")
    if (path / "config.json").is_file():
        return
    if (path / "params.json").is_file():
        raise ValueError(f"{path} is in Meta's format: {convert}")
    if (path / "config.toml").is_file():
        raise ValueError(f"{path} is a run without weights yet: they are saved at its first validation")
    if path.suffix == ".bin":
        raise ValueError(f"{path} is not a directory: if it is a model in llama2.c's format, {convert}")
    raise ValueError(
        f"{path} {'is a file' if path.is_file() else 'has no config.json'}: {needed}, which has config.json and "
        f"{WEIGHTS}; GGUF files and adapters are not read"
    )


def check_finite(model: Transformer, path: Path) -> None:
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


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | Literal["stored"] | None = None,
    network: type[Transformer] | None = None,
    int8: bool = False,
) -> Transformer:
    """Load a network in eval mode. ``dtype`` None converts to float32, which is exact; "stored" is that of the file.

    All floating-point tensors get the same dtype, even if the file has norms in another one than the embedding. With
    ``int8``, for generating and scoring, the matrices are held in int8, and ``dtype`` is for everything else.

    The weights of a subclass of ``Transformer`` need that class as ``network``. A plain model's weights can be loaded
    into any subclass with the same tensors. Tensors are read one by one, so the peak memory is the network and one
    tensor; a subclass is first built in full, which takes the same memory once more.

    Raises ValueError if the tensors do not match the configuration, or if one contains NaN or infinity.
    """
    return Checkpoint(path).model(device, dtype, network, int8)


def save_model(model: Transformer, directory: str | Path) -> None:
    """Write config.json and model.safetensors into a directory, which is created if necessary.

    The plain network is written in the Hugging Face layout. For a subclass, config.json has its name, ``module:Class``,
    and only that class can load it. bos_token_id and eos_token_id are those that are in the directory already, as from
    ``save_tokenizer``. Raises ValueError if config.json cannot express the network.

    config.json is written before model.safetensors, so that new weights are never beside a missing or old config.
    """
    model = getattr(model, "_orig_mod", model)  # the module that torch.compile has wrapped
    check_savable(model)
    directory = Path(directory)
    args, subclass_name = model.args, name_of(type(model))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if subclass_name is None:
        state = {
            hugging_face_name(name): to_halves(tensor, args.head_dim) if is_rotated(name) else tensor
            for name, tensor in state.items()
        }
    dtype = str(model.tok_embeddings.weight.dtype).removeprefix("torch.")
    config = config_from(args, dtype, read_ids(directory), subclass_name)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    save_tensors(directory / WEIGHTS, state, {"format": "pt"})  # transformers requires it


def check_savable(model: Transformer) -> None:
    """Raise ValueError if ``load_model`` would build a different network.

    For a subclass only other tensors are noticed: whatever a class adds to the network must follow from ``args``.
    """
    network = type(model)
    rebuilt = make_network(network, model.args)
    check_shapes(shapes_of(rebuilt), shapes_of(model), f"the model, unlike {network.__name__}(args),")
    if network is Transformer and not torch.equal(model.freqs_cis.to(rebuilt.freqs_cis), rebuilt.freqs_cis):
        raise ValueError(
            "freqs_cis is not the table of rope_theta and rope_scaling: config.json cannot express another one"
        )


def newest_run(file_name: str = "model.safetensors") -> Path:
    """The run below ``runs/`` whose ``file_name`` was written last. Raises ValueError if there is none."""
    files = sorted(RUNS.glob(f"*/{file_name}"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ValueError(f"there is no run in {RUNS}/ yet: start one with `python train.py`, or name a directory")
    return files[-1].parent
