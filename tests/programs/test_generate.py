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
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from letters import LETTERS
from script_helpers import ROOT

import chat
import generate as script
from model import KVCache, Transformer, generate
from model.cli import machine
from model.decoding.batches import Prompt, Sample
from model.decoding.opened_model import open_model
from model.decoding.options import DecodingOptions, ModelOptions
from model.decoding.prompts import read_prompts
from model.weights import load_model, load_tokenizer

ROUNDED_LOGPROB = 1e-4  # two orders of the same sums

CONTEXT = 96


@pytest.fixture
def run(start, fox_dir):
    """``run(*arguments, stdin=b"")`` -> (exit code, stdout, stderr), on the small model."""
    return lambda *arguments, model=fox_dir, **stdin: start(script, *([model] if model else []), *arguments, **stdin)


@pytest.fixture
def samples(run):
    """``samples(*arguments)`` -> the objects of --jsonl."""

    def call(*arguments, **options):
        code, out, err = run(*arguments, "--jsonl", **options)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return call


@pytest.fixture
def copy(chat_dir, tmp_path):
    """A copy of the small model with a chat template, to be changed."""
    return shutil.copytree(chat_dir, tmp_path / "model")


def test_text_goes_to_stdout_and_speed_to_stderr(run):
    arguments = ["--max_new_tokens", 9, "--seed", 1]
    code, out, err = run("--prompt", "The quick", *arguments)
    assert code == 0
    assert out.startswith("The quick")
    assert len(out) > len("The quick\n")
    assert "prompt: " in err
    assert "new, after the first: 8 tokens" in err
    assert run("--prompt", "-", *arguments, stdin=b"The quick\n").out == out


def test_without_a_model_the_newest_run_is_used(run, fox_dir, monkeypatch, tmp_path):
    for name, modified in (("new", 2000), ("old", 1000)):
        path = shutil.copytree(fox_dir, tmp_path / "runs" / name)
        os.utime(path / "model.safetensors", (modified, modified))
    monkeypatch.chdir(tmp_path)
    arguments = ("--seed", 4, "--max_new_tokens", 9)
    code, out, err = run(*arguments, model=None)
    assert (code, out) == run(*arguments)[:2]
    assert err.startswith(f"the model is {Path('runs/new')}, the newest run\n")
    assert "newest" not in run(*arguments).err


def test_without_a_prompt_the_text_begins_with_the_runs_start_text(samples, copy):
    arguments = ("--max_new_tokens", "9", "--temperature", "0")
    (unprompted,), (prompted,) = (samples(*arguments, "--prompt", text) for text in ("", "The"))
    (copy / "tokens.json").write_text('{"start_text": "The"}', encoding="utf-8")
    (started,) = samples(*arguments, model=copy)
    assert started == prompted | {"prompt": ""}, "start_text is not shown"
    assert started["tokens"] != unprompted["tokens"]
    assert samples(*arguments, "--prompt", "A", model=copy) == samples(*arguments, "--prompt", "A")


@pytest.mark.usefixtures("each_processor")
def test_jsonl_has_one_object_per_sample_and_samples_differ(samples, fox_dir):
    arguments = ["--prompt", "The", "--prompt", "I am a fox", "--num_samples", 3, "--max_new_tokens", 12, "--seed", 2]
    found = samples(*arguments)
    assert [sample["prompt"] for sample in found] == ["The"] * 3 + ["I am a fox"] * 3
    assert len({sample["text"] for sample in found}) == 6
    tokenizer = load_tokenizer(fox_dir)
    network = load_model(fox_dir)
    for sample in found:
        assert len(sample["tokens"]) <= 12
        prompt = tokenizer.encode(sample["prompt"])
        logits = network(torch.tensor([prompt + sample["tokens"]]))[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(sample["tokens"])[:, None])
        assert sample["logprobs"] == pytest.approx(expected.flatten().tolist(), abs=ROUNDED_LOGPROB)
        if sample["finish_reason"] == "length":
            text = tokenizer.decode(tokenizer.encode(sample["prompt"]) + sample["tokens"])
            assert text == sample["prompt"] + sample["text"]
    again = samples(*arguments, "--batch_size", 2)
    for sample, other in zip(found, again, strict=True):
        assert sample.pop("logprobs") == pytest.approx(other.pop("logprobs"), abs=ROUNDED_LOGPROB)
    assert again == found, "samples do not depend on the batch size"


def test_jsonl_keeps_the_other_fields_of_a_row(samples, tmp_path):
    rows = [{"id": 7, "prompt": "The", "text": "old", "labels": ["a"]}, {"prompt": "A", "id": None}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    first, second = samples("--prompt_file", tmp_path / "rows.jsonl", "--max_new_tokens", 3, "--temperature", 0)
    assert (first["id"], first["labels"], first["prompt"]) == (7, ["a"], "The")
    assert first["text"] != "old"
    assert second["id"] is None
    assert len(second["logprobs"]) == len(second["tokens"])


@pytest.mark.slow
def test_ctrl_c_keeps_the_text_and_exits_130(fox_dir, tmp_path):
    """The prompts would take minutes; the signal is sent as soon as there is text."""
    (tmp_path / "p").write_text("The fox\n" * 5000, encoding="utf-8")
    command = [sys.executable, ROOT / "generate.py", fox_dir, "--prompt_file", tmp_path / "p", "--batch_size", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    beginning = os.read(process.stdout.fileno(), 100)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert beginning.startswith(b"The fox")
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_texts_are_separated_by_a_line_and_end_before_a_stop_string(run, samples, dtype):
    arguments = ["--prompt", "The quick", "--prompt", "A", "--prompt", "I am", "--temperature", 0, "--dtype", dtype]
    text = run(*arguments).out
    assert text.count("\n-----") == 2
    found = samples(*arguments)
    assert all(sample["prompt"] + sample["text"] in text for sample in found)
    stop = found[0]["text"][3:6]
    stopped = samples(*arguments, "--stop", stop)[0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == found[0]["text"].partition(stop)[0]
    assert DecodingOptions(stop=(r"\n\t\\n\x",)).stop_strings == ["\n\t\\n\\x"]


def test_the_prompt_of_an_endless_text_may_be_longer_than_the_context(run):
    text = "fox and dog " * CONTEXT
    arguments = ["--prompt", text, "--max_new_tokens", 2 * CONTEXT, "--temperature", 0, "--ignore_eos"]
    assert "let it be endless (--endless)" in run(*arguments).err
    assert run(*arguments, "--endless", "--prompt", "A").out.startswith(text), "prompts need not be equally long"
    code, out, err = run(*arguments, "--endless")
    assert code == 0
    assert out.startswith(text)
    assert int(re.search(r"prompt: ([\d,]+) tokens", err)[1].replace(",", "")) > 3 * CONTEXT
    assert f"new, after the first: {2 * CONTEXT - 1} tokens" in err


@pytest.mark.parametrize("flags", [[], ["--num_samples", 3], ["--endless", "--max_new_tokens", CONTEXT], ["--chat"]])
def test_with_ignore_eos_generation_continues_after_an_end_token(samples, copy, flags):
    """Every token of this model is an end token."""
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(320))}), encoding="utf-8")
    arguments = ["--prompt", "The quick", "--temperature", 0, "--max_new_tokens", 9, *flags]
    length = CONTEXT if "--endless" in flags else 9
    for more, expected in (([], ("end", 1)), (["--ignore_eos"], ("length", length))):
        for sample in samples(*arguments, *more, model=copy):
            assert (sample["finish_reason"], len(sample["tokens"])) == expected


CHAT = ["--chat", "--prompt", "A fox", "--max_new_tokens", 9, "--seed", 1]


def test_chat_applies_the_template_to_each_prompt(run, samples, chat_dir):
    rendered = "<|system|>\nBe brief.</s>\n<|user|>\nA fox</s>\n<|assistant|>"
    (sample,) = samples(*CHAT, "--system", "Be brief.", model=chat_dir)
    assert sample["prompt"] == "A fox"
    tokenizer = load_tokenizer(chat_dir)
    tokens = [token for part in rendered.split("</s>") for token in [*tokenizer.encode(part, bos=False), 2]][:-1]
    steps = generate(load_model(chat_dir), [tokens], 9, temperature=0.8, seed=1, eos_ids=[0, 1, 2])
    assert sample["tokens"] == [token for (token,) in steps]
    assert not run(*CHAT, model=chat_dir).out.startswith("A fox"), "an answer does not begin with the question"


@pytest.mark.parametrize(
    ("value", "rendered"),
    [("true", "TrueTrue"), ("false", "True"), ("False", "True"), ("3", "3False"), ("word", "wordFalse")],
)
def test_a_variable_of_the_template_is_given_by_a_flag(samples, copy, value, rendered):
    file = copy / "chat_template.jinja"
    template = file.read_text(encoding="utf-8")
    file.write_text(template + "{{ mode is boolean }}", encoding="utf-8")
    (sample,) = samples(*CHAT, "--template_var", f"mode={value}", model=copy)
    file.write_text(template + rendered, encoding="utf-8")
    assert samples(*CHAT, model=copy) == [sample]


def test_a_models_own_sampling_settings_are_defaults(run, samples, copy):
    config = {"temperature": 0.4, "top_k": 7, "top_p": None, "do_sample": True, "eos_token_id": [1, 2]}
    (copy / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    arguments = ["--prompt", "A fox", "--max_new_tokens", 20, "--seed", 1]
    given = [*arguments, "--temperature", 2, "--top_k", 0]
    assert samples(*arguments, model=copy) == samples(*arguments, "--temperature", 0.4, "--top_k", 7)
    assert samples(*given, model=copy) == samples(*given)
    assert "note: temperature 0.4, top_k 7, as " in run(*arguments, model=copy).err
    assert "note" not in run(*given, model=copy).err
    (copy / "generation_config.json").write_text(json.dumps(config | {"top_k": "all"}), encoding="utf-8")
    assert "error: top_k is 'all': give a whole number" in run(*arguments, model=copy).err
    assert run(*arguments, "--top_k", 3, model=copy).code == 0


def test_do_sample_false_means_greedy_and_what_is_not_followed_is_named(run, samples, copy):
    config = {"do_sample": False, "temperature": 0.9, "num_beams": 4, "suppress_tokens": [3], "no_repeat_ngram_size": 0}
    config |= {"typical_p": 1.0, "max_length": 20, "stop_strings": None}
    (copy / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    arguments = ["--prompt", "A fox", "--max_new_tokens", 20]
    assert samples(*arguments, model=copy) == samples(*arguments, "--temperature", 0)
    err = run(*arguments, model=copy).err
    assert "note: temperature 0.0, as " in err
    assert "note: num_beams, suppress_tokens of " in err
    sampled = [*arguments, "--temperature", 0.8, "--seed", 1]
    assert samples(*sampled, model=copy) == samples(*sampled)


@pytest.mark.parametrize("flag", ["--top_p", "--min_p", "--top_k"])
@pytest.mark.parametrize(
    ("config", "temperature"),
    [({"do_sample": False}, 0.8), ({"do_sample": False, "temperature": 0.9}, 0.9), ({"temperature": 0}, 0.8)],
)
def test_a_flag_that_asks_for_a_draw_overrides_a_model_that_is_greedy(run, samples, copy, config, temperature, flag):
    (copy / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    plain = ["--prompt", "A fox", "--max_new_tokens", 20]
    arguments = [*plain, flag, 1]
    texts = {seed: samples(*arguments, "--seed", seed, model=copy) for seed in (1, 2)}
    assert (texts[1] == texts[2]) == (flag != "--top_p"), "of the others one token remains"
    assert texts[2] == samples(*arguments, "--seed", 2, "--temperature", temperature)
    err = run(*arguments, model=copy).err
    assert ("note: temperature 0.9, as " in err) == (temperature == 0.9)
    assert "temperature 0.0" not in err
    assert samples(*arguments, "--temperature", 0, model=copy) == samples(*plain, "--temperature", 0)


@pytest.mark.parametrize("jsonl", [False, True])
@pytest.mark.parametrize("terminals", [(), ("stdout",), ("stderr",), ("stdout", "stderr")])
def test_a_bar_is_drawn_only_on_a_terminal_that_shows_no_texts(monkeypatch, terminals, jsonl):
    for name in ("stdout", "stderr"):
        stream = io.StringIO()
        stream.isatty = lambda name=name: name in terminals
        monkeypatch.setattr(script.sys, name, stream)
    sample = Sample(Prompt("A", [1]), LETTERS, 9, text=" fox", tokens=[7], finish="end")
    options = SimpleNamespace(batch_size=2, jsonl=jsonl)
    assert script.print_samples(iter([sample] * 5), 5, options, None) == 0
    assert ("5/5" in script.sys.stderr.getvalue()) == (terminals == ("stderr",))
    assert script.sys.stdout.getvalue().count(" fox") == 5


def test_prompts_come_from_flags_a_file_and_stdin(tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_bytes("one\fpage\r\n\n  two\u2028lines \n".encode())  # only line feeds separate prompts
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("piped äö\n".encode()), encoding="utf-8"))

    def read_texts(prompts, file):
        return [text for text, _ in read_prompts(prompts, file)]

    assert read_texts([], None) == [""]
    assert read_texts(["a"], None) == ["a"], "stdin is read for a dash only"
    assert read_texts(["a", "-"], file) == ["a", "piped äö", "one\fpage", "  two\u2028lines "]
    rows = tmp_path / "prompts.jsonl"
    rows.write_text('{"prompt": "a\\nb", "text": "c"}\n\n{"prompt": ""}\n', encoding="utf-8")
    assert read_texts([], rows) == ["a\nb", ""]
    for content, message in (
        (b"\n \n", "contains no prompt"),
        ("naïve".encode("latin-1"), "prompts.txt is not UTF-8 at byte 2"),
        (codecs.BOM_UTF8 + "naïve".encode("latin-1"), "prompts.txt is not UTF-8 at byte 5"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_prompts([], file)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.usefixtures("each_processor")
def test_memory_is_asked_for_weights_cache_and_logits(fox_dir, monkeypatch, kind):
    model, asked = open_model(ModelOptions(model=fox_dir, dtype=kind)), []
    cache = KVCache(model.checkpoint.args, 7, max_seq_len=11)
    network = model.load()
    network(torch.zeros(7, 1, dtype=torch.long), 0, cache)  # allocates the cache
    tensors = [torch.empty(7, model.checkpoint.args.vocab_size)]
    tensors += [tensor for name, tensor in network.state_dict().items() if not name.endswith("scales")]
    tensors += [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    monkeypatch.setattr("model.weights.checkpoint.check_memory", lambda needed, *_: asked.append(needed))
    model.load_for_decoding(False, 7, 11, "advice")
    assert asked == [sum(tensor.nbytes for tensor in tensors)]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.usefixtures("compiler")
def test_a_small_model_decodes_with_one_thread_unless_it_is_compiled(fox_dir, monkeypatch, compile):
    monkeypatch.delenv("OMP_NUM_THREADS")
    with machine.threads(3):
        open_model(ModelOptions(model=fox_dir)).load_for_decoding(compile, 1, 11, "advice")
        assert torch.get_num_threads() == (3 if compile else 1)


def test_on_a_gpu_memory_is_asked_for_the_slots_that_are_allocated(start, fox_dir, monkeypatch):
    """A cache has a multiple of GPU_SLOTS, and with --compile an endless one is large at once. The context is 96."""
    asked = []

    def refuse(needed, *_):
        asked.append(needed)
        sys.exit()

    monkeypatch.setattr("model.weights.checkpoint.check_memory", refuse)
    monkeypatch.setattr("model.decoding.opened_model.pick_device", torch.device)
    monkeypatch.setattr("model.decoding.batches.GPU_SLOTS", 16)
    monkeypatch.setattr("model.decoding.endless.FIRST_SLOTS", 16)
    flags = ["--device", "meta", "--max_new_tokens"]
    for program, more in ((script, ["--prompt", "", "--endless"]), (chat, [])):
        asked.clear()
        for length, compile in ((3, []), (40, []), (3, ["--compile"]), (500, [])):
            start(program, fox_dir, *flags, length, *more, *compile)
        assert asked[0] < asked[1] < asked[2] == asked[3]
    asked.clear()
    for length in (3, 14, 17):
        start(script, fox_dir, *flags, length, "--prompt", "")
    assert asked[0] == asked[1] < asked[2]


def test_a_model_that_is_larger_than_the_memory_is_refused_on_every_device_before_it_is_read(run, monkeypatch):
    asked = []
    monkeypatch.setattr(machine, "free_memory", lambda device: asked.append(str(device)) or 100_000)
    monkeypatch.setattr("model.decoding.opened_model.pick_device", torch.device)
    monkeypatch.setattr(Transformer, "__init__", None)
    for device in ("cpu", "meta"):
        code, _, err = run("--device", device)
        assert code == 2
        assert "error: the model with a batch of 1 text of 96 tokens needs about" in err
    assert asked == ["cpu", "meta"]


@pytest.mark.parametrize(
    ("program", "flags"),
    [("generate", ["--prompt", "a"]), ("chat", []), ("evaluate", ["--data", "text.txt"]), ("convert", ["new"])],
)
def test_each_program_and_the_library_refuse_a_model_that_is_larger_than_the_memory(
    start, fox_dir, monkeypatch, tmp_path, program, flags
):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The quick brown fox.", encoding="utf-8")
    monkeypatch.setattr(machine, "free_memory", lambda device: 100_000)
    monkeypatch.setattr(Transformer, "__init__", None)
    code, out, err = start(import_module(program), fox_dir, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert re.search(r"error: the model.* needs about \d+ MB of memory, but 1 MB are free on cpu: give a smaller", err)
    with pytest.raises(ValueError, match=r"^the model needs about 1 MB of memory, but 1 MB are free on cpu: give a sm"):
        load_model(fox_dir)
