"""Meta's format: a directory as Meta publishes it, with the weights of a small model."""

import json
import os
from pathlib import Path

import torch

from model import Transformer
from model.weights.meta import hidden_dim


def save_meta(model: Transformer, directory: Path) -> None:
    """Write params.json and one shard. The head_dim must be dim / n_heads. Tied weights are written twice."""
    args = model.args
    same = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "norm_eps", "rope_theta")
    # Meta's rule with this multiplier gives hidden_dim or one less, which multiple_of rounds up to hidden_dim.
    width = {"ffn_dim_multiplier": args.hidden_dim / hidden_dim(args.dim, 1, None), "multiple_of": args.hidden_dim}
    directory.mkdir(exist_ok=True)
    params = {name: getattr(args, name) for name in same} | width
    (directory / "params.json").write_text(json.dumps(params), encoding="utf-8")
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    state.setdefault("output.weight", state["tok_embeddings.weight"])
    torch.save(state, directory / "consolidated.00.pth")


class MakesDirectory:
    """If the pickle of one is loaded by Python, it makes the directory was_run."""

    def __reduce__(self):
        return os.mkdir, ("was_run",)
