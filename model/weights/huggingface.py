"""Hugging Face directories, also our runs: config.json with one safetensors file, or several and an index."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cli.files import TABLE, TEXT, check_fields, read_json, write_json
from ..transformer import Transformer
from .hf_config import config_from, read_config
from .layout import (
    Shapes,
    check_layers,
    check_shapes,
    hugging_face_name,
    is_rotated,
    tensor_shapes,
    to_halves,
    to_pairs,
)
from .tensors import WEIGHT_DTYPES, TensorEntry, open_tensors, read_header, save_tensors
from .variants import name_of

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class HuggingFace:
    """An opened directory: the configuration and the headers have been read and checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json(path / "config.json")
        try:
            self.args, self.subclass_name = read_config(config)
        except (ValueError, TypeError, ArithmeticError) as error:  # a value of the wrong type can raise any of these
            raise ValueError(f"{path / 'config.json'}: {error}") from None
        self.files = files_of(path)  # tensor name -> the file that holds it
        self.entries = entries_of(self.files, path)
        check_layers(self.args, len(self.entries), path)
        if self.subclass_name is None:
            self._check()
            self.shapes = tensor_shapes(self.args)
        else:
            self.shapes = {name: entry.shape for name, entry in self.entries.items()}
        self.dtype = stored_dtype(self.entries, path)

    def _check(self) -> None:
        """Raise ValueError if the tensors do not match the configuration. RoPE frequencies of old files are ignored."""
        expected: Shapes = {hugging_face_name(name): shape for name, shape in tensor_shapes(self.args).items()}
        found = {name: entry.shape for name, entry in self.entries.items() if not name.endswith("rotary_emb.inv_freq")}
        if self.args.tie_embeddings and HEAD in found:  # tied weights may be stored under either name, or both
            expected[HEAD] = expected[EMBEDDING]
            if EMBEDDING not in found:
                del expected[EMBEDDING]
        check_shapes(expected, found, self.path)
        for name in expected:
            dtype = self.entries[name].dtype
            if dtype not in WEIGHT_DTYPES:
                raise ValueError(
                    f"{self.path} stores {name} as {dtype}: only float32, bfloat16 and float16 are supported"
                )

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name in the network, tensor), memory-mapped, except those whose rows are permuted."""
        with ExitStack() as stack:
            opened = {file: stack.enter_context(open_tensors(file)) for file in set(self.files.values())}

            def read(name: str) -> Tensor:
                return opened[self.files[name]].get_tensor(name)

            if self.subclass_name is not None:  # stored under the network's names: no other program reads them
                yield from ((name, read(name)) for name in self.files)
                return
            for name in tensor_shapes(self.args):
                theirs = hugging_face_name(name)
                # Only a tied embedding may be missing: then it is stored as the head.
                tensor = read(theirs if theirs in self.files else HEAD)
                if theirs == EMBEDDING and self.args.tie_embeddings and HEAD in self.files:
                    self._check_tied(tensor, read(HEAD))
                if is_rotated(name):
                    tensor = to_pairs(tensor, self.args.head_dim)
                yield name, tensor

    def _check_tied(self, embedding: Tensor, head: Tensor) -> None:
        if not embedding.equal(head):
            raise ValueError(
                f"{self.path} has tie_word_embeddings, but {EMBEDDING} and {HEAD} differ: correct config.json"
            )


def files_of(path: Path) -> dict[str, Path]:
    """The file of each tensor. Raises ValueError if there are none, or if the index is damaged."""
    if (path / WEIGHTS).is_file():
        return dict.fromkeys(read_header(path / WEIGHTS), path / WEIGHTS)
    index = path / INDEX
    if not index.is_file():
        pickled = next(path.glob("*.bin"), None)
        found = f"only {pickled.name}, a pickle, which is not read" if pickled else "no weights"
        raise ValueError(f"{path} has {found}: {WEIGHTS} is needed")
    listed = read_json(index, {"weight_map": TABLE}).get("weight_map") or {}
    check_fields(listed, dict.fromkeys(listed, TEXT))
    for file in set(listed.values()):
        if not file or Path(file).name != file or "\\" in file:
            raise ValueError(f"{index} names {file!r}: only files beside it are opened")
        if not (path / file).is_file():
            raise ValueError(f"{index} names {file}, which is missing: get it too")
    return {name: path / file for name, file in listed.items()}


def entries_of(files: Mapping[str, Path], path: Path) -> dict[str, TensorEntry]:
    """The header entries of the tensors in ``files``. Raises ValueError if a file does not contain one of them."""
    headers = {file: read_header(file) for file in set(files.values())}
    for name, file in files.items():
        if name not in headers[file]:
            raise ValueError(f"{path / INDEX} lists {name}, which {file.name} does not contain: get both again")
    return {name: headers[file][name] for name, file in files.items()}


def stored_dtype(entries: Mapping[str, TensorEntry], path: Path) -> torch.dtype:
    """The dtype of the embedding. A subclass may have stored other tensors in other dtypes."""
    for name in (EMBEDDING, HEAD, "tok_embeddings.weight"):
        if name in entries and entries[name].dtype in WEIGHT_DTYPES:
            return WEIGHT_DTYPES[entries[name].dtype]
    raise ValueError(f"{path} has no embedding in float32, bfloat16 or float16: only these are supported")


def save(model: Transformer, directory: Path, dtype: torch.dtype | None, ids: Mapping[str, Any]) -> None:
    """Write config.json before model.safetensors, so that new weights are never beside a missing or old config."""
    args, subclass_name = model.args, name_of(type(model))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if subclass_name is None:
        check_shapes(tensor_shapes(args), {name: tuple(tensor.shape) for name, tensor in state.items()}, "the model")
        state = {
            hugging_face_name(name): to_halves(tensor, args.head_dim) if is_rotated(name) else tensor
            for name, tensor in state.items()
        }
    weights = {name: tensor.to(dtype if tensor.is_floating_point() else None) for name, tensor in state.items()}
    stored = str(model.tok_embeddings.weight.dtype if dtype is None else dtype).removeprefix("torch.")
    config = config_from(args, stored, ids, subclass_name)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    save_tensors(directory / WEIGHTS, weights, {"format": "pt"})  # transformers requires it
