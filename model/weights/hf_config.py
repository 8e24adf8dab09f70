"""config.json of a Hugging Face Llama model <-> ModelArgs. A setting that the network does not support is an error.

RoPE's base and scaling are in ``rope_theta`` and ``rope_scaling`` in older files, in ``rope_parameters`` in newer ones,
or in both.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from typing import Any, cast

from ..cli.files import FLAG, INTEGER, NUMBER, TABLE, TEXT, TEXTS, Check, check_fields, short_repr
from ..config import UNSET, ModelArgs
from ..rope_scaling import RopeScaling, Type
from .layout import check_read_back

CONFIG_CHECKS: dict[str, Check] = {
    "hidden_size": INTEGER,
    "num_hidden_layers": INTEGER,
    "num_attention_heads": INTEGER,
    "intermediate_size": INTEGER,
    "vocab_size": INTEGER,
    "num_key_value_heads": INTEGER,
    "head_dim": INTEGER,
    "max_position_embeddings": INTEGER,
    "rms_norm_eps": NUMBER,
    "rope_theta": NUMBER,
    "rope_scaling": TABLE,
    "rope_parameters": TABLE,
    "model_type": TEXT,
    "hidden_act": TEXT,
    "architectures": TEXTS,
    "layer_types": TEXTS,
    "tie_word_embeddings": FLAG,
    "original_max_position_embeddings": INTEGER,
}

# Settings of Llama configurations that this network does not support, with the value that means "not used".
UNSUPPORTED: dict[str, bool | float | None] = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "use_qk_norm": False,
    "qk_norm": False,
    "sliding_window": None,
    "attention_chunk_size": None,
    "layer_types": None,
    "no_rope_layers": None,
    "num_local_experts": None,
    "num_experts": None,
    "n_routed_experts": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "attention_multiplier": None,
    "quantization_config": None,
    "auto_map": None,
    "partial_rotary_factor": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
}


def read_config(config: Mapping[str, Any]) -> tuple[ModelArgs, str | None]:
    """The architecture in config.json, and the name, ``module:Class``, if it is for a subclass of the network."""
    check_fields(config, CONFIG_CHECKS)
    model_type = config.get("model_type")
    if not (isinstance(model_type, str) and ":" in model_type):
        return args_from_config(config), None
    return args_from_config({**config, "model_type": "llama", "architectures": None}), model_type


def args_from_config(config: Mapping[str, Any]) -> ModelArgs:
    """config.json -> ModelArgs. Raises ValueError that names an unsupported or a missing setting."""
    check_supported(config)
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [name for name in sizes if name not in config]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: not the configuration of a Llama model")
    theta, scaling = rope_from(config)
    return ModelArgs(
        dim=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config.get("num_key_value_heads", UNSET),
        head_dim=config.get("head_dim", UNSET),
        hidden_dim=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        # The format's defaults.
        max_seq_len=config.get("max_position_embeddings", 2048),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=config.get("tie_word_embeddings", False),
    )


def check_supported(config: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting that this network does not support."""
    model_type = config.get("model_type")
    classes = config.get("architectures") or ["LlamaForCausalLM"]
    if model_type != "llama" or classes != ["LlamaForCausalLM"]:
        found = f"model_type is {short_repr(model_type)} and architectures {short_repr(classes)}"
        raise ValueError(f"{found}: only model_type llama with architectures LlamaForCausalLM is supported")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act is {short_repr(config['hidden_act'])}: only silu is supported")
    for name, unused in UNSUPPORTED.items():
        value = config.get(name)
        if value is None or value == unused:
            continue
        if name != "layer_types" or set(value) != {"full_attention"}:
            raise ValueError(
                f"{name} is {short_repr(value)}: this network does not support it, and would give wrong results"
            )


def config_from(
    args: ModelArgs, dtype: str, ids: Mapping[str, Any], subclass_name: str | None = None
) -> dict[str, Any]:
    """ModelArgs -> config.json, in a spelling that old and new programs read.

    ``ids`` are bos_token_id and eos_token_id. ``subclass_name`` is the ``module:Class`` of a subclass. It is written as
    model_type, so other programs reject the file. Raises ValueError that names a setting that config.json cannot
    express.
    """
    args = without_ntk(args)
    scaling = args.rope_scaling
    config = {
        "architectures": [subclass_name.split(":")[1] if subclass_name else "LlamaForCausalLM"],
        "model_type": subclass_name or "llama",
        "hidden_size": args.dim,
        "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads,
        "num_key_value_heads": args.n_kv_heads,
        "head_dim": args.head_dim,
        "intermediate_size": args.hidden_dim,
        "vocab_size": args.vocab_size,
        "max_position_embeddings": args.max_seq_len,
        "rms_norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
        "rope_scaling": scaling and rope_scaling_from(scaling),
        "tie_word_embeddings": args.tie_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": dtype,
        **{name: value for name, value in ids.items() if value != []},  # transformers fails on an empty list
    }
    check_read_back(args, read_config(json.loads(json.dumps(config)))[0], "config.json")
    return config


ROPE_CHECKS: dict[str, Check] = {
    "factor": NUMBER,
    "low_freq_factor": NUMBER,
    "high_freq_factor": NUMBER,
    "beta_slow": NUMBER,
    "beta_fast": NUMBER,
    "attention_factor": NUMBER,
    "mscale": NUMBER,
    "mscale_all_dim": NUMBER,
    "rope_theta": NUMBER,
    "partial_rotary_factor": NUMBER,
    "type": TEXT,
    "rope_type": TEXT,
    "original_max_position_embeddings": INTEGER,
}
# For each type of scaling, its keys besides rope_type and rope_theta: Hugging Face's name -> ours
ROPE_KEYS = {
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
    """RoPE's base and scaling, from ``rope_parameters`` (new spelling) or ``rope_theta`` and ``rope_scaling`` (old)."""
    new = config.get("rope_parameters") or {}
    old = config.get("rope_scaling") or {}
    for table in (new, old):
        check_fields(table, ROPE_CHECKS)
    if new and old and any(old.get(key) != value for key, value in new.items() if key != "rope_theta"):
        raise ValueError(f"rope_parameters {new} and rope_scaling {old} disagree: keep one")
    rope = dict(new or old)
    theta = rope.pop("rope_theta", config.get("rope_theta", 10000.0))
    if config.get("rope_theta", theta) != theta:
        raise ValueError(f"rope_theta is both {config['rope_theta']} and {theta}: keep one")
    rope_type = _pop_rope_type(rope)
    if rope_type == "default" and not rope.get("factor"):  # a factor without a type is rejected below
        rope.pop("factor", None)
        _check_keys(rope, set(), rope_type)
        return theta, None
    if rope_type not in ROPE_KEYS:
        raise ValueError(f"RoPE scaling is {short_repr(rope_type)}: supported are {', '.join(ROPE_KEYS)}")
    return theta, _scaling(rope_type, rope, config)


def _pop_rope_type(rope: dict[str, Any]) -> str:
    """Remove ``rope_type`` (new spelling) and ``type`` (old) from the table, and return their value."""
    new, old = rope.pop("rope_type", None), rope.pop("type", None)
    if new is not None and old is not None and new != old:
        raise ValueError(f"rope_type is {short_repr(new)} and type {short_repr(old)}: keep one")
    if new is None:
        new = old
    return "default" if new is None else str(new)


def _scaling(rope_type: str, rope: dict[str, Any], config: Mapping[str, Any]) -> RopeScaling:
    names = ROPE_KEYS[rope_type]
    if "original_max_position_embeddings" in names:
        trained = rope.get("original_max_position_embeddings") or config.get("max_position_embeddings", 2048)
        # The value at the top level of config.json takes precedence over the one in rope_scaling.
        rope["original_max_position_embeddings"] = config.get("original_max_position_embeddings") or trained
    rope.pop("finetuned", None)  # whether the weights were fine-tuned
    mscale = rope.pop("mscale", None)
    mscale_all_dim = rope.pop("mscale_all_dim", None)
    values = {names[key]: value for key, value in rope.items() if key in names and value is not None}
    _check_keys(rope, names.keys(), rope_type)
    required = ["factor", "low_freq_factor", "high_freq_factor"] if rope_type == "llama3" else ["factor"]
    missing = [key for key in required if names[key] not in values]
    if missing:
        raise ValueError(f"RoPE scaling {rope_type} lacks {', '.join(missing)}: complete config.json")
    if rope_type == "yarn" and mscale and mscale_all_dim and "attention_factor" not in values:
        log = 0.1 * math.log(values["factor"])
        values["attention_factor"] = (mscale * log + 1) / (mscale_all_dim * log + 1)
    return RopeScaling(type=cast(Type, rope_type), **values)


def _check_keys(rope: Mapping[str, Any], supported: Collection[str], rope_type: str) -> None:
    """Raise ValueError for an unsupported key, unless its value has no effect."""
    neutral = {"partial_rotary_factor": 1.0, "truncate": True}
    for key, value in rope.items():
        if key not in supported and value != neutral.get(key):
            raise ValueError(f"RoPE scaling {rope_type} has {key} = {short_repr(value)}, which is not supported")


def rope_scaling_from(scaling: RopeScaling) -> dict[str, Any]:
    """RopeScaling -> config.json's rope_scaling."""
    names = ROPE_KEYS[scaling.type]
    return {"rope_type": scaling.type} | {theirs: getattr(scaling, ours) for theirs, ours in names.items()}


def without_ntk(args: ModelArgs) -> ModelArgs:
    """Replace NTK scaling, which config.json cannot express, by the equivalent larger rope_theta.

    Raises ValueError if the new rope_theta exceeds the limit of ModelArgs.
    """
    scaling = args.rope_scaling
    if scaling is None or scaling.type != "ntk":
        return args
    theta = args.rope_theta * scaling.factor ** (args.head_dim / (args.head_dim - 2))
    return dataclasses.replace(args, rope_theta=theta, rope_scaling=None)
