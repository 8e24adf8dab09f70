"""Hugging Face directories: other layouts of the same tensors, and tensors that do not match."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.weights import load_args, load_model, open_checkpoint, save_model


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


def test_tied_weights_may_be_stored_under_either_name_or_both_if_they_are_equal(run):
    model, directory = run
    rewrite(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert torch.equal(load_model(directory).tok_embeddings.weight, model.tok_embeddings.weight)
    rewrite(directory, lambda t: t["lm_head.weight"].add_(1))
    with pytest.raises(ValueError, match=r"tie_word_embeddings.*differ"):
        load_model(directory)
    rewrite(directory, lambda t: t.pop("model.embed_tokens.weight"))
    assert torch.equal(load_model(directory).tok_embeddings.weight, model.tok_embeddings.weight + 1)


def test_rope_frequencies_in_old_files_are_ignored(run):
    model, directory = run
    rewrite(directory, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)}))
    assert load_model(directory).args == model.args


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
        load_args(run[1])
    assert "\n" not in str(error.value)


def test_a_missing_one_of_several_files_is_noticed(run):
    model, directory = run
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for at, name in enumerate(names):
        save_file({key: tensors[key] for key in list(tensors)[at::3]}, directory / name)
    assert load_args(directory) == model.args
    (directory / names[1]).unlink()
    with pytest.raises(ValueError, match=f"has 2 files like {names[0]}: get all of this model"):
        load_args(directory)


def test_the_stored_dtype_is_that_of_the_embedding(run):
    rewrite(run[1], lambda t: t.update({n: w.bfloat16() for n, w in t.items() if "embed" in n}))
    assert open_checkpoint(run[1]).dtype == torch.bfloat16


def test_a_directory_with_only_a_pickle_is_an_error(run):
    (run[1] / "model.safetensors").rename(run[1] / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only pytorch_model\.bin, a pickle"):
        load_args(run[1])
