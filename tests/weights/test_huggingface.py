"""Hugging Face directories, with transformers as the oracle where it is installed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import generate
from model.rope_scaling import RopeScaling
from model.weights import load_args, load_model, open_checkpoint, save_model
from model.weights.tensors import read_header

ORIGINAL, LENGTH = 16, 60  # LENGTH is well past the trained length of the scalings
SHAPES = {
    "gqa": {},
    "tied": {"tie_embeddings": True, "n_kv_heads": 1},
    "mha": {"n_kv_heads": 6},
    "theta": {"rope_theta": 5e5},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "ntk": {"rope_scaling": RopeScaling("ntk", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, ORIGINAL)},
    "yarn": {"rope_scaling": RopeScaling("yarn", 4.0, ORIGINAL, high=8.0)},
    "yarn_scale": {"rope_scaling": RopeScaling("yarn", 4.0, ORIGINAL, attention_factor=0.8)},
}


@pytest.fixture(scope="module")
def transformers():
    library = pytest.importorskip("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_transformers_loads_our_runs_with_equal_logits(small_model, transformers, tmp_path, changes):
    model = small_model(max_seq_len=LENGTH, **changes).eval()
    save_model(model, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, 37, (2, LENGTH))
    with torch.no_grad():
        ours, other = model(tokens), theirs(tokens).logits
        assert (ours - other).abs().max() <= 2e-5
        assert torch.equal(load_model(tmp_path)(tokens), ours)


def transformers_config(transformers, **changes):
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 37, "max_position_embeddings": 128, "initializer_range": 0.1}
    return transformers.LlamaConfig(**{**sizes, **changes})


CONFIG_CHANGES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "head_dim": {"head_dim": 10},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL, "rope_theta": 5e5,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "rope_theta": 1e4,
            "beta_fast": 8, "beta_slow": 1,
        }
    },
    "yarn_mscale": {
        "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4,
            "mscale": 0.7, "mscale_all_dim": 1.3,
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("changes", CONFIG_CHANGES.values(), ids=CONFIG_CHANGES)
def test_files_of_transformers_load_with_equal_logits(transformers, tmp_path, changes):
    theirs = transformers.LlamaForCausalLM(transformers_config(transformers, **changes)).eval()
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(0, 37, (2, LENGTH))
    with torch.no_grad():
        assert (load_model(tmp_path)(tokens) - theirs(tokens).logits).abs().max() <= 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_in_half_precision_load_with_equal_logits(transformers, tmp_path, dtype):
    transformers.LlamaForCausalLM(transformers_config(transformers)).to(dtype).save_pretrained(
        tmp_path, max_shard_size="20kB"
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = torch.randint(0, 37, (1, LENGTH))
    model = load_model(tmp_path)
    with torch.no_grad():
        assert (model(tokens) - theirs(tokens).logits).abs().max() <= 2e-5
    assert {p.dtype for p in load_model(tmp_path, dtype="stored").parameters()} == {dtype}
    assert {p.dtype for p in load_model(tmp_path, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_greedy_text_equals_that_of_transformers_for_a_hundred_tokens(small_model, transformers, tmp_path):
    model = small_model(max_seq_len=128, n_layers=3).eval()
    save_model(model, tmp_path, ids={"bos_token_id": 1, "eos_token_id": None})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    prompt = [1, 5, 9, 33]
    ours = [token for (token,) in generate(model, [prompt], max_new_tokens=100, temperature=0.0)]
    mask = torch.ones(1, len(prompt), dtype=torch.long)
    text = theirs.generate(torch.tensor([prompt]), attention_mask=mask, max_new_tokens=100, do_sample=False)
    assert len(ours) == 100
    assert text[0, len(prompt) :].tolist() == ours


@pytest.fixture
def run(small_model, tmp_path):
    """A model, and the directory in which it was saved."""
    model = small_model(tie_embeddings=True).eval()
    save_model(model, tmp_path / "run")
    return model, tmp_path / "run"


def rewrite(directory, change):
    """Apply ``change`` to the dictionary of tensors in model.safetensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")


def test_round_trip_keeps_every_bit_and_every_number(small_model, tmp_path):
    model = small_model(rope_theta=123.0, norm_eps=3e-6, rope_scaling=RopeScaling("yarn", 4.0, 6, 2.0, 9.0, 1.3))
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.args == model.args == load_args(tmp_path)
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert torch.equal(loaded.freqs_cis, model.freqs_cis)


def test_tied_weights_are_stored_once(run):
    model, directory = run
    header = read_header(directory / "model.safetensors")
    assert "lm_head.weight" not in header
    assert sum(p.numel() for p in model.parameters()) * 4 < (directory / "model.safetensors").stat().st_size


def test_a_loaded_network_can_be_trained(run):
    model = load_model(run[1])
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_tied_weights_stored_as_output_matrix_only(run):
    model, directory = run
    rewrite(directory, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
    assert torch.equal(load_model(directory).tok_embeddings.weight, model.tok_embeddings.weight)


def test_tied_weights_stored_twice_must_be_equal(run):
    model, directory = run
    rewrite(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert torch.equal(load_model(directory).tok_embeddings.weight, model.tok_embeddings.weight)
    rewrite(directory, lambda t: t["lm_head.weight"].add_(1))
    with pytest.raises(ValueError, match=r"tie_word_embeddings.*differ"):
        load_model(directory)


def test_rope_frequencies_in_old_files_are_ignored(run):
    model, directory = run
    rewrite(directory, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)}))
    assert load_model(directory).args == model.args


FAULTS = {
    "missing": (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"missing: model\.layers\.1\.mlp\S+ \(64, 48\)"),
    "surplus": (lambda t: t.update({"model.layers.2.x": torch.ones(3)}), r"not of this .*: model\.layers\.2\.x \(3,\)"),
    "bias": (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(60)}), r"q_proj\.bias"),
    "shape": (lambda t: t.update({"model.norm.weight": torch.ones(47)}), r"norm\.weight is \(47,\), not \(48,\)"),
    "dtype": (lambda t: t.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}), "I8"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), FAULTS.values(), ids=FAULTS)
def test_tensors_that_do_not_match_are_listed(run, change, words):
    rewrite(run[1], change)
    with pytest.raises(ValueError, match=words) as error:
        load_args(run[1])
    assert "\n" not in str(error.value)


def shard(directory, weight_map):
    (directory / "model.safetensors").rename(directory / "a.safetensors")
    names = read_header(directory / "a.safetensors")
    listed = dict.fromkeys(names, "a.safetensors") | weight_map
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.norm.weight": "b.safetensors"}, r"b\.safetensors, which is missing"),
        ({"model.norm.weight": "../run/a.safetensors"}, "only files beside it"),
        ({"model.norm.weight": "/etc/passwd"}, "only files beside it"),
        ({"model.norm.weight": "..\\a.safetensors"}, "only files beside it"),
        ({"model.norm.weight": ".."}, "missing|only files"),
        ({"model.norm.weight": None}, "only files beside it"),
        ({"surplus": "a.safetensors"}, "surplus"),
    ],
)
def test_a_wrong_index_is_an_error(run, changes, words):
    shard(run[1], changes)
    with pytest.raises(ValueError, match=words):
        load_args(run[1])


def test_an_index_that_lists_a_tensor_in_the_wrong_file_is_an_error(run):
    name = "model.norm.weight"
    shard(run[1], {name: "b.safetensors"})
    save_file({"x": torch.ones(3)}, run[1] / "b.safetensors")
    with pytest.raises(ValueError, match=r"lists model\.norm\.weight, which b\.safetensors does not contain"):
        load_args(run[1])


def test_the_stored_dtype_is_that_of_the_embedding(run):
    rewrite(run[1], lambda t: t.update({n: w.bfloat16() for n, w in t.items() if "embed" in n}))
    assert open_checkpoint(run[1]).dtype == torch.bfloat16
    rewrite(run[1], lambda t: t.update({"a": torch.ones(2, 3, dtype=torch.int64)}))
    config = json.loads((run[1] / "config.json").read_text(encoding="utf-8"))
    (run[1] / "config.json").write_text(json.dumps(config | {"model_type": "mine:Net"}), encoding="utf-8")
    assert open_checkpoint(run[1]).dtype == torch.bfloat16  # of a subclass, which may have tensors of any dtype


def test_an_incomplete_index_is_an_error(run):
    shard(run[1], {})
    index = run[1] / "model.safetensors.index.json"
    listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    load_args(run[1])
    del listed["model.norm.weight"]
    index.write_text(json.dumps({"weight_map": listed}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        load_args(run[1])
    index.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="0 tensors"):
        load_args(run[1])


@pytest.mark.parametrize("text", ["[" * 2000 + "]" * 2000, "{", "[]", '{"model_type": 3}'])
def test_a_broken_config_json_is_named_once_in_the_error(run, text):
    _, directory = run
    (directory / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json") as refused:
        load_model(directory)
    assert str(refused.value).count("config.json") == 1


def test_a_directory_with_only_a_pickle_is_an_error(run):
    (run[1] / "model.safetensors").rename(run[1] / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only pytorch_model\.bin, a pickle"):
        load_args(run[1])
