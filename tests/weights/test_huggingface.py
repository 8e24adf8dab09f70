"""Hugging Face directories, with transformers as the oracle where it is installed."""

import json

import pytest
import torch
from damage import change_json
from safetensors.torch import load_file, save_file

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
    "bias": {"qkv_bias": True},
    "norm": {"qk_norm": True, "norm_eps": 3e-6},
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_transformers_loads_our_runs_with_equal_logits(small_model, transformers, tmp_path, changes):
    model = small_model(max_seq_len=LENGTH, **changes).eval()
    for weight in model.parameters():
        if weight.ndim == 1:  # norms and biases
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    save_model(model, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, 37, (2, LENGTH))
    with torch.no_grad():
        ours, other = model(tokens), theirs(tokens).logits
        assert (ours - other).abs().max() <= 2e-5
    loaded = load_model(tmp_path)
    if "ntk" not in str(changes):  # written as the equivalent base
        assert loaded.args == model.args
    assert torch.equal(loaded.freqs_cis, model.freqs_cis)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


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


def test_tied_weights_are_stored_once(run):
    model, directory = run
    header = read_header(directory / "model.safetensors")
    assert "lm_head.weight" not in header
    assert sum(p.numel() for p in model.parameters()) * 4 < (directory / "model.safetensors").stat().st_size


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
    save_file({"x": torch.ones(3)}, directory / "c.safetensors")
    listed = dict.fromkeys(names, "a.safetensors") | weight_map
    listed = {name: file for name, file in listed.items() if file is not ...}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.norm.weight": "b.safetensors"}, r"b\.safetensors, which is missing"),
        ({"model.norm.weight": "../run/a.safetensors"}, "only files beside it"),
        ({"model.norm.weight": "/etc/passwd"}, "only files beside it"),
        ({"model.norm.weight": "..\\a.safetensors"}, "only files beside it"),
        ({"model.norm.weight": None}, "only files beside it"),
        ({"surplus": "a.safetensors"}, "surplus"),
        ({"model.norm.weight": "c.safetensors"}, r"lists model\.norm\.weight, which c\.safetensors does not contain"),
        ({"model.norm.weight": ...}, r"model\.norm\.weight"),
    ],
)
def test_a_wrong_index_is_an_error(run, changes, words):
    shard(run[1], changes)
    with pytest.raises(ValueError, match=words):
        load_args(run[1])
    (run[1] / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="0 tensors"):
        load_args(run[1])


def test_the_stored_dtype_is_that_of_the_embedding(run):
    rewrite(run[1], lambda t: t.update({n: w.bfloat16() for n, w in t.items() if "embed" in n}))
    assert open_checkpoint(run[1]).dtype == torch.bfloat16
    rewrite(run[1], lambda t: t.update({"a": torch.ones(2, 3, dtype=torch.int64)}))
    change_json(run[1] / "config.json", model_type="mine:Net")
    assert open_checkpoint(run[1]).dtype == torch.bfloat16  # of a subclass, which may have tensors of any dtype


def test_a_directory_with_only_a_pickle_is_an_error(run):
    (run[1] / "model.safetensors").rename(run[1] / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only pytorch_model\.bin, a pickle"):
        load_args(run[1])
