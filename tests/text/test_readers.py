"""A file that is not UTF-8 text is refused with the position and a command; binary files are detected."""

import codecs
import gzip
import os
import random
import shutil
import subprocess
import zlib

import pytest
from text_helpers import join_chunks

from model.text.readers import first_bytes, is_binary, split_documents
from model.text.sources import open_documents
from model.text.tokenizer import split_text

ENGLISH = "All happy families are alike; each unhappy family is unhappy in its own way.\n"
CHINESE = "天下大势，分久必合，合久必分。周末七国分争，并入于秦。\n"


def refusal(path):
    with pytest.raises(ValueError, match=r"is not (UTF-8 )?text|is not a complete gzip file") as error:
        list(open_documents([path]))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_bytes_that_are_not_utf8_are_refused_with_their_position(tmp_path, ending):
    write = gzip.compress if ending.endswith("gz") else bytes
    for position in (0, 5, (1 << 20) - 1, (1 << 20) + 3, 3_000_000):
        raw = b"x" * position
        (tmp_path / f"latin{ending}").write_bytes(write(raw + b"\xe9t\xe9"))
        assert f"byte {position} is 0xe9" in refusal(tmp_path / f"latin{ending}")
        (tmp_path / f"cut{ending}").write_bytes(write(raw + "日".encode()[:2]))
        assert f"byte {position} is 0xe6" in refusal(tmp_path / f"cut{ending}")
        (tmp_path / f"zero{ending}").write_bytes(write("é".encode() + raw + b"\0"))
        assert "contains zero bytes" in refusal(tmp_path / f"zero{ending}")
    (tmp_path / f"mark{ending}").write_bytes(write(codecs.BOM_UTF8 + b"ab\xff"))
    assert "byte 5 is 0xff" in refusal(tmp_path / f"mark{ending}")


@pytest.mark.parametrize(("text", "encoding"), [(CHINESE, "gb18030"), (ENGLISH, "utf-16"), ("café\n", "cp1252")])
@pytest.mark.parametrize("name", ["it's.txt", "it's.txt.gz"])
def test_the_error_gives_a_command_that_converts(tmp_path, text, encoding, name):
    raw = (text * 9).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    command = refusal(tmp_path / name).split("convert it: ")[1].split(", for example")[0]
    if shutil.which("iconv") and shutil.which("gzip"):
        done = subprocess.run(command.replace("ENCODING", encoding), shell=True, check=True, capture_output=True)
        assert done.stdout.decode() == text * 9


def test_a_damaged_gzip_file_is_refused(tmp_path):
    complete = gzip.compress(os.urandom(1000).hex().encode())
    for content in (complete[:-9], b"no gzip at all", complete[:500] + b"\0\0\0\0" + complete[504:]):
        (tmp_path / "a.txt.gz").write_bytes(content)
        assert "a.txt.gz is not a complete gzip file" in refusal(tmp_path / "a.txt.gz")
        assert first_bytes(tmp_path / "a.txt.gz") == content


def test_text_in_any_encoding_is_not_binary():
    for text, encoding in ((ENGLISH, "utf-8"), (CHINESE, "gb18030"), (ENGLISH, "utf-16"), (ENGLISH, "utf-32")):
        assert not is_binary((text * 20).encode(encoding))
    for raw in (zlib.compress(random.Random(2).randbytes(20_000)), bytes(range(1, 32)) * 4, b"\0"):
        assert is_binary(raw)


def test_documents_are_split_at_separators_for_any_block_size():
    text = "<|end|>one<|end|><|end|>two <| end|>\n" + "three " * 9000 + "<|end|>four<|end"
    expected = [part for part in text.split("<|end|>") if part]
    for size in (1, 3, 7, 1000, len(text)):
        blocks = [text[i : i + size] for i in range(0, len(text), size)]
        assert join_chunks(split_documents(blocks, "<|end|>")) == expected


def test_a_text_without_separators_is_one_document_for_any_block_size():
    text = "one two\n" * 90
    for size in (1, 10, 100, len(text)):
        blocks = [text[i : i + size] for i in range(0, len(text), size)]
        assert join_chunks(split_documents(blocks, None, size=64)) == [text]


@pytest.mark.parametrize("padding", range(0, 60, 7))
def test_of_a_long_document_only_a_part_is_held_in_memory(monkeypatch, padding):
    monkeypatch.setattr("model.text.readers.LONG_DOCUMENT", 500)
    first, second = "\n  one two\n" * 90 + padding * "x", "three" * 190
    consumed = 0

    def blocks():
        nonlocal consumed
        text = f"{first}<|endoftext|>\n{second}\n<|endoftext|>\nfour"
        for start in range(0, len(text), 10):
            consumed += 1
            yield text[start : start + 10]

    chunks = split_documents(blocks(), "<|endoftext|>", size=64)
    beginning = next(chunks)
    assert consumed < 60
    assert join_chunks([beginning, *chunks]) == [first[1:].rstrip(), second, "four"]


@pytest.mark.parametrize("text", ["", "x", "a b " * 999, "  " * 999, "x" * 999, "日本語 " * 300, "\n \n" * 500])
def test_the_chunks_of_a_text_are_bounded_and_join_to_the_text(text):
    for size in (1, 2, 10, 100):
        chunks = list(split_text(text, size))
        assert "".join(chunks) == text
        assert all(0 < len(chunk) <= size for chunk in chunks)


def test_a_text_is_cut_between_words_and_a_run_of_spaces_is_not_cut():
    for size in (97, 98, 99, 100):
        assert all(chunk.startswith(" ") for chunk in list(split_text("a b " * 999, size))[1:])
        assert all(chunk.startswith("  a") for chunk in list(split_text("ab  " * 99, size))[1:])
