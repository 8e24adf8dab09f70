"""convert.py as a user runs it, but in this process, because starting a process is slow."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from damage import change_json
from meta_files import save_meta
from safetensors.torch import load_file
from script_helpers import file_size_limit, save_run

import convert
from model import generate
from model.weights import load_model, load_tokenizer

TEXT = "the ropewalk is a long lane where rope is laid. " * 50
SHAPE = {"dim": 48, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "hidden_dim": 64, "vocab_size": 290}
SHAPE |= {"max_seq_len": 24}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A run directory with its tokenizer, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return save_run(tmp_path / "run", TEXT, scale=1, **SHAPE, tie_embeddings=True)


@pytest.fixture
def untied(source, small_model):
    """A Meta directory without a tokenizer."""
    model = small_model(head_dim=8, vocab_size=290)
    save_meta(model, Path("untied"))
    return model


@pytest.fixture
def run(start):
    """run(*flags) -> (exit code, stderr)."""

    def run(*flags):
        code, out, err = start(convert, *flags)
        assert out == ""
        return code, err

    return run


def same_weights(model, path):
    state = convert.open_source(Path(path)).model().state_dict()
    return all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_round_trips_are_bit_equal(source, untied, run):
    for *flags, model in [
        ("run", "x.bin", "--to", "llama2c", source),
        ("x.bin", "back", "--to", "hf", "--tokenizer", "run/tokenizer.model", source),
        ("untied", "two", "--to", "hf", untied),
        ("two", "y.bin", "--to", "llama2c", untied),
    ]:
        code, err = run(*flags)
        assert code == 0, err
        assert f"{sum(weight.numel() for weight in model.parameters()):,} parameters" in err
        assert same_weights(model, flags[1])
    assert not convert.open_source(Path("two")).args.tie_embeddings
    assert Path("back/model.safetensors").read_bytes() == Path("run/model.safetensors").read_bytes()
    assert Path("back/config.json").read_bytes() == Path("run/config.json").read_bytes()


def test_transformers_generates_from_a_conversion_whose_tokenizer_has_no_eos(source, run, transformers):
    Path("no_eos").mkdir()
    shutil.copy("run/tokenizer.json", "no_eos")  # without tokenizer_config.json
    assert run("run", "back", "--to", "hf", "--tokenizer", "no_eos/tokenizer.json")[0] == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained("back", dtype=torch.float32)
    prompt = [1, 5, 9]
    expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :].tolist()
    ours = [token for (token,) in generate(load_model("back"), [prompt], max_new_tokens=8, temperature=0.0)]
    assert expected == ours[: len(expected)]


def test_the_tokenizer_is_converted_to_every_format(source, run):
    ours = load_tokenizer("run")
    run("run", "hf", "--to", "hf")
    assert sorted(os.listdir("hf")) == sorted(os.listdir("run"))
    for text in ("the rope", "is laid. is  laid.\n\n", "日本語 \U0001f600", " x", "lane" * 40):
        assert load_tokenizer("hf", 290).encode(text) == ours.encode(text)
    Path("demo").mkdir()
    _, err = run("run", "demo/model.bin", "--to", "llama2c")
    assert "puts a space before every prompt" in err
    files = (
        "demo/model.tokenizer.bin is its tokenizer; llama2.c reads both with ./run demo/model.bin -z demo/model.token"
    )
    assert files in err
    assert Path("demo/model.tokenizer.bin").exists()
    shutil.copy("run/tokenizer.model", "demo")
    Path("demo/model.bin").rename("demo/model")  # the ending of the name does not matter
    assert run("demo/model", "back")[0] == 0
    assert load_tokenizer("back", 290).encode("the rope") == ours.encode("the rope")


def test_a_meta_directory_with_a_tokenizer_of_tiktoken_gives_its_weights(untied, run):
    Path("untied/tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    code, err = run("untied", "new", "--to", "hf")
    assert code == 0
    assert "note: untied/tokenizer.model is a file of tiktoken, which is not read: converting the weights only" in err
    assert same_weights(untied, "new")
    code, err = run("untied", "other", "--tokenizer", "untied/tokenizer.model")
    assert (code, Path("other").exists()) == (2, False)


@pytest.mark.parametrize("name", ["model.tokenizer.bin", "tokenizer.bin", "other.bin"])
def test_the_tokenizer_of_llama2c_is_found_beside_its_model_on_the_way_back(source, run, name):
    """It lacks nothing but the note that no space is put before a text."""
    run("run", "model.bin", "--to", "llama2c")
    Path("model.tokenizer.bin").rename(name)
    flags = ["--tokenizer", name] if name == "other.bin" else []
    code, err = run("model.bin", "back", *flags)
    assert code == 0, err
    assert f"the tokenizer is {name}, which puts a space before every text, as llama2.c does" in err
    assert "python generate.py back reads it" in err
    ours, back = load_tokenizer("run"), load_tokenizer("back", 290)
    for text in ("the rope", "is laid. is  laid.\n\n", "日本語 \U0001f600", "x\t", "lane" * 40):
        assert back.encode(text) == ours.encode(" " + text)
        assert back.decode(back.encode(text)) == text
    assert back.eos_ids == ours.eos_ids
    run("back", "again.bin", "--to", "llama2c")
    assert Path("again.tokenizer.bin").read_bytes() == Path(name).read_bytes()
    assert Path("again.bin").read_bytes() == Path("model.bin").read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:-1], "it is cut short"),
        (lambda raw: raw[:40], "is not a tokenizer.bin of llama2.c"),
        (lambda raw: raw[:8] + b"\xff\xff\xff\xff" + raw[12:], "it is cut short"),
        (lambda raw: raw.replace(b"<0x41>", b"<0x40>"), "its tokens 3 to 258 are not the bytes"),
        (lambda raw: raw + raw[-9:], "is not a tokenizer.bin of llama2.c"),  # a token twice
    ],
)
def test_a_damaged_tokenizer_of_llama2c_is_an_error_before_anything_is_written(source, run, change, words):
    run("run", "model.bin", "--to", "llama2c")
    file = Path("model.tokenizer.bin")
    file.write_bytes(change(file.read_bytes()))
    code, err = run("model.bin", "back")
    assert (code, Path("back").exists()) == (2, False)
    assert re.search(words, err)


def test_without_a_tokenizer_bos_and_eos_ids_are_kept(source, run):
    for name in ("tokenizer.model", "tokenizer.json"):
        Path("run", name).unlink()
    assert "run has no tokenizer: converting the weights only" in run("run", "hf", "--to", "hf")[1]
    run("run", "model.bin", "--to", "llama2c")
    assert "model.bin has no tokenizer beside it: converting" in run("model.bin", "back")[1]
    config = json.loads(Path("hf/config.json").read_text(encoding="utf-8"))
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, [2, 1])


def test_dtype_is_kept_or_changed(source, run):
    run("run", "half", "--to", "hf", "--dtype", "bfloat16")
    run("half", "again", "--to", "hf")
    for directory in ("half", "again"):
        state = load_file(Path(directory, "model.safetensors"))
        assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
        assert json.loads(Path(directory, "config.json").read_text(encoding="utf-8"))["torch_dtype"] == "bfloat16"
        assert torch.equal(state["model.norm.weight"], source.norm.weight.bfloat16())


@pytest.mark.parametrize("flags", [("new", "--to", "hf"), ("x.bin", "--to", "llama2c")], ids=["hf", "llama2c"])
def test_if_the_disk_is_too_full_for_the_weights_nothing_is_left(source, run, flags):
    before = sorted(Path().rglob("*"))
    with file_size_limit(20_000):  # the tokenizer fits
        code, err = run("run", *flags)
    assert code == 2
    assert re.fullmatch(r"convert.py: error: .*: .*File too large.*", err.splitlines()[-1])
    assert sorted(Path().rglob("*")) == before


def test_with_another_tokenizer_the_ids_are_those_of_that_tokenizer(source, run):
    names = ("config.json", "generation_config.json")
    for name in names:
        change_json(Path("run", name), eos_token_id=7)
    run("run", "hf", "--to", "hf", "--tokenizer", "run.model")
    assert [json.loads(Path("hf", name).read_bytes())["eos_token_id"] for name in names] == [[2, 1]] * 2


def test_a_tokenizer_json_its_ends_and_its_chat_template_are_kept(source, run):
    pytest.importorskip("tokenizers")
    Path("run/tokenizer.model").unlink()
    change_json(Path("run/tokenizer.json"), post_processor=None)
    Path("run/chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    Path("run/generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": [7, 9]}', encoding="utf-8")
    assert run("run", "back")[0] == 0
    ours, back = load_tokenizer("run"), load_tokenizer("back", 290)
    assert (back.bos_id, back.eos_ids) == (ours.bos_id, ours.eos_ids) == (1, (7, 9))
    assert back.encode("the rope") == ours.encode("the rope")
    assert Path("back/chat_template.jinja").read_bytes() == Path("run/chat_template.jinja").read_bytes()


def test_pytorch_model_bin_is_converted(source, run):
    tensors = load_file("run/model.safetensors")
    Path("run/model.safetensors").unlink()
    torch.save(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, "run/pytorch_model.bin")
    assert run("run", "back")[0] == 0
    assert same_weights(source, "back")
    assert load_tokenizer("back").encode("the rope") == load_tokenizer("run").encode("the rope")
