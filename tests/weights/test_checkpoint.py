"""Checkpoints: loaded, saved, converted from other formats, or an error that names the problem."""

import json
import math
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from damage import change_json
from meta_files import MakesDirectory, save_meta
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel

from model import KVCache
from model.fast.kernels import accelerate
from model.weights import llama2c, load_model, load_tokenizer, meta, open_checkpoint, save_model

OPEN = (open_checkpoint, meta.open_directory, llama2c.open_file)


@pytest.fixture
def all_formats(small_model, tmp_path):
    """A model, and its checkpoints in all three formats."""
    model = small_model(head_dim=8).eval()
    save_model(model, tmp_path / "hf")
    save_meta(model, tmp_path / "meta")
    llama2c.save(model, tmp_path / "model.bin")
    return model, [tmp_path / "hf", tmp_path / "meta", tmp_path / "model.bin"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_every_format_loads_with_equal_logits_in_the_given_dtype(all_formats, dtype):
    model, paths = all_formats
    tokens = torch.randint(0, 37, (2, 20))
    expected = accelerate(model.to(dtype))(tokens)
    for opened, path in zip(OPEN, paths):
        loaded = opened(path).model(dtype=dtype)
        assert torch.equal(loaded(tokens), expected)
        assert torch.equal(loaded(tokens, 0, KVCache(loaded.args, 2)), expected)
        assert {weight.dtype for weight in loaded.parameters()} == {dtype}
        assert {weight.data_ptr() % 64 for weight in loaded.parameters()} == {0}, "copied to the start of a cache line"
        assert not loaded.training
        assert loaded.tok_embeddings.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "nowhere does not exist: give a run or a Hugging Face directory"),
        ("x" * 300, "does not exist"),
        ("empty", "empty has no config.json"),
        ("meta", "meta is in Meta's format: convert it with `python convert.py meta NEW_DIRECTORY`"),
        ("model.bin", "in llama2.c's format, convert it with `python convert.py model.bin NEW_DIRECTORY`"),
        ("stopped", "stopped is a run without weights yet"),
        ("no_weights", r"no_weights has neither model\.safetensors nor .*index\.json: get all files of this model"),
        ("models--a--b", r"a folder of the Hub's cache: give the snapshot in it, models--a--b.snapshots.1f"),
        ("hf/model.safetensors", "is not a directory: give a run or a Hugging Face directory, or if it is"),
        ("/dev/zero", "has no config.json|does not exist"),  # which Windows lacks
    ],
)
def test_a_path_that_is_not_a_checkpoint_is_an_error_with_advice(all_formats, tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    for directory in ("empty", "stopped", "no_weights", "models--a--b/snapshots/1f"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "stopped" / "config.toml").touch()
    for directory in ("no_weights", "models--a--b/snapshots/1f"):
        shutil.copy(tmp_path / "hf" / "config.json", tmp_path / directory)
    with pytest.raises(ValueError, match=words):
        open_checkpoint(name)


@pytest.mark.parametrize(
    ("file", "name", "words"),
    [
        ("hf/config.json", "num_hidden_layers", r"config\.json: 1000000000 layers are too many"),
        ("hf/config.json", "max_position_embeddings", "a context of 1000000000 takes a RoPE table of 30517 MB"),
        ("meta/params.json", "n_layers", r"params\.json: 1000000000 layers are too many"),
    ],
)
def test_a_huge_number_in_a_small_file_is_an_error_before_it_is_allocated(all_formats, tmp_path, file, name, words):
    change_json(tmp_path / file, **{name: 10**9})
    with pytest.raises(ValueError, match=words):
        (meta.open_directory if "meta" in file else open_checkpoint)((tmp_path / file).parent)


def test_the_name_of_a_dtype_is_an_error_with_advice(all_formats):
    with pytest.raises(ValueError, match=r"dtype is 'float16': give a torch\.dtype"):
        load_model(all_formats[1][0], dtype="float16")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [{}, {"dtype": "stored"}, {"dtype": torch.bfloat16}, {"int8": True}], ids=str)
def test_a_weight_that_is_not_finite_is_refused_with_the_tensors_name(all_formats, value, options):
    model, paths = all_formats
    with torch.no_grad():
        model.layers[1].attention.wk.weight[3, 4] = value
    for save, opened, path in zip((save_model, save_meta, llama2c.save), OPEN, paths):
        save(model, path)
        words = rf"^{re.escape(str(path))}: layers\.1\.attention\.wk\.(weight|scales) contains NaN or infinity"
        with pytest.raises(ValueError, match=words):
            opened(path).model(**options)


@pytest.mark.parametrize(("value", "dtype"), [(3e38, torch.float32), (3e38, torch.bfloat16), (6e4, torch.float16)])
def test_only_what_overflows_in_the_given_dtype_is_refused(all_formats, tmp_path, value, dtype):
    model = all_formats[0]
    with torch.no_grad():
        model.layers[1].feed_forward.w2.weight.fill_(value)  # their sum overflows
    save_model(model.to(dtype), tmp_path / "large")
    assert load_model(tmp_path / "large", dtype="stored").norm.weight.dtype == dtype
    if value > 1e5:
        with pytest.raises(ValueError, match=r"w2\.weight contains NaN or infinity.* for float16"):
            load_model(tmp_path / "large", dtype=torch.float16)


def test_loaded_weights_do_not_change_with_the_file(all_formats, small_model):
    model, (path, *_) = all_formats
    kept = load_model(path)
    save_model(small_model(head_dim=8), path)
    assert all(torch.equal(kept.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    save_model(SimpleNamespace(_orig_mod=kept), path)  # as torch.compile wraps it
    assert torch.equal(load_model(path).norm.weight, model.norm.weight)
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1, "by the umask, as any file"


@pytest.fixture
def tied(small_model, tmp_path):
    """A model with tied weights, and the Hugging Face directory in which it was saved."""
    model = small_model(tie_embeddings=True).eval()
    save_model(model, tmp_path / "run")
    return model, tmp_path / "run"


def rewrite(directory, change):
    """Apply ``change`` to the dictionary of tensors in model.safetensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")


def test_tied_weights_may_be_stored_under_either_name_and_are_not_tied_if_stored_under_both(tied):
    model, directory = tied
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
def test_tensors_that_do_not_match_are_listed(tied, change, words):
    rewrite(tied[1], change)
    with pytest.raises(ValueError, match=words) as error:
        open_checkpoint(tied[1])
    assert "\n" not in str(error.value)


def test_shards_are_those_that_the_index_lists(tied):
    model, directory = tied
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
        open_checkpoint(directory)
    for wrong in (None, [], {"a": 1}):
        index.write_text(json.dumps({"weight_map": wrong}), encoding="utf-8")
        with pytest.raises(ValueError, match="has no weight_map from tensors to files"):
            open_checkpoint(directory)


@pytest.mark.parametrize("name", ["../other.safetensors", "/dev/zero", "sub/other.safetensors"])
def test_an_index_cannot_list_files_outside_its_directory(tied, name):
    _, directory = tied
    (directory / "model.safetensors").rename(directory.parent / "other.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"norm": name}}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=rf"index\.json lists '{re.escape(name)}': the files of a model must be beside"
    ):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "model.safetensors.index.json", "tokenizer.model", "tokenizer.json"]
)
def test_a_git_lfs_pointer_is_recognized(tied, file):
    _, directory = tied
    if "index" in file:
        (directory / "model.safetensors").unlink()
    (directory / file).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 1\n")
    with pytest.raises(ValueError, match=rf"{file} is a Git LFS pointer .* `git lfs pull`"):
        (load_tokenizer if "tokenizer" in file else open_checkpoint)(directory)


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_pytorch_model_bin_is_read_if_asked_for(small_model, tmp_path, tie, sharded):
    """As transformers wrote it: tied weights twice, with RoPE's frequencies, and large models in several files."""
    model = small_model(tie_embeddings=tie).eval()
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(5)
    files = ["pytorch_model.bin"]
    if sharded:
        files = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
        places = {name: files[at % 2] for at, name in enumerate(tensors)}
        index = json.dumps({"weight_map": places})
        (tmp_path / "pytorch_model.bin.index.json").write_text(index, encoding="utf-8")
    for at, file in enumerate(files):
        torch.save(dict(list(tensors.items())[at :: len(files)]), tmp_path / file)
    with pytest.raises(ValueError, match=r"in pytorch_model\.bin only: convert it with `python convert\.py .* NEW_D"):
        open_checkpoint(tmp_path)
    loaded = open_checkpoint(tmp_path, pickles=True).model()
    assert loaded.args == model.args
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("new_format", [False, True])
@pytest.mark.parametrize("file", ["hf/pytorch_model.bin", "meta/consolidated.00.pth"])
def test_a_pickle_with_code_is_refused_and_not_run(all_formats, tmp_path, monkeypatch, file, new_format):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf/model.safetensors").unlink()
    state = {"model.norm.weight": torch.ones(48), "extra": MakesDirectory()}
    torch.save(state, file, _use_new_zipfile_serialization=new_format)
    words = "is damaged, or pickles more than .* none of its code was run|is a Python pickle, which is not read"
    with pytest.raises(ValueError, match=f"{file} ({words})"):
        meta.open_directory(Path("meta")) if "meta" in file else open_checkpoint("hf", pickles=True)
    assert not os.path.exists("was_run")
    torch.load(file, weights_only=False)
    assert os.path.exists("was_run"), "without weights_only it is run"


@pytest.mark.parametrize("int8", [False, True])
def test_a_model_of_several_dtypes_is_loaded_in_that_of_its_embedding(tied, int8):
    """As DeepSeek's, whose norms are in float32."""
    rewrite(tied[1], lambda t: t.update({n: w.bfloat16() for n, w in t.items() if w.ndim > 1}))
    assert open_checkpoint(tied[1]).dtype == torch.bfloat16
    model = load_model(tied[1], dtype="stored", int8=int8)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model(torch.randint(37, (1, 5))).isfinite().all()
    exact = load_model(tied[1])
    assert torch.equal(exact.norm.weight, tied[0].norm.weight), "float32 keeps all of them"


def test_an_adapter_beside_a_model_is_refused(small_model, tmp_path):
    """transformers applies it, so the model alone gives other text."""
    save_model(small_model(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"holds an adapter \(adapter_config\.json\), which is not applied: merge it with"
    ):
        load_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="holds an adapter"):
        load_model(tmp_path)


@pytest.mark.parametrize("inner", [torch.nn.DataParallel, AveragedModel, torch.compile])
def test_the_model_in_a_wrapper_is_saved(small_model, tmp_path, inner):
    model = small_model()
    save_model(torch.nn.DataParallel(inner(model)), tmp_path)
    loaded = load_model(tmp_path).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("wrong", [torch.nn.Linear(2, 2), torch.nn.DataParallel(torch.nn.Linear(2, 2))])
def test_a_module_without_a_network_is_not_saved(tmp_path, wrong):
    with pytest.raises(ValueError, match=rf"^model is a {type(wrong).__name__}: give the Transformer in it"):
        save_model(wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()
