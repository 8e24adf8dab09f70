"""The run directory: made once, locked, its metrics, and the state of the run in it."""

import errno
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_helpers import forked, make_run, same, trainer, weights

from model.training.config import CONFIG_FILE
from model.training.metrics import append_metrics, read_metrics, truncate_metrics
from model.training.run_directory import (
    STATE,
    begin,
    load_state,
    locked,
    make_first_free,
    read_progress,
    run_directory,
    save_state,
    state_tensors,
)
from model.weights import load_model
from model.weights.tensors import load_tensors, read_metadata, save_tensors


def test_concurrent_calls_get_different_free_directories(tmp_path):
    (tmp_path / "run").touch()
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: make_first_free(tmp_path / "run"), range(16)))
    assert len(set(made)) == 16
    assert all(path.is_dir() for path in made)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("existing", ["nothing", "runs", "runs/mine", "runs/mine/notes.txt"])
def test_a_run_that_does_not_begin_leaves_everything_as_it_was(tmp_path, named, existing):
    directory = tmp_path / "runs" / "mine"
    if existing != "nothing":
        (directory if "mine" in existing else directory.parent).mkdir(parents=True)
    if "notes" in existing:
        (directory / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    run = make_run(directory, **({"out_dir": directory} if named else {}))
    for error in (ValueError, KeyboardInterrupt, None):
        with suppress(ValueError, KeyboardInterrupt), run_directory(run) as made:
            (made.directory / "tokens.bin").touch()
            if error:
                raise error
        assert sorted(tmp_path.rglob("*")) == before
    with run_directory(run) as made:
        begin(made)
        begun = replace(made, train=replace(made.train, out_dir=made.directory))  # by its name
        for resume, advice in ((True, "or stop it"), (False, "stop it, or give another --out_dir")):
            in_use = rf"^{made.directory} is in use by another trainer \(process {os.getpid()}\): wait until it ends, "
            in_use += f"{advice}$"
            for _ in range(2):  # the first one has not changed the file
                with pytest.raises(ValueError, match=in_use):
                    run_directory(replace(begun, resume=resume)).__enter__()
    assert (made.directory == directory) == (named or "mine" not in existing)
    assert (made.directory / CONFIG_FILE).exists()
    taken = make_run(made.directory, out_dir=made.directory)
    with pytest.raises(ValueError, match=r"holds config\.toml: give another --out_dir, or --resume"):
        run_directory(taken).__enter__()


def test_the_lock_of_a_trainer_that_is_killed_is_released_and_its_unfinished_files_are_removed(tmp_path):
    (tmp_path / ".draft.7.tmp").touch()  # a file of the user

    def hold_and_die() -> None:
        with locked(tmp_path):
            (tmp_path / f".{STATE}.7.ropewalk.tmp").write_bytes(b"half a checkp")
            os.kill(os.getpid(), 9)

    child = forked(hold_and_die)
    child.join()
    assert child.exitcode == -9
    with locked(tmp_path):
        assert [path.name for path in tmp_path.glob(".*.tmp")] == [".draft.7.tmp"]


@pytest.mark.parametrize("refused", ["touch", "open"])
def test_the_lock_that_another_user_has_left_in_a_shared_directory_is_named_with_its_remedy(
    tmp_path, monkeypatch, refused
):
    """A test that runs as root may open it, so the system's answer is simulated."""
    directory = tmp_path / "the run"
    directory.mkdir()
    lock = directory / ".lock"
    lock.touch()

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(lock))

    if refused == "touch":
        monkeypatch.setattr(Path, "touch", refuse)
    else:
        monkeypatch.setattr("model.training.run_directory.FileLock", refuse)
    with pytest.raises(
        ValueError, match=rf"belongs to another user: if nobody trains there any more, run `rm '{lock}'`"
    ):
        locked(directory)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError):
        locked(directory)


def test_the_group_may_lock_a_directory_in_which_it_may_write(tmp_path):
    before = os.umask(0o002)
    try:
        with locked(tmp_path):
            assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ValueError, match="run is on a file system without locks: give another --out_dir"):
        run_directory(make_run(tmp_path / "run")).__enter__()


def test_metrics_are_appended_and_those_of_repeated_steps_and_an_unfinished_line_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    truncate_metrics(path, -1)
    for step in range(6):
        append_metrics(path, step, {"train_loss": 1 / 3, "lr": 0.001}, sync=step == 2)
    lines = [{"step": step, "train_loss": 0.3333333, "lr": 0.001} for step in range(6)]
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == lines
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 6, "tr')
    truncate_metrics(path, 3)
    append_metrics(path, 4, {"train_loss": 9.0}, sync=True)
    assert read_metrics(path) == [*lines[:4], {"step": 4, "train_loss": 9.0}]
    truncate_metrics(path, 0)
    assert read_metrics(path) == lines[:1]
    truncate_metrics(path, -1)
    assert path.read_bytes() == b""


WQ = "layers.1.attention.wq.weight"


def test_loading_restores_weights_and_optimizer_states_bit_for_bit_but_no_hyperparameters(tmp_path):
    run = trainer(tmp_path, max_steps=3)
    run.run()
    assert read_progress(tmp_path) == run.progress
    names = load_tensors(tmp_path / STATE).keys()
    assert {"optimizer.exp_avg_sq.tok_embeddings.weight", f"optimizer.momentum_buffer.{WQ}"} <= names
    restored = trainer(tmp_path, seed=99, max_steps=1, lr=0.5)
    load_state(tmp_path, restored.model, restored.optimizers)
    assert same(state_tensors(run.model, run.optimizers), state_tensors(restored.model, restored.optimizers))
    adamw, muon = restored.optimizers
    assert (muon.defaults["lr"], adamw.defaults["lr"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (f"model.{WQ}", None),
        (f"model.{WQ}", torch.zeros(1, 16)),
        (f"optimizer.momentum_buffer.{WQ}", torch.zeros(16, 16).double()),
        ("model.layers.7.attention.wq.weight", torch.zeros(2)),
        ("optimizer.step.norm.weight", None),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_loaded(tmp_path, name, tensor):
    run = trainer(tmp_path, max_steps=1)
    run.run()
    tensors = load_tensors(tmp_path / STATE) | {name: tensor}
    save_tensors(tmp_path / STATE, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    before = weights(run.model)
    with pytest.raises(ValueError, match=rf"{STATE} is damaged or belongs to another model: restore the file, or"):
        load_state(tmp_path, run.model, run.optimizers)
    assert same(weights(run.model), before)


DAMAGED = [
    {"step": "x"},
    {"step": -1},
    {"tokens": 2.5},
    {"wall_seconds": None},
    {"val_loss": math.nan},
    {"more": 1},
]


@pytest.mark.parametrize("change", [*DAMAGED, None])
def test_a_progress_with_a_wrong_or_missing_value_is_damaged(tmp_path, change):
    run = trainer(tmp_path, max_steps=1)
    run.run()
    progress = json.loads(read_metadata(tmp_path / STATE)["progress"])
    if change:
        progress |= change
    else:
        del progress["step"]
    save_tensors(tmp_path / STATE, load_tensors(tmp_path / STATE), {"progress": json.dumps(progress)})
    with pytest.raises(ValueError, match=rf"{STATE} is damaged or belongs to another model: restore the file, or"):
        read_progress(tmp_path)


def test_a_model_without_its_state_is_not_trained_over(tmp_path):
    """The state is three times the model, so people remove it."""
    trainer(tmp_path, max_steps=10).run()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != STATE}
    (tmp_path / STATE).unlink()
    with pytest.raises(ValueError, match=rf"{STATE} is missing.*train\.py --init_from {tmp_path} --data TEXT"):
        trainer(tmp_path, resume=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("best_is_last", [True, False])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_state_without_its_model_continues_and_writes_one(tmp_path, name, best_is_last):
    run = trainer(tmp_path, max_steps=10)
    run.run()
    if not best_is_last:
        run.progress.best_step, run.progress.best_val_loss = 5, 0.0
        save_state(tmp_path, run.model, run.optimizers, run.progress, run.ranks)
    (tmp_path / name).unlink()
    resumed = trainer(tmp_path, resume=True, max_steps=10)
    assert (tmp_path / name).exists() == best_is_last
    resumed.run()
    assert same(weights(load_model(tmp_path)), weights(run.model))
