"""config.json of a Hugging Face model <-> ModelArgs.

Four families are read: Llama, Mistral, Qwen2 and Qwen3. ``KNOWN`` and ``REFUSED`` say what becomes of each setting of
their files; others are named in a warning.
"""

import dataclasses
import json
import reprlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..cli import enumerated
from ..cli.files import read_json
from ..config import ModelArgs, RopeScaling, ScalingType
from .layout import check_read_back, check_sizes

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
OWN = ("qkv_bias", "qk_norm")  # of ModelArgs, written for a subclass only: other programs know them by the family
# The families by their model_type, with the values that transformers takes for missing settings. Other missing settings
# are computed from the rest, or are false.
COMMON_DEFAULTS = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048}
QWEN_DEFAULTS = {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {**QWEN_DEFAULTS, "qkv_bias": True},
    "qwen3": {**QWEN_DEFAULTS, "head_dim": 128, "qk_norm": True},
}

# What becomes of each setting: one in KNOWN is read or changes nothing; one in REFUSED is an error, unless its value is
# listed there; any other is named in a warning. Names that begin with an underscore are transformers' own notes. null
# is the same as a missing setting.
READ = """
model_type max_position_embeddings original_max_position_embeddings rope_theta rope_scaling rope_parameters
sliding_window use_sliding_window max_window_layers layer_types bos_token_id eos_token_id
"""
# Common names that change no result: for training, about the file and the programs that wrote it or run it, and of the
# tokenizer.
NEUTRAL = """
attention_dropout initializer_range pretraining_tp
architectures attn_implementation dtype torch_dtype transformers_version unsloth_fixed unsloth_version use_cache
is_llama_config transformers.js_config
max_length max_sequence_length model_max_length pad_token_id tokenizer_class unk_token_id
"""
KNOWN = frozenset({*NAMES, *OWN, *READ.split(), *NEUTRAL.split()})
QUANTIZED = "the weights are quantized, which is not read; get the model in bfloat16, float16 or float32"
WRONG = "this network does not support it and would give wrong results"
REFUSED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "activation": ("silu", "swiglu"),  # Falcon3's second name of hidden_act
    "attention_bias": (False,),  # of all four projections; Qwen2 implies the biases of three by its model_type
    "mlp_bias": (False,),
    "bias": (False,),
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "pruned_heads": ({},),
    "auto_map": (),  # code of the model's authors
    # Of other families, whose networks some derived models have under the name of one of the four
    "attention_multiplier": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "clip_qkv": (),
    "no_rope_layers": ([],),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
}
QUANTIZATIONS = ("quantization_config", "compression_config", "quantization")  # the last one is MLX's


def read_config(file: Path) -> tuple[ModelArgs, str | None]:
    """The network of a config.json, and its ``module:Class`` if it is a subclass. Raises ValueError with the reason."""
    config = read_json(file)
    try:
        args = args_from_config(config)
        check_sizes(args)
    except (ValueError, TypeError, ArithmeticError) as error:  # a value of the wrong type can raise any of these
        raise ValueError(f"{file}: {error}") from None
    return args, subclass_in(config)


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
    check_supported(config)
    missing = [name for name in REQUIRED if name not in config]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: not the configuration of a model")
    config = COMMON_DEFAULTS | FAMILIES.get(str(model_type), {}) | dict(config)
    theta, scaling = rope_from(config)
    return ModelArgs(
        **{ours: config[theirs] for theirs, ours in NAMES.items() if theirs in config},
        **{name: config[name] for name in OWN if name in config},
        max_seq_len=_context(config),
        rope_theta=theta,
        rope_scaling=scaling,
    )


def check_supported(config: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting that is refused. Those that are not known are named in one warning."""
    unknown = []
    for name, value in config.items():
        if name in KNOWN or name.startswith("_") or value is None:
            continue
        if name in QUANTIZATIONS:
            raise ValueError(f"{name} is {reprlib.repr(value)}: {QUANTIZED}")
        if name not in REFUSED:
            unknown.append(name)
        elif value not in REFUSED[name]:
            raise ValueError(f"{name} is {reprlib.repr(value)}: {WRONG}")
    if unknown:
        named = enumerated([reprlib.repr(name) for name in unknown])
        warnings.warn(f"config.json has {named}, which this network does not know", stacklevel=2)


def subclass_in(config: Mapping[str, Any]) -> str | None:
    """The name, ``module:Class``, if config.json is for a subclass of the network."""
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) and ":" in model_type else None


def _context(config: Mapping[str, Any]) -> int:
    """The most positions that the model can see, at most its sliding window: this network attends to all of them.

    The window limits the context even if only some layers have it.
    """
    context: int = config["max_position_embeddings"]
    model_type = config["model_type"]
    has_window = model_type == "mistral" or (model_type != "llama" and config.get("use_sliding_window"))
    window: int | None = config.get("sliding_window") if has_window else None
    supported = {"full_attention"} if window is None else {"full_attention", "sliding_attention"}
    others = set(config.get("layer_types") or ()) - supported
    if others:
        raise ValueError(f"layer_types has {reprlib.repr(sorted(others))}: this network has no such layers")
    if window is None or window >= context:
        return context
    warnings.warn(
        f"each token of this model sees a sliding window of {window} tokens: the context is {window}, not {context}",
        stacklevel=2,
    )
    return window


def config_from(
    args: ModelArgs, dtype: str, ids: Mapping[str, Any], subclass_name: str | None = None
) -> dict[str, Any]:
    """ModelArgs -> config.json, in a spelling that old and new programs read.

    ``ids`` are bos_token_id and eos_token_id. ``subclass_name`` is the ``module:Class`` of a subclass. It is written as
    model_type, so other programs reject the file. A Mistral is written as a Llama, because its network is the same.
    Raises ValueError that names a setting that config.json cannot express.
    """
    args = without_ntk(args)
    network: dict[str, Any]
    if subclass_name:
        network = {"architectures": [subclass_name.split(":")[1]], "model_type": subclass_name}
        network |= {name: getattr(args, name) for name in OWN}
    else:
        family = "qwen3" if args.qk_norm else "llama"
        if args.qkv_bias:
            family = "qwen2"
        network = {"architectures": [f"{family.capitalize()}ForCausalLM"], "model_type": family}
    config = {
        **network,
        **{theirs: getattr(args, ours) for theirs, ours in NAMES.items()},
        "max_position_embeddings": args.max_seq_len,
        "rope_theta": args.rope_theta,
        "rope_scaling": args.rope_scaling and rope_scaling_from(args.rope_scaling),
        "hidden_act": "silu",
        "torch_dtype": dtype,
        **{name: value for name, value in ids.items() if value != []},  # transformers fails on an empty list
    }
    check_read_back(args, args_from_config(json.loads(json.dumps(config))), "config.json")
    return config


# For each type of scaling, its keys besides rope_type and rope_theta: Hugging Face's name -> ours
ORIGINAL = "original_max_position_embeddings"
FACTOR = {"factor": "factor"}
FACTOR_AND_ORIGINAL = FACTOR | {ORIGINAL: "original_max_seq_len"}
ROPE_KEYS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": FACTOR,
    "llama3": FACTOR_AND_ORIGINAL | {"low_freq_factor": "low", "high_freq_factor": "high"},
    "yarn": FACTOR_AND_ORIGINAL | {"beta_slow": "low", "beta_fast": "high", "attention_factor": "attention_factor"},
}
# Keys of the table that change nothing if they have these values and the type of scaling does not read them
ROPE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "factor": (1,),
    "partial_rotary_factor": (1,),
    "truncate": (True,),  # whole indices, as in YaRN's code
    "finetuned": (True, False),
}


def rope_from(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """RoPE's base and scaling; None for unscaled frequencies.

    They are in ``rope_parameters``, or in an older file in ``rope_theta`` and ``rope_scaling``. The new place of a
    setting overrides the old one.
    """
    old, new = (config.get(name) or {} for name in ("rope_scaling", "rope_parameters"))
    if not isinstance(old, dict) or not isinstance(new, dict):
        wrong = new if isinstance(old, dict) else old
        raise ValueError(f"rope_scaling or rope_parameters is {reprlib.repr(wrong)}: a table is needed")
    # Later tables override earlier ones. As in transformers, the original context beside the table overrides the one in
    # it.
    tables = ({"rope_theta": config.get("rope_theta")}, old, new, {ORIGINAL: config.get(ORIGINAL)})
    rope = {key: value for table in tables for key, value in table.items() if value is not None}
    theta = rope.pop("rope_theta", 10000.0)
    old_type = rope.pop("type", "default")  # the older name of rope_type
    rope_type = rope.pop("rope_type", old_type)
    if str(rope_type) not in ROPE_KEYS:
        raise ValueError(f"RoPE scaling is {reprlib.repr(rope_type)}: supported are {', '.join(ROPE_KEYS)}")
    keys = ROPE_KEYS[rope_type]
    unknown = sorted(
        key for key, value in rope.items() if key not in (*keys, ORIGINAL) and value not in ROPE_NEUTRAL.get(key, ())
    )
    if unknown:
        raise ValueError(f"RoPE scaling {rope_type} has {', '.join(unknown)}, which this network does not support")
    if rope_type == "default":
        return theta, None
    if "factor" not in rope:
        raise ValueError(f"RoPE scaling {rope_type} lacks a factor: complete config.json")
    rope.setdefault(ORIGINAL, config["max_position_embeddings"])
    values = {ours: rope[theirs] for theirs, ours in keys.items() if theirs in rope}
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
