"""config.json of a Hugging Face model <-> ModelArgs. A setting that the network does not support is an error.

Four families are read: Llama, Mistral, Qwen2 and Qwen3. RoPE's base and scaling are in ``rope_theta`` and
``rope_scaling`` in older files, in ``rope_parameters`` in newer ones, or in both.
"""

import dataclasses
import json
import math
import warnings
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

from ..cli.files import TABLE, check_fields, short_repr
from ..config import UNSET, ModelArgs
from ..rope_scaling import RopeScaling, Type
from .layout import check_read_back


class Family(NamedTuple):
    """What one ``model_type`` says about the network."""

    architecture: str
    required: tuple[str, ...]  # settings whose default would be that of one published model
    written: dict[str, bool]  # settings that are written although we need none of them, for other programs
    qkv_bias: bool = False
    qk_norm: bool = False


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
OTHER_SIZES = (*SIZES, "num_key_value_heads", "max_position_embeddings")
FAMILIES = {
    "llama": Family("LlamaForCausalLM", SIZES, {"attention_bias": False, "mlp_bias": False}),
    "mistral": Family("MistralForCausalLM", OTHER_SIZES, {}),
    "qwen2": Family("Qwen2ForCausalLM", OTHER_SIZES, {"use_sliding_window": False}, qkv_bias=True),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        (*OTHER_SIZES, "head_dim"),
        {"attention_bias": False, "use_sliding_window": False},
        qk_norm=True,
    ),
}
DEFAULT_WINDOW = 4096  # of transformers, if a model with a sliding window does not say how wide it is

# Settings that files of these families have and this network does not support, with the value that means "not used".
UNSUPPORTED: dict[str, bool | float | None] = {
    "attention_bias": False,  # of all four projections; Qwen2 has its own of three without naming them
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "auto_map": None,  # the model's own code
}


def read_config(config: Mapping[str, Any]) -> tuple[ModelArgs, str | None]:
    """The architecture in config.json, and the name, ``module:Class``, if it is for a subclass of the network."""
    model_type = config.get("model_type")
    if not (isinstance(model_type, str) and ":" in model_type):
        return args_from_config(config), None
    args = args_from_config({**config, "model_type": "llama", "architectures": None})
    flags = {name: config.get(name, False) for name in ("qkv_bias", "qk_norm")}
    return dataclasses.replace(args, **flags), model_type


def args_from_config(config: Mapping[str, Any]) -> ModelArgs:
    """config.json -> ModelArgs. Raises ValueError that names an unsupported or a missing setting.

    Raises TypeError or ArithmeticError for some values of the wrong type.
    """
    family = _supported_family(config)
    missing = [name for name in family.required if name not in config]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: not the configuration of a model")
    theta, scaling = rope_from(config)
    return ModelArgs(
        dim=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config.get("num_key_value_heads", UNSET),
        head_dim=config.get("head_dim", UNSET),
        hidden_dim=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_seq_len=_context(config),
        norm_eps=config.get("rms_norm_eps", 1e-6),  # the format's default
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=config.get("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )


def _supported_family(config: Mapping[str, Any]) -> Family:
    """The family of the model. Raises ValueError for the first setting that this network does not support."""
    model_type = config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        supported = ", ".join(FAMILIES)
        raise ValueError(
            f"model_type is {short_repr(model_type)}: supported are {supported}; others have another network"
        )
    classes = config.get("architectures") or [family.architecture]
    if classes != [family.architecture]:
        raise ValueError(f"architectures is {short_repr(classes)}: only {family.architecture} is supported")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act is {short_repr(config['hidden_act'])}: only silu is supported")
    for name, unused in UNSUPPORTED.items():
        value = config.get(name)
        if value is not None and value != unused:
            raise ValueError(
                f"{name} is {short_repr(value)}: this network does not support it, and would give wrong results"
            )
    return family


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


def _family_of(args: ModelArgs) -> str:
    """The ``model_type`` that a network is written as. Mistral's network is Llama's."""
    if args.qkv_bias and args.qk_norm:
        raise ValueError(
            "qkv_bias and qk_norm are both true: no family of published models has both, so config.json cannot "
            "express them together; leave one out"
        )
    if args.qkv_bias:
        return "qwen2"
    return "qwen3" if args.qk_norm else "llama"


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
    if subclass_name:
        names = {"architectures": [subclass_name.split(":")[1]], "model_type": subclass_name}
        flags = {"qkv_bias": args.qkv_bias, "qk_norm": args.qk_norm}
    else:
        family = _family_of(args)
        names = {"architectures": [FAMILIES[family].architecture], "model_type": family}
        flags = FAMILIES[family].written
    config = {
        **names,
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
        **flags,
        "torch_dtype": dtype,
        **{name: value for name, value in ids.items() if value != []},  # transformers fails on an empty list
    }
    check_read_back(args, read_config(json.loads(json.dumps(config)))[0], "config.json")
    return config


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
    check_fields(config, {"rope_parameters": TABLE, "rope_scaling": TABLE})
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", config.get("rope_theta", 10000.0))
    if config.get("rope_theta", theta) != theta:
        raise ValueError(f"rope_theta is both {short_repr(config['rope_theta'])} and {short_repr(theta)}: keep one")
    old_type = rope.pop("type", None)
    rope_type = rope.pop("rope_type", None) or old_type or "default"
    if rope_type == "default" and not rope.get("factor"):  # a factor without a type is rejected below
        rope.pop("factor", None)
        _check_keys(rope, set(), rope_type)
        return theta, None
    if rope_type not in ROPE_KEYS:
        raise ValueError(f"RoPE scaling is {short_repr(rope_type)}: supported are {', '.join(ROPE_KEYS)}")
    return theta, _scaling(rope_type, rope, config)


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
