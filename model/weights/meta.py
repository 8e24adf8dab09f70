"""Meta's own directories: params.json and consolidated.NN.pth, one file for each model-parallel shard."""

import errno
import pickle
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cli.files import FLAG, INTEGER, NUMBER, Kind, read_json, write_atomically, write_json
from ..config import UNSET, ModelArgs
from ..rope_scaling import RopeScaling
from ..transformer import Transformer
from .layout import WEIGHT_DTYPES, check_layers, check_read_back, compare, tensor_shapes

PARAMS: dict[str, Kind] = {
    "dim": INTEGER,
    "n_layers": INTEGER,
    "n_heads": INTEGER,
    "n_kv_heads": INTEGER,
    "vocab_size": INTEGER,
    "multiple_of": INTEGER,
    "ffn_dim_multiplier": NUMBER,
    "norm_eps": NUMBER,
    "rope_theta": NUMBER,
    "use_scaled_rope": FLAG,
    "rope_scaling_factor": NUMBER,
    "max_seq_len": INTEGER,
    "max_batch_size": INTEGER,
}
NEEDED = {"dim", "n_layers", "n_heads", "multiple_of", "norm_eps"}
SCALED_ORIGINAL = 8192  # positions


def hidden_dim(dim: int, multiple_of: int, ffn_dim_multiplier: float | None) -> int:
    """Meta's rule: two thirds of 4 dim, times the multiplier, rounded up."""
    hidden = int(2 * (4 * dim) / 3)
    if ffn_dim_multiplier is not None:
        hidden = int(ffn_dim_multiplier * hidden)
    return multiple_of * -(-hidden // multiple_of)


def args_from_params(params: dict[str, Any]) -> ModelArgs:
    """params.json -> ModelArgs. Unknown fields are refused, since they may matter."""
    strange, missing = params.keys() - PARAMS.keys(), NEEDED - params.keys()
    if strange or missing:
        raise ValueError(
            f"unknown: {sorted(strange)}, missing: {sorted(missing)}: not the parameters of a Llama 1 to 3"
        )
    if params["multiple_of"] < 1 or not 0 < params.get("ffn_dim_multiplier", 1) < 1000:
        raise ValueError("multiple_of or ffn_dim_multiplier is out of range: the feed-forward width follows from them")
    theta = params.get("rope_theta", 10000.0)
    scaling = None
    if params.get("use_scaled_rope"):
        # The factor is not in the file: Llama 3.2, recognized by its sizes, has 32, Llama 3.1 and 3.3 have 8.
        factor = 32.0 if (params["dim"], params["n_layers"]) in ((2048, 16), (3072, 28)) else 8.0
        factor = params.get("rope_scaling_factor") or factor
        scaling = RopeScaling("llama3", factor, SCALED_ORIGINAL, 1.0, 4.0)
    return ModelArgs(
        dim=params["dim"],
        n_layers=params["n_layers"],
        n_heads=params["n_heads"],
        n_kv_heads=params.get("n_kv_heads", UNSET),
        hidden_dim=hidden_dim(params["dim"], params["multiple_of"], params.get("ffn_dim_multiplier")),
        vocab_size=params["vocab_size"],
        max_seq_len=params.get("max_seq_len", context(theta, scaling)),
        norm_eps=params["norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
    )


def context(theta: float, scaling: RopeScaling | None) -> int:
    """What the format leaves unsaid: that of Llama 3.1 with scaling, of Llama 3, and the safe one of Llama 1."""
    if scaling is not None:
        return 131072
    return 8192 if theta >= 5e5 else 2048


def params_from(args: ModelArgs) -> dict[str, Any]:
    """ModelArgs -> params.json. Raises ValueError that names what it cannot express.

    But for the context, which is left to the reader, and for tied embeddings, which are written twice.
    """
    plain = hidden_dim(args.dim, 1, None)
    multiplier = None if plain <= args.hidden_dim else args.hidden_dim / plain
    fits = [m for m in (256, 128, 64, 32, args.hidden_dim) if hidden_dim(args.dim, m, multiplier) == args.hidden_dim]
    params: dict[str, Any] = {
        "dim": args.dim,
        "n_layers": args.n_layers,
        "n_heads": args.n_heads,
        "n_kv_heads": args.n_kv_heads,
        "vocab_size": args.vocab_size,
        "multiple_of": fits[0],
        "norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
    }
    if multiplier is not None:
        params["ffn_dim_multiplier"] = multiplier
    scaling = args.rope_scaling
    if scaling is not None:
        params |= {"use_scaled_rope": True, "rope_scaling_factor": scaling.factor}
    check_read_back(args, args_from_params(params), "params.json", lost=("max_seq_len", "tie_embeddings"))
    return params


SPLIT_BY_COLUMN = ("wo.weight", "w2.weight")  # their input is what the others, split by row, put out
SPLIT_BY_ROW = ("wq.weight", "wk.weight", "wv.weight", "w1.weight", "w3.weight", "output.weight")


class Meta:
    """Opening one reads params.json and the shards' names, and compares them."""

    network: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = shards_of(path)
        found = read_json(path / "params.json", PARAMS)
        params = {name: value for name, value in found.items() if value is not None}
        shards = self._open()
        if params.get("vocab_size", -1) == -1:  # Llama 1 and 2 leave it to the tokenizer
            params["vocab_size"] = self._vocab_size(shards)
        try:
            self.args = args_from_params(params)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path / 'params.json'}: {error}") from None
        check_layers(self.args, len(shards[0]), path)
        self.shapes = tensor_shapes(self.args)
        for file, shard in zip(self.files, shards):
            compare(dict.fromkeys(self.shapes, ()), dict.fromkeys(shard, ()), file)
        self.dtype = shards[0]["tok_embeddings.weight"].dtype

    def _vocab_size(self, shards: list[dict[str, Tensor]]) -> int:
        """Of the output matrix, whose rows are split over the shards."""
        rows = [shard["output.weight"].shape[0] for shard in shards if "output.weight" in shard]
        if not rows:
            raise ValueError(f"{self.files[0]} has no output.weight: get the file again")
        return sum(rows)

    def _open(self) -> list[dict[str, Tensor]]:
        return [read_shard(file) for file in self.files]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) one by one, joined. Shards are opened anew for each few, to let go of what was read."""
        module = ""
        for name, shape in self.shapes.items():
            if module != name.rsplit(".", 2)[0]:
                module = name.rsplit(".", 2)[0]
                shards = self._open()
            yield name, self._join(name, shape, shards)

    def _join(self, name: str, shape: tuple[int, ...], shards: list[dict[str, Tensor]]) -> Tensor:
        joined = join(name, [shard[name] for shard in shards], shape)
        compare({name: shape}, {name: tuple(joined.shape)}, self.path)
        return joined

    def tie_equal_matrices(self) -> None:
        """Take the output matrix for the embedding if they are equal: the format stores tied weights twice."""
        shards = self._open()
        shape = self.shapes["tok_embeddings.weight"]
        embedding, output = (self._join(name, shape, shards) for name in ("tok_embeddings.weight", "output.weight"))
        if torch.equal(embedding, output):
            self.args = replace(self.args, tie_embeddings=True)
            self.shapes = tensor_shapes(self.args)


def shards_of(path: Path) -> list[Path]:
    files = sorted(path.glob("consolidated.*.pth"))
    wanted = [path / f"consolidated.{i:02}.pth" for i in range(len(files))] or [path / "consolidated.00.pth"]
    for file in wanted:
        if file not in files:
            raise ValueError(f"{file} is missing: all shards are needed")
        if not file.is_file() or not zipfile.is_zipfile(file):
            raise ValueError(f"{file} is not an archive that torch.save writes, or is cut short: it is not read")
    return files


def is_utf8(file: Path) -> bool:
    try:
        return bool(str(file).encode())
    except UnicodeEncodeError:
        return False


def read_shard(file: Path) -> dict[str, Tensor]:
    """Tensors of a .pth, memory-mapped; a pickle of anything but tensors is refused and nothing of it is run."""
    try:
        with file.open("rb") as opened:
            mapped = is_utf8(file)  # torch maps no other names
            state = torch.load(file if mapped else opened, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:
        raise ValueError(f"{file} pickles more than tensors: refused, and nothing of it was run") from None
    except Exception as error:  # whatever the commands of a damaged pickle lead to
        reason = str(error) or type(error).__name__
        raise ValueError(f"{file} is corrupt ({reason.splitlines()[0]}): get it again") from None
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise ValueError(f"{file} holds no table of tensors: not a Llama checkpoint")
    for name, tensor in state.items():
        if tensor.dtype not in WEIGHT_DTYPES.values() or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}".replace("torch.", "")
            raise ValueError(f"{file} has {name} as {kind}: only dense float32, bfloat16 and float16 weights are known")
    state.pop("rope.freqs", None)  # they follow from params.json
    return state


def join(name: str, parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """One tensor from all shards' parts. Norms are the same in all; embeddings are split either way, see the shape."""
    if len(parts) == 1 or not name.endswith((*SPLIT_BY_COLUMN, *SPLIT_BY_ROW, "tok_embeddings.weight")):
        return parts[0]
    by_column = name.endswith(SPLIT_BY_COLUMN) or (
        name == "tok_embeddings.weight" and parts[0].shape[1] * len(parts) == shape[1]
    )
    return torch.cat(parts, dim=1 if by_column else 0)


def save(model: Transformer, directory: Path) -> None:
    """One shard. Tied weights are written twice: the format knows no other."""
    params = params_from(model.args)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    state.setdefault("output.weight", state["tok_embeddings.weight"])
    write_json(directory / "params.json", params)
    file = directory / "consolidated.00.pth"
    try:
        write_atomically(file, lambda temporary: torch.save(state, temporary))
    except RuntimeError as error:  # a full disk, but neither an OSError nor with the file's name
        raise OSError(
            errno.EIO, f"not written whole ({str(error).splitlines()[0]}): is the disk full?", str(file)
        ) from None
