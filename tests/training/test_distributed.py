"""Training in two processes, with DDP or FSDP, gives the same run as in one."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from training_helpers import run_in_processes, stop_at, trainer

from model import Transformer
from model.training.distributed import Ranks, local_device
from model.weights import load_model
from model.weights.tensors import load_tensors

SETTINGS = {"max_steps": 20, "eval_every": 10, "batch_size": 12, "micro_batch_size": 3, "optimizer": "muon"}


def column(directory: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line[name] for line in lines if name in line]


class Buffered(Transformer):
    """A network with a buffer that is saved and one that is not."""

    def __init__(self, args):
        super().__init__(args)
        self.register_buffer("scale", torch.full((1,), 0.5))
        self.register_buffer("shift", torch.arange(args.vocab_size) / 10, persistent=False)

    def forward(self, *args):
        return super().forward(*args) * self.scale + self.shift


def train(ranks, directory: Path, until: int = 20, **settings) -> None:
    """Train, or resume, to step ``until`` of 20."""
    run = trainer(directory, ranks=ranks, network=Buffered, **SETTINGS | settings)
    if until < 20:
        stop_at(run, until)
    else:
        run.run()


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> Path:
    """The run of a single process, with which the others are compared."""
    directory = tmp_path_factory.mktemp("single")
    train(None, directory)
    return directory


def assert_same_run(directory: Path, single: Path) -> None:
    assert column(directory, "step") == list(range(1, 21))
    for name in ("train_loss", "val_loss", "grad_norm"):
        assert column(directory, name) == pytest.approx(column(single, name), abs=1e-5)
    state, single_state = (load_tensors(path / "training_state.safetensors") for path in (directory, single))
    assert state.keys() == single_state.keys()
    for name in state:
        torch.testing.assert_close(state[name], single_state[name], atol=1e-4, rtol=1e-3, msg=name)
    best, single_best = (load_model(path, network=Buffered).state_dict() for path in (directory, single))
    assert all(torch.allclose(best[name], single_best[name], atol=1e-4) for name in best)
    assert best["scale"].item() == 0.5


def test_ddp_in_two_processes_gives_the_run_of_one_process(tmp_path, single):
    assert run_in_processes(2, partial(train, directory=tmp_path)) == [0, 0]
    assert_same_run(tmp_path, single)


def test_a_sharded_run_is_resumed_in_one_process(tmp_path, single):
    assert run_in_processes(2, partial(train, directory=tmp_path, fsdp=True, until=10)) == [0, 0]
    assert column(tmp_path, "step") == list(range(1, 11))
    train(None, tmp_path, resume=True)
    assert_same_run(tmp_path, single)


def test_a_run_of_one_process_is_resumed_sharded(tmp_path, single):
    train(None, tmp_path, until=10)
    assert run_in_processes(2, partial(train, directory=tmp_path, fsdp=True, resume=True)) == [0, 0]
    assert_same_run(tmp_path, single)


def test_a_signal_to_one_process_or_the_fastest_clock_stops_all_after_the_same_step(tmp_path):
    def signalled(ranks) -> None:
        run = stop_at(trainer(tmp_path, ranks=ranks, **SETTINGS), 3 if ranks.rank == 1 else 1000, 2)
        assert (run.progress.step, run.stopped_by) == (3, 2)

    def timed(ranks) -> None:
        now = iter(range(0, 10_000, 1 + 4 * ranks.rank))  # seconds; the clock of the second process is 5 times as fast
        settings = SETTINGS | {"max_steps": None, "minutes": 1, "eval_every": 1000}
        run = trainer(tmp_path, ranks=ranks, **settings, clock=lambda: next(now))
        assert run.run().step == 4  # a step reads the clock three times, which is 15 seconds of the fast one

    assert run_in_processes(2, signalled) == [0, 0]
    assert run_in_processes(2, timed) == [0, 0]


def test_each_process_of_a_machine_uses_a_different_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    ranks = Ranks(rank=11, world_size=16, local_rank=3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: [])
    assert local_device("auto", ranks) == torch.device("cuda:3")
    assert local_device("cuda:1", ranks) == torch.device("cuda:1")
    assert local_device("cpu", ranks) == torch.device("cpu")
    assert local_device("cuda", Ranks()) == torch.device("cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    with pytest.raises(ValueError, match=r"^device is 'cuda:3': PyTorch finds only"):
        local_device("cuda", ranks)


def test_the_first_process_works_for_all_and_its_failure_ends_all(tmp_path):
    def work(ranks) -> None:
        assert ranks.first(lambda: {"rank": ranks.rank}) == {"rank": 0}
        order = tmp_path / "order"
        result = ranks.in_turn(lambda: order.open("a", encoding="utf-8").write(f"{ranks.rank}") + ranks.rank)
        assert (result, order.read_text(encoding="utf-8")[0]) == (1 + ranks.rank, "0")

    def fail(ranks) -> None:
        ranks.first(lambda: int("a mistake of the user"))

    assert run_in_processes(3, work) == [0, 0, 0]
    assert run_in_processes(2, fail) == [1, 2]


def test_another_seed_gives_another_run(tmp_path, single):
    train(None, tmp_path, seed=7)
    assert column(tmp_path, "train_loss")[0] != column(single, "train_loss")[0]
