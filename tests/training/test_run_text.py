"""The text of a run, prepared in the run directory."""

import gzip
import io
import json
import math
from random import Random

import numpy as np
import pytest
from text_helpers import trained_by_sentencepiece
from training_helpers import make_run

from model.text.dataset import Dataset, start_text
from model.text.tokenize import MIN_DOCUMENTS
from model.training.run_text import SAMPLED_TOKENS, open_text, prepare_text, unigram_loss

STORY = "One day it rained. We stayed at home."


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def prepared(directory, **settings):
    directory.mkdir(exist_ok=True)
    run = prepare_text(make_run(directory, **{"tokenizer": "char", "max_seq_len": 9, **settings}))
    return run, open_text(run)


@pytest.mark.parametrize(("separator", "documents"), [(None, 10), ("", 2), ("One", 10)])
def test_a_separator_is_recognized_unless_one_is_set_and_splits_both_texts(tmp_path, separator, documents):
    file, val = (write(tmp_path / name, "\n<|endoftext|>\n".join([STORY] * 5)) for name in ("a.txt", "b.txt"))
    run, text = prepared(tmp_path / "run", data=(file,), val_data=(val,), doc_separator=separator)
    assert run.data.doc_separator == ("<|endoftext|>" if separator is None else separator)
    assert text.dataset.documents == documents
    for ids in (text.dataset.train, text.dataset.val):
        assert (ids == text.tokenizer.bos_id).sum() == text.dataset.documents / 2
    assert text.dataset.doc_separator == run.data.doc_separator
    assert run.model.vocab_size == text.tokenizer.vocab_size


@pytest.mark.parametrize("ending", ["txt", "jsonl", "jsonl.gz", "csv"])
def test_a_folder_is_read_twice_for_the_tokenizer_and_for_the_tokens(tmp_path, monkeypatch, ending):
    """What else must be known of a file, its first block tells."""
    monkeypatch.setattr("model.text.readers.PART", 10_000)
    random = Random(0)
    texts = [random.randbytes(20).hex() for _ in range(40_000)]  # compressed, they are longer than gzip's buffers
    lines = [json.dumps({"text": text}) for text in texts] if "jsonl" in ending else ["text", *texts]
    content = "\n".join(lines).encode()
    file = tmp_path / "data" / f"a.{ending}"
    file.parent.mkdir()
    file.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    read = []

    class Counted(io.FileIO):
        def readinto(self, buffer):
            read.append(super().readinto(buffer))
            return read[-1]

    def opened(file):
        stream = io.BufferedReader(Counted(file.path))
        return gzip.GzipFile(fileobj=stream) if file.is_gzip else stream

    monkeypatch.setattr("model.text.readers._opened", opened)
    prepared(tmp_path / "run", data=(str(file.parent),), doc_separator="\n")
    assert 2 <= sum(read) / file.stat().st_size < 2.5


def test_texts_that_are_too_short_are_refused_with_the_limits(tmp_path):
    """BOS and 129 characters, of which a tenth is for validation."""
    file = write(tmp_path / "a.txt", "0123456789abc" * 10)
    _, text = prepared(tmp_path / "run", data=(file,), max_seq_len=117)
    assert len(text.dataset.train) == 118
    with pytest.raises(ValueError, match=r"118 tokens long, a context of 118 needs 119: .* smaller max_seq_len$"):
        prepared(tmp_path / "run", data=(file,), max_seq_len=118)
    file = write(tmp_path / "b.txt", "0123456789")
    with pytest.raises(ValueError, match="too short to be divided into training and validation text"):
        prepared(tmp_path / "run", data=(file,))


def test_a_prompt_that_fills_the_context_is_refused(tmp_path):
    file = write(tmp_path / "a.txt", STORY * 9)
    with pytest.raises(ValueError, match=r"the prompt of the samples is 9 tokens long, .* a context of 9 "):
        prepared(tmp_path / "run", data=(file,), sample_prompt=STORY[:8])
    _, text = prepared(tmp_path / "run", data=(file,), sample_prompt=STORY[:7])
    assert text.tokenizer.decode(text.prompt) == STORY[:7]


@pytest.mark.parametrize(
    ("options", "example"),
    [
        ({"normalization_rule_name": "nmt_nfkc_cf"}, "'The  rope  is laid. ' comes back as 'the rope is laid. th'"),
        ({}, "'The  rope  is laid. The ' comes back as 'The rope is laid. The ro'"),
        ({"remove_extra_whitespaces": False}, None),
    ],
)
def test_a_tokenizer_that_loses_text_is_named_with_an_example(tmp_path, recwarn, options, example):
    text = "The  rope  is laid. " * 20
    model = trained_by_sentencepiece(tmp_path / "lossy", text, vocab_size=40, **options)
    prepared(tmp_path / "run", data=(write(tmp_path / "a.txt", text),), tokenizer=str(model))
    messages = [str(warning.message) for warning in recwarn]
    assert any("loses text" in message for message in messages) == (example is not None), messages
    assert example is None or example in messages[0]


LINES = f"{STORY}\n{STORY}"


@pytest.mark.parametrize(
    ("content", "start"),
    [("%".join([LINES] * (MIN_DOCUMENTS - 1)), "\n"), ("%".join([LINES] * MIN_DOCUMENTS), ""), ("ACGTTGCA" * 500, "")],
)
def test_a_text_of_few_documents_and_with_line_breaks_starts_after_one(tmp_path, content, start):
    _, text = prepared(tmp_path / "run", data=(write(tmp_path / "a.txt", content),), doc_separator="%")
    assert start_text(tmp_path / "run") == start
    assert text.prompt == text.tokenizer.encode(start)


def test_the_unigram_loss_follows_from_the_counts():
    text = Dataset(np.array([1, 1, 1, 2, 0], np.uint16), np.array([1, 1, 2, 3], np.uint16), 9, 3)
    expected = -sum(math.log(p) for p in (4 / 9, 2 / 9, 1 / 9)) / 3  # one added to each count, over 5 + 4 tokens
    assert unigram_loss(text, vocab_size=4) == pytest.approx(expected)


def test_tokens_of_a_long_text_are_counted_in_blocks_spread_over_it():
    halves = np.repeat(np.array([0, 1], np.uint16), SAMPLED_TOKENS)
    text = Dataset(halves, halves, 9, 9)
    assert unigram_loss(text, 2) == pytest.approx(math.log(2), rel=0.01)
