"""Kill a training run at random moments. The processes are forked, so that they start quickly."""

import json
import os
import random
import time
from functools import partial
from pathlib import Path

import pytest
from training_helpers import forked, trainer

from model.training.run_directory import locked
from model.weights.tensors import load_tensors


def train(directory: Path) -> None:
    with locked(directory):
        trainer(directory, resume=True, max_steps=60, eval_every=3, dropout=0.1).run()


def result(directory: Path) -> dict[str, object]:
    """Weights and optimizer state, byte for byte, and the metrics without times."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found: dict[str, object] = {"metrics": [line | {"tokens_per_second": None} for line in lines]}
    for file in directory.glob("*.safetensors"):
        found |= {f"{file.name} {name}": tensor.numpy().tobytes() for name, tensor in load_tensors(file).items()}
    return found


def unfinished(directory: Path) -> list[Path]:
    """Files that are being written."""
    return list(directory.glob(".*.tmp"))


def sizes(directory: Path) -> list[int]:
    return [file.stat().st_size for file in directory.glob("*") if file.name != ".lock"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_run_that_is_killed_repeatedly_ends_like_an_undisturbed_one(tmp_path):
    """Half of the kills come at random moments, the others while a file is half-written."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for directory in (undisturbed, killed):
        directory.mkdir()
    train(undisturbed)
    rng = random.Random(1)
    while_writing = 0
    for number in range(4):
        before = sizes(killed)
        process = forked(partial(train, killed))
        while process.is_alive() and sizes(killed) == before:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        while number % 2 and process.is_alive() and not unfinished(killed):
            pass  # without sleeping, because a file is half-written for a millisecond or two
        process.kill()
        process.join()
        while_writing += bool(unfinished(killed))
    process = forked(partial(train, killed))
    process.join()
    assert process.exitcode == 0
    assert result(killed) == result(undisturbed)
    assert not unfinished(killed)
    assert while_writing >= 1
