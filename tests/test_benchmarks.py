"""The parts of the benchmarks that a wrong figure or a missed failure could come from."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_peak_memory_of_a_short_block_is_measured():
    with importlib.import_module("tokenizing").PeakMemory() as peak:
        pass
    assert peak.bytes > 10_000_000


@pytest.mark.skipif(sys.platform == "win32", reason="limits of resources exist on Unix only")
@pytest.mark.parametrize(
    ("problem", "outcome", "code"), [("", "3 elsewhere", 0), ("train left x", "3 elsewhere", 1), ("", "FAILED: y", 1)]
)
def test_faults_ends_with_1_if_anything_failed(monkeypatch, capsys, problem, outcome, code):
    faults = importlib.import_module("faults")

    def full_disk(scratch):
        yield problem

    monkeypatch.setattr(sys, "argv", ["faults.py"])
    monkeypatch.setattr(faults, "Scratch", lambda base: None)
    monkeypatch.setattr(faults, "FAULTS", (full_disk,))
    monkeypatch.setattr(faults, "kill_jobs", lambda scratch, kills, seed: [("kill: training", 3, outcome)])
    assert faults.main() == code
    shown = capsys.readouterr().out
    assert f"1 tried, {1 if problem else 0} failed" in shown
    assert f"3 kills: {outcome}" in shown
