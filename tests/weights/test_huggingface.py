"""Hugging Face directories: other layouts of the same tensors, and tensors that do not match."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.weights import Checkpoint, load_model, save_model


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


def test_tied_weights_may_be_stored_under_either_name_and_are_not_tied_if_stored_under_both(run):
    model, directory = run
    rewrite(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    both = load_model(directory)
    assert torch.equal(both.tok_embeddings.weight, model.tok_embeddings.weight)
    assert torch.equal(both.output.weight, model.tok_embeddings.weight + 1)
    rewrite(directory, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)}))  # ignored
    rewrite(directory, lambda t: t.pop("model.embed_tokens.weight"))
    tied = load_model(directory)
    assert tied.args == model.args
    assert torch.equal(tied.tok_embeddings.weight, model.tok_embeddings.weight + 1)


FAULTS = {
    "missing": (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"layers\.1\.mlp\S+ \(64, 48\) is missing"),
    "surplus": (lambda t: t.update({"model.layers.2.x": torch.ones(3)}), r"layers\.2\.x \(3,\) is not of this arch"),
    "shape": (lambda t: t.update({"model.norm.weight": torch.ones(47)}), r"norm\.weight is \(47,\), not \(48,\)"),
    "dtype": (lambda t: t.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}), "I8"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), FAULTS.values(), ids=FAULTS)
def test_tensors_that_do_not_match_are_listed(run, change, words):
    rewrite(run[1], change)
    with pytest.raises(ValueError, match=words) as error:
        Checkpoint(run[1])
    assert "\n" not in str(error.value)


def test_shards_are_those_that_the_index_lists(run):
    model, directory = run
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    files = "first.safetensors", "model.safetensors-00002-of-00002"
    places = {name: files[at % 2] for at, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensor for name, tensor in tensors.items() if places[name] == file}, directory / file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}), encoding="utf-8")
    save_file({"another": torch.ones(1)}, directory / "adapter-00001-of-00001.safetensors")
    state = load_model(directory).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    (directory / files[1]).unlink()
    with pytest.raises(ValueError, match=rf"{files[1]} is missing, but model.safetensors.index"):
        Checkpoint(directory)
    for wrong in (None, [], {"a": 1}):
        index.write_text(json.dumps({"weight_map": wrong}), encoding="utf-8")
        with pytest.raises(ValueError, match="has no weight_map from tensors to files"):
            Checkpoint(directory)


@pytest.mark.parametrize("int8", [False, True])
def test_a_model_of_several_dtypes_is_loaded_in_that_of_its_embedding(run, int8):
    """As DeepSeek's, whose norms are in float32."""
    rewrite(run[1], lambda t: t.update({n: w.bfloat16() for n, w in t.items() if w.ndim > 1}))
    assert Checkpoint(run[1]).dtype == torch.bfloat16
    model = load_model(run[1], dtype="stored", int8=int8)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model(torch.randint(37, (1, 5))).isfinite().all()
    exact = load_model(run[1])
    assert torch.equal(exact.norm.weight, run[0].norm.weight), "float32 keeps all of them"
