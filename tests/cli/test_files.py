"""Atomic writes."""

import os

import pytest

from model.cli.files import write_text


def test_a_file_is_written_into_a_directory_that_cannot_be_opened(tmp_path, monkeypatch):
    """On Windows no directory can be opened; elsewhere it may lack read permission."""
    real_open = os.open

    def refuse_directories(path, *flags, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *flags, **options)

    monkeypatch.setattr(os, "open", refuse_directories)
    write_text(tmp_path / "a.txt", "words")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "words"
    monkeypatch.setattr(os, "open", lambda path, *_: refuse_directories(tmp_path))
    with pytest.raises(PermissionError):
        write_text(tmp_path / "a.txt", "other words")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "words"
