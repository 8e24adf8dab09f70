"""Meta's directories: params.json and consolidated.NN.pth, one file for each model-parallel shard.

convert.py reads them.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cli.files import read_json
from ..config import ModelArgs, RopeScaling
from .checkpoint import Checkpoint
from .layout import check_shapes, check_sizes, tensor_shapes
from .tensors import Stored, read_pickle

SAME = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "norm_eps", "rope_theta")  # as in our ModelArgs
PARAMS = {*SAME, "multiple_of", "ffn_dim_multiplier", "use_scaled_rope", "rope_scaling_factor"}
REQUIRED = {"dim", "n_layers", "n_heads", "multiple_of", "norm_eps"}
EMBEDDING, OUTPUT = "tok_embeddings.weight", "output.weight"
TRAINED_CONTEXT = 8192  # of the models with scaled RoPE, before their context was extended


def hidden_dim(dim: int, multiple_of: int, ffn_dim_multiplier: float | None) -> int:
    """Meta's rule: two thirds of 4 dim, times the multiplier, rounded up to a multiple of ``multiple_of``."""
    hidden = int(2 * (4 * dim) / 3)
    if ffn_dim_multiplier is not None:
        hidden = int(ffn_dim_multiplier * hidden)
    return multiple_of * -(-hidden // multiple_of)


def args_from_params(params: dict[str, Any]) -> ModelArgs:
    """params.json -> ModelArgs. Raises ValueError for unknown fields too, because they may change the network."""
    unknown, missing = params.keys() - PARAMS, REQUIRED - params.keys()
    if unknown or missing:
        raise ValueError(
            f"unknown: {sorted(unknown)}, missing: {sorted(missing)}: not the parameters of a Llama 1 to 3"
        )
    scaling = None
    if params.get("use_scaled_rope"):
        # Earlier versions of convert.py wrote rope_scaling_factor, but Meta's own files lack it. Without it the factor
        # is 32 for Llama 3.2, recognized by its sizes, and 8 for 3.1 and 3.3.
        factor = 32.0 if (params["dim"], params["n_layers"]) in ((2048, 16), (3072, 28)) else 8.0
        factor = params.get("rope_scaling_factor") or factor
        scaling = RopeScaling("llama3", factor, TRAINED_CONTEXT, 1.0, 4.0)
    same = {name: params[name] for name in SAME if name in params}
    return ModelArgs(
        **same,
        hidden_dim=hidden_dim(params["dim"], params["multiple_of"], params.get("ffn_dim_multiplier")),
        max_seq_len=default_context(params.get("rope_theta", 10000.0), scaling),
        rope_scaling=scaling,
    )


def default_context(theta: float, scaling: RopeScaling | None) -> int:
    """The context, which params.json does not have: that of Llama 3.1, 3 or 1, told apart by RoPE's settings.

    Llama 2, trained on 4096 tokens, has the settings of Llama 1 and gets 2048.
    """
    if scaling is not None:
        return 131072
    return 8192 if theta >= 5e5 else 2048


def open_directory(path: Path) -> Checkpoint:
    """Open a directory: params.json and the headers of the shards are read and compared.

    Tied weights are stored twice, because the format cannot express the tie. So the network's are tied if embedding and
    output matrix are equal.
    """
    params = {name: value for name, value in read_json(path / "params.json").items() if value is not None}
    shards = [read_pickle(file) for file in shards_of(path)]
    for shard in shards:
        shard.pop("rope.freqs", None)  # computed instead
    layouts = [{name: tensor.shape for name, tensor in shard.items()} for shard in shards]
    if layouts.count(layouts[0]) != len(shards):
        raise ValueError(f"{path} has consolidated.*.pth files with different tensors: get all of them again")
    parts = {name: [shard[name] for shard in shards] for name in shards[0]}
    if params.get("vocab_size", -1) == -1:  # Llama 1 and 2 leave it to the tokenizer
        params["vocab_size"] = sum(len(part) for part in parts.get(OUTPUT, []) if part.ndim)
    try:
        args = args_from_params(params)
        check_sizes(args)
    except (ValueError, TypeError, ArithmeticError) as error:  # a value of the wrong type can raise any of these
        raise ValueError(f"{path / 'params.json'}: {error}") from None
    shapes = tensor_shapes(args)
    found = {}
    for name, tensors in parts.items():
        without_data = [tensor.to("meta") for tensor in tensors]
        found[name] = tuple(join(without_data, shapes.get(name, ())).shape)
    check_shapes(shapes, found, path)
    dtype = parts[EMBEDDING][0].dtype
    stored = {name: Stored(shape, dtype, partial(join, parts[name], shape)) for name, shape in shapes.items()}
    if torch.equal(stored[EMBEDDING].read(), stored[OUTPUT].read()):
        args = replace(args, tie_embeddings=True)
        del stored[OUTPUT]
    return Checkpoint(path, args, stored)


def join(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Join the parts of a tensor along the axis in which they are shorter than ``shape``. Norms are whole in each."""
    split = [axis for axis, (part, whole) in enumerate(zip(parts[0].shape, shape)) if part < whole]
    return torch.cat(parts, split[0]) if split else parts[0]


def shards_of(path: Path) -> list[Path]:
    """The shards of a directory in order. Raises ValueError if one is missing."""
    files = sorted(path.glob("consolidated.*.pth"))
    expected = [path / f"consolidated.{i:02}.pth" for i in range(max(1, len(files)))]
    missing = [str(file) for file in expected if file not in files]
    if missing:
        raise ValueError(f"{missing[0]} is missing: all shards are needed")
    return files
