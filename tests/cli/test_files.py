"""Atomic writes, JSON files, and values in messages."""

import os

import pytest

from model.cli.files import write_atomically, write_text


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
