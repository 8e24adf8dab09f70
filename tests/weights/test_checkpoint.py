"""Checkpoints of any format: recognized by their files, loaded, saved, or an error that names the problem."""

import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from damage import change_json

from model import KVCache
from model.text import llama2c_tokenizer
from model.text.train_tokenizer import train_tokenizer
from model.weights import (
    llama2c,
    load_args,
    load_model,
    load_tokenizer,
    meta,
    open_checkpoint,
    save_model,
)


@pytest.fixture
def all_formats(small_model, tmp_path):
    """A model, and its checkpoints in all three formats."""
    model = small_model(head_dim=8).eval()
    save_model(model, tmp_path / "hf")
    (tmp_path / "meta").mkdir()
    meta.save(model, tmp_path / "meta")
    llama2c.save(model, tmp_path / "model.bin")
    return model, [tmp_path / "hf", tmp_path / "meta", tmp_path / "model.bin"]


def test_every_format_is_recognized_by_its_files(all_formats):
    model, paths = all_formats
    tokens = torch.randint(0, 37, (2, 20))
    for path in paths:
        loaded = load_model(str(path))
        with torch.no_grad():
            assert torch.equal(loaded(tokens), model(tokens))
            assert torch.equal(loaded(tokens, 0, KVCache(loaded.args, 2)), model(tokens))
        assert not loaded.training
        assert loaded.tok_embeddings.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "does not exist"),
        ("empty", "neither config.json nor params.json"),
        (".", "is not a model, but contains 2: give one, for example hf"),
        ("model.gguf", "is a GGUF file, which is not supported"),
        ("Qwen/Qwen3-0.6B", "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`"),
        ("hf/model.safetensors", "give the directory"),
        ("meta/consolidated.00.pth", "give the directory"),
        ("storis", re.escape(f"did you mean {Path('runs/stories')}?")),
        ("/dev/zero", "neither a file nor a directory|does not exist"),  # which Windows lacks
    ],
)
def test_a_path_that_is_not_a_checkpoint_is_an_error_with_advice(all_formats, tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.gguf").touch()
    (tmp_path / "model.bin").unlink()
    shutil.copytree(tmp_path / "hf", tmp_path / "runs" / "stories")
    with pytest.raises(ValueError, match=words):
        load_args(name)


def test_a_directory_of_one_llama2c_model_is_that_model(all_formats, tmp_path):
    model, _ = all_formats
    home = tmp_path / "home"
    home.mkdir()
    (home / "tokenizer.bin").write_bytes(b"no model")
    (tmp_path / "model.bin").rename(home / "model.bin")
    assert load_args(home) == model.args
    shutil.copy(home / "model.bin", home / "other.bin")
    with pytest.raises(ValueError, match=r"contains 2 llama2\.c models, model\.bin, other\.bin: name one"):
        load_args(home)


@pytest.mark.parametrize(
    ("file", "name", "words"),
    [
        ("hf/config.json", "num_hidden_layers", "1000000000 layers, but 21 tensors"),
        ("hf/config.json", "max_position_embeddings", "a context of 1000000000"),
        ("meta/params.json", "n_layers", "1000000000 layers, but 21 tensors"),
    ],
)
def test_a_huge_number_in_a_small_file_is_an_error_before_it_is_allocated(all_formats, tmp_path, file, name, words):
    change_json(tmp_path / file, **{name: 10**9})
    with pytest.raises(ValueError, match=words):
        load_args((tmp_path / file).parent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_loaded_in_the_given_dtype(all_formats, dtype):
    model, paths = all_formats
    for path in paths:
        loaded = load_model(path, dtype=dtype)
        assert {p.dtype for p in loaded.parameters()} == {dtype}
        assert torch.equal(loaded.norm.weight, model.norm.weight.to(dtype))
        assert torch.equal(loaded.freqs_cis[:24], model.freqs_cis)


@pytest.fixture
def damaged(all_formats, tmp_path):
    """``damaged(value)`` puts a number into one weight and saves the model in all formats; returns their paths."""

    def damage(value):
        model, paths = all_formats
        with torch.no_grad():
            model.layers[1].attention.wk.weight[3, 4] = value
        for save, path in zip((save_model, meta.save, llama2c.save), paths):
            save(model, path)
        return paths

    return damage


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [{}, {"dtype": "stored"}, {"dtype": torch.bfloat16}, {"int8": True}], ids=str)
def test_a_weight_that_is_not_finite_is_refused_with_the_tensors_name(damaged, value, options):
    for path in damaged(value):
        words = rf"^{re.escape(str(path))}: layers\.1\.attention\.wk\.(weight|scales) contains NaN or infinity"
        with pytest.raises(ValueError, match=words):
            load_model(path, **options)
        load_model(path, **options, check_finite=False)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, "stored"])
def test_every_matrix_starts_at_a_cache_line(all_formats, dtype):
    """A mapped one would start wherever the file's header ends."""
    for path in all_formats[1]:
        state = load_model(path, dtype=dtype).state_dict()
        assert {name for name, weight in state.items() if weight.ndim > 1 and weight.data_ptr() % 64} == set()


def test_changing_loaded_weights_does_not_change_the_file_and_vice_versa(all_formats, small_model):
    model, paths = all_formats
    for path in paths:
        first, second = load_model(path), load_model(path)
        with torch.no_grad():
            first.tok_embeddings.weight.zero_()
        assert torch.equal(load_model(path).tok_embeddings.weight, model.tok_embeddings.weight)
        assert torch.equal(second.tok_embeddings.weight, model.tok_embeddings.weight)
    kept = load_model(paths[0])
    save_model(small_model(head_dim=8), paths[0])
    assert all(torch.equal(kept.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    save_model(SimpleNamespace(_orig_mod=kept), paths[0])  # as torch.compile wraps it
    assert torch.equal(load_model(paths[0]).norm.weight, model.norm.weight)


def test_a_failed_save_keeps_the_previous_weights_and_a_save_the_mode_of_the_umask(all_formats, monkeypatch):
    model, (path, *_) = all_formats
    before = (path / "model.safetensors").read_bytes()
    monkeypatch.setattr("model.weights.tensors.save_file", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with torch.no_grad():
        model.norm.weight.add_(1)
    with pytest.raises(OSError, match="disk full"):
        save_model(model, path)
    assert (path / "model.safetensors").read_bytes() == before
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]
    assert len({file.stat().st_mode & 0o777 for file in path.iterdir()}) == 1


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """A directory with two tokenizers of different size."""
    directory = tmp_path_factory.mktemp("tokenizers")
    for size in (290, 300):
        train_tokenizer(["the ropewalk is a long lane where rope is laid. " * 50], directory / str(size), "bpe", size)
    return directory


@pytest.mark.parametrize("name", ["m.tokenizer.bin", "tok300.bin", "tokenizer.bin"])
def test_the_tokenizer_beside_a_llama2c_model_is_found_and_checked(small_model, tokenizers, tmp_path, name):
    llama2c.save(small_model(vocab_size=300, head_dim=8), tmp_path / "m.bin")
    words = r"m.bin has no tokenizer \(m.tokenizer.bin, tok300.bin, tokenizer.bin\): give one with --tokenizer"
    with pytest.raises(ValueError, match=words):
        load_tokenizer(tmp_path / "m.bin")
    llama2c_tokenizer.save(load_tokenizer(tokenizers / "300"), tmp_path / name)
    found = load_tokenizer(tmp_path / "m.bin")
    assert (found.path.name, found.vocab_size) == (name, 300)
    open_checkpoint(tmp_path).tokenizer()  # the directory of a model is the model
    llama2c_tokenizer.save(load_tokenizer(tokenizers / "290"), tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} (ends after 290 of|does not hold) 300 tokens"):
        load_tokenizer(tmp_path / "m.bin")
