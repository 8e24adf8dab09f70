"""generate.py as a user runs it, mostly in this process, because starting a process is slow."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from script_helpers import run_in_process

import generate as script
from model import ModelArgs, Transformer, generate
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_model, load_tokenizer, save_model, save_tokenizer

ROOT = Path(__file__).parents[2]
CONTEXT = 96


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run directory with a small random network and a real tokenizer."""
    path = tmp_path_factory.mktemp("runs") / "small"
    path.mkdir()
    text = "The quick brown fox jumps over the lazy dog, and says: I am a fox. " * 20
    tokenizer = load_tokenizer(train_tokenizer([text], path / "tokenizer.model", vocab_size=320))
    torch.manual_seed(0)
    model = Transformer(ModelArgs(dim=32, n_layers=1, n_heads=2, vocab_size=tokenizer.vocab_size, max_seq_len=CONTEXT))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(10 if weight.ndim == 2 else 1)
    save_tokenizer(tokenizer, path)
    save_model(model, path)
    return path


@pytest.fixture
def run(monkeypatch, capfd, run_dir):
    """``run(*arguments, stdin=b"")`` -> (exit code, stdout, stderr), in this process, on the small run."""

    def call(*arguments, model=run_dir, stdin=None):
        monkeypatch.setattr(
            "sys.stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        )
        code = run_in_process(script.main, "generate.py", *([model] if model else []), *arguments)
        return (code, *capfd.readouterr())

    return call


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def test_text_goes_to_stdout_and_speed_to_stderr(run):
    code, out, err = run("--prompt", "The quick", "--max_new_tokens", 9, "--seed", 1)
    assert code == 0
    assert out.startswith("The quick")
    assert len(out) > len("The quick\n")
    assert "prompt: " in err
    assert "new: 8 tokens" in err
    assert run("--prompt", "The quick", "--max_new_tokens", 9, "--seed", 1)[1] == out


def test_without_a_model_the_newest_run_is_used(run, run_dir, monkeypatch, tmp_path):
    old, new = tmp_path / "runs" / "old", tmp_path / "runs" / "new"
    for path, modified in ((new, 2000), (old, 1000)):
        shutil.copytree(run_dir, path)
        os.utime(path / "model.safetensors", (modified, modified))
    monkeypatch.chdir(tmp_path)
    assert script.newest_run() == Path("runs/new")
    code, out, _ = run("--seed", 4, model=None)
    assert code == 0
    assert len(out) > 50


def test_without_a_prompt_the_text_begins_with_the_runs_start_text(run, run_dir, tmp_path):
    with_start_text = tmp_path / "with_start_text"
    shutil.copytree(run_dir, with_start_text)
    arguments = ("--max_new_tokens", "9", "--temperature", "0", "--jsonl")
    unprompted, prompted = (objects(run(*arguments, "--prompt", text)[1])[0] for text in ("", "The"))
    (with_start_text / "config.toml").write_text('start_text = "The"\n', encoding="utf-8")
    (started,) = objects(run(*arguments, model=with_start_text)[1])
    assert started == prompted | {"prompt": ""}, "start_text is not shown"
    assert started["tokens"] != unprompted["tokens"]
    assert objects(run(*arguments, "--prompt", "The", model=with_start_text)[1]) == [prompted]


@pytest.mark.usefixtures("each_processor")
def test_jsonl_has_one_object_per_sample_and_samples_differ(run, run_dir):
    arguments = ["--prompt", "The", "--prompt", "I am a fox", "--num_samples", 3, "--max_new_tokens", 12, "--jsonl"]
    code, out, _ = run(*arguments, "--seed", 2, "--logprobs")
    samples = objects(out)
    assert code == 0
    assert [sample["prompt"] for sample in samples] == ["The"] * 3 + ["I am a fox"] * 3
    assert len({sample["text"] for sample in samples}) == 6
    tokenizer = load_tokenizer(run_dir)
    for sample in samples:
        assert len(sample["logprobs"]) == len(sample["tokens"]) <= 12
        assert all(value < 0 for value in sample["logprobs"])
        if sample["finish_reason"] == "length":
            text = tokenizer.decode(tokenizer.encode(sample["prompt"]) + sample["tokens"])
            assert text == sample["prompt"] + sample["text"]
    assert objects(run(*arguments, "--seed", 2, "--batch_size", 2)[1]) == [
        {key: value for key, value in sample.items() if key != "logprobs"} for sample in samples
    ], "samples do not depend on the batch size"


def test_stop_strings_are_never_printed(run):
    full = run("--prompt", "The", "--seed", 3)[1]
    stop = full[20:23]
    code, out, _ = run("--prompt", "The", "--seed", 3, "--stop", stop)
    assert code == 0
    assert out == full[: full.index(stop, 3)] + "\n"


def test_a_progress_bar_is_shown_if_there_are_more_prompts_than_fit_a_batch(run, tmp_path):
    (tmp_path / "p.txt").write_text("The fox\nA dog\n\nI am\n", encoding="utf-8")
    arguments = ("--prompt_file", tmp_path / "p.txt", "--max_new_tokens", 3, "--jsonl")
    assert "sample" not in run(*arguments, "--batch_size", 3)[2]
    code, out, err = run(*arguments, "--batch_size", 2)
    assert code == 0
    assert [sample["prompt"] for sample in objects(out)] == ["The fox", "A dog", "I am"]
    assert "3/3" in err
    assert "1 blank line skipped, 3 prompts" in err


def test_a_prompt_is_read_from_stdin(run):
    code, out, _ = run("--prompt", "-", "--max_new_tokens", 3, stdin="The fox é\n".encode())
    assert code == 0
    assert out.startswith("The fox é")


@pytest.mark.usefixtures("each_processor")
def test_interactive_continues_line_by_line(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    code, _, err = run("--interactive", "--max_new_tokens", 5, "--temperature", 0, stdin=b"The fox\nsays\n")
    assert code == 0
    assert err.count("> ") == 3
    assert "new: 8 tokens" in err


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bfloat16_without_native_instructions_prints_a_note(run, dtype, each_processor):
    code, _, err = run("--dtype", dtype, "--max_new_tokens", 3, "--device", "cpu")
    assert code == 0
    assert ("has no bfloat16 instructions" in err) == (dtype == "bfloat16" and not each_processor)


def start(run_dir, *arguments, **options):
    # UTF-8 in every locale
    arguments = [argument.encode() if isinstance(argument, str) else argument for argument in arguments]
    command = [sys.executable, ROOT / "generate.py", run_dir, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_ctrl_c_keeps_the_text_and_exits_130(run_dir, tmp_path):
    """The prompts would take minutes; the signal is sent as soon as there is text."""
    (tmp_path / "p").write_text("The fox\n" * 5000, encoding="utf-8")
    process = start(run_dir, "--prompt_file", tmp_path / "p", "--batch_size", "1")
    beginning = os.read(process.stdout.fileno(), 100)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert beginning.startswith(b"The fox")
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_auto_is_the_stored_dtype_if_it_is_native(run, run_dir, tmp_path, monkeypatch, each_processor, stored):
    stored_dir = shutil.copytree(run_dir, tmp_path / "stored")
    save_model(load_model(run_dir), stored_dir, dtype=stored)
    dtypes = []
    real = script.for_decoding

    def record_dtype(model, compile):
        dtypes.append(model.tok_embeddings.weight.dtype)
        return real(model, compile)

    monkeypatch.setattr(script, "for_decoding", record_dtype)
    assert run("--max_new_tokens", 3, "--device", "cpu", model=stored_dir)[0] == 0
    assert dtypes == [torch.bfloat16 if stored == torch.bfloat16 and each_processor else torch.float32]


@pytest.mark.usefixtures("each_processor")
def test_greedy_text_does_not_depend_on_the_batch_size(run):
    arguments = ["--prompt", "The quick", "--prompt", "A", "--prompt", "I am", "--temperature", 0, "--jsonl"]
    assert "\n-----" in run(*arguments[:-1])[1], "samples are separated by a line"
    together = run(*arguments)[1]
    assert together == run(*arguments, "--batch_size", 1)[1] == run(*arguments, "--batch_size", 2, "--no_cache")[1]
    assert len(objects(together)) == 3


def test_characters_that_stdout_cannot_encode_become_question_marks(run_dir):
    env = os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    process = start(run_dir, "--prompt", "日本 fox", "--max_new_tokens", "3", env=env, stdin=subprocess.DEVNULL)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out[:6]) == (0, b"?? fox"), err


def test_int8_supports_batches_stop_strings_and_logprobs(run, each_processor):
    arguments = ["--prompt", "The quick", "--prompt", "A", "--temperature", 0, "--max_new_tokens", 20]
    arguments += ["--dtype", "int8"]
    code, text, err = run(*arguments)
    assert code == 0
    assert "new: 38 tokens" in err
    if not each_processor:  # in bfloat16 rounding depends on the batch size
        assert run(*arguments, "--batch_size", 1)[1] == text
    first, second = objects(run(*arguments, "--jsonl", "--logprobs")[1])
    assert text.startswith(first["prompt"] + first["text"])
    assert second["text"] in text
    assert all(logprob <= 0 for logprob in first["logprobs"])
    stop = first["text"][3:6]
    stopped = objects(run(*arguments, "--jsonl", "--stop", stop)[1])[0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == first["text"][: first["text"].index(stop)]


class Reversed(Transformer):
    """A variant that negates every logit."""

    def logits(self, h):
        return -super().logits(h)


def test_network_selects_a_subclass_of_transformer(run, run_dir):
    arguments = ["--prompt", "The", "--temperature", 0, "--max_new_tokens", 5]
    code, out, err = run(*arguments, "--network", f"{__name__}:Reversed")
    assert code == 0, err
    assert out.startswith("The")
    assert out != run(*arguments)[1]


def test_a_huge_prompt_on_stdin_is_one_line(run, monkeypatch):
    monkeypatch.setattr("model.decoding.prompts.MAX_PROMPT_BYTES", 10_000_000)
    code, out, err = run("--prompt", "-", stdin=b"a" * 10_000_001)
    assert (code, out) == (2, "")
    assert "stdin is longer than 10 MB" in err


@pytest.mark.usefixtures("each_processor")
def test_an_endless_text_continues_beyond_the_context(run):
    arguments = ["--prompt", "The quick", "--temperature", 0.8, "--seed", 1, "--jsonl", "--logprobs"]
    code, out, _ = run(*arguments, "--max_new_tokens", 3 * CONTEXT, "--endless", "--stop", "no such text")
    assert code == 0
    (sample,) = objects(out)
    assert len(sample["tokens"]) == len(sample["logprobs"]) > CONTEXT or sample["finish_reason"] == "end"
    (plain,) = objects(run(*arguments)[1])
    assert sample["tokens"][: len(plain["tokens"])] == plain["tokens"]


def test_the_prompt_of_an_endless_text_may_be_longer_than_the_context(run):
    text = "fox and dog " * CONTEXT
    arguments = ["--prompt", text, "--max_new_tokens", 2 * CONTEXT, "--temperature", 0, "--ignore_eos"]
    assert (
        f"the model's context of {CONTEXT}: shorten it, lower --max_new_tokens, or add --endless" in run(*arguments)[2]
    )
    code, out, err = run(*arguments, "--endless")
    assert code == 0
    assert out.startswith(text)
    assert "after its first 4 tokens" in err
    assert f"prompt: {CONTEXT} tokens" in err
    assert f"new: {2 * CONTEXT - 1} tokens" in err


TEMPLATE = """{% for message in messages %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.fixture(scope="module")
def chat_dir(run_dir, tmp_path_factory):
    path = shutil.copytree(run_dir, tmp_path_factory.mktemp("chat") / "model")
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "flags", [[], ["--no_cache"], ["--num_samples", 3], ["--endless", "--max_new_tokens", CONTEXT], ["--chat"]]
)
def test_with_ignore_eos_generation_continues_after_an_end_token(run, chat_dir, tmp_path, flags):
    """Every token of this model is an end token."""
    path = shutil.copytree(chat_dir, tmp_path / "model")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(320))}), encoding="utf-8")
    arguments = ["--prompt", "The quick", "--temperature", 0, "--jsonl", "--max_new_tokens", 9, *flags]
    for sample in objects(run(*arguments, model=path)[1]):
        assert (sample["finish_reason"], len(sample["tokens"])) == ("end", 1)
    length = CONTEXT if "--endless" in flags else 9
    for sample in objects(run(*arguments, "--ignore_eos", model=path)[1]):
        assert (sample["finish_reason"], len(sample["tokens"])) == ("length", length)


def test_chat_applies_the_template_to_each_prompt(run, chat_dir):
    arguments = ["--max_new_tokens", 9, "--seed", 1, "--jsonl"]
    rendered = "<|system|>\nBe brief.</s>\n<|user|>\nA fox</s>\n<|assistant|>"
    code, out, _ = run("--chat", "--prompt", "A fox", "--system", "Be brief.", *arguments, model=chat_dir)
    assert code == 0
    (sample,) = objects(out)
    assert sample["prompt"] == "A fox"
    tokenizer = load_tokenizer(chat_dir)
    tokens = [token for part in rendered.split("</s>") for token in [*tokenizer.encode(part, bos=False), 2]][:-1]
    steps = generate(load_model(chat_dir), [tokens], 9, temperature=0.8, seed=1, eos_ids=[0, 1, 2])
    assert sample["tokens"] == [token for (token,) in steps]
    answer = run("--chat", "--prompt", "A fox", "--max_new_tokens", 9, "--seed", 1, model=chat_dir)[1]
    assert not answer.startswith("A fox"), "an answer does not begin with the question"


def test_interactive_with_a_chat_model_applies_the_template(run, chat_dir, run_dir):
    lines = b"Who?\nWhy?\n"
    plain = run("--interactive", "--seed", 1, "--max_new_tokens", 9, stdin=lines)[1]
    chats = [
        run(flag, "--seed", 1, "--max_new_tokens", 9, stdin=lines, model=chat_dir)
        for flag in ("--interactive", "--chat")
    ]
    assert chats[0][:2] == chats[1][:2]
    assert chats[0][0] == 0
    assert chats[0][1] != plain


def test_a_failing_template_is_one_line_and_found_before_the_weights_are_read(run, chat_dir, tmp_path):
    broken = shutil.copytree(chat_dir, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-8])
    (broken / "chat_template.jinja").write_text("{{ messages.__class__ }}", encoding="utf-8")
    code, out, err = run("--chat", "--prompt", "x", model=broken)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("each_processor")
def test_the_prompts_of_different_endless_batches_may_differ_in_length(run):
    prompts = ["--prompt", "The", "--prompt", "The", "--prompt", "I am a fox", "--prompt", "I am a fox"]
    code, out, _ = run("--endless", *prompts, "--batch_size", 2, "--max_new_tokens", 2, "--jsonl")
    assert code == 0
    assert len(objects(out)) == 4


def test_too_little_memory_names_the_device_and_the_flags_that_help(run, monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(script, "load_network", fails)
    for arguments, advice in (
        (["--prompt", "a"], "lower --batch_size or"),
        (["--interactive"], "give a smaller model"),
    ):
        code, _, err = run("--device", "cpu", *arguments, stdin=b"")
        assert code == 2
        assert f"cpu has too little free memory: {advice}" in err
