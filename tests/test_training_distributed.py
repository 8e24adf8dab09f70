"""Two processes on one machine do what one does, whichever way the model is spread over them."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from training_helpers import same, stop_at, together, trainer

from model.training.distributed import Ranks, local_device, torchrun_ranks
from model.weights import load_model
from model.weights.tensors import load_tensors

SETTINGS = {"max_steps": 20, "eval_every": 10, "batch_size": 12, "micro_batch_size": 3, "optimizer": "muon"}


def column(directory: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line[name] for line in lines if name in line]


def part(ranks, directory: Path, until: int = 20, **settings) -> None:
    run = trainer(directory, ranks=ranks, **SETTINGS | settings)
    stop_at(run, until) if until < 20 else run.run()


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The run of one process that the others are compared with."""
    directory = tmp_path_factory.mktemp("alone")
    part(None, directory)
    return directory


def assert_same_run(directory: Path, alone: Path) -> None:
    assert column(directory, "step") == list(range(1, 21))
    for name in ("train_loss", "val_loss", "grad_norm"):
        assert column(directory, name) == pytest.approx(column(alone, name), abs=1e-5)
    mine, theirs = (load_tensors(path / "training_state.safetensors") for path in (directory, alone))
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], atol=1e-4, rtol=1e-3, msg=name)
    best, last = (load_model(path).state_dict() for path in (directory, alone))
    assert all(torch.allclose(best[name], last[name], atol=1e-4) for name in best)


def test_two_copies_train_as_one_process_does(tmp_path, alone):
    assert together(2, partial(part, directory=tmp_path)) == [0, 0]
    assert_same_run(tmp_path, alone)


def test_a_sharded_run_goes_on_in_one_process(tmp_path, alone):
    assert together(2, partial(part, directory=tmp_path, fsdp=True, until=10)) == [0, 0]
    assert column(tmp_path, "step") == list(range(1, 11))
    part(None, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)


def test_a_run_of_one_process_goes_on_sharded(tmp_path, alone):
    part(None, tmp_path, until=10)
    assert together(2, partial(part, directory=tmp_path, fsdp=True, resume=True)) == [0, 0]
    assert_same_run(tmp_path, alone)


def test_a_signal_to_one_process_and_the_slowest_clock_stop_all_of_them_after_the_same_step(tmp_path):
    def signalled(ranks) -> None:
        run = stop_at(trainer(tmp_path, ranks=ranks, **SETTINGS), 3 if ranks.rank == 1 else 1000, 2)
        assert (run.progress.step, run.stopped_by) == (3, 2)

    def timed(ranks) -> None:
        now = iter(range(0, 10_000, 1 + 4 * ranks.rank))  # seconds; the second process's pass five times as fast
        settings = SETTINGS | {"max_steps": None, "minutes": 1, "eval_every": 1000}
        run = trainer(tmp_path, ranks=ranks, **settings, clock=lambda: next(now))
        assert run.run().step == 4  # three looks at the clock a step: 15 of its seconds

    assert together(2, signalled) == [0, 0]
    assert together(2, timed) == [0, 0]


def test_only_the_first_process_writes(tmp_path):
    def work(ranks) -> None:
        directory = tmp_path / str(ranks.rank)
        directory.mkdir()
        trainer(directory, ranks=ranks, **SETTINGS | {"max_steps": 1}).run()

    assert together(2, work) == [0, 0]
    assert {path.name for path in tmp_path.glob("0/*")} >= {"metrics.jsonl", "training_state.safetensors"}
    assert not list(tmp_path.glob("1/*"))


def test_each_process_of_a_machine_has_its_own_gpu():
    ranks = torchrun_ranks({"RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3"})
    assert local_device(torch.device("cuda"), ranks) == torch.device("cuda:3")
    assert local_device(torch.device("cuda:1"), ranks) == torch.device("cuda:1")
    assert local_device(torch.device("cpu"), ranks) == torch.device("cpu")
    assert local_device(torch.device("cuda"), Ranks()) == torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "0"), ("WORLD_SIZE", "two"), ("RANK", "-1"), ("LOCAL_RANK", ""), ("RANK", "2")]
)
def test_an_environment_that_torchrun_did_not_write_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} is '?{value}"):
        torchrun_ranks({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"} | {name: value})


def test_the_same_seed_gives_the_same_run(tmp_path, alone):
    part(None, tmp_path)
    a, b = (load_tensors(path / "training_state.safetensors") for path in (tmp_path, alone))
    assert same(a, b)
    part(None, tmp_path, seed=7)
    assert not same(load_tensors(tmp_path / "training_state.safetensors"), b)
    assert column(tmp_path, "train_loss")[0] != column(alone, "train_loss")[0]
