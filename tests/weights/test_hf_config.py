"""config.json: supported settings in both spellings, and unsupported ones, which are errors."""

import json
import warnings

import pytest

from model import ModelArgs
from model.rope_scaling import RopeScaling
from model.weights import open_checkpoint
from model.weights.hf_config import REFUSED, args_from_config, config_from, read_config, subclass_in

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}, 5e5, None),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}}, 1e6, None),
        ({"rope_scaling": {"rope_type": "default", "factor": 1.0}, "rope_parameters": {}}, 1e4, None),
        ({"rope_scaling": YARN, "rope_parameters": {"rope_theta": 5e5}}, 5e5, RopeScaling("yarn", 4.0, 1024)),
        ({"rope_scaling": YARN, "rope_parameters": LLAMA3}, 1e4, RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 512}, 1e4, RopeScaling("yarn", 4.0, 512)),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_slow": None}}, 1e4,
         RopeScaling("yarn", 4.0, 4096)),
    ],
)  # fmt: skip
def test_the_new_place_of_a_rope_setting_overrides_the_old_one(changes, theta, scaling):
    args = args_from_config({**LLAMA, **changes, "_new": [1]})
    assert (args.rope_theta, args.rope_scaling) == (theta, scaling)


INVALID = {
    "model_type": ({"model_type": "gemma3"}, "'gemma3': supported are llama, mistral, qwen2, qwen3"),
    "custom code": ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
    "of another family": ({"logit_scale": 0.1}, "logit_scale is 0.1: this network does not support it"),
    "4 bits": (
        {"quantization": {"group_size": 64, "bits": 4}},
        "quantization is .*: the weights are quantized, which is",
    ),
    "8 bits": (
        {"quantization_config": {"load_in_8bit": True}},
        "quantized, which is not read; get the model in bfloat16",
    ),
    "missing": ({"vocab_size": ...}, "vocab_size missing"),
    "window of the wrong type": ({"model_type": "mistral", "sliding_window": "x"}, "not supported between"),
    "layer types": ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has ..sliding_attention"),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic': supported are"),
    "type of the wrong type": ({"rope_scaling": {"type": [1], "factor": 2.0}}, "supported are"),
    "not a table": ({"rope_scaling": "linear"}, "is 'linear': a table is needed"),
    "not a new table": (
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": "yarn"},
        "is 'yarn': a table",
    ),
    "per layer": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
    "no factor": ({"rope_scaling": {"type": "linear"}}, "lacks a factor"),
    "truncate": ({"rope_scaling": {**YARN, "truncate": False}}, "yarn has truncate"),
    "mscale": ({"rope_scaling": {**YARN, "mscale": 0.7}}, "yarn has mscale"),
    "partial in the table": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "default has partial_rotary_factor"),
    "two tables": ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN}, "default has factor"),
}
INVALID |= {name: ({name: "other"}, f"{name} is 'other': this network does not support it") for name in REFUSED}


@pytest.mark.parametrize(("changes", "words"), INVALID.values(), ids=INVALID)
def test_an_unsupported_setting_is_an_error_that_names_it(tmp_path, changes, words):
    config = {name: value for name, value in {**LLAMA, **changes}.items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=words) as error:
        open_checkpoint(tmp_path)
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)


# Values of settings of other families with which they change no result
NEUTRAL = dict.fromkeys(("logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier"), 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"a_new_name": 0.1}, "config.json has 'a_new_name', which this network does not know"),
        ({"one": 1, "two": [2]}, "config.json has 'one', 'two', which this"),
        ({f"name_{i}": i for i in range(11)}, "'name_6', 'name_7', and 3 more, which this"),
        ({"new": None, "_new": 1, "use_cache": False, "num_experts": 0, **NEUTRAL}, None),
    ],
)
def test_settings_that_are_not_known_are_named_in_one_warning(changes, words):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert args_from_config({**LLAMA, **changes}) == args_from_config(LLAMA)
    messages = [str(each.message) for each in caught]
    assert len(messages) == (1 if words else 0)
    assert not words or words in messages[0]


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_transformers_writes_needs_no_warning(transformers, tmp_path, model_type):
    theirs = transformers.AutoConfig.for_model(model_type, sliding_window=None)
    transformers.AutoModelForCausalLM.from_config(shrunk(theirs)).save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_config(tmp_path / "config.json")


def shrunk(config):
    config.update({"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1})
    config.update({"intermediate_size": 8, "vocab_size": 20, "head_dim": 8, "layer_types": ["full_attention"]})
    return config


WINDOW = {"sliding_window": 1000}


@pytest.mark.parametrize(
    ("model_type", "changes", "context"),
    [
        ("mistral", {"sliding_window": None}, 4096),
        ("mistral", {"max_position_embeddings": 8192}, 4096),  # transformers' default
        ("qwen2", {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}, 1000),
        ("qwen2", {**WINDOW, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, 1000),
        ("qwen3", WINDOW, 4096),
        ("llama", {**WINDOW, "use_sliding_window": True}, 4096),
    ],
)
def test_the_context_ends_at_the_sliding_window(model_type, changes, context):
    config = {**LLAMA, "model_type": model_type, "num_key_value_heads": 2, **changes}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert args_from_config(config).max_seq_len == context
    limited = context < config["max_position_embeddings"]
    assert [f"the context is {context}" in str(each.message) for each in caught] == [True] * limited


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_missing_settings_have_the_defaults_of_the_family(transformers, model_type):
    sizes = {"hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32, "intermediate_size": 64}
    sizes["sliding_window"] = None  # at which the context would end
    theirs = transformers.AutoConfig.for_model(model_type, **sizes)
    ours = args_from_config({"model_type": model_type, **sizes, "vocab_size": 100})
    assert (ours.n_kv_heads, ours.norm_eps) == (theirs.num_key_value_heads, theirs.rms_norm_eps)
    assert ours.head_dim == getattr(theirs, "head_dim", 4096 // 32)
    assert ours.max_seq_len == theirs.max_position_embeddings
    assert (ours.rope_theta, ours.tie_embeddings) == (10000.0, theirs.tie_word_embeddings)


def test_bias_and_norm_together_are_refused_except_for_a_subclass():
    args = ModelArgs(dim=64, n_heads=4, qkv_bias=True, qk_norm=True)
    with pytest.raises(ValueError, match=r"qk_norm is True: config.json cannot express this"):
        config_from(args, "float32", {})
    config = config_from(args, "float32", {}, "mine:Net")
    assert (args_from_config(config), subclass_in(config)) == (args, "mine:Net")


def test_ntk_scaling_is_written_as_the_equivalent_base():
    args = ModelArgs(dim=64, n_heads=4, rope_scaling=RopeScaling("ntk", 4.0))
    config = config_from(args, "float32", {})
    assert config["rope_scaling"] is None
    assert config["rope_theta"] == pytest.approx(10000 * 4 ** (16 / 14))
