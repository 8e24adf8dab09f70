"""For text that is not UTF-8 the error gives the command that converts it; binary files are detected."""

import codecs
import gzip
import json
import random
import shutil
import struct
import subprocess
import zlib

import pytest

from model.text.readers import guess_encoding, how_to_convert, is_binary
from model.text.sources import open_documents

CHINESE = "天下大势，分久必合，合久必分。周末七国分争，并入于秦。他说这个国家的人们要到那里去了，你不能在上面。\n"
TRADITIONAL = (
    "話說天下大勢，分久必合，合久必分。周末七國分爭，并入於秦。他說這個國家的人們要到那裡去了，你不能在上面。\n"
)
JAPANESE = (
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。ニャーニャー泣いていた事だけは記憶している。\n"
)
KOREAN = (
    "그는 학교에 가는 길에 친구를 만났다. 이것은 한국어로 쓴 문장이다. 나라의 말이 중국과 달라 서로 통하지 아니한다.\n"
)
FRENCH = "L'été, à la forêt, les élèves étaient très âgés; ça dépend où l'on est né.\n"
GERMAN = "Zwölf Boxkämpfer jagen Eva quer über den großen Sylter Deich; schöne Grüße.\n"
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.\n"
ENGLISH = "All happy families are alike; each unhappy family is unhappy in its own way.\n"

CASES = [
    (CHINESE, "gb18030", "GB18030"),
    (CHINESE, "utf-16", "UTF-16"),
    (CHINESE, "utf-16-le", "UTF-16LE"),
    (CHINESE, "utf-16-be", "UTF-16BE"),
    (TRADITIONAL, "big5", "BIG5"),
    (JAPANESE, "shift_jis", "CP932"),
    (JAPANESE, "euc-jp", "EUC-JP"),
    (JAPANESE, "utf-16", "UTF-16"),
    (KOREAN, "euc-kr", "CP949"),
    (FRENCH, "latin-1", "CP1252"),
    (GERMAN, "latin-1", "CP1252"),
    (RUSSIAN, "cp1251", "CP1251"),
    (RUSSIAN, "koi8-r", "KOI8-R"),
    (ENGLISH, "utf-16", "UTF-16"),
    (ENGLISH, "utf-16-be", "UTF-16BE"),
    (ENGLISH, "utf-32", "UTF-32"),
]


def test_the_byte_order_mark_of_big_endian_utf_32_is_recognized(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(codecs.BOM_UTF32_BE + ENGLISH.encode("utf-32-be"))
    with pytest.raises(ValueError, match="it is probably UTF-32; convert it"):
        list(open_documents([path]))


@pytest.mark.parametrize(("text", "encoding", "name"), CASES)
@pytest.mark.parametrize("times", [1, 3000])
def test_the_error_names_the_likely_encoding_and_a_command_that_converts(tmp_path, text, encoding, name, times):
    path = tmp_path / "it's.txt"
    path.write_bytes((text * times).encode(encoding))
    with pytest.raises(ValueError, match=f"it is probably {name}; convert it: iconv -f {name} -t UTF-8 ") as error:
        list(open_documents([path]))
    assert "\n" not in str(error.value)
    if shutil.which("iconv"):
        subprocess.run(str(error.value).split("convert it: ")[1], shell=True, check=True)
        assert (tmp_path / "it's.utf8.txt").read_text(encoding="utf-8").removeprefix("\ufeff") == text * times


def test_the_command_that_converts_reads_gzip_and_keeps_the_ending(tmp_path):
    path = tmp_path / "stories.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"text": FRENCH}, ensure_ascii=False).encode("latin-1")))
    with pytest.raises(ValueError, match=r"convert it: gzip -dc .*jsonl.gz \| iconv -f CP1252 -t UTF-8 >") as error:
        list(open_documents([path]))
    if shutil.which("iconv") and shutil.which("gzip"):
        subprocess.run(str(error.value).split("convert it: ")[1], shell=True, check=True)
        assert [chunk.text for chunk in open_documents([tmp_path / "stories.utf8.jsonl"])] == [FRENCH]
    assert "iconv -f CP1252 -t UTF-8" in how_to_convert(FRENCH.encode("latin-1"), 3, "a pipe")
    assert ">" not in how_to_convert(FRENCH.encode("latin-1"), 3, "a pipe")


def test_the_encoding_is_guessed_from_the_text_around_the_first_invalid_byte(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"plain\n" * 100_000 + (CHINESE * 20).encode("gb18030"))
    with pytest.raises(ValueError, match=r"byte 600000 is 0xcc; it is probably GB18030"):
        list(open_documents([tmp_path / "a.txt"]))


def test_no_encoding_is_named_for_random_bytes(tmp_path):
    raw = bytes(random.Random(1).choices(range(128, 256), k=5000))
    assert guess_encoding(raw) is None
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(ValueError, match="no other encoding fits"):
        list(open_documents([tmp_path / "a.txt"]))


@pytest.mark.parametrize(("text", "encoding", "name"), CASES)
def test_text_in_any_encoding_is_not_binary(text, encoding, name):
    assert not is_binary((text * 20).encode(encoding))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x7fELF\x02\x01\x01" + bytes(9),
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">2I", 3, 4),
        gzip.compress(ENGLISH.encode() * 9, mtime=0),
        zlib.compress(random.Random(2).randbytes(20_000)),
        bytes(range(32)) * 4,
        b"\0",
    ],
)
def test_binary_files_are_detected(raw):
    assert is_binary(raw)


def test_latin_text_is_not_taken_for_utf_16_because_of_chance_chinese_characters():
    text = "Gegen Abend gehen große Männer über die Brücke und hören die Vögel singen.\n"
    assert set("来着") & set(text.encode("cp1252").decode("utf-16-be", "replace"))  # "ge" decodes to a common character
    assert guess_encoding(text.encode("cp1252")) == "CP1252"


def test_two_accented_letters_side_by_side_are_still_latin():
    assert guess_encoding("La ville est créée.\n".encode("cp1252")) == "CP1252"
