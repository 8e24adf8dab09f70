"""The run directory: made once, locked, and the metrics in it."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from training_helpers import forked

from model.training.run_directory import Metrics, locked, make_first_free, read_metrics
from model.training.state import STATE


def test_concurrent_calls_get_different_free_directories(tmp_path):
    (tmp_path / "run").touch()
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: make_first_free(tmp_path / "run"), range(16)))
    assert {path.name for path in made} == {f"run-{number}" for number in range(2, 18)}
    assert all(path.is_dir() for path in made)


def test_the_lock_refuses_a_second_trainer_and_is_released_when_a_trainer_is_killed(tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="is in use by another trainer"), locked(tmp_path):
        pass

    def hold_and_die() -> None:
        lock = locked(tmp_path)
        lock.__enter__()
        (tmp_path / f".{STATE}.7.tmp").write_bytes(b"half a checkp")
        os.kill(os.getpid(), 9)

    child = forked(hold_and_die)
    child.join()
    assert child.exitcode == -9
    with locked(tmp_path):
        assert not list(tmp_path.glob(".*.tmp"))  # its half-written file was deleted


def test_locking_a_directory_removes_only_temporary_files_of_the_trainer(tmp_path):
    for name in (f".{STATE}.7.tmp", ".config.toml.123456.tmp"):
        (tmp_path / name).touch()
    kept = [".draft.tmp", ".study.json.7.tmp", f".{STATE}.old.tmp", f".{STATE}.tmp", ".7.tmp", f"{STATE}.7.tmp"]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / ".loss.png.7.tmp").mkdir()
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {*kept, ".loss.png.7.tmp", ".lock"}


def test_each_step_writes_a_line_with_its_measured_values(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(1, {"train_loss": 2.5, "lr": 0.001})
    metrics.write(2, {"train_loss": 2.25, "val_loss": 1 / 3})
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "train_loss": 2.5, "lr": 0.001},
        {"step": 2, "train_loss": 2.25, "val_loss": 0.3333333},
    ]


def test_resuming_drops_the_lines_of_later_steps_and_an_incomplete_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(f'{{"step": {n}, "train_loss": {n}.5}}\n' for n in range(1, 6)) + '{"step": 6, "tr', encoding="utf-8"
    )
    Metrics(path, last_step=3).write(4, {"train_loss": 9.0})
    assert [(line["step"], line["train_loss"]) for line in read_metrics(path)] == [(1, 1.5), (2, 2.5), (3, 3.5), (4, 9)]


def test_a_new_run_starts_with_empty_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n', encoding="utf-8")
    Metrics(path)
    assert path.read_text(encoding="utf-8") == ""


def test_removing_the_file_during_the_run_raises_an_error(tmp_path):
    """A new file would hide that the tokenizer and the settings of the run were removed, too."""
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(1, {"train_loss": 2.5})
    metrics.path.unlink()
    for use in (lambda: metrics.write(2, {"train_loss": 2.25}), metrics.sync):
        with pytest.raises(FileNotFoundError):
            use()
    assert not metrics.path.exists()


@pytest.mark.parametrize("foreign", ["step 1 was fine\n", "[1]\n", "\n", '{"step": 1}\n{"st\n{"step": 3}\n'])
def test_a_file_that_is_not_a_metrics_file_is_reported_and_left_unchanged(tmp_path, foreign):
    path = tmp_path / "metrics.jsonl"
    path.write_text(foreign, encoding="utf-8")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged"):
        Metrics(path, last_step=5)
    assert path.read_text(encoding="utf-8") == foreign
