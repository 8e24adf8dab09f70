"""Base and scaling of RoPE as config.json has them: in the old spelling, the new one, or both."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, cast

from ..cli.files import NUMBER, TEXT, WHOLE, Kind, check_fields, shortened
from ..config import ModelArgs
from ..rope_scaling import RopeScaling, Type

ROPE_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "beta_slow", "beta_fast"), NUMBER),
    **dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim", "rope_theta", "partial_rotary_factor"), NUMBER),
    **dict.fromkeys(("type", "rope_type"), TEXT),
    "original_max_position_embeddings": WHOLE,
}
ROPE_KEYS = {  # of rope_scaling, beside the type and the base: Hugging Face's name -> ours
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_seq_len",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_seq_len",
        "beta_slow": "low",
        "beta_fast": "high",
        "attention_factor": "attention_factor",
    },
}


def rope_from(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from ``rope_parameters`` (new spelling) or ``rope_theta`` and ``rope_scaling`` (old)."""
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    for table in (new, old):
        check_fields(table, ROPE_KINDS)
    if new and old and any(old.get(key) != value for key, value in new.items() if key != "rope_theta"):
        raise ValueError(f"rope_parameters {new} and rope_scaling {old} disagree: keep one")
    said = dict(new or old)
    theta = said.pop("rope_theta", config.get("rope_theta", 10000.0))
    if config.get("rope_theta", theta) != theta:
        raise ValueError(f"rope_theta is both {config['rope_theta']} and {theta}: keep one")
    kinds = {said.pop(key) for key in ("type", "rope_type") if said.get(key) is not None} or {"default"}
    kind = kinds.pop()
    if kind == "default" and not kinds and not said.get("factor"):
        said.pop("factor", None)
        _check_keys(said, set(), kind)
        return theta, None
    if kinds or kind not in ROPE_KEYS:
        raise ValueError(f"RoPE scaling is {', '.join(map(str, [kind, *kinds]))}: known are {', '.join(ROPE_KEYS)}")
    return theta, _scaling(kind, said, config)


def _scaling(kind: str, said: dict[str, Any], config: Mapping[str, Any]) -> RopeScaling:
    names = ROPE_KEYS[kind]
    if "original_max_position_embeddings" in names:
        trained = said.get("original_max_position_embeddings") or config.get("max_position_embeddings", 2048)
        # Where the file has it outside of the table, that one counts.
        said["original_max_position_embeddings"] = config.get("original_max_position_embeddings") or trained
    said.pop("finetuned", None)  # says how the weights came to be
    m, m_all = said.pop("mscale", None), said.pop("mscale_all_dim", None)
    values = {names[key]: value for key, value in said.items() if key in names and value is not None}
    _check_keys(said, names.keys(), kind)
    needed = {"factor"} if kind != "llama3" else {"factor", "low", "high"}
    if needed - values.keys():
        raise ValueError(f"RoPE scaling {kind} lacks {', '.join(sorted(needed - values.keys()))}: complete config.json")
    if kind == "yarn" and m and m_all and "attention_factor" not in values:
        log = 0.1 * math.log(values["factor"])
        values["attention_factor"] = (m * log + 1) / (m_all * log + 1)
    return RopeScaling(type=cast(Type, kind), **values)


def _check_keys(said: Mapping[str, Any], known: Any, kind: str) -> None:
    neutral = {"partial_rotary_factor": 1.0, "truncate": True}
    strange = [key for key, value in said.items() if key not in known and value != neutral.get(key)]
    if strange:
        raise ValueError(
            f"RoPE scaling {kind} has {strange[0]} = {shortened(said[strange[0]])}, which is not known here"
        )


def table_of(scaling: RopeScaling) -> dict[str, Any]:
    names = ROPE_KEYS[scaling.type]
    return {"rope_type": scaling.type} | {theirs: getattr(scaling, ours) for theirs, ours in names.items()}


def without_ntk(args: ModelArgs) -> ModelArgs:
    """The same network without that type of scaling, which config.json does not know and does not need: another base.

    Raises ValueError when the base is no number any more.
    """
    scaling = args.rope_scaling
    if scaling is None or scaling.type != "ntk":
        return args
    theta = args.rope_theta * scaling.factor ** (args.head_dim / (args.head_dim - 2))
    return dataclasses.replace(args, rope_theta=theta, rope_scaling=None)
