"""Atomic writes, JSON files, and what a file is."""

import gzip
import os
import pickle
import re
import tempfile
from pathlib import Path

import pytest

from model.cli.files import cache_home, kind_of_file, read_json, write_atomically, write_text


def test_content_is_synced_before_the_file_is_renamed(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    write_text(tmp_path / "a", "x")
    assert events == ["fsync", "replace", "fsync"]  # sync the file, rename it, sync the directory


def test_a_directory_that_could_not_be_written_is_removed(tmp_path):
    def write(directory):
        directory.mkdir()
        (directory / "half").touch()
        raise OSError(28, "disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "model", write)
    assert not list(tmp_path.iterdir())


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 1\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (POINTER, "Git LFS pointer .* `git lfs pull`"),
        (gzip.compress(b"rope", mtime=0), "gzip: unpack"),
        (b"PK\3\4\x14\0", "zip archive"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF: save its text"),
        (b"PAR1\x15\4", r"Parquet table: .* \.parquet"),
        ("rope".encode("utf-16"), "UTF-16 text: convert it"),
        ("rope".encode("utf-16-be"), "UTF-16 text: convert it"),
        (pickle.dumps([1], 2), "Python pickle"),
        (pickle.dumps([1]), "Python pickle"),
    ],
)
def test_the_kind_of_a_file_is_known_by_its_first_bytes(tmp_path, content, words):
    assert re.search(words, kind_of_file(content))
    (tmp_path / "file").write_bytes(content)
    assert kind_of_file(tmp_path / "file") == kind_of_file(content)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"rope", b"\xef\xbb\xbfrope", b"ro\0pe", b'{"a": 1}', b"<!DOCTYPE html>", "麻绳 é\n".encode()),
        *(b"PAR1 and ", b"%PDF- begins a PDF", POINTER[:40] + b"describes pointers.", POINTER + b"is a pointer.\n"),
        ("x" * 511 + "é").encode()[:512],
    ],
    ids=ascii,
)
def test_a_text_is_a_text_even_if_it_begins_like_a_format(content):
    assert kind_of_file(content) is None


def test_json_that_is_a_pointer_says_how_to_get_the_file(tmp_path):
    (tmp_path / "config.json").write_bytes(POINTER)
    with pytest.raises(ValueError, match=r"config\.json is a Git LFS pointer .* `git lfs pull`"):
        read_json(tmp_path / "config.json")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has no user ids")
def test_without_a_home_the_cache_is_a_folder_of_the_user_among_the_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_home() == tmp_path / "cache" / "ropewalk"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_home() == tmp_path / "home" / ".cache" / "ropewalk"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"ropewalk-{os.getuid()}"
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))  # no folder can be made in it
    assert cache_home() == own
    assert own.stat().st_mode & 0o077 == 0, "nobody else can put code into it"

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)  # an unknown user without HOME
    assert cache_home() == own
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)  # the folder of that name is not this user's
    with pytest.raises(ValueError, match="set XDG_CACHE_HOME to one that you can write to"):
        cache_home()
