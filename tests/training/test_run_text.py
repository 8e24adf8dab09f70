"""The document separator and the start text are chosen for the training text and become settings of the run."""

import pytest
from training_helpers import make_run

from model.text.prepare import prepare
from model.text.sources import open_documents
from model.text.train_tokenizer import train_tokenizer
from model.training.config import CONFIG_FILE, read_run_settings
from model.training.distributed import Ranks
from model.training.run_text import MIN_DOCUMENTS, choose_start_text, prepare_text, read_text
from model.weights import load_tokenizer

STORY = "One day it rained. We stayed at home."


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


@pytest.mark.parametrize(("separator", "documents"), [(None, 5), ("", 1), ("One", 5)])
def test_a_separator_is_recognized_unless_one_is_set_and_splits_the_text(tmp_path, separator, documents):
    file = write(tmp_path / "a.txt", "\n<|endoftext|>\n".join([STORY] * 5))
    settings = {"data": (file,), "val_data": (file,), "tokenizer": "char", "max_seq_len": 9}
    run, text, notes = read_text(make_run(**settings, doc_separator=separator))
    assert run.data.doc_separator == ("<|endoftext|>" if separator is None else separator)
    for ids in (text.dataset.train, text.dataset.val):
        assert (ids == text.tokenizer.bos_id).sum() == documents
    assert ["split at <|endoftext|>, 4 times" in note for note in notes] == ([True] if separator is None else [])


def test_notes_about_the_text_are_printed_only_if_it_can_be_prepared(tmp_path, capsys):
    file = write(tmp_path / "a.txt", "\n<|endoftext|>\n".join([STORY] * 9))
    settings = {"data": (file,), "tokenizer": "char", "max_steps": 3, "max_seq_len": 999}
    with pytest.raises(ValueError, match="give more text"):
        prepare_text(make_run(**settings), Ranks())
    assert capsys.readouterr().err == ""
    run, text = prepare_text(make_run(**settings | {"max_seq_len": 9}), Ranks())
    assert capsys.readouterr().err.startswith("documents ")
    assert run.data.doc_separator == "<|endoftext|>"
    assert run.model.vocab_size == text.tokenizer.vocab_size
    for name in ("start_text", "sample_prompt"):
        with pytest.raises(ValueError, match=rf"{name} is 9 tokens long, .* a context of 9 "):
            prepare_text(make_run(**settings | {"max_seq_len": 9, name: STORY[:8]}), Ranks())
        prepare_text(make_run(**settings | {"max_seq_len": 9, name: STORY[:7]}), Ranks())


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("One day.\n\n" * 70, "\n\n"),
        ("One day.\r\n\r\n" * 70, "\r\n\r\n"),
        ("One day.\n" * 9 + "It rained. " * 70, "."),
        ("天天。" * 90, "。"),
        ("天天 " * 70, " "),
        ("天" * 700, ""),
        ("%".join(["One\none\nday.\n"] * (MIN_DOCUMENTS - 50)), "\n"),
        ("%".join(["One\none\nday.\n"] * (MIN_DOCUMENTS + 50)), ""),
    ],
)
def test_a_text_with_few_documents_gets_the_first_frequent_start(tmp_path, text, start):
    file = write(tmp_path / "a.txt", text)
    tokenizer = load_tokenizer(train_tokenizer([f"{STORY}\r\n。天"], tmp_path / "t.model", "char"))
    documents = open_documents([file], doc_separator="%")
    dataset = prepare(documents, tokenizer, context=8, cache_dir=tmp_path / "cache")
    assert choose_start_text(dataset, tokenizer, 8) == start
    assert choose_start_text(dataset, tokenizer, 2) == ""  # no room in the context


def test_the_settings_of_a_run_are_read_from_its_directory(tmp_path):
    assert read_run_settings(tmp_path) == {}
    write(tmp_path / CONFIG_FILE, 'doc_separator = "\\n%\\n"\nstart_text = ""\n')
    assert read_run_settings(tmp_path) == {"doc_separator": "\n%\n", "start_text": ""}
    write(tmp_path / CONFIG_FILE, "of_another_program = 1\n")
    assert read_run_settings(tmp_path) == {}
