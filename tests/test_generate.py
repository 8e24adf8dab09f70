"""generate.py as a user runs it: mostly in this process, where a start costs nothing; in real ones where it counts."""

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

from model import ModelArgs, Transformer, generate
from model.cli import run_script
from model.scripts import generate as script
from model.text.train_tokenizer import train_tokenizer
from model.weights import checkpoint, load_model, load_tokenizer, save_model, save_tokenizer

ROOT = Path(__file__).parent.parent
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
def run(monkeypatch, capfd, run_dir, each_processor):
    """``run(*arguments, stdin=b"")`` -> (exit code, stdout, stderr), in this process, on the small run."""

    def call(*arguments, model=run_dir, stdin=None):
        monkeypatch.setattr("sys.argv", ["generate.py", *([str(model)] if model else []), *map(str, arguments)])
        monkeypatch.setattr(
            "sys.stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        )
        with pytest.raises(SystemExit) as ended:
            run_script(script.main, "generate.py")
        return (ended.value.code, *capfd.readouterr())

    return call


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def test_text_goes_to_stdout_and_speeds_to_stderr(run):
    code, out, err = run("--prompt", "The quick", "--max_new_tokens", 9, "--seed", 1)
    assert code == 0
    assert out.startswith("The quick")
    assert len(out) > len("The quick\n")
    assert "prompt: " in err
    assert "new: 8 tokens" in err
    assert run("--prompt", "The quick", "--max_new_tokens", 9, "--seed", 1)[1] == out


def test_the_cache_changes_no_greedy_text(run):
    arguments = ["--prompt", "The quick", "--prompt", "A", "--temperature", 0, "--max_new_tokens", 30]
    cached, again = run(*arguments), run(*arguments, "--no_cache")
    assert cached[1] == again[1]
    assert "-----" in cached[1], "samples are told apart"


def test_without_a_model_the_newest_run_begins_a_text(run, run_dir, monkeypatch, tmp_path):
    old, new = tmp_path / "runs" / "old", tmp_path / "runs" / "new"
    for path, when in ((new, 2000), (old, 1000)):
        path.mkdir(parents=True)
        for file in run_dir.iterdir():
            os.link(file, path / file.name) if file.name != "model.safetensors" else (path / file.name).write_bytes(
                file.read_bytes()
            )
        os.utime(path / "model.safetensors", (when, when))
    monkeypatch.chdir(tmp_path)
    assert script.newest_run() == Path("runs/new")
    code, out, _ = run("--seed", 4, model=None)
    assert code == 0
    assert len(out) > 50


def test_a_text_without_a_prompt_starts_as_the_run_says(run, run_dir, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(run_dir, own)
    words = ("--max_new_tokens", "9", "--temperature", "0", "--jsonl")
    alone, after = (objects(run(*words, "--prompt", text)[1])[0] for text in ("", "The"))
    (own / "config.toml").write_text('start_text = "The"\n', encoding="utf-8")
    (started,) = objects(run(*words, model=own)[1])
    assert started == after | {"prompt": ""}, "the start is not shown"
    assert started["tokens"] != alone["tokens"]
    assert objects(run(*words, "--prompt", "The", model=own)[1]) == [after]


def test_jsonl_has_one_object_a_sample_and_they_differ(run, run_dir):
    arguments = ["--prompt", "The", "--prompt", "I am a fox", "--num_samples", 3, "--max_new_tokens", 12, "--jsonl"]
    code, out, _ = run(*arguments, "--seed", 2, "--logprobs")
    found = objects(out)
    assert code == 0
    assert [sample["prompt"] for sample in found] == ["The"] * 3 + ["I am a fox"] * 3
    assert len({sample["text"] for sample in found}) == 6
    tokenizer = load_tokenizer(run_dir)
    for sample in found:
        assert len(sample["logprobs"]) == len(sample["tokens"]) <= 12
        assert all(value < 0 for value in sample["logprobs"])
        if sample["finish_reason"] == "length":
            whole = tokenizer.decode(tokenizer.encode(sample["prompt"]) + sample["tokens"])
            assert whole == sample["prompt"] + sample["text"]
    assert objects(run(*arguments, "--seed", 2, "--batch_size", 2)[1]) == [
        {key: value for key, value in sample.items() if key != "logprobs"} for sample in found
    ], "the batch a sample is in changes nothing"


def test_stop_strings_are_never_printed(run):
    whole = run("--prompt", "The", "--seed", 3)[1]
    stop = whole[20:23]
    code, out, _ = run("--prompt", "The", "--seed", 3, "--stop", stop)
    assert code == 0
    assert out == whole[: whole.index(stop, 3)] + "\n"


def test_prompts_from_a_file_show_a_bar_when_there_are_many(run, tmp_path):
    (tmp_path / "p.txt").write_text("The fox\nA dog\n\nI am\n", encoding="utf-8")
    code, out, err = run("--prompt_file", tmp_path / "p.txt", "--max_new_tokens", 3, "--jsonl", "--batch_size", 2)
    assert code == 0
    assert [sample["prompt"] for sample in objects(out)] == ["The fox", "A dog", "I am"]
    assert "3/3" in err
    assert "1 blank line skipped" in err


def test_a_prompt_from_stdin(run):
    code, out, _ = run("--prompt", "-", "--max_new_tokens", 3, stdin="The fox é\n".encode())
    assert code == 0
    assert out.startswith("The fox é")


def test_interactive(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    code, _, err = run("--interactive", "--max_new_tokens", 5, "--temperature", 0, stdin=b"The fox\nsays\n")
    assert code == 0
    assert err.count("> ") == 3
    assert "new: 8 tokens" in err


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision(run, dtype, each_processor):
    code, _, err = run("--dtype", dtype, "--max_new_tokens", 3, "--device", "cpu")
    assert code == 0
    assert ("has no bfloat16 instructions" in err) == (dtype == "bfloat16" and not each_processor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--temperature", "warm"], "temperature is 'warm'"),
        (["--top_p", "0"], "top_p is 0.0"),
        (["--top_p", "1.5"], "top_p is 1.5"),
        (["--top_k", "-3"], "top_k is -3"),
        (["--min_p", "2"], "min_p is 2.0"),
        (["--seed", "-1"], "seed is -1"),
        (["--max_new_tokens", "0"], "max_new_tokens is 0"),
        (["--max_new_tokens", "500"], f"context of {CONTEXT}"),
        (["--prompt", "The fox " * 200], "prompt 1 has"),
        (["--prompt", "\udcff"], "not UTF-8"),
        (["--num_samples", "0"], "num_samples is 0"),
        (["--num_samples", str(2**31)], f"num_samples is {2**31}: give at most"),
        (
            ["--num_samples", "1000000", "--batch_size", str(2**40), "--max_new_tokens", "90"],
            "1000000 texts",
        ),
        (["--network", "nowhere:Net"], "network is 'nowhere:Net'"),
        (["--stop", ""], "stop string is empty"),
        (["--device", "abacus"], "abacus"),
        (["--device", "cuda:77"], "cuda:77"),
        (["--dtype", "int4"], "dtype"),
        (["--logprobs"], "add --jsonl"),
        (["--compile", "--no_cache"], "compile"),
        (["--interactive", "--prompt", "a"], "interactive"),
        (["--prompt_file", "/no/such/file"], "/no/such/file"),
        (["--tokenizer", "/no/such/file"], "/no/such/file"),
        (["--promt", "a"], "--prompt"),
        (["Tim", "went"], "unknown argument 'Tim': did you mean --prompt \"Tim went\"?"),
        (["--seed", "1", "Tim went"], 'did you mean --prompt "Tim went"?'),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("generate.py: error: ")
    assert message in err


def test_no_model_is_one_line(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "start one with `python train.py`" in run(model=None)[2]
    assert "nowhere does not exist" in run(model="nowhere")[2]
    for text in ("Tim went", "Tim went " * 100):
        assert 'did you mean --prompt "Tim went' in run(model=text)[2]


def start(run_dir, *arguments, **options):
    # As UTF-8 whatever the locale of whoever runs the tests.
    words = [word.encode() if isinstance(word, str) else word for word in arguments]
    command = [sys.executable, ROOT / "generate.py", run_dir, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_ctrl_c_keeps_the_text_and_exits_130(run_dir, tmp_path):
    """The prompts are enough for minutes; the signal comes as soon as there is text."""
    (tmp_path / "p").write_text("The fox\n" * 5000, encoding="utf-8")
    process = start(run_dir, "--prompt_file", tmp_path / "p", "--batch_size", "1")
    begun = os.read(process.stdout.fileno(), 100)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert begun.startswith(b"The fox")
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


def test_a_reader_that_goes_is_a_quiet_end(run_dir):
    process = start(run_dir, "--prompt", "The fox", "--num_samples", "2000", "--batch_size", "1")
    process.stdout.read(20)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(300) == 0
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


def test_help_names_every_flag(run):
    code, out, _ = run("--help")
    assert code == 0
    for flag in (
        "prompt",
        "max_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "tokenizer",
        "no_cache",
        "network",
    ):
        assert f"--{flag}" in out


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_auto_is_the_stored_dtype_where_it_is_native(run, run_dir, tmp_path, monkeypatch, each_processor, stored):
    stored_dir = shutil.copytree(run_dir, tmp_path / "stored")
    save_model(load_model(run_dir), stored_dir, dtype=stored)
    seen = []
    build = script.for_decoding
    monkeypatch.setattr(
        script,
        "for_decoding",
        lambda model, compile: seen.append(model.tok_embeddings.weight.dtype) or build(model, compile),
    )
    assert run("--max_new_tokens", 3, "--device", "cpu", model=stored_dir)[0] == 0
    assert seen == [torch.bfloat16 if stored == torch.bfloat16 and each_processor else torch.float32]


def test_the_batch_changes_no_greedy_text(run):
    arguments = ["--prompt", "The quick", "--prompt", "A", "--prompt", "I am", "--temperature", 0, "--jsonl"]
    together = run(*arguments)[1]
    assert together == run(*arguments, "--batch_size", 1)[1] == run(*arguments, "--batch_size", 2, "--no_cache")[1]
    assert len(objects(together)) == 3


def test_checkpoint_and_tokenizer_are_opened_once(run, monkeypatch):
    opened = []
    for where, name in ((script, "open_checkpoint"), (checkpoint, "load_tokenizer")):
        real = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *a, real=real, name=name: opened.append(name) or real(*a))
    assert run("--max_new_tokens", 2)[0] == 0
    assert opened == ["open_checkpoint", "load_tokenizer"]


def test_text_that_stdout_cannot_encode_is_shown_all_the_same(run_dir):
    env = os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    env |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}  # so that the prompt arrives as bytes that ASCII lacks
    process = start(run_dir, "--prompt", "日本 fox", "--max_new_tokens", "3", env=env, stdin=subprocess.DEVNULL)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out[:6]) == (0, b"?? fox"), err


def test_eight_bits_stream_stop_and_score_like_any_other_dtype(run, each_processor):
    ask = ["--prompt", "The quick", "--prompt", "A", "--temperature", 0, "--max_new_tokens", 20, "--dtype", "int8"]
    code, text, err = run(*ask)
    assert code == 0
    assert "new: 38 tokens" in err
    if not each_processor:  # in bfloat16 a batch rounds otherwise
        assert run(*ask, "--batch_size", 1)[1] == text
    first, second = objects(run(*ask, "--jsonl", "--logprobs")[1])
    assert text.startswith(first["prompt"] + first["text"])
    assert second["text"] in text
    assert all(score <= 0 for score in first["logprobs"])
    stop = first["text"][3:6]
    stopped = objects(run(*ask, "--jsonl", "--stop", stop)[1])[0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == first["text"][: first["text"].index(stop)]


def test_two_dashes_are_a_prompt(run):
    code, out, _ = run("--prompt=--", "--max_new_tokens", 3)
    assert code == 0
    assert out.startswith("--")


def test_blank_lines_of_a_prompt_file_are_counted(run, tmp_path):
    (tmp_path / "p.txt").write_text("The fox\n\n\nA dog\n", encoding="utf-8")
    _, out, err = run("--prompt_file", tmp_path / "p.txt", "--max_new_tokens", 3, "--jsonl")
    assert len(objects(out)) == 2
    assert "p.txt: 2 blank lines skipped, 2 prompts" in err


class Reversed(Transformer):
    """A variant: the sign of every logit is the other one."""

    def logits(self, h):
        return -super().logits(h)


def test_a_network_of_ones_own_is_named(run, run_dir):
    arguments = ["--prompt", "The", "--temperature", 0, "--max_new_tokens", 5]
    code, out, err = run(*arguments, "--network", f"{__name__}:Reversed")
    assert code == 0, err
    assert out.startswith("The")
    assert out != run(*arguments)[1]


def test_a_prompt_without_end_is_one_line(run, monkeypatch):
    monkeypatch.setattr("model.decoding.prompts.MAX_PROMPT_BYTES", 10_000_000)
    code, out, err = run("--prompt", "-", stdin=b"a" * 10_000_001)
    assert (code, out) == (2, "")
    assert "stdin is longer than 10 MB" in err


def test_an_endless_text_passes_the_context(run):
    arguments = ["--prompt", "The quick", "--temperature", 0.8, "--seed", 1, "--jsonl", "--logprobs"]
    code, out, _ = run(*arguments, "--max_new_tokens", 3 * CONTEXT, "--endless", "--stop", "no such text")
    assert code == 0
    (sample,) = objects(out)
    assert len(sample["tokens"]) == len(sample["logprobs"]) > CONTEXT or sample["finish_reason"] == "end"
    (plain,) = objects(run(*arguments)[1])
    assert sample["tokens"][: len(plain["tokens"])] == plain["tokens"]


def test_what_cannot_be_endless_is_one_line(run):
    for arguments, message in (
        (["--no_cache"], "endless is for decoding with the cache: leave --no_cache out"),
        (["--prompt", "The", "--prompt", "I am a fox"], "endless is for prompts of equal length"),
    ):
        code, out, err = run("--endless", *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    code, out, _ = run("--endless", "--prompt", "The", "--prompt", "I am a fox", "--batch_size", 1, "--seed", 3)
    assert code == 0


def test_an_endless_text_may_begin_with_a_prompt_that_passes_the_context(run):
    text = "fox and dog " * CONTEXT
    arguments = ["--prompt", text, "--max_new_tokens", 2 * CONTEXT, "--temperature", 0, "--ignore_eos"]
    assert (
        f"the model's context of {CONTEXT}: shorten it, lower --max_new_tokens, or add --endless" in run(*arguments)[2]
    )
    code, out, err = run(*arguments, "--endless")
    assert code == 0
    assert out.startswith(text)
    assert "are left out after the first 4" in err
    assert f"prompt: {CONTEXT} tokens" in err
    assert f"new: {2 * CONTEXT - 1} tokens" in err


def test_a_turn_of_a_conversation_cannot_ignore_its_end(run):
    code, _, err = run("--interactive", "--ignore_eos", stdin=b"")
    assert code == 2
    assert "ignore_eos is for prompts" in err


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
def test_with_ignore_eos_generation_goes_on_past_the_end(run, chat_dir, tmp_path, flags):
    """Every token ends a text here."""
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
    seed = next(iter(load_and_generate(chat_dir, tokens)))
    assert sample["tokens"] == seed
    shown = run("--chat", "--prompt", "A fox", "--max_new_tokens", 9, "--seed", 1, model=chat_dir)[1]
    assert not shown.startswith("A fox"), "an answer does not begin with the question"


def load_and_generate(path, tokens):
    yield [step[0] for step in generate(load_model(path), [tokens], 9, temperature=0.8, seed=1, eos_ids=[0, 1, 2])]


def test_a_conversation_of_a_chat_model_is_a_chat(run, chat_dir, run_dir):
    lines = b"Who?\nWhy?\n"
    plain = run("--interactive", "--seed", 1, "--max_new_tokens", 9, stdin=lines)[1]
    chats = [
        run(flag, "--seed", 1, "--max_new_tokens", 9, stdin=lines, model=chat_dir)
        for flag in ("--interactive", "--chat")
    ]
    assert chats[0][:2] == chats[1][:2]
    assert chats[0][0] == 0
    assert chats[0][1] != plain


def test_chat_without_a_template_is_one_line(run, chat_dir):
    for arguments, message in (
        (
            ["--chat", "--prompt", "x"],
            "has no chat template, neither in tokenizer_config.json nor as chat_template.jinja",
        ),
        (["--interactive", "--system", "x"], "has no chat template"),
        (["--prompt", "x", "--system", "x"], "system is the first message of a chat: add --chat"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


def test_a_template_that_fails_is_one_line_and_no_weights_are_read(run, chat_dir, tmp_path):
    broken = shutil.copytree(chat_dir, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-8])
    (broken / "chat_template.jinja").write_text("{{ messages.__class__ }}", encoding="utf-8")
    code, out, err = run("--chat", "--prompt", "x", model=broken)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_endless_batches_may_differ_in_length_from_each_other(run):
    prompts = ["--prompt", "The", "--prompt", "The", "--prompt", "I am a fox", "--prompt", "I am a fox"]
    code, out, _ = run("--endless", *prompts, "--batch_size", 2, "--max_new_tokens", 2, "--jsonl")
    assert code == 0
    assert len(objects(out)) == 4


@pytest.mark.parametrize("other", [{"num_samples": 2}, {"no_cache": True}, {"jsonl": True}])
def test_interactive_is_one_text_with_a_cache_for_people(other):
    script.Options(interactive=True, num_samples=1)
    with pytest.raises(ValueError, match="interactive is one text, cached, for people"):
        script.Options(interactive=True, **other)


def test_progress_is_shown_only_for_more_prompts_than_fit_in_one_batch(run):
    ask = ["--prompt", "The", "--prompt", "A fox", "--max_new_tokens", 1]
    assert "sample" not in run(*ask, "--batch_size", 2)[2]
    assert "2/2 [" in run(*ask, "--batch_size", 1)[2]
