"""Directories that transformers writes, with random weights: every family loads with equal logits, and is written."""

import pytest
import torch

from model import KVCache
from model.weights import load_model, save_model
from model.weights.tensors import load_tensors

CONTEXT = 64
SIZES = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 37, "max_position_embeddings": CONTEXT, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e6}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
CONFIGS = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "llama3": ("Llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}),
    "llama yarn": ("Llama", {"rope_parameters": {**YARN, "beta_fast": 8, "beta_slow": 1, "attention_factor": 0.8}}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 10}),
    "mistral with a window": ("Mistral", {"sliding_window": CONTEXT}),
    "qwen2": ("Qwen2", {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 1}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3 tied": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}
WRITTEN = {"Llama": "llama", "Mistral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3"}


def saved_by_transformers(transformers, directory, family, **changes):
    """A model in float32 whose biases and norms are random, too. Returns it, and writes its directory."""
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SIZES | changes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
            elif weight.ndim == 1:
                weight.uniform_(0.5, 1.5)
    model.eval().save_pretrained(directory)
    return model


def assert_close(logits, expected):
    assert (logits - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


@pytest.mark.parametrize(("family", "changes"), CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_logits_equal_those_of_transformers(transformers, tmp_path, family, changes):
    theirs = saved_by_transformers(transformers, tmp_path, family, **changes)
    ours = load_model(tmp_path)
    tokens = torch.randint(37, (2, CONTEXT))
    expected = theirs(tokens).logits
    assert_close(ours(tokens), expected)
    cache = KVCache(ours.args, 2)
    steps = [ours(tokens[:, start:end], start, cache) for start, end in ((0, 20), (20, 21), (21, 22), (22, CONTEXT))]
    assert_close(torch.cat(steps, 1), expected)


@pytest.mark.parametrize(("family", "changes"), CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_round_trip_keeps_every_byte_and_the_family(transformers, tmp_path, family, changes, dtype):
    saved_by_transformers(transformers, tmp_path / "theirs", family, **changes)
    save_model(load_model(tmp_path / "theirs", dtype=dtype), tmp_path / "once")
    save_model(load_model(tmp_path / "once", dtype="stored"), tmp_path / "twice")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    originals = load_tensors(tmp_path / "theirs" / "model.safetensors")
    written = load_tensors(tmp_path / "once" / "model.safetensors")
    assert written.keys() == originals.keys()
    assert all(torch.equal(written[name], tensor.to(dtype)) for name, tensor in originals.items())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "once", dtype=torch.float32)
    assert again.config.model_type == WRITTEN[family]
    tokens = torch.randint(37, (1, CONTEXT))
    assert_close(load_model(tmp_path / "once")(tokens), again(tokens).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_shards_in_half_precision_load_with_equal_logits(transformers, tmp_path, dtype):
    saved = saved_by_transformers(transformers, tmp_path / "float32", "Llama")
    saved.to(dtype).save_pretrained(tmp_path / "shards", max_shard_size="20kB")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "shards", dtype=torch.float32)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    tokens = torch.randint(37, (1, CONTEXT))
    assert_close(load_model(tmp_path / "shards")(tokens), theirs(tokens).logits)
    assert {p.dtype for p in load_model(tmp_path / "shards", dtype="stored").parameters()} == {dtype}


@pytest.mark.parametrize(
    ("family", "changes"), [("Mistral", {}), ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1})]
)
@torch.no_grad()
def test_a_context_limited_to_the_sliding_window_gives_equal_logits(transformers, tmp_path, family, changes):
    theirs = saved_by_transformers(transformers, tmp_path, family, sliding_window=16, **changes)
    with pytest.warns(UserWarning, match="the context is 16, not 64"):
        ours = load_model(tmp_path)
    tokens = torch.randint(37, (1, 17))
    assert_close(ours(tokens[:, :16]), theirs(tokens[:, :16]).logits)
    with pytest.raises(ValueError, match="within the 16 positions"):
        ours(tokens)
