"""Kill a training run at random moments. The processes are forked, so that they start quickly."""

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest
from training_helpers import forked, trainer

from model.training.run_directory import locked

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
kills = importlib.import_module("kills")


class Forked:
    def __init__(self, work) -> None:
        self.process = forked(work)
        self.kill = self.process.kill

    def poll(self) -> int | None:
        return self.process.exitcode


def train(directory: Path) -> None:
    with locked(directory):
        trainer(directory, resume=True, max_steps=60, eval_every=3, dropout=0.1).run()


def start(directory: Path) -> Forked:
    directory.mkdir(exist_ok=True)
    return Forked(partial(train, directory))


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
def test_a_run_that_is_killed_repeatedly_ends_like_an_undisturbed_one(tmp_path):
    hits = kills.kill_repeatedly(start, kills.training_result, tmp_path, kills=4, longest_wait=0.05, seed=1)
    assert hits.total() == 4
    assert hits[kills.WRITING] >= 1
