"""generate.py as a user runs it, mostly in this process, because starting a process is slow."""

import codecs
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from script_helpers import ROOT, run_in_process, save_run

import generate as script
from model import generate
from model.decoding.batches import memory_needed
from model.weights import load_model, load_tokenizer

CONTEXT = 96
TEXT = "The quick brown fox jumps over the lazy dog, and says: I am a fox. " * 20


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run directory with a small random network and a real tokenizer."""
    path = tmp_path_factory.mktemp("runs") / "small"
    torch.manual_seed(0)
    save_run(path, TEXT, scale=10, dim=32, n_layers=1, n_heads=2, vocab_size=320, max_seq_len=CONTEXT)
    return path


@pytest.fixture
def run(monkeypatch, capfd, run_dir):
    """``run(*arguments, stdin=b"")`` -> (exit code, stdout, stderr), in this process, on the small run."""

    def call(*arguments, model=run_dir, stdin=b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run_in_process(script.main, "generate.py", *([model] if model else []), *arguments)
        return (code, *capfd.readouterr())

    return call


@pytest.fixture
def samples(run):
    """``samples(*arguments)`` -> the objects of --jsonl."""

    def call(*arguments, **options):
        code, out, err = run(*arguments, "--jsonl", **options)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return call


def test_text_goes_to_stdout_and_speed_to_stderr(run):
    arguments = ["--max_new_tokens", 9, "--seed", 1]
    code, out, err = run("--prompt", "The quick", *arguments)
    assert code == 0
    assert out.startswith("The quick")
    assert len(out) > len("The quick\n")
    assert "prompt: " in err
    assert "new, after the first: 8 tokens" in err
    assert run("--prompt", "-", *arguments, stdin=b"The quick\n")[1] == out


def test_without_a_model_the_newest_run_is_used(run, run_dir, monkeypatch, tmp_path):
    for name, modified in (("new", 2000), ("old", 1000)):
        path = shutil.copytree(run_dir, tmp_path / "runs" / name)
        os.utime(path / "model.safetensors", (modified, modified))
    monkeypatch.chdir(tmp_path)
    arguments = ("--seed", 4, "--max_new_tokens", 9)
    code, out, err = run(*arguments, model=None)
    assert (code, out) == run(*arguments)[:2]
    assert err.startswith(f"the model is {Path('runs/new')}, the newest run\n")
    assert "newest" not in run(*arguments)[2]


def test_a_run_that_was_stopped_before_its_first_validation_is_named_as_such(run, tmp_path):
    (tmp_path / "config.toml").write_text("max_steps = 9\n", encoding="utf-8")
    code, _, err = run(model=tmp_path)
    assert code == 2
    assert "is a run without weights yet: they are saved at its first validation" in err


def test_without_a_prompt_the_text_begins_with_the_runs_start_text(samples, run_dir, tmp_path):
    arguments = ("--max_new_tokens", "9", "--temperature", "0")
    (unprompted,), (prompted,) = (samples(*arguments, "--prompt", text) for text in ("", "The"))
    with_start_text = shutil.copytree(run_dir, tmp_path / "with_start_text")
    (with_start_text / "config.toml").write_text('start_text = "The"\n', encoding="utf-8")
    (started,) = samples(*arguments, model=with_start_text)
    assert started == prompted | {"prompt": ""}, "start_text is not shown"
    assert started["tokens"] != unprompted["tokens"]
    assert samples(*arguments, "--prompt", "A", model=with_start_text) == samples(*arguments, "--prompt", "A")


@pytest.mark.usefixtures("each_processor")
def test_jsonl_has_one_object_per_sample_and_samples_differ(samples, run_dir):
    arguments = ["--prompt", "The", "--prompt", "I am a fox", "--num_samples", 3, "--max_new_tokens", 12, "--seed", 2]
    found = samples(*arguments)
    assert [sample["prompt"] for sample in found] == ["The"] * 3 + ["I am a fox"] * 3
    assert len({sample["text"] for sample in found}) == 6
    tokenizer = load_tokenizer(run_dir)
    for sample in found:
        assert len(sample["tokens"]) <= 12
        if sample["finish_reason"] == "length":
            text = tokenizer.decode(tokenizer.encode(sample["prompt"]) + sample["tokens"])
            assert text == sample["prompt"] + sample["text"]
    assert samples(*arguments, "--batch_size", 2) == found, "samples do not depend on the batch size"


def test_ctrl_c_keeps_the_text_and_exits_130(run_dir, tmp_path):
    """The prompts would take minutes; the signal is sent as soon as there is text."""
    (tmp_path / "p").write_text("The fox\n" * 5000, encoding="utf-8")
    command = [sys.executable, ROOT / "generate.py", run_dir, "--prompt_file", tmp_path / "p", "--batch_size", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    beginning = os.read(process.stdout.fileno(), 100)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert beginning.startswith(b"The fox")
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_greedy_text_depends_neither_on_the_batch_size_nor_on_stop_strings_after_it(run, samples, dtype):
    arguments = ["--prompt", "The quick", "--prompt", "A", "--prompt", "I am", "--temperature", 0, "--dtype", dtype]
    text = run(*arguments)[1]
    assert text.count("\n-----") == 2, "samples are separated by a line"
    together = samples(*arguments)
    for more in (["--batch_size", 1], ["--batch_size", 2]):
        again = samples(*arguments, *more)
        assert dtype == "int8" or [sample["text"] for sample in again] == [sample["text"] for sample in together]
    assert all(sample["prompt"] + sample["text"] in text for sample in together)
    stop = together[0]["text"][3:6]
    stopped = samples(*arguments, "--stop", stop)[0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == together[0]["text"].partition(stop)[0]


def test_the_prompt_of_an_endless_text_may_be_longer_than_the_context(run):
    text = "fox and dog " * CONTEXT
    arguments = ["--prompt", text, "--max_new_tokens", 2 * CONTEXT, "--temperature", 0, "--ignore_eos"]
    assert "let it be endless (--endless)" in run(*arguments)[2]
    assert run(*arguments, "--endless", "--prompt", "A")[1].startswith(text), "prompts need not be equally long"
    code, out, err = run(*arguments, "--endless")
    assert code == 0
    assert out.startswith(text)
    assert int(re.search(r"prompt: ([\d,]+) tokens", err)[1].replace(",", "")) > 3 * CONTEXT
    assert f"new, after the first: {2 * CONTEXT - 1} tokens" in err


TEMPLATE = """{% for message in messages %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.fixture(scope="module")
def chat_dir(run_dir, tmp_path_factory):
    path = shutil.copytree(run_dir, tmp_path_factory.mktemp("chat") / "model")
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


@pytest.mark.parametrize("flags", [[], ["--num_samples", 3], ["--endless", "--max_new_tokens", CONTEXT], ["--chat"]])
def test_with_ignore_eos_generation_continues_after_an_end_token(samples, chat_dir, tmp_path, flags):
    """Every token of this model is an end token."""
    path = shutil.copytree(chat_dir, tmp_path / "model")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(320))}), encoding="utf-8")
    arguments = ["--prompt", "The quick", "--temperature", 0, "--max_new_tokens", 9, *flags]
    length = CONTEXT if "--endless" in flags else 9
    for more, expected in (([], ("end", 1)), (["--ignore_eos"], ("length", length))):
        for sample in samples(*arguments, *more, model=path):
            assert (sample["finish_reason"], len(sample["tokens"])) == expected


def test_chat_applies_the_template_to_each_prompt(run, samples, chat_dir):
    arguments = ["--chat", "--prompt", "A fox", "--max_new_tokens", 9, "--seed", 1]
    rendered = "<|system|>\nBe brief.</s>\n<|user|>\nA fox</s>\n<|assistant|>"
    (sample,) = samples(*arguments, "--system", "Be brief.", model=chat_dir)
    assert sample["prompt"] == "A fox"
    tokenizer = load_tokenizer(chat_dir)
    tokens = [token for part in rendered.split("</s>") for token in [*tokenizer.encode(part, bos=False), 2]][:-1]
    steps = generate(load_model(chat_dir), [tokens], 9, temperature=0.8, seed=1, eos_ids=[0, 1, 2])
    assert sample["tokens"] == [token for (token,) in steps]
    assert not run(*arguments, model=chat_dir)[1].startswith("A fox"), "an answer does not begin with the question"


@pytest.mark.parametrize("variable", ["true", "false", "False", "3", "word"])
def test_a_variable_of_the_template_is_given_by_a_flag(samples, chat_dir, tmp_path, variable):
    path = shutil.copytree(chat_dir, tmp_path / "model")
    template = TEMPLATE + "{% if mode %}{{ mode }}{% endif %}{{ mode is boolean }}"
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    arguments = ["--chat", "--prompt", "A fox", "--max_new_tokens", 9, "--seed", 1]
    (sample,) = samples(*arguments, "--template_var", f"mode={variable}", model=path)
    ending = {"true": "TrueTrue", "false": "True", "False": "True", "3": "3False", "word": "wordFalse"}[variable]
    (path / "chat_template.jinja").write_text(TEMPLATE + ending, encoding="utf-8")
    assert samples(*arguments, model=path) == [sample]


def test_a_models_own_sampling_settings_are_defaults(run, samples, run_dir, tmp_path):
    path = shutil.copytree(run_dir, tmp_path / "model")
    config = {"temperature": 0.4, "top_k": 7, "top_p": None, "do_sample": True, "eos_token_id": [1, 2]}
    (path / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    arguments = ["--prompt", "A fox", "--max_new_tokens", 20, "--seed", 1]
    assert samples(*arguments, model=path) == samples(*arguments, "--temperature", 0.4, "--top_k", 7)
    given = [*arguments, "--temperature", 2, "--top_k", 0]
    assert samples(*given, model=path) == samples(*given)
    assert "note: temperature 0.4, top_k 7, as " in run(*arguments, model=path)[2]
    assert "note: top_k 7, as " in run(*arguments, "--temperature", 1, model=path)[2]
    assert "note" not in run(*given, model=path)[2]
    (path / "generation_config.json").write_text(json.dumps(config | {"top_k": "all"}), encoding="utf-8")
    err = run(*arguments, model=path)[2]
    assert "note: temperature 0.4, top_k all, as " in err
    assert "error: top_k is 'all': give a whole number" in err
    assert run(*arguments, "--top_k", 3, model=path)[0] == 0


def test_prompts_come_from_flags_a_file_and_stdin(tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_bytes("one\fpage\r\n\n  two\u2028lines \n".encode())  # only line feeds separate prompts
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("piped äö\n".encode()), encoding="utf-8"))
    assert script.read_texts([], None) == [""]
    assert script.read_texts(["a"], None) == ["a"], "stdin is read for a dash only"
    assert script.read_texts(["a", "-"], file) == ["a", "piped äö", "one\fpage", "  two\u2028lines "]
    file.write_bytes(b"\n \n")
    with pytest.raises(ValueError, match="contains no prompt"):
        script.read_texts([], file)
    for mark, byte in ((b"", 2), (codecs.BOM_UTF8, 5)):
        file.write_bytes(mark + "naïve".encode("latin-1"))
        with pytest.raises(ValueError, match=f"prompts.txt is not UTF-8 at byte {byte}"):
            script.read_texts([], file)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_needed_is_the_size_of_cache_and_logits(small_args, dtype):
    """All sizes differ and are small, so that a missing factor or summand changes the result."""
    args = small_args(n_layers=3, n_heads=10, n_kv_heads=5, head_dim=14, vocab_size=41, max_seq_len=30)
    rows, length = 7, 11
    keys = torch.empty(args.n_layers, rows, args.n_kv_heads, length, args.head_dim, dtype=dtype)
    logits = torch.empty(rows, args.vocab_size, dtype=torch.float32)
    assert memory_needed(args, rows, length, dtype) == 2 * keys.nbytes + logits.nbytes


def test_too_little_memory_names_the_device_and_the_flags_that_help(run, monkeypatch):
    monkeypatch.setattr(script, "load_network", lambda *_: torch.empty(2**60))
    code, _, err = run("--device", "cpu", "--prompt", "a")
    assert code == 2
    assert "cpu has too little free memory: give a smaller model, or lower --max_new_tokens" in err
