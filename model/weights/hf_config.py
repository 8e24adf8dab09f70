"""config.json of a Hugging Face Llama model <-> ModelArgs. What the network cannot do is refused, never ignored."""

import json
from collections.abc import Mapping
from typing import Any

from ..cli.files import FLAG, NUMBER, TABLE, TEXT, TEXTS, WHOLE, Kind, check_fields, shortened
from ..config import DERIVED, ModelArgs
from .hf_rope import rope_from, table_of, without_ntk
from .layout import check_read_back

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"), WHOLE),
    **dict.fromkeys(("vocab_size", "num_key_value_heads", "head_dim", "max_position_embeddings"), WHOLE),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), NUMBER),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), TABLE),
    **dict.fromkeys(("model_type", "hidden_act"), TEXT),
    **dict.fromkeys(("architectures", "layer_types"), TEXTS),
    "tie_word_embeddings": FLAG,
    "original_max_position_embeddings": WHOLE,
}

# What Llama configurations may say that this network does not do, with the value that means "not used".
NOT_DONE: dict[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "attention_chunk_size": None,
    "layer_types": None,
    "no_rope_layers": None,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "num_local_experts": None,
    "num_experts": None,
    "n_routed_experts": None,
    "use_qk_norm": False,
    "qk_norm": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "embedding_multiplier": 1.0,
    "attention_multiplier": None,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "auto_map": None,
}


def read_config(config: Mapping[str, Any]) -> tuple[ModelArgs, str | None]:
    """What config.json says: the architecture, and for a subclass of the network its name, ``module:Class``."""
    check_fields(config, KINDS)
    kind = config.get("model_type")
    if not (isinstance(kind, str) and ":" in kind):
        return args_from(config), None
    return args_from({**config, "model_type": "llama", "architectures": None}), kind


def args_from(config: Mapping[str, Any]) -> ModelArgs:
    """Raises ValueError that names what the network cannot express, or what is missing."""
    refuse_others(config)
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [name for name in sizes if name not in config]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: not the configuration of a Llama model")
    theta, scaling = rope_from(config)
    return ModelArgs(
        dim=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config.get("num_key_value_heads", DERIVED),
        head_dim=config.get("head_dim", DERIVED),
        hidden_dim=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        # What the format says where the file says nothing.
        max_seq_len=config.get("max_position_embeddings", 2048),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=config.get("tie_word_embeddings", False),
    )


def refuse_others(config: Mapping[str, Any]) -> None:
    kind, classes = config.get("model_type"), config.get("architectures") or ["LlamaForCausalLM"]
    if kind != "llama" or classes != ["LlamaForCausalLM"]:
        said = f"model_type is {shortened(kind)} and architectures {shortened(classes)}"
        raise ValueError(f"{said}: only llama, LlamaForCausalLM, is known")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act is {shortened(config['hidden_act'])}: only silu is known")
    for name, unused in NOT_DONE.items():
        value = config.get(name)
        if value is not None and value != unused and not (name == "layer_types" and set(value) == {"full_attention"}):
            raise ValueError(
                f"{name} is {shortened(value)}: this network has no such thing, and would be wrong without"
            )


def config_from(args: ModelArgs, dtype: str, ids: Mapping[str, Any], network: str | None = None) -> dict[str, Any]:
    """The config.json of a network, in the spelling that old and new readers know. ``ids`` are of the tokenizer.

    ``network`` is the ``module:Class`` of a subclass: no other program knows a model_type of that name. Raises
    ValueError that names what config.json cannot say.
    """
    args = without_ntk(args)
    scaling = args.rope_scaling
    config = {
        "architectures": [network.split(":")[1] if network else "LlamaForCausalLM"],
        "model_type": network or "llama",
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
        "rope_scaling": scaling and table_of(scaling),
        "tie_word_embeddings": args.tie_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": dtype,
        **ids,
    }
    check_read_back(args, read_config(json.loads(json.dumps(config)))[0], "config.json")
    return config
