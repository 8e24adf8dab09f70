"""Meta's directories: params.json and consolidated.NN.pth, one file for each model-parallel shard."""

import errno
import pickle
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cli.files import read_json, write_atomically, write_json
from ..config import UNSET, ModelArgs
from ..rope_scaling import RopeScaling
from ..transformer import Transformer
from .layout import check_layers, check_names, check_read_back, check_shapes, tensor_shapes
from .tensors import WEIGHT_DTYPES

# max_seq_len and max_batch_size are fields of Meta's ModelArgs, which its files usually lack.
PARAMS = {
    "dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier", "norm_eps",
    "rope_theta", "use_scaled_rope", "rope_scaling_factor", "max_seq_len", "max_batch_size",
}  # fmt: skip
REQUIRED = {"dim", "n_layers", "n_heads", "multiple_of", "norm_eps"}
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
    if params["multiple_of"] < 1 or not 0 < params.get("ffn_dim_multiplier", 1) < 1000:
        raise ValueError("multiple_of or ffn_dim_multiplier is out of range: they determine the feed-forward width")
    theta = params.get("rope_theta", 10000.0)
    scaling = None
    if params.get("use_scaled_rope"):
        # ``params_from`` writes rope_scaling_factor, but Meta's own files lack it. Without it the factor is 32 for
        # Llama 3.2, recognized by its sizes, and 8 for 3.1 and 3.3.
        factor = 32.0 if (params["dim"], params["n_layers"]) in ((2048, 16), (3072, 28)) else 8.0
        factor = params.get("rope_scaling_factor") or factor
        scaling = RopeScaling("llama3", factor, TRAINED_CONTEXT, 1.0, 4.0)
    return ModelArgs(
        dim=params["dim"],
        n_layers=params["n_layers"],
        n_heads=params["n_heads"],
        n_kv_heads=params.get("n_kv_heads", UNSET),
        hidden_dim=hidden_dim(params["dim"], params["multiple_of"], params.get("ffn_dim_multiplier")),
        vocab_size=params["vocab_size"],
        max_seq_len=params.get("max_seq_len", default_context(theta, scaling)),
        norm_eps=params["norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
    )


def default_context(theta: float, scaling: RopeScaling | None) -> int:
    """The context for a params.json without one: that of Llama 3.1, 3 or 1, told apart by RoPE's settings.

    Llama 2, trained on 4096 tokens, has the settings of Llama 1 and gets 2048.
    """
    if scaling is not None:
        return 131072
    return 8192 if theta >= 5e5 else 2048


def params_from(args: ModelArgs) -> dict[str, Any]:
    """ModelArgs -> params.json. Raises ValueError that names a field that it cannot express.

    The context and tied embeddings are lost: Meta's files contain neither.
    """
    # Meta's rule rounds the default width up to a multiple of multiple_of. A width below the default needs
    # ffn_dim_multiplier as well. We take the largest of the usual multiples with which the rule gives exactly
    # hidden_dim, or else hidden_dim itself as multiple_of.
    default_hidden = hidden_dim(args.dim, 1, None)
    multiplier = args.hidden_dim / default_hidden if args.hidden_dim < default_hidden else None
    for multiple_of in (256, 128, 64, 32, args.hidden_dim):
        if hidden_dim(args.dim, multiple_of, multiplier) == args.hidden_dim:
            break
    params: dict[str, Any] = {
        "dim": args.dim,
        "n_layers": args.n_layers,
        "n_heads": args.n_heads,
        "n_kv_heads": args.n_kv_heads,
        "vocab_size": args.vocab_size,
        "multiple_of": multiple_of,
        "norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
    }
    if multiplier is not None:
        params["ffn_dim_multiplier"] = multiplier
    scaling = args.rope_scaling
    if scaling is not None:
        params |= {"use_scaled_rope": True, "rope_scaling_factor": scaling.factor}
    check_read_back(args, args_from_params(params), "params.json", not_stored=("max_seq_len", "tie_embeddings"))
    return params


SPLIT_BY_COLUMN = ("wo.weight", "w2.weight")  # their input is the output of matrices that are split by row
SPLIT_BY_ROW = ("wq.weight", "wk.weight", "wv.weight", "w1.weight", "w3.weight", "output.weight")


class Meta:
    """An opened directory: params.json and the tensor names of the shards have been read and compared."""

    subclass_name: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = shards_of(path)
        content = read_json(path / "params.json")
        params = {name: value for name, value in content.items() if value is not None}
        shards = self._open()
        if params.get("vocab_size", -1) == -1:  # Llama 1 and 2 leave it to the tokenizer
            params["vocab_size"] = self._vocab_size(shards)
        try:
            self.args = args_from_params(params)
        except (ValueError, TypeError, ArithmeticError) as error:  # a value of the wrong type can raise any of these
            raise ValueError(f"{path / 'params.json'}: {error}") from None
        check_layers(self.args, len(shards[0]), path)
        self.shapes = tensor_shapes(self.args)
        for file, shard in zip(self.files, shards):
            check_names(self.shapes, shard, file)
        self.dtype = shards[0]["tok_embeddings.weight"].dtype

    def _vocab_size(self, shards: list[dict[str, Tensor]]) -> int:
        """The number of rows of the output matrix, which are split over the shards."""
        rows = [shard["output.weight"].shape[0] for shard in shards if "output.weight" in shard]
        if not rows:
            raise ValueError(f"{self.files[0]} has no output.weight: get the file again")
        return sum(rows)

    def _open(self) -> list[dict[str, Tensor]]:
        return [read_shard(file) for file in self.files]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor), joined from all shards."""
        shards = self._open()
        yield from ((name, self._join(name, shape, shards)) for name, shape in self.shapes.items())

    def _join(self, name: str, shape: tuple[int, ...], shards: list[dict[str, Tensor]]) -> Tensor:
        joined = join(name, [shard[name] for shard in shards], shape)
        check_shapes({name: shape}, {name: tuple(joined.shape)}, self.path)
        return joined

    def tie_equal_matrices(self) -> None:
        """Set ``tie_embeddings`` if embedding and output matrix are equal, because the format stores both if tied."""
        shards = self._open()
        shape = self.shapes["tok_embeddings.weight"]
        embedding, output = (self._join(name, shape, shards) for name in ("tok_embeddings.weight", "output.weight"))
        if torch.equal(embedding, output):
            self.args = replace(self.args, tie_embeddings=True)
            self.shapes = tensor_shapes(self.args)


def shards_of(path: Path) -> list[Path]:
    """The shards of a directory in order. Raises ValueError if one is missing or is not a zip archive."""
    files = sorted(path.glob("consolidated.*.pth"))
    for i in range(max(1, len(files))):
        file = path / f"consolidated.{i:02}.pth"
        if file not in files:
            raise ValueError(f"{file} is missing: all shards are needed")
        if not file.is_file() or not zipfile.is_zipfile(file):
            raise ValueError(f"{file} is not an archive written by torch.save, or is cut short: get it again")
    return files


def read_shard(file: Path) -> dict[str, Tensor]:
    """The tensors of a .pth, memory-mapped. Raises ValueError if it pickles anything else, without running it."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise ValueError(f"{file} pickles more than tensors: it is not loaded, and none of its code was run") from None
    except Exception as error:  # the commands of a damaged pickle can raise anything
        reason = str(error) or type(error).__name__
        raise ValueError(f"{file} is corrupt ({reason.splitlines()[0]}): get it again") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise ValueError(f"{file} is not a table of named tensors: not a Llama checkpoint")
    for name, tensor in state.items():
        if tensor.dtype not in WEIGHT_DTYPES.values() or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}".replace("torch.", "")
            raise ValueError(f"{file} has {name} as {kind}: only dense float32, bfloat16 and float16 are supported")
    state.pop("rope.freqs", None)  # computed from params.json instead
    return state


def join(name: str, parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Join the parts of a tensor. Norms are whole in every shard; embeddings are split by row or by column."""
    if len(parts) == 1 or not name.endswith((*SPLIT_BY_COLUMN, *SPLIT_BY_ROW, "tok_embeddings.weight")):
        return parts[0]
    by_column = name.endswith(SPLIT_BY_COLUMN) or (
        name == "tok_embeddings.weight" and parts[0].shape[1] * len(parts) == shape[1]
    )
    return torch.cat(parts, dim=1 if by_column else 0)


def save(model: Transformer, directory: Path) -> None:
    """Write params.json and one shard. Tied weights are written twice, because the format cannot express the tie."""
    params = params_from(model.args)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    state.setdefault("output.weight", state["tok_embeddings.weight"])
    write_json(directory / "params.json", params)
    file = directory / "consolidated.00.pth"
    try:
        write_atomically(file, lambda temporary: torch.save(state, temporary))
    except RuntimeError as error:  # torch raises this if the disk is full
        raise OSError(
            errno.EIO, f"not written whole ({str(error).splitlines()[0]}): is the disk full?", str(file)
        ) from None
