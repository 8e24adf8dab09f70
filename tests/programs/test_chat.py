"""chat.py as a user runs it, with lines from a pipe."""

import io
import json
import shutil

import pytest
import torch
from script_helpers import run_in_process, save_run

import chat as script

TEXT = "The quick brown fox jumps over the lazy dog, and says: I am a fox. " * 20
TEMPLATE = """{% for message in messages %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if mode %}{{ mode }}{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "small"
    torch.manual_seed(0)
    save_run(path, TEXT, scale=10, dim=32, n_layers=1, n_heads=2, vocab_size=320, max_seq_len=96)
    return path


@pytest.fixture
def chat_dir(run_dir, tmp_path):
    path = shutil.copytree(run_dir, tmp_path / "chat")
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


@pytest.fixture
def run(monkeypatch, capfd):
    """``run(*arguments, stdin=...)`` -> (exit code, stdout, stderr), in this process."""

    def call(*arguments, stdin=b"Who?\nWhy?\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run_in_process(script.main, "chat.py", *arguments, "--seed", 1)
        return (code, *capfd.readouterr())

    return call


@pytest.mark.usefixtures("each_processor")
def test_it_takes_turns_and_applies_the_template_if_there_is_one(run, run_dir, chat_dir):
    answers = []
    for arguments in (
        [run_dir],
        [chat_dir],
        [chat_dir, "--system", "Be brief."],
        [chat_dir, "--template_var", "mode=3"],
    ):
        code, out, err = run(*arguments, "--max_new_tokens", 9)
        assert code == 0
        assert "tokens/s" in err
        assert ("has no chat template" in err) == (arguments == [run_dir])
        answers.append(out)
    assert len({*answers}) == 4


def test_a_conversation_may_be_longer_than_the_context(run, run_dir, tmp_path):
    path = shutil.copytree(run_dir, tmp_path / "endless")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 319}), encoding="utf-8")
    for arguments, context in (([], 96), (["--context", 40], 40)):
        code, _, err = run(path, "--max_new_tokens", 60, *arguments, stdin=b"Who?\n" * 4)
        assert code == 0
        assert f"(the context of {context} tokens is full: " in err
