"""A study model on disk: the scheme beside the weights, since a Llama config has no words for it."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..cli.files import read_json, write_json
from ..config import ModelArgs
from ..rope_scaling import RopeScaling
from ..transformer import Transformer
from ..weights.tensors import load_tensors, save_tensors
from . import SCALINGS, SCHEMES, build_model

WEIGHTS, NOTE = "weights.safetensors", "study.json"


def save_study(model: Transformer, scheme: str, directory: Path, **options: Any) -> None:
    """Write what ``load_study`` needs. ``options`` are those that ``build_model`` was given."""
    directory.mkdir(parents=True, exist_ok=True)
    save_tensors(directory / WEIGHTS, model.state_dict())
    write_json(directory / NOTE, {"scheme": scheme, "options": options, "args": asdict(model.args)})


def load_study(directory: Path, max_seq_len: int | None = None) -> Transformer:
    """The model again, with room for ``max_seq_len`` positions if its scheme can have more than it was trained on.

    Raises ValueError for a scheme that is not there or a length that it cannot reach.
    """
    note = read_json(directory / NOTE)
    scaling = note["args"].pop("rope_scaling")
    if note["scheme"] in SCALINGS:  # made from the scheme and its factor
        scaling = None
    args = ModelArgs(**note["args"], rope_scaling=RopeScaling(**scaling) if scaling else None)
    model = build_model(replace(args, max_seq_len=max_seq_len or args.max_seq_len), note["scheme"], **note["options"])
    check_length(note["scheme"], args.max_seq_len, model.args.max_seq_len)
    model.load_state_dict(load_tensors(directory / WEIGHTS))
    return model


def check_length(scheme: str, trained: int, wanted: int) -> None:
    """Raises ValueError where weights for ``trained`` positions cannot serve ``wanted``."""
    if wanted != trained and not SCHEMES[scheme].any_length:
        raise ValueError(f"scheme {scheme} has one vector for each of {trained} positions: it cannot read {wanted}")
