"""chat.py as a user runs it, with lines from a pipe."""

import json
import shutil

import pytest

import chat
import generate
from model.decoding.chat import Chat, user_message
from model.weights import load_tokenizer


@pytest.mark.usefixtures("each_processor")
def test_it_takes_turns_and_applies_the_template_if_there_is_one(start, fox_dir, chat_dir):
    answers = set()
    more = ([], ["--system", "Be brief."], ["--template_var", "mode=3"])
    for arguments in ([fox_dir], *([chat_dir, *flags] for flags in more)):
        code, out, err = start(chat, *arguments, "--max_new_tokens", 9, "--seed", 1, stdin=b"Who?\nWhy?\n")
        assert code == 0
        assert "tokens/s" in err
        assert (arguments == [fox_dir]) == ("no chat template: it continues your lines" in err)
        answers.add(out)
    assert len(answers) == 4


def test_a_conversation_may_be_longer_than_the_context(start, fox_dir, tmp_path):
    path = shutil.copytree(fox_dir, tmp_path / "endless")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 319}), encoding="utf-8")
    for arguments, context in (([], 96), (["--context", 40], 40)):
        code, _, err = start(chat, path, "--max_new_tokens", 60, "--seed", 1, *arguments, stdin=b"Who?\n" * 4)
        assert code == 0
        assert f"(the context of {context} tokens is full: " in err


@pytest.mark.parametrize(("ends", "notes"), [([319], 1), (range(320), 0)])
def test_an_answer_that_is_cut_is_told_from_one_that_ends(start, chat_dir, tmp_path, ends, notes):
    path = shutil.copytree(chat_dir, tmp_path / "chat")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ends)}), encoding="utf-8")
    code, _, err = start(chat, path, "--max_new_tokens", 1, "--temperature", 0, stdin=b"Who?\n")
    assert code == 0
    assert err.count("(stopped at 1 token: --max_new_tokens)\n") == notes


@pytest.mark.parametrize(("end", "shown"), [("<think>\\n", "<think>\n"), ("[THINK]", "[THINK]"), ("</think>", "")])
def test_a_thought_that_the_template_begins_is_shown_from_its_beginning(start, chat_dir, tmp_path, end, shown):
    path = shutil.copytree(chat_dir, tmp_path / "chat")
    template = (path / "chat_template.jinja").read_text(
        encoding="utf-8"
    ) + f"{{{{ '{end}' if add_generation_prompt }}}}"
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(320))}), encoding="utf-8")
    assert start(chat, path, stdin=b"Who?\nWhy?\n").out == f"{shown}\n{shown}\n"
    assert start(generate, path, "--chat", "--prompt", "Who?").out == f"{shown}\n"


def test_a_system_message_that_is_replaced_is_that_of_a_new_chat(chat_dir):
    tokenizer = load_tokenizer(chat_dir)
    replaced = Chat(chat_dir, tokenizer, "One.")
    replaced.begin_with([{"role": "system", "content": "Two words."}])
    new = Chat(chat_dir, tokenizer, "Two words.")
    assert replaced.encode([user_message("Who?")]) == new.encode([user_message("Who?")])
    assert replaced.prefix_length == new.prefix_length
