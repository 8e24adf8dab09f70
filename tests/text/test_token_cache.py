"""The cache: each entry is made by one process, listed with the runs that use it, and removed if none does."""

import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
from script_helpers import run_in_process

from model.text import token_cache as cache
from model.text.prepare import prepare
from model.text.sources import open_documents
from model.text.token_cache import cache_entries, cache_home, cached, note_use
from model.text.train_tokenizer import cached_tokenizer
from model.weights import load_tokenizer

TEXT = "It was the best of times, it was the worst of times.\n" * 200


@pytest.fixture
def use_cache(tmp_path, monkeypatch):
    """``use_cache(run, text)`` caches the tokens of ``text`` for a run in the directory ``run`` and returns them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def use(run, text):
        Path(run).mkdir(exist_ok=True)
        Path(f"{run}.txt").write_text(text, encoding="utf-8")
        documents = open_documents([f"{run}.txt"])
        file = cached_tokenizer(documents, cache_home(), "bpe", 300)
        data = prepare(documents, load_tokenizer(file), context=8, cache_dir=cache_home())
        for entry in (file.parent, data.entry):
            note_use(entry, Path(run))
        return data

    return use


def test_only_entries_that_no_run_uses_are_removed(use_cache, capsys, tmp_path):
    data = use_cache("kept", TEXT)
    note_use(data.entry, Path("kept"))  # a second time, which is not recorded
    use_cache("gone", TEXT.upper())
    (cache_home() / "compiled").mkdir()
    (cache_home() / "compiled" / "code.pt2").write_bytes(b"x" * 100)
    before = {entry.path for entry in cache_entries(cache_home())}
    shutil.rmtree("gone")

    def run(*flags):
        assert run_in_process(cache.main, "model.text.token_cache", *flags) == 0
        return capsys.readouterr().out

    out = run()
    assert out.count("used by no run\n") == 3
    assert out.count(f"used by {tmp_path / 'kept'}\n") == 2
    assert {entry.path for entry in cache_entries(cache_home())} == before
    assert run("--remove_unused").count("used by no run, removed\n") == 3
    entries = cache_entries(cache_home())
    assert [entry.runs for entry in entries] == 2 * [[str(tmp_path / "kept")]]
    assert [entry.sources for entry in entries] == 2 * [[str(tmp_path / "kept.txt")]]
    assert entries[0].size > 2 * (len(data.train) + len(data.val))


def _make(folder, log, delay):
    def fill(directory):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(delay)
        (directory / "content").write_text("complete", encoding="utf-8")

    def load():
        return (folder / "content").read_text(encoding="utf-8") if folder.exists() else None

    assert cached(folder, ["x"], load, fill) == "complete"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_one_of_many_processes_makes_the_entry_while_the_others_wait(tmp_path):
    folder, log = tmp_path / "cache" / "tokens-1", tmp_path / "log"
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_make, args=(folder, log, 0.3)) for _ in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 5
    assert len(log.read_text(encoding="utf-8").splitlines()) == 1
    assert [path.name for path in folder.parent.iterdir() if path.suffix != ".lock"] == ["tokens-1"]


def test_the_unfinished_entry_of_a_killed_process_is_discarded(tmp_path):
    (tmp_path / ".tokens-1.tmp").mkdir()
    (tmp_path / ".tokens-1.tmp" / "half").write_text("x", encoding="utf-8")
    _make(tmp_path / "tokens-1", tmp_path / "log", 0)
    assert sorted(path.name for path in (tmp_path / "tokens-1").iterdir()) == ["about.json", "content"]


def test_a_disk_error_tells_how_to_move_the_cache_unless_it_is_of_another_file(tmp_path):
    def make(folder, error):
        def fill(_):
            raise error

        cached(folder, ["x"], lambda: None, fill)

    with pytest.raises(ValueError, match=r"cache: No space left on device: .* XDG_CACHE_HOME .* --remove_unused"):
        make(tmp_path / "cache" / "tokens-1", OSError(28, "No space left on device"))
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] in ([], [".lock"])
    text = PermissionError(13, "Permission denied", "/elsewhere/text.txt")
    with pytest.raises(PermissionError, match=r"/elsewhere/text\.txt"):
        make(tmp_path / "cache" / "tokens-1", text)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="XDG_CACHE_HOME"):
        make(tmp_path / "file" / "cache" / "tokens-1", text)


def test_file_names_that_are_not_utf8_can_be_cached_and_listed(use_cache, tmp_path):
    name = os.fsdecode(b"caf\xe9")
    try:
        use_cache(name, TEXT)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert [entry.sources for entry in cache_entries(cache_home())] == 2 * [[str(tmp_path / "caf\\udce9.txt")]]
