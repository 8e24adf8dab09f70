"""Hugging Face directories, also our runs: config.json with one safetensors file, or several numbered ones."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..cli.files import read_json, write_json
from ..transformer import Transformer
from .hf_config import args_from_config, config_from, subclass_in
from .layout import check_layers, check_shapes, hugging_face_name, is_rotated, tensor_shapes, to_halves, to_pairs
from .tensors import WEIGHT_DTYPES, read_header, save_tensors
from .variants import name_of

WEIGHTS = "model.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class HuggingFace:
    """An opened directory: the configuration and the headers have been read and checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json(path / "config.json")
        try:
            self.args, self.subclass_name = args_from_config(config), subclass_in(config)
        except (ValueError, TypeError, ArithmeticError) as error:  # a value of the wrong type can raise any of these
            raise ValueError(f"{path / 'config.json'}: {error}") from None
        headers = {file: read_header(file) for file in weight_files(path)}
        self.files = {name: file for file, header in headers.items() for name in header}
        entries = {name: entry for header in headers.values() for name, entry in header.items()}
        check_layers(self.args, len(entries), path)
        self.is_stored_twice = False  # whether both names of tied weights have them
        if self.subclass_name is None:
            shapes = tensor_shapes(self.args)
            self.names = {name: hugging_face_name(name) for name in shapes}  # ours -> theirs
            if self.args.tie_embeddings and EMBEDDING not in entries:
                self.names["tok_embeddings.weight"] = HEAD  # tied weights may be stored under either name
            expected = {theirs: shapes[name] for name, theirs in self.names.items()}
            if self.args.tie_embeddings and EMBEDDING in entries and HEAD in entries:
                self.is_stored_twice = True
                expected[HEAD] = expected[EMBEDDING]
            # RoPE frequencies, which old files have, are ignored
            found = {name: entry.shape for name, entry in entries.items() if not name.endswith("rotary_emb.inv_freq")}
            check_shapes(expected, found, path)
            floating = list(expected)
        else:
            self.names = {name: name for name in entries}  # no other program reads them
            floating = ["tok_embeddings.weight"]  # a subclass may have stored other tensors in other dtypes
        for name in floating:
            dtype = entries[name].dtype if name in entries else None
            if dtype not in WEIGHT_DTYPES:
                raise ValueError(f"{path} stores {name} as {dtype}: only float32, bfloat16 and float16 are supported")
        self.shapes = {name: entries[theirs].shape for name, theirs in self.names.items()}
        self.dtype = WEIGHT_DTYPES[entries[self.names["tok_embeddings.weight"]].dtype]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name in the network, tensor), memory-mapped, except those whose rows are permuted."""

        def read(name: str) -> Tensor:
            with safe_open(self.files[name], "pt") as file:  # of its own, so that its mapping ends with the tensor
                return file.get_tensor(name)

        if self.is_stored_twice and not read(EMBEDDING).equal(read(HEAD)):
            raise ValueError(
                f"{self.path} has tie_word_embeddings, but {EMBEDDING} and {HEAD} differ: correct config.json"
            )
        for name, theirs in self.names.items():
            tensor = read(theirs)
            if self.subclass_name is None and is_rotated(name):
                tensor = to_pairs(tensor, self.args.head_dim)
            yield name, tensor


def weight_files(path: Path) -> list[Path]:
    """model.safetensors, or all of model-00001-of-00002.safetensors and so on.

    The index beside several files is not needed, because each file lists its tensors. Raises ValueError if files are
    missing.
    """
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    files = sorted(file for file in path.glob("model-*-of-*.safetensors") if file.is_file())  # a pipe would block
    if not files:
        pickled = next(path.glob("*.bin"), None)
        found = f"only {pickled.name}, a pickle, which is not read" if pickled else "no weights"
        raise ValueError(f"{path} has {found}: {WEIGHTS} is needed")
    if not files[0].stem.endswith(f"-of-{len(files):05}"):
        raise ValueError(f"{path} has {len(files)} files like {files[0].name}: get all of this model, and no others")
    return files


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
