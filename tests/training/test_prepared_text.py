"""The document separator and the start text are chosen for the training text and become settings of the run."""

import dataclasses

import numpy as np
import pytest

from model.text.prepare import prepare
from model.text.sources import open_documents
from model.text.train_tokenizer import train_tokenizer
from model.training.config import CONFIG_FILE, DataArgs, Run, read_run_settings
from model.training.distributed import Ranks
from model.training.prepared_text import (
    MIN_DOCUMENTS,
    check_prompts,
    check_variety,
    choose_start_text,
    occurrences,
    open_text,
    prepare_text,
)
from model.weights import load_tokenizer

STORY = "One day it rained. We stayed at home."


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def test_a_recognized_separator_becomes_a_setting_and_splits_the_text(tmp_path):
    file = write(tmp_path / "a.txt", "\n<|endoftext|>\n".join([STORY] * 5))
    data, documents, (note,) = open_text(DataArgs((file,)))
    assert data.doc_separator == "<|endoftext|>"
    assert list(documents) == [(STORY, True)] * 5
    assert documents.identity() == data.documents().identity()
    assert "split at <|endoftext|>, 4 times" in note
    assert open_text(data)[::2] == (data, [])


def test_a_note_says_which_field_of_a_table_is_read(tmp_path):
    (tmp_path / "a.csv").write_text("id,story\n1,x\n", encoding="utf-8")
    (tmp_path / "b.json").write_text('[{"story": "y"}]', encoding="utf-8")
    _, _, (note,) = open_text(DataArgs((str(tmp_path),), text_key="story"))
    assert note == f"documents      each 'story' of {tmp_path / 'a.csv'} and 1 other file"
    _, _, (note,) = open_text(DataArgs((str(tmp_path / "b.json"),), text_key="story"))
    assert note == f"documents      each 'story' of {tmp_path / 'b.json'}"


def test_notes_about_the_text_are_printed_only_if_it_can_be_prepared(tmp_path, capsys):
    file = write(tmp_path / "a.txt", "\n<|endoftext|>\n".join([STORY] * 9))
    settings = {"data": (file,), "tokenizer": "char", "max_steps": 3, "max_seq_len": 999}
    with pytest.raises(ValueError, match="give more text"):
        prepare_text(Run(settings, tmp_path / "run", notes=("early",)), Ranks())
    assert capsys.readouterr().err == ""
    text = prepare_text(Run(settings | {"max_seq_len": 9}, tmp_path / "run", notes=("early",)), Ranks())
    assert capsys.readouterr().err.startswith("early\ndocuments ")
    assert text.settings["doc_separator"] == "<|endoftext|>"
    assert text.settings["vocab_size"] == text.tokenizer.vocab_size


@pytest.mark.parametrize("separator", ["", "One"])
def test_an_explicit_separator_is_used_without_recognition(tmp_path, separator):
    file = write(tmp_path / "a.txt", "\n<|endoftext|>\n".join([STORY] * 5))
    data, documents, notes = open_text(DataArgs((file,), doc_separator=separator))
    assert data.doc_separator == separator
    assert sum(starts for _, starts in documents) == (5 if separator else 1)
    assert notes == []


def test_validation_text_is_split_like_the_training_text(tmp_path):
    train = write(tmp_path / "a.txt", "\n<|endoftext|>\n".join([STORY] * 5))
    val = write(tmp_path / "b.txt", "\n<|endoftext|>\n".join([STORY] * 2))
    data, _, _ = open_text(DataArgs((train,), val_data=(val,)))
    assert list(data.val_documents()) == [(STORY, True)] * 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(
        train_tokenizer([f"{STORY}\r\n。天"], tmp_path_factory.mktemp("tokenizer") / "t.model", "char")
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("One day.\n\n" * 70, "\n\n"),
        ("One day.\r\n\r\n" * 70, "\r\n\r\n"),
        ("One day.\n" * 70, "\n"),
        ("One day.\n" * 9 + "It rained. " * 70, "."),
        ("天天。" * 90, "。"),
        ("天天 " * 70, " "),
        ("天" * 700, ""),
    ],
)
def test_a_text_with_few_documents_gets_the_first_frequent_start(tmp_path, tokenizer, text, start):
    file = write(tmp_path / "a.txt", text)
    dataset = prepare(open_documents([file]), tokenizer, context=8, cache_dir=tmp_path / "cache")
    assert choose_start_text(dataset, tokenizer, 8) == start
    assert choose_start_text(dataset, tokenizer, 2) == ""  # no room in the context


def test_a_text_with_many_documents_starts_with_bos_alone(tmp_path, tokenizer):
    for count, start in ((MIN_DOCUMENTS + 50, ""), (MIN_DOCUMENTS - 50, "\n")):
        file = write(tmp_path / f"{count}.txt", "%".join(["One\none\nday.\n"] * count))
        documents = open_documents([file], doc_separator="%")
        dataset = prepare(documents, tokenizer, context=8, cache_dir=tmp_path / "cache")
        assert choose_start_text(dataset, tokenizer, 8) == start


def test_prompts_must_leave_a_position_for_a_sample(tokenizer):
    prompts = {"start_text": "a day", "sample_prompt": "a day.", "sample_every": 3}
    check_prompts(prompts, tokenizer, 8)  # with BOS, the prompts have 6 and 7 tokens
    with pytest.raises(ValueError, match=r"sample_prompt is 7 tokens long, .* a context of 7 "):
        check_prompts(prompts, tokenizer, 7)
    check_prompts(prompts | {"sample_every": 0}, tokenizer, 7)
    with pytest.raises(ValueError, match=r"start_text is 6 tokens long, .* a context of 6 "):
        check_prompts(prompts | {"sample_every": 0}, tokenizer, 6)
    check_prompts({}, tokenizer, 1)


@pytest.mark.parametrize("text", ["\n" * 900, "天" * 900, " \n" * 400])
def test_a_text_of_one_character_or_white_space_is_refused(tmp_path, tokenizer, text):
    def tokenized(content):
        file = write(tmp_path / "a.txt", content)
        return prepare(open_documents([file]), tokenizer, context=8, cache_dir=tmp_path / "cache", val_fraction=1e-3)

    with pytest.raises(ValueError, match=r"holds nothing but '.*': there is nothing to learn"):
        check_variety(tokenized(text), tokenizer)
    check_variety(tokenized("day" + text), tokenizer)
    check_variety(tokenized("天地玄黄" * 40), tokenizer)  # characters spelled in bytes


def test_occurrences_counts_the_complete_sequence():
    ids = np.array([5, 5, 5, 2, 5, 2])
    assert [occurrences(ids, tokens) for tokens in ([5], [5, 5], [5, 2], [2, 2], [1] * 9)] == [4, 2, 2, 0, 0]


def test_the_settings_of_a_run_are_read_from_its_directory(tmp_path):
    assert read_run_settings(tmp_path) == {}
    write(tmp_path / CONFIG_FILE, 'doc_separator = "\\n%\\n"\nstart_text = ""\n')
    assert read_run_settings(tmp_path) == {"doc_separator": "\n%\n", "start_text": ""}
    assert dataclasses.replace(DataArgs(), **read_run_settings(tmp_path)).doc_separator == "\n%\n"
    write(tmp_path / CONFIG_FILE, "of_another_program = 1\n")
    assert read_run_settings(tmp_path) == {}
    assert read_run_settings(tmp_path / CONFIG_FILE) == {}
