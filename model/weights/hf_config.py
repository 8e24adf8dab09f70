"""config.json of a Hugging Face model <-> ModelArgs. A setting that the network does not support is an error.

Four families are read: Llama, Mistral, Qwen2 and Qwen3. RoPE's base and scaling are in ``rope_theta`` and
``rope_scaling`` in older files, in ``rope_parameters`` in newer ones, or in both.
"""

import dataclasses
import json
import reprlib
import warnings
from collections.abc import Mapping
from typing import Any, cast

from ..config import ModelArgs, RopeScaling, ScalingType
from .layout import check_read_back

# Settings that are only named differently: Hugging Face's name -> ours
NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "hidden_dim",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
# For each model_type, the settings that are written although we need none of them, for other programs.
FAMILIES: dict[str, dict[str, bool]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"attention_bias": False, "use_sliding_window": False},
}
DEFAULT_WINDOW = 4096  # of transformers, if a model with a sliding window does not say how wide it is

# Settings that files of these families have and this network does not support, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (None, False),  # of all four projections; Qwen2 has its own of three without naming them
    "mlp_bias": (None, False),
    "hidden_act": (None, "silu", "swish"),
    "quantization_config": (None,),
    "auto_map": (None,),  # the model's own code
}


def args_from_config(config: Mapping[str, Any]) -> ModelArgs:
    """config.json -> ModelArgs. Raises ValueError that names an unsupported or a missing setting.

    Raises TypeError or ArithmeticError for some values of the wrong type.
    """
    model_type = config.get("model_type")
    if str(model_type) not in FAMILIES and not subclass_in(config):
        supported = ", ".join(FAMILIES)
        raise ValueError(
            f"model_type is {reprlib.repr(model_type)}: supported are {supported}; others have another network"
        )
    for name, neutral in UNSUPPORTED.items():
        if config.get(name) not in neutral:
            raise ValueError(
                f"{name} is {reprlib.repr(config[name])}: this network does not support it and would give wrong results"
            )
    missing = [name for name in REQUIRED if name not in config]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: not the configuration of a model")
    theta, scaling = rope_from(config)
    named = {ours: config[theirs] for theirs, ours in NAMES.items() if theirs in config}
    named.setdefault("norm_eps", 1e-6)  # the format's default
    return ModelArgs(
        **named,
        max_seq_len=_context(config),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=config.get("qkv_bias", model_type == "qwen2"),
        qk_norm=config.get("qk_norm", model_type == "qwen3"),
    )


def subclass_in(config: Mapping[str, Any]) -> str | None:
    """The name, ``module:Class``, if config.json is for a subclass of the network."""
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) and ":" in model_type else None


def _context(config: Mapping[str, Any]) -> int:
    """The most positions that the model can see, at most its sliding window: this network attends to all of them."""
    context = config.get("max_position_embeddings", 2048)  # the default of Llama's format
    has_window = config["model_type"] == "mistral" or config.get("use_sliding_window")
    window = config.get("sliding_window", DEFAULT_WINDOW) if has_window else None
    if window is None or window >= context:
        return cast(int, context)
    warnings.warn(
        f"each token of this model sees a sliding window of {window} tokens: the context is {window}, not {context}",
        stacklevel=2,
    )
    return cast(int, window)


def config_from(
    args: ModelArgs, dtype: str, ids: Mapping[str, Any], subclass_name: str | None = None
) -> dict[str, Any]:
    """ModelArgs -> config.json, in a spelling that old and new programs read.

    ``ids`` are bos_token_id and eos_token_id. ``subclass_name`` is the ``module:Class`` of a subclass. It is written as
    model_type, so other programs reject the file. A Mistral is written as a Llama, because its network is the same.
    Raises ValueError that names a setting that config.json cannot express.
    """
    if args.qkv_bias and args.qk_norm and not subclass_name:
        raise ValueError(
            "qkv_bias and qk_norm are both true: no family of published models has both, so config.json cannot "
            "express them together; leave one out"
        )
    args = without_ntk(args)
    scaling = args.rope_scaling
    if subclass_name:
        names = {"architectures": [subclass_name.split(":")[1]], "model_type": subclass_name}
        flags = {"qkv_bias": args.qkv_bias, "qk_norm": args.qk_norm}
    else:
        family = "qwen3" if args.qk_norm else "llama"
        if args.qkv_bias:
            family = "qwen2"
        names = {"architectures": [f"{family.capitalize()}ForCausalLM"], "model_type": family}
        flags = FAMILIES[family]
    config = {
        **names,
        **{theirs: getattr(args, ours) for theirs, ours in NAMES.items()},
        "max_position_embeddings": args.max_seq_len,
        "rope_theta": args.rope_theta,
        "rope_scaling": scaling and rope_scaling_from(scaling),
        "hidden_act": "silu",
        **flags,
        "torch_dtype": dtype,
        **{name: value for name, value in ids.items() if value != []},  # transformers fails on an empty list
    }
    check_read_back(args, args_from_config(json.loads(json.dumps(config))), "config.json")
    return config


# For each type of scaling, its keys besides rope_type and rope_theta: Hugging Face's name -> ours
ROPE_KEYS: dict[str, dict[str, str]] = {
    "default": {},
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
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(table, dict):
        raise ValueError(f"RoPE's parameters are {reprlib.repr(table)}: a table is needed")
    rope = {name: value for name, value in table.items() if value is not None}
    theta = rope.pop("rope_theta", config.get("rope_theta", 10000.0))
    old_type = rope.pop("type", "default")
    rope_type = rope.pop("rope_type", old_type)
    if str(rope_type) not in ROPE_KEYS:
        raise ValueError(f"RoPE scaling is {reprlib.repr(rope_type)}: supported are {', '.join(ROPE_KEYS)}")
    keys = ROPE_KEYS[rope_type]
    unknown = sorted(rope.keys() - keys.keys())
    if unknown:
        raise ValueError(f"RoPE scaling {rope_type} has {', '.join(unknown)}, which this network does not support")
    if rope_type == "default":
        return theta, None
    if "factor" not in rope:
        raise ValueError(f"RoPE scaling {rope_type} lacks a factor: complete config.json")
    values = {keys[name]: value for name, value in rope.items()}
    if "original_max_position_embeddings" in keys:
        values.setdefault("original_max_seq_len", config.get("max_position_embeddings"))
    return theta, RopeScaling(type=cast(ScalingType, rope_type), **values)


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
