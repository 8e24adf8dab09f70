"""One file to documents: its ending is its format, and every error is one line."""

import csv
import gzip
import io
import json
import os
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from text_helpers import join_chunks, read_documents, refusal

from model.text.readers import split_documents
from model.text.sources import open_documents
from model.text.tokenizer import CHUNK, split_text


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_bytes_that_are_not_utf8_are_refused_with_their_position(tmp_path, ending):
    write = gzip.compress if ending.endswith("gz") else bytes
    file = tmp_path / f"a{ending}"
    for position in (0, 5, (2 << 20) + 3):
        raw = b"x" * position
        file.write_bytes(write(raw + b"\xe9t\xe9"))
        assert f"byte {position} is 0xe9; save the text of a PDF" in refusal(file)
        file.write_bytes(write(raw + "日".encode()[:2]))
        assert f"byte {position} is 0xe6" in refusal(file)
        file.write_bytes(write("é".encode() + raw + b"\0"))
        assert "contains zero bytes" in refusal(file)


NOISE = gzip.compress(os.urandom(50_000).hex().encode())


# --- documents inside a text ------------------------------------------------------------------------------------------

SEPARATORS = st.none() | st.text("\n\ta ", min_size=1, max_size=2) | st.sampled_from(["\n%\n", "<|endoftext|>"])
PIECES = st.sampled_from(["\n", "\n%\n", "  ", "\t", "a", "é", "two\nlines ", "%", "<|endoftext|>"])


def taken_from(blocks):
    while blocks:
        yield blocks.pop()


@given(st.lists(PIECES).map("".join), SEPARATORS, st.integers(1, 30), st.sampled_from([1, 20]))
def test_documents_are_split_at_the_separator_for_any_block_size(text, separator, block_size, times):
    """Of a long document only a few chunks are held in memory, if white space in it is shorter than a chunk."""
    text *= times
    assume(times == 1 or not re.search(r"\s{30}", text))
    size = CHUNK if times == 1 else 80
    first, *others = text.split(separator) if separator else [text]
    for number, document in enumerate(others):
        while document.partition("\n")[1] and not document.partition("\n")[0].strip():
            document = document.partition("\n")[2]
        others[number] = document
    expected = [document.rstrip() if separator else document for document in [first, *others]]
    remaining = [text[i : i + block_size] for i in range(0, len(text), block_size)][::-1]
    chunks = []
    for chunk in split_documents(taken_from(remaining), separator, size):
        chunks.append(chunk)
        returned = sum(len(chunk.text) for chunk in chunks)
        assert separator or len(text) - len("".join(remaining)) - returned < 2 * size + block_size
    assert join_chunks(chunks) == [document for document in expected if document]


def test_a_line_end_in_the_separator_may_be_crlf():
    for separator in ("\n%\n", "\r\n%\r\n"):
        assert join_chunks(split_documents(["one\n%\ntwo\r\n%\r", "\nthree"], separator)) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("Once upon a time.\n  <|endoftext|> \r\nA rope.", "<|endoftext|>"),
        ("A story.<|endoftext|>", ""),
        ("Each text ends in the <|endoftext|> token.\n", ""),
        ("x" * 1_000_000 + "\n<|endoftext|>\n", ""),
    ],
)
def test_a_tag_alone_on_a_line_near_the_beginning_is_recognized(tmp_path, text, tag):
    (tmp_path / "a.txt").write_text("A rope.", encoding="utf-8")
    (tmp_path / "b.txt").write_text(text, encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "<|endoftext|>"}', encoding="utf-8")
    assert open_documents([tmp_path]).recognize_separator() == tag


def test_a_text_is_cut_between_words_and_a_run_of_spaces_is_not_cut():
    for size in (97, 98, 99, 100):
        assert all(chunk.startswith(" ") for chunk in list(split_text("a b " * 999, size))[1:])
        assert all(chunk.startswith("  a") for chunk in list(split_text("ab  " * 99, size))[1:])


# --- tables -----------------------------------------------------------------------------------------------------------

TEXTS = st.text('"a, \n') | st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.just("rope " * 50_000)


def rows_of(name, texts, key):
    """The content of a file with these texts: in CSV and TSV in the second column, and null for an empty one."""
    name = name.lower().removesuffix(".gz")
    if name.endswith(".csv"):
        stream = io.StringIO()
        rows = [["two\nlines", key, "id"], *([number, text, "x"] for number, text in enumerate(texts))]
        options = {"lineterminator": "\n", "quoting": csv.QUOTE_ALL} if name == "b.csv" else {}
        csv.writer(stream, **options).writerows(rows)
        return stream.getvalue()
    if name.endswith(".tsv"):
        return "\n".join([f"id\t{key}", *(f"1\t{text}" if text else "1" for text in texts)])
    rows = [*({key: text or None, "n": [1, {}]} for text in texts), *texts]
    return "\n" + (json.dumps(rows, indent=2) if name == "array.json" else "\r\n\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    "name", ["a.csv", "B.CSV.GZ", "a.tsv", "array.json", "array.json.gz", "a.json", "A.JSONL", "a.jsonl.gz"]
)
@given(st.lists(TEXTS, max_size=5), st.sampled_from(["text", "story"]))
def test_documents_are_the_texts_of_rows(tmp_path_factory, name, texts, key):
    """A quote in TSV is text, and there are no line ends in a field. Empty texts and null are left out."""
    if name == "a.tsv":
        texts = [re.sub(r"[\t\r\n]", "", text) for text in texts]
    file = tmp_path_factory.mktemp("rows") / name
    raw = ("\ufeff" + rows_of(name, texts, key)).encode()
    file.write_bytes(gzip.compress(raw) if name.lower().endswith(".gz") else raw)
    expected = [text for text in texts if text]
    assert read_documents(file, text_key=key) == (expected if "sv" in name.lower() else expected * 2)


NO_TEXT = "has no text under 'text': give text_key one of its fields,"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "id;story\n1;x\n", "a.csv has no column 'text': give text_key one of 'id;story', or separate the co"),
        ("a.csv", 'text,id\n"open,1\n', "a.csv, line 2, is not valid"),
        ("a.csv", "text,id\nx,1\na, b,2\n", "a.csv, line 3, is not valid (3 fields for 2 columns)"),
        ("a.json", '["x", "y', "a.json is not valid JSON"),
        ("a.json", '["x", "\\ud800"]', "a.json, element 2 is not UTF-8"),
        ("a.json", '{\n"a": 1\n}\n', "a.json:1 alone is not valid JSON"),
        ("a.json", '["x", {"text": ["a", "b"], "id": "x"}]', f"a.json, element 2 {NO_TEXT} 'text', 'id', or"),
        ("a.json", '["x", 3]', f"a.json, element 2 {NO_TEXT} 'text', or"),
        ("a.jsonl", '"x"\n{"messages": []}', f"a.jsonl:2 {NO_TEXT} 'messages', or"),
        ("a.jsonl", '{"text": "good"}\n\n{"text": "cut\n', "a.jsonl:3 alone is not valid JSON"),
        ("a.jsonl", b'{"text": "good"}\n{"text": "\xe9"}\n', "a.jsonl is not UTF-8 text: byte 27 is 0xe9"),
        ("a.txt.gz", b"no gzip at all", "a.txt.gz is not a complete gzip file"),
        ("a.txt.gz", NOISE[:-9], "a.txt.gz is not a complete gzip file"),
        ("a.txt.gz", NOISE[:500] + b"\0\0\0\0" + NOISE[504:], "a.txt.gz is not a complete gzip file"),
    ],
)
def test_an_error_names_the_line_or_element_and_the_fix(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert complaint in refusal(tmp_path / name)


def test_a_row_with_a_text_is_no_conversation(tmp_path):
    row = {"text": "A rope.", "messages": [{"role": "assistant", "content": "A rope."}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row), encoding="utf-8")
    assert not open_documents([tmp_path]).has_conversations()
    assert open_documents([tmp_path], text_key="body").has_conversations()
