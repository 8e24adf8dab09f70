"""The benchmark that kills a trainer, small: forked trainers, so that a start costs nothing."""

import importlib.util
from pathlib import Path

from training_helpers import forked, trainer

from model.training.run_directory import locked

spec = importlib.util.spec_from_file_location("kill", Path(__file__).parents[1] / "benchmarks" / "kill.py")
kill = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kill)


class Forked:
    def __init__(self, work) -> None:
        self.process = forked(work)
        self.kill = self.process.kill

    def poll(self) -> int | None:
        return self.process.exitcode


def test_a_run_that_is_killed_again_and_again_ends_as_if_nobody_had(tmp_path):
    for name in ("killed", "undisturbed"):
        (tmp_path / name).mkdir()

    def work(directory: Path) -> None:
        with locked(directory):
            trainer(directory, resume=True, max_steps=60, eval_every=3, dropout=0.1).run()

    work(tmp_path / "undisturbed")
    directory = tmp_path / "killed"
    hits = kill.kill_repeatedly(lambda: Forked(lambda: work(directory)), directory, kills=4, patience=0.05, seed=1)
    assert hits.total() == 4
    assert hits["in the midst of writing a file"] >= 1
    kill.compare(directory, tmp_path / "undisturbed")
