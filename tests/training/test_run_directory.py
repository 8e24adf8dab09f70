import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from training_helpers import ARGS, forked, same, trainer, weights

from model.training.run_directory import (
    STATE,
    Progress,
    load_state,
    locked,
    make_first_free,
    optimizer_states,
    read_progress_and_identity,
)
from model.training.trainer import Trainer
from model.weights.tensors import load_tensors, save_tensors


def test_the_state_holds_weights_and_optimizer_states_by_parameter_name_and_the_notes(tmp_path):
    run = trainer(tmp_path, max_steps=2)
    run.identity = {"dim": 16}
    run.run()
    tensors = load_tensors(tmp_path / STATE)
    names = set(dict(run.model.named_parameters()))
    assert {name.removeprefix("model.") for name in tensors if name.startswith("model.")} == names
    assert {name for name in names if f"optimizer.momentum_buffer.{name}" in tensors} == {
        name for name in names if name.startswith("layers.") and "norm" not in name
    }
    assert "optimizer.exp_avg_sq.tok_embeddings.weight" in tensors
    progress, identity = read_progress_and_identity(tmp_path)
    assert identity == {"dim": 16}
    assert (progress.step, progress.tokens) == (2, 2 * 8 * ARGS.max_seq_len)


def test_loading_restores_weights_and_optimizer_states_bit_for_bit(tmp_path):
    run = trainer(tmp_path, max_steps=3)
    run.run()
    restored = trainer(tmp_path, seed=99, max_steps=1)
    load_state(tmp_path, restored.model, restored.optimizers)
    assert same(weights(run.model), weights(restored.model))
    restored_states = optimizer_states(restored.model, restored.optimizers)
    for name, state in optimizer_states(run.model, run.optimizers).items():
        assert same(state, restored_states[name])


def test_without_a_checkpoint_there_are_no_notes_and_another_programs_checkpoint_is_refused(tmp_path):
    assert read_progress_and_identity(tmp_path) is None
    save_tensors(tmp_path / STATE, {"a": torch.zeros(1)}, {"format": "pt"})
    with pytest.raises(ValueError, match="was not written by this trainer"):
        read_progress_and_identity(tmp_path)


def test_a_state_without_all_weights_is_refused(tmp_path):
    run = trainer(tmp_path, max_steps=1)
    run.run()
    tensors = load_tensors(tmp_path / STATE)
    del tensors["model.layers.1.attention.wq.weight"]
    save_tensors(tmp_path / STATE, tensors, {"notes": json.dumps({"progress": {}})})
    with pytest.raises(ValueError, match=r"has no layers\.1\.attention\.wq\.weight"):
        load_state(tmp_path, run.model, run.optimizers)


def test_a_truncated_state_is_refused(tmp_path):
    trainer(tmp_path, max_steps=1).run()
    content = (tmp_path / STATE).read_bytes()
    (tmp_path / STATE).write_bytes(content[:-10])
    with pytest.raises(ValueError, match=STATE):
        trainer(tmp_path, resume=True)


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
    for name in (f".{STATE}.7.tmp", ".config.toml.123456.tmp", ".study.json.7.tmp"):
        (tmp_path / name).touch()
    kept = [".draft.tmp", ".draft.7.tmp", f".{STATE}.old.tmp", f".{STATE}.tmp", ".7.tmp", f"{STATE}.7.tmp"]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / ".loss.png.7.tmp").mkdir()
    with locked(tmp_path, ("study.json",)):
        assert {path.name for path in tmp_path.iterdir()} == {*kept, ".loss.png.7.tmp", ".lock"}


@contextmanager
def file_size_limit(size: int):
    """Simulate a full disk: the kernel refuses to write more than ``size`` bytes to a file."""
    resource = pytest.importorskip("resource", reason="POSIX only")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_last_checkpoint_unchanged(tmp_path):
    run: Trainer = trainer(tmp_path, max_steps=10, eval_every=5)
    run.run()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    resumed = trainer(tmp_path, resume=True, max_steps=20, eval_every=5)
    with file_size_limit(4000), pytest.raises(OSError, match=r"File too large"):
        resumed.run()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")} == before
    assert not list(tmp_path.glob(".*.tmp"))
    assert trainer(tmp_path, resume=True, max_steps=20).run().step == 20


PROGRESS = {"step": 2, "tokens": 9, "train_seconds": 1.5, "wall_seconds": 2.0, "val_loss": 1.0, "best_val_loss": None}
PROGRESS |= {"best_step": 0}


@pytest.mark.parametrize(
    "notes",
    [
        "", "nothing", "[]", "7", "null", '{"progress": 1}', '{"progress": {}, "identity": {}}', "[" * 10_000,
        {"progress": PROGRESS, "identity": []},
        {"progress": PROGRESS | {"step": "2"}, "identity": {}},
        {"progress": PROGRESS | {"step": 1.5}, "identity": {}},
        {"progress": PROGRESS | {"step": -1}, "identity": {}},
        {"progress": PROGRESS | {"step": 10**400}, "identity": {}},
        {"progress": PROGRESS | {"step": True}, "identity": {}},
        {"progress": PROGRESS | {"wall_seconds": float("nan")}, "identity": {}},
        {"progress": PROGRESS | {"best_val_loss": [1.0]}, "identity": {}},
        {"progress": PROGRESS | {"more": 1}, "identity": {}},
        {"progress": {name: PROGRESS[name] for name in PROGRESS if name != "tokens"}, "identity": {}},
    ],
)  # fmt: skip
def test_the_error_for_damaged_notes_is_one_line(tmp_path, notes):
    text = notes if isinstance(notes, str) else json.dumps(notes)
    save_tensors(tmp_path / STATE, {"a": torch.zeros(1)}, {"notes": text})
    with pytest.raises(ValueError, match=r"^[^\n]*damaged metadata: restore the file, or start a new run$"):
        read_progress_and_identity(tmp_path)


def test_valid_notes_are_read(tmp_path):
    save_tensors(tmp_path / STATE, {"a": torch.zeros(1)}, {"notes": json.dumps({"progress": PROGRESS, "identity": {}})})
    assert read_progress_and_identity(tmp_path) == (Progress(**PROGRESS), {})


WQ = "layers.1.attention.wq.weight"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            f"optimizer.momentum_buffer.{WQ}",
            torch.zeros(16),
            r"wq.weight is torch.float32 of shape \(16,\)",
        ),
        (f"optimizer.momentum_buffer.{WQ}", torch.zeros(16, 16).double(), "torch.float64"),
        ("optimizer.exp_avg.norm.weight", torch.zeros(1), r"not torch.float32 of \(16,\)"),
        ("optimizer.step.norm.weight", torch.zeros(2), r"not torch.float32 of \(\)"),
        (f"model.{WQ}", torch.zeros(1, 16), r"not torch.float32 of \(16, 16\)"),
        ("model.layers.7.attention.wq.weight", torch.zeros(2), "which this model and optimizer do not have"),
        ("optimizer.exp_avg.nothing", torch.zeros(2), "which this model and optimizer do not have"),
        (f"optimizer.hessian.{WQ}", torch.zeros(16, 16), "which this model and optimizer do not have"),
        ("nonsense", torch.zeros(2), "holds nonsense"),
    ],
)
def test_the_error_for_a_tensor_that_does_not_fit_names_it(tmp_path, name, tensor, message):
    run = trainer(tmp_path, max_steps=1)
    run.run()
    tensors = load_tensors(tmp_path / STATE)
    tensors[name] = tensor
    save_tensors(tmp_path / STATE, tensors, {"notes": "{}"})
    before = weights(run.model)
    with pytest.raises(ValueError, match=message):
        load_state(tmp_path, run.model, run.optimizers)
    assert same(weights(run.model), before)


def test_no_tensor_shares_memory_with_the_mapped_file_after_loading(tmp_path, monkeypatch):
    """On Windows, the next checkpoint could not replace a mapped file."""
    trainer(tmp_path, max_steps=2).run()
    mapped = []

    def recording_load(path):
        tensors = load_tensors(path)
        mapped.extend(tensors.values())
        return tensors

    monkeypatch.setattr("model.training.run_directory.load_tensors", recording_load)
    run = trainer(tmp_path, resume=True)
    mapped_storages = {tensor.untyped_storage().data_ptr() for tensor in mapped}
    assert mapped_storages
    used = [*run.model.parameters()]
    for state in optimizer_states(run.model, run.optimizers).values():
        used += state.values()
    assert not mapped_storages & {tensor.untyped_storage().data_ptr() for tensor in used}
