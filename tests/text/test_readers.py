"""A file that is not UTF-8 text is refused with the position; documents and chunks do not depend on the blocks read."""

import gzip
import os

import pytest
from text_helpers import join_chunks, read_documents

from model.text.readers import split_documents
from model.text.tokenizer import split_text


def refusal(path):
    with pytest.raises(ValueError, match=r"is not (UTF-8 )?text|is not a complete gzip file") as error:
        read_documents(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_bytes_that_are_not_utf8_are_refused_with_their_position(tmp_path, ending):
    write = gzip.compress if ending.endswith("gz") else bytes
    file = tmp_path / f"a{ending}"
    for position in (0, 5, (2 << 20) + 3):
        raw = b"x" * position
        file.write_bytes(write(raw + b"\xe9t\xe9"))
        assert f"byte {position} is 0xe9; if it is text, convert it with iconv" in refusal(file)
        file.write_bytes(write(raw + "日".encode()[:2]))
        assert f"byte {position} is 0xe6" in refusal(file)
        file.write_bytes(write("é".encode() + raw + b"\0"))
        assert "contains zero bytes" in refusal(file)


def test_a_damaged_gzip_file_is_refused(tmp_path):
    complete = gzip.compress(os.urandom(100_000).hex().encode())
    for content in (complete[:-9], b"no gzip at all", complete[:500] + b"\0\0\0\0" + complete[504:]):
        (tmp_path / "a.txt.gz").write_bytes(content)
        assert "a.txt.gz is not a complete gzip file" in refusal(tmp_path / "a.txt.gz")


@pytest.mark.parametrize("separator", ["<|endoftext|>", None])
@pytest.mark.parametrize("padding", range(0, 60, 7))
def test_of_a_long_document_only_a_part_is_held_in_memory(monkeypatch, padding, separator):
    monkeypatch.setattr("model.text.readers.LONG_DOCUMENT", 500)
    first, second = "\n  one two\n" * 90 + padding * "x", "three" * 190
    text = f"{first}<|endoftext|>\n{second}\n<|endoftext|>\nfour"
    consumed = 0

    def blocks():
        nonlocal consumed
        for start in range(0, len(text), 10):
            consumed += 1
            yield text[start : start + 10]

    chunks = split_documents(blocks(), separator, size=64)
    beginning = next(chunks)
    assert consumed < 60
    expected = [first[1:].rstrip(), second, "four"] if separator else [text]
    assert join_chunks([beginning, *chunks]) == expected


def test_a_text_is_cut_between_words_and_a_run_of_spaces_is_not_cut():
    for size in (97, 98, 99, 100):
        assert all(chunk.startswith(" ") for chunk in list(split_text("a b " * 999, size))[1:])
        assert all(chunk.startswith("  a") for chunk in list(split_text("ab  " * 99, size))[1:])
