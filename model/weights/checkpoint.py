"""Checkpoints: opened, loaded and saved. Run directories are Hugging Face directories.

A directory has config.json, and its weights in model.safetensors or in several files that an index lists. meta.py and
llama2c.py open two other formats, as the same ``Checkpoint``.
"""

import math
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Literal, cast

import torch

from ..cli.files import RUNS, kind_of_file, write_json
from ..cli.machine import check_memory
from ..config import ModelArgs
from ..fast.int8 import check_device, put_matrix, quantize
from ..fast.kernels import accelerate
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .hf_config import config_from, read_config
from .hub import hub_advice, local_directory
from .layout import check_shapes, hugging_face_name, is_rotated, shapes_of, tensor_shapes, to_halves, to_pairs
from .tensors import (
    WEIGHT_DTYPES,
    WEIGHTS,
    Stored,
    mapped,
    read_header,
    read_pickle,
    save_tensors,
    weight_files,
)
from .tokenizers import load_tokenizer, read_ids
from .variants import make_network, name_of

PICKLED_WEIGHTS = "pytorch_model.bin"
ADAPTER = "adapter_config.json"  # of peft and of MLX
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Checkpoint:
    """An opened model: its configuration and the headers of its files have been read and checked, its tensors not."""

    path: Path
    args: ModelArgs
    stored: dict[str, Stored]  # by this network's names
    subclass_name: str | None = None  # module:Class, if the weights are those of a subclass of Transformer

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored embedding."""
        return cast(torch.dtype, self.stored["tok_embeddings.weight"].dtype)

    def tokenizer(self, file: str | Path | None = None) -> Tokenizer:
        """Load the tokenizer in ``file`` or beside the weights. Raises ValueError if the vocabulary sizes differ."""
        return load_tokenizer(file or self.path, self.args.vocab_size)

    def model(
        self,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | Literal["stored"] | None = None,
        network: type[Transformer] | None = None,
        int8: bool = False,
        *,
        beside: int = 0,
        purpose: str = "the model",
        advice: str = "give a smaller model",
    ) -> Transformer:
        """Load the network; see ``load_model``.

        If there is no memory for the weights and for ``beside`` more bytes, raises ValueError before it reads them; the
        message says what it is for, and gives ``advice``.
        """
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
        # One dtype for all tensors, because some models store their norms in another one.
        new_dtype = self.dtype if dtype == "stored" else dtype or torch.float32
        if not isinstance(new_dtype, torch.dtype):  # transformers also takes names
            raise ValueError(f'dtype is {dtype!r}: give a torch.dtype such as torch.bfloat16, "stored", or int8=True')
        shapes = {name: each.shape for name, each in self.stored.items()}
        matrix_size = 1 if int8 else new_dtype.itemsize
        weights = sum(math.prod(s) * (matrix_size if len(s) == 2 else new_dtype.itemsize) for s in shapes.values())
        check_memory(weights + beside, purpose, advice, torch.device(device))
        model = make_network(network, self.args)
        check_shapes(shapes_of(model), shapes, self.path)  # a subclass may have other tensors
        state = {}
        for name, stored in self.stored.items():
            tensor = stored.read()
            if int8 and tensor.ndim == 2:
                put_matrix(model, name, quantize(tensor.to(device)), new_dtype)
            else:
                # Copied for 64-byte alignment: 126 instead of 139 ms a token of 1.1B in bfloat16 (Zen 4).
                state[name] = tensor.to(device, new_dtype if tensor.is_floating_point() else None, copy=True)
            del tensor  # before the next one is read, so that only one is in memory
        model.load_state_dict(state, strict=False, assign=True)  # checked above; the matrices in int8 are in place
        model.to(device)  # tensors of a subclass that are not in its state dict
        check_finite(model, self.path)
        if int8:
            model.requires_grad_(False)
        return accelerate(model.eval())


def open_checkpoint(model: str | Path, pickles: bool = False) -> Checkpoint:
    """Open a Hugging Face directory, or a model of the Hub by its id, without reading the tensors.

    With ``pickles``, pytorch_model.bin is opened if the directory has no safetensors. Raises ValueError if ``model`` is
    not a checkpoint, or one that this network does not support.
    """
    path = local_directory(model)
    check_is_checkpoint(path)
    args, subclass_name = read_config(path / "config.json")
    found = stored_weights(path, pickles, args.tie_embeddings)
    if EMBEDDING in found and HEAD in found:  # whatever config.json says: they may differ
        args = replace(args, tie_embeddings=False)
    # No other program reads the weights of a subclass, so they have our names.
    stored = found if subclass_name else by_our_names(found, args, path)
    for name in ["tok_embeddings.weight"] if subclass_name else stored:  # a subclass may have tensors in other dtypes
        dtype = stored[name].dtype if name in stored else None
        if dtype not in WEIGHT_DTYPES.values():
            raise ValueError(f"{path} stores {name} as {dtype}: only float32, bfloat16 and float16 are supported")
    return Checkpoint(path, args, stored, subclass_name)


def stored_weights(path: Path, pickles: bool, tied: bool) -> dict[str, Stored]:
    """The tensors of model.safetensors, or without one, with ``pickles``, those of pytorch_model.bin.

    A pytorch_model.bin has ``tied`` weights twice, so an output matrix that equals the embedding is left out. Raises
    ValueError if there are no weights, or only pickles.
    """
    files = weight_files(path, WEIGHTS)
    if files:
        return {name: each for file in files for name, each in read_header(file).items()}
    files = weight_files(path, PICKLED_WEIGHTS)
    if not files:
        raise ValueError(f"{path} has neither {WEIGHTS} nor {WEIGHTS}.index.json: get all files of this model")
    if not pickles:
        raise ValueError(f"{path} has its weights in {PICKLED_WEIGHTS} only: {convert_command(path)}")
    tensors = {name: tensor for file in files for name, tensor in read_pickle(file).items()}
    if tied and HEAD in tensors and EMBEDDING in tensors and torch.equal(tensors[HEAD], tensors[EMBEDDING]):
        del tensors[HEAD]
    return {name: mapped(tensor) for name, tensor in tensors.items()}


def by_our_names(found: dict[str, Stored], args: ModelArgs, path: Path) -> dict[str, Stored]:
    """The tensors by this network's names and in its layout. Raises ValueError if they do not match ``args``."""
    shapes = tensor_shapes(args)
    names = {hugging_face_name(name): name for name in shapes}  # theirs -> ours
    if args.tie_embeddings and HEAD in found:
        names[HEAD] = names.pop(EMBEDDING)  # tied weights may be stored under either name
    # RoPE frequencies, which old files have, are ignored
    found = {theirs: each for theirs, each in found.items() if not theirs.endswith("rotary_emb.inv_freq")}
    expected = {theirs: shapes[name] for theirs, name in names.items()}
    check_shapes(expected, {theirs: each.shape for theirs, each in found.items()}, path)
    stored = {}
    # In the order of the files, which begin with the largest tensors: small ones are read at the peak of memory.
    for theirs, each in found.items():
        name = names[theirs]
        stored[name] = each
        if is_rotated(name):
            stored[name] = each._replace(read=partial(read_pairs, each, args.head_dim))
    return stored


def read_pairs(stored: Stored, head_dim: int) -> torch.Tensor:
    return to_pairs(stored.read(), head_dim)


def convert_command(path: Path) -> str:
    return f"convert it with `python convert.py {quote(str(path))} NEW_DIRECTORY`, then give that directory"


def check_is_checkpoint(path: Path) -> None:
    """Raise ValueError that says how to get a Hugging Face directory, if the path is not one."""
    needed = "give a run or a Hugging Face directory"
    if not os.path.exists(path):  # Path.exists raises OSError for a name that is too long
        raise ValueError(f"{path} does not exist: {hub_advice(path)}{needed}")
    if (path / ADAPTER).is_file():  # transformers would apply it, so the model alone is another one
        raise ValueError(
            f"{path} holds an adapter ({ADAPTER}), which is not applied: merge it with peft's merge_and_unload and "
            f"save the result, or to open the model without it, move {ADAPTER} to another directory"
        )
    if (path / "config.json").is_file():
        return
    if (path / "params.json").is_file():
        raise ValueError(f"{path} is in Meta's format: {convert_command(path)}")
    if (path / "config.toml").is_file():
        raise ValueError(f"{path} is a run without weights yet: they are saved at its first validation")
    if path.is_file():
        kind = kind_of_file(path)
        other = f"is not a directory: {needed}, or if it is a model in llama2.c's format, {convert_command(path)}"
        raise ValueError(f"{path} {kind or other}")
    snapshots = sorted(path.glob("snapshots/*/config.json"), key=lambda file: file.parent.stat().st_mtime)
    if snapshots:
        raise ValueError(f"{path} is a folder of the Hub's cache: give the snapshot in it, {snapshots[-1].parent}")
    raise ValueError(
        f"{path} has no config.json: {needed}, which has config.json and {WEIGHTS}; GGUF files and adapters are not "
        "read"
    )


def check_finite(model: Transformer, path: Path) -> None:
    """Raise ValueError for the first tensor with NaN or infinity. A quantized matrix has it in its scales."""
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not all(bound.isfinite() for bound in tensor.aminmax()):  # NaN is both bounds of a tensor that contains it
            raise ValueError(
                f"{path}: {name} contains NaN or infinity: get the weights again, or load them in float32 if their "
                "numbers are too large for float16"
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

    ``path`` is a run, another Hugging Face directory, or an id of the Hub, ``org/name``, which is downloaded.

    The weights of a subclass of ``Transformer`` need that class as ``network``. A plain model's weights can be loaded
    into any subclass with the same tensors. Tensors are read one by one, so the peak memory is the network and one
    tensor; a subclass is first built in full, which takes the same memory once more.

    Raises ValueError if the tensors do not match the configuration, if there is too little memory for them, or if one
    contains NaN or infinity.
    """
    return open_checkpoint(path).model(device, dtype, network, int8)


def save_model(model: Transformer, directory: str | Path) -> None:
    """Write config.json and model.safetensors into a directory, which is created if necessary.

    The plain network is written in the Hugging Face layout. For a subclass, config.json has its name, ``module:Class``,
    and only that class can load it. bos_token_id and eos_token_id are those that are in the directory already, as from
    ``save_tokenizer``. Raises ValueError if config.json cannot express the network.

    config.json is written before model.safetensors, so that new weights are never beside a missing or old config.
    """
    model = unwrapped(model)
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


def unwrapped(model: torch.nn.Module) -> Transformer:
    """The network in a wrapper of PyTorch's: torch.compile, DDP, DataParallel, AveragedModel.

    Raises ValueError for another module.
    """
    inner: Any = model
    while not isinstance(inner, Transformer):
        inner = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
        if inner is None:
            raise ValueError(
                f"model is a {type(model).__name__}: give the Transformer in it; an adapter of peft is merged by "
                "merge_and_unload first"
            )
    return inner


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
