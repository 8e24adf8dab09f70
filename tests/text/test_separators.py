"""The separator of the documents in a text file: which are recognized, and what belongs to no document."""

import pytest
from text_helpers import join_chunks, read_documents

from model.text.readers import split_documents
from model.text.separators import TAGS, recognize
from model.text.sources import open_documents


def documents(text, separator, block_size=7):
    blocks = [text[i : i + block_size] for i in range(0, len(text), block_size)]
    return join_chunks(split_documents(blocks, separator or None))


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n\n"])
def test_a_tag_alone_on_a_line_is_recognized(tag, line_end):
    texts = ["Once upon a time.\n  Then they slept.", "  A rope.", "The end"]
    text = f"{line_end}{tag}{line_end}".join(texts)
    assert recognize(["no tag", text]) == tag
    for block_size in (1, 2, 3, 7, 1000):
        assert documents(text, tag, block_size) == texts


@pytest.mark.parametrize(
    "text",
    [
        "A story.<|endoftext|>",
        'token = "<|endoftext|>"\n',
        "Each text ends in the <|endoftext|> token.\n",
        "<s>9 euros</s> now\n",
        "one\n%\ntwo\n%\n",
        "one\n\ftwo\n\f\n",
        "Title\n==========\n\nText\n----------\n",
    ],
)
def test_anything_else_is_not_recognized(text):
    assert recognize([text * 9]) == ""


@pytest.mark.parametrize(
    ("separator", "text", "expected"),
    [
        ("<|endoftext|>", "one<|endoftext|> two \n<|endoftext|>\n\n  three<|endoftext|>", ["one", " two", "  three"]),
        ("\n<|endoftext|>\n", "one\n<|endoftext|>\n<|endoftext|>\n\ntwo\n", ["one", "two"]),
        ("%%", "%%one%%\ntwo\n%%", ["one", "\ntwo\n"]),
        ("\n\n", "one\n\n\ntwo\nthree\n", ["one", "\ntwo\nthree\n"]),
        ("\n\n", "one\r\ntwo\r\n\r\nthree\r\n", ["one\r\ntwo", "three\r\n"]),
        ("\r\n%\r\n", "one\n%\ntwo\r\n%\r\nthree", ["one", "two", "three"]),
        (" | ", "one | two|three| four", ["one", "two|three| four"]),
        ("\\n", "one\ntwo\\nthree", ["one\ntwo", "three"]),
        ("", "one\n<|endoftext|>\ntwo", ["one\n<|endoftext|>\ntwo"]),
    ],
)
def test_a_text_is_split_at_the_separator_in_blocks_of_any_size(separator, text, expected):
    for block_size in (1, 2, 3, 5, 8, 1000):
        assert documents(text, separator, block_size) == expected


def test_only_the_beginnings_of_text_files_are_examined(tmp_path, monkeypatch):
    monkeypatch.setattr("model.text.sources.SAMPLED_CHARACTERS", 20)
    (tmp_path / "a.txt").write_text("x" * 30 + "\n<|endoftext|>\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "a field"}\n', encoding="utf-8")
    found = open_documents([tmp_path])
    assert list(found.beginnings()) == ["x" * 20]
    assert read_documents(tmp_path, doc_separator="<|endoftext|>") == ["x" * 30, "a field"]
