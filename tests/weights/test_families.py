"""config.json as published with each family, with small sizes and random weights: transformers has equal logits."""

import json

import pytest
import torch

from model import KVCache
from model.weights import load_model, save_model
from model.weights.tensors import load_tensors

CONTEXT = 64
SIZES = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 37,
}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "model_type": "llama", "torch_dtype": "float16", "transformers_version": "4.31.0",
    "use_cache": True, "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "max_position_embeddings": CONTEXT,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "pretraining_tp": 1, "rope_scaling": None}
LLAMA_3 = {
    **LLAMA, **GROUPED, "attention_bias": False, "attention_dropout": 0.0, "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"rope_type": "llama3"}
LLAMA_31 = {**LLAMA_3, "mlp_bias": False, "eos_token_id": [3, 4, 5], "rope_scaling": LLAMA3}
MISTRAL = {
    **LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2,
    "rope_theta": 10000.0, "sliding_window": CONTEXT,
}  # fmt: skip
QWEN2 = {
    **LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2,
    "attention_dropout": 0.0, "max_window_layers": 1, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 7, "use_sliding_window": False,
}  # fmt: skip
QWEN3 = {
    **QWEN2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 10,
    "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": True,
}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "type": "yarn"}
PUBLISHED = {
    "Llama 1": {**LLAMA, "max_sequence_length": 2048, "pad_token_id": 0, "num_key_value_heads": None},
    "Llama 2 7B": {**LLAMA, "_name_or_path": "meta-llama/Llama-2-7b-hf", "pretraining_tp": 1, "rope_scaling": None},
    "Llama 3.1": LLAMA_31,
    "Llama 3.2": {**LLAMA_31, "head_dim": 8, "tie_word_embeddings": True, "rope_scaling": {**LLAMA3, "factor": 32.0}},
    "deepseek-coder": {**LLAMA, **GROUPED, "rope_scaling": {"factor": 4.0, "type": "linear"}, "rope_theta": 100000},
    "Falcon3": {**LLAMA_3, "activation": "swiglu", "head_dim": 16, "rope_theta": 1000042, "eos_token_id": 11},
    "SmolLM2": {
        **LLAMA_3, "is_llama_config": True, "rope_interleaved": False, "rope_theta": 100000, "pad_token_id": 2,
        "tie_word_embeddings": True, "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    },
    "an extended Llama 2": {**LLAMA, "rope_scaling": {**YARN, "finetuned": True}},
    "every setting of yarn": {
        **LLAMA, "rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2, "attention_factor": 0.8, "truncate": True},
    },
    "the original context beside yarn": {
        **LLAMA, "rope_scaling": {"factor": 4.0, "type": "yarn"}, "original_max_position_embeddings": 16,
    },
    "the original context beside llama3": {
        **LLAMA_31, "rope_scaling": {k: v for k, v in LLAMA3.items() if not k.startswith("orig")},
        "original_max_position_embeddings": 16,
    },
    "linear scaling with an original context": {
        **LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 32},
        "partial_rotary_factor": 1.0,
    },
    "Mistral v0.1": MISTRAL,
    "Mistral Nemo": {**MISTRAL, "head_dim": 10, "sliding_window": None, "rope_theta": 1000000.0, "max_length": 20},
    "Mistral with head_dim null": {**MISTRAL, "head_dim": None},
    "Qwen1.5": {**QWEN2, "num_key_value_heads": 6},
    "Qwen2.5 with the recipe for long texts": {**QWEN2, "tie_word_embeddings": True, "rope_scaling": YARN},
    "R1's distillation of Qwen": {**QWEN2, "use_mrope": False, "sliding_window": 4096},
    "Qwen3": QWEN3,
    "Qwen3 with the recipe for long texts": {**QWEN3, "rope_scaling": {**YARN, "type": None, "rope_type": "yarn"}},
    "Qwen3 without head_dim": {k: v for k, v in QWEN3.items() if k != "head_dim"},
}  # fmt: skip
WRITTEN = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def random_model(transformers, directory, config):
    """A model of transformers in float32. Writes its weights beside ``config``, and all of it as new/."""
    (directory / "config.json").write_text(json.dumps(config | SIZES), encoding="utf-8")
    read = transformers.AutoConfig.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(read, dtype=torch.float32).eval()
    for weight in model.parameters():
        weight.normal_(std=0.2) if weight.ndim > 1 else weight.uniform_(0.5, 1.5)
    model.save_pretrained(directory / "new")
    (directory / "model.safetensors").write_bytes((directory / "new" / "model.safetensors").read_bytes())
    return model


def assert_close(logits, expected):
    assert (logits - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
@torch.no_grad()
def test_a_published_model_has_the_logits_of_transformers_and_is_written_byte_for_byte(transformers, tmp_path, config):
    theirs = random_model(transformers, tmp_path, config)
    ours = load_model(tmp_path)
    assert ours.args == load_model(tmp_path / "new").args, "in the spelling of transformers 5"
    tokens = torch.randint(37, (2, CONTEXT))
    expected = theirs(tokens).logits
    assert_close(ours(tokens), expected)
    cache = KVCache(ours.args, 2)
    steps = [ours(tokens[:, start:end], start, cache) for start, end in ((0, 20), (20, 21), (21, 22), (22, CONTEXT))]
    assert_close(torch.cat(steps, 1), expected)

    originals = load_tensors(tmp_path / "model.safetensors")
    for dtype in (torch.bfloat16, torch.float32):
        save_model(load_model(tmp_path, dtype=dtype), tmp_path / "once")
        save_model(load_model(tmp_path / "once", dtype="stored"), tmp_path / "twice")
        for name in ("config.json", "model.safetensors"):
            assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
        written = load_tensors(tmp_path / "once" / "model.safetensors")
        assert written.keys() == originals.keys()
        assert all(torch.equal(written[name], tensor.to(dtype)) for name, tensor in originals.items())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "once", dtype=torch.float32)
    assert again.config.model_type == WRITTEN[config["model_type"]]
    assert_close(again(tokens).logits, expected)


@pytest.mark.parametrize("config", [MISTRAL, {**QWEN2, "use_sliding_window": True}])
@torch.no_grad()
def test_a_context_limited_to_the_sliding_window_gives_equal_logits(transformers, tmp_path, config):
    theirs = random_model(transformers, tmp_path, {**config, "sliding_window": 16})
    with pytest.warns(UserWarning, match="the context is 16, not 64"):
        ours = load_model(tmp_path)
    tokens = torch.randint(37, (1, 17))
    assert_close(ours(tokens[:, :16]), theirs(tokens[:, :16]).logits)
    with pytest.raises(ValueError, match="within the 16 positions"):
        ours(tokens)
