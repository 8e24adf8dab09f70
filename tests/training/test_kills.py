"""Kill a training run while it writes. The processes are forked, so that they start quickly."""

import os
import signal
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from training_helpers import forked, metrics, trainer

from model.training.run_directory import locked
from model.weights.tensors import load_tensors


def train(directory: Path) -> None:
    with locked(directory):
        trainer(directory, resume=True, max_steps=60, eval_every=3, dropout=0.1).run()


def train_and_die(directory: Path, number: int) -> None:
    """Train, and be killed before the system call ``number`` of those that sync or rename a file."""
    calls = count(1)

    def dying(call):
        def call_or_die(*arguments):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return call_or_die

    os.fsync, os.replace = dying(os.fsync), dying(os.replace)
    train(directory)


def result(directory: Path) -> dict[str, object]:
    """Weights and optimizer state, byte for byte, and the metrics without times."""
    found: dict[str, object] = {"metrics": [line | {"tokens_per_second": None} for line in metrics(directory)]}
    for file in directory.glob("*.safetensors"):
        found |= {f"{file.name} {name}": tensor.numpy().tobytes() for name, tensor in load_tensors(file).items()}
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_run_that_is_killed_repeatedly_ends_like_an_undisturbed_one(tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for directory in (undisturbed, killed):
        directory.mkdir()
    train(undisturbed)
    half_written = 0
    for number in range(1, 13):  # a validation that saves the model and the state makes about ten calls
        process = forked(partial(train_and_die, killed, number))
        process.join()
        assert process.exitcode == -signal.SIGKILL
        half_written += any(killed.glob(".*.tmp"))
    assert half_written >= 4
    train(killed)
    assert result(killed) == result(undisturbed)
    assert not list(killed.glob(".*.tmp"))
