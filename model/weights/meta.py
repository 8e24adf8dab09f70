"""Meta's own directories: params.json and consolidated.NN.pth, one file for each model-parallel shard."""

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .files import read_json, write_atomically, write_json
from .layout import compare, shapes
from .meta_params import args_from, params_from

if TYPE_CHECKING:
    from torch import Tensor

    from ..transformer import Transformer

SPLIT_BY_COLUMN = ("wo.weight", "w2.weight")  # their input is what the others, split by row, put out
SPLIT_BY_ROW = ("wq.weight", "wk.weight", "wv.weight", "w1.weight", "w3.weight", "output.weight")


class Meta:
    """Opening one reads params.json, and looks whether the shards are archives as ``torch.save`` writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = shards_of(path)
        params = read_json(path / "params.json")
        if params.get("vocab_size", -1) == -1:  # Llama 1 and 2 leave it to the tokenizer
            params["vocab_size"] = self._vocab_size()
        try:
            self.args = args_from(params)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path / 'params.json'}: {error}") from None

    def _vocab_size(self) -> int:
        """Of the output matrix, whose rows are split over the shards."""
        rows = [shard["output.weight"].shape[0] for shard in self._open() if "output.weight" in shard]
        if not rows:
            raise ValueError(f"{self.files[0]} has no output.weight: get the file again")
        return sum(rows)

    def _open(self) -> "list[dict[str, Tensor]]":
        return [read_shard(file) for file in self.files]

    def tensors(self) -> "Iterator[tuple[str, Tensor]]":
        """(name, tensor) one by one, joined. Shards are opened anew for each few, to let go of what was read."""
        group, expected = "", shapes(self.args)
        for name in expected:
            if group != name.rsplit(".", 2)[0]:
                group = name.rsplit(".", 2)[0]
                shards = self._open()
                for file, shard in zip(self.files, shards):
                    compare(dict.fromkeys(expected, ()), dict.fromkeys(shard, ()), file)
            parts = [shard[name] for shard in shards]
            joined = join(name, parts, expected[name])
            compare({name: expected[name]}, {name: tuple(joined.shape)}, self.path)
            del parts
            yield name, joined


def shards_of(path: Path) -> list[Path]:
    files = sorted(path.glob("consolidated.*.pth"))
    wanted = [path / f"consolidated.{i:02}.pth" for i in range(len(files))] or [path / "consolidated.00.pth"]
    for file in wanted:
        if file not in files:
            raise ValueError(f"{file} is missing: all shards are needed")
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{file} is not an archive that torch.save writes, or is cut short: it is not read")
    return files


def read_shard(file: Path) -> "dict[str, Tensor]":
    """Tensors of a .pth, memory-mapped; a pickle of anything but tensors is refused and nothing of it is run."""
    import torch

    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise ValueError(f"{file} pickles more than tensors: refused, and nothing of it was run") from None
    except (RuntimeError, EOFError, KeyError, OSError) as error:
        raise ValueError(f"{file} is corrupt ({str(error).splitlines()[0]}): get it again") from None
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise ValueError(f"{file} holds no table of tensors: not a Llama checkpoint")
    state.pop("rope.freqs", None)  # they follow from params.json
    return state


def join(name: str, parts: "list[Tensor]", shape: tuple[int, ...]) -> "Tensor":
    """One tensor from all shards' parts. Norms are the same in all; embeddings went either way, as the shape tells."""
    import torch

    if len(parts) == 1 or not name.endswith((*SPLIT_BY_COLUMN, *SPLIT_BY_ROW, "tok_embeddings.weight")):
        return parts[0]
    by_column = name.endswith(SPLIT_BY_COLUMN) or (
        name == "tok_embeddings.weight" and parts[0].shape[1] * len(parts) == shape[1]
    )
    return torch.cat(parts, dim=1 if by_column else 0)


def save(model: "Transformer", directory: Path) -> None:
    """One shard. Tied weights are written twice: the format knows no other."""
    import torch

    params = params_from(model.args)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    state.setdefault("output.weight", state["tok_embeddings.weight"])
    write_json(directory / "params.json", params)
    write_atomically(directory / "consolidated.00.pth", lambda temporary: torch.save(state, temporary))
