"""A file that is not UTF-8 text is refused with the position and a command; binary files are detected."""

import codecs
import gzip
import os
import random
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from model.text.readers import PROBE, first_bytes, is_binary, split_documents
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


def test_a_character_may_span_two_blocks(tmp_path):
    for position in range((1 << 20) - 4, (1 << 20) + 1):
        (tmp_path / "a.txt").write_bytes(b"x" * position + "😀é".encode())
        assert "".join(open_documents([tmp_path / "a.txt"]).texts()) == "x" * position + "😀é"


def test_a_damaged_gzip_file_is_refused(tmp_path):
    complete = gzip.compress(os.urandom(1000).hex().encode())
    for content in (complete[:-9], b"no gzip at all", complete[:500] + b"\0\0\0\0" + complete[504:]):
        (tmp_path / "a.txt.gz").write_bytes(content)
        assert "a.txt.gz is not a complete gzip file" in refusal(tmp_path / "a.txt.gz")


def test_only_the_start_of_a_damaged_gzip_file_is_read_to_examine_it(tmp_path, monkeypatch):
    (tmp_path / "a.gz").write_bytes(b"not gzip" * 10_000)
    monkeypatch.delattr(Path, "read_bytes")
    assert first_bytes(tmp_path / "a.gz") == (b"not gzip" * 10_000)[:PROBE]


@pytest.mark.parametrize(
    ("text", "encoding"), [(ENGLISH, "utf-8"), (CHINESE, "gb18030"), (ENGLISH, "utf-16"), (ENGLISH, "utf-32")]
)
def test_text_in_another_encoding_is_not_binary(text, encoding):
    assert not is_binary((text * 20).encode(encoding))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x7fELF\x02\x01\x01" + bytes(9),
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">2I", 3, 4),
        gzip.compress(ENGLISH.encode() * 9, mtime=0),
        zlib.compress(random.Random(2).randbytes(20_000)),
        bytes(range(1, 32)) * 4,
        b"\0",
    ],
)
def test_binary_files_are_detected(raw):
    assert is_binary(raw)


def joined(chunks):
    found: list[str] = []
    for text, starts in chunks:
        assert text
        if starts:
            found.append("")
        found[-1] += text
    return found


def test_documents_are_split_at_separators_for_any_block_size():
    text = "<|end|>one<|end|><|end|>two <| end|>\n" + "three " * 9000 + "<|end|>four<|end"
    expected = [part for part in text.split("<|end|>") if part]
    for size in (1, 2, 3, 7, 1000, len(text)):
        blocks = (text[i : i + size] for i in range(0, len(text), size))
        assert joined(split_documents(blocks, "<|end|>")) == expected


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
    assert joined([beginning, *chunks]) == [first[1:].rstrip(), second, "four"]


@pytest.mark.parametrize("text", ["", "x", "a b " * 999, "  " * 999, "x" * 999, "日本語 " * 300, "\n \n" * 500])
def test_the_chunks_of_a_text_are_bounded_and_join_to_the_text(text):
    for size in (1, 2, 10, 100):
        chunks = list(split_text(text, size))
        assert "".join(chunks) == text
        assert all(0 < len(chunk) <= size for chunk in chunks)
    if text == "a b " * 999:
        assert all(chunk.startswith(" ") for chunk in list(split_text(text, 100))[1:])


def test_a_run_of_spaces_is_not_cut():
    for size in (97, 98, 99, 100):
        assert all(chunk.startswith("  a") for chunk in list(split_text("ab  " * 99, size))[1:])
