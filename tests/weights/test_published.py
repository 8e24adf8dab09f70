"""config.json as published with each family, with small sizes and random weights: transformers has equal logits."""

import json

import pytest
import torch

from model.weights import load_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "model_type": "llama", "torch_dtype": "float16", "transformers_version": "4.31.0",
    "use_cache": True, "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "max_position_embeddings": 64,
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
    "rope_theta": 10000.0, "sliding_window": 64,
}  # fmt: skip
QWEN2 = {
    **LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2,
    "attention_dropout": 0.0, "max_window_layers": 28, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "use_sliding_window": False,
}  # fmt: skip
QWEN3 = {
    **QWEN2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 10,
    "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": True,
}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "type": "yarn"}
PUBLISHED = {
    "Llama 1": {**LLAMA, "max_sequence_length": 2048, "pad_token_id": 0, "rms_norm_eps": 1e-06},
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
    "the original context beside yarn": {
        **LLAMA, "rope_scaling": {"factor": 4.0, "type": "yarn"}, "original_max_position_embeddings": 16,
    },
    "the original context beside llama3": {
        **LLAMA_31, "rope_scaling": {k: v for k, v in LLAMA3.items() if not k.startswith("orig")},
        "original_max_position_embeddings": 16,
    },
    "partial_rotary_factor of 1": {**LLAMA, "partial_rotary_factor": 1.0},
    "linear scaling with an original context": {
        **LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 32},
    },
    "Mistral v0.1": MISTRAL,
    "Mistral Nemo": {**MISTRAL, "head_dim": 10, "sliding_window": None, "rope_theta": 1000000.0, "max_length": 20},
    "Mistral with head_dim null": {**MISTRAL, "head_dim": None},
    "Qwen1.5": {**QWEN2, "max_window_layers": 21, "num_key_value_heads": 6},
    "Qwen2.5": {**QWEN2, "tie_word_embeddings": True},
    "Qwen2.5 with the recipe for long texts": {**QWEN2, "rope_scaling": YARN},
    "R1's distillation of Qwen": {**QWEN2, "use_mrope": False, "sliding_window": 4096},
    "Qwen3": QWEN3,
    "Qwen3 with the recipe for long texts": {**QWEN3, "rope_scaling": {**YARN, "type": None, "rope_type": "yarn"}},
    "Qwen3 without head_dim": {k: v for k, v in QWEN3.items() if k != "head_dim"},
}  # fmt: skip
SIZES = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 37,
}  # fmt: skip


@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
@torch.no_grad()
def test_logits_equal_those_of_transformers(transformers, tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config | SIZES), encoding="utf-8")
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_config(read, dtype=torch.float32).eval()
    for weight in theirs.parameters():
        weight.normal_(std=0.2) if weight.ndim > 1 else weight.uniform_(0.5, 1.5)
    theirs.save_pretrained(tmp_path / "weights")
    (tmp_path / "weights" / "model.safetensors").rename(tmp_path / "model.safetensors")
    ours = load_model(tmp_path)
    assert ours.args.max_seq_len == 64
    tokens = torch.randint(37, (2, 64))
    expected = theirs(tokens).logits
    assert (ours(tokens) - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
