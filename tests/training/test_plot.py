import sys

import pytest

from model.training.plot import draw_losses, running_mean
from model.training.run_directory import Metrics


def test_the_smoothed_loss_is_a_centered_mean_without_lag():
    assert running_mean([3.0]) == [3.0]
    line = [1000.0 - n for n in range(500)]
    values = running_mean(line)
    assert values[5:-5] == pytest.approx(line[5:-5])
    assert values[0] == pytest.approx(sum(line[:6]) / 6)
    assert running_mean([0.0] * 100 + [1.0] * 100)[99:101] == pytest.approx([0.4, 0.6])


def test_the_plot_is_written_beside_the_metrics(tmp_path):
    pytest.importorskip("matplotlib")
    metrics = Metrics(tmp_path / "metrics.jsonl")
    draw_losses(tmp_path)
    assert not (tmp_path / "loss.png").exists()
    for step in range(1, 30):
        metrics.write(step, {"train_loss": 3 / step} | ({"val_loss": 3.5 / step} if step % 10 == 0 else {}))
    draw_losses(tmp_path)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "loss.png").read_bytes()) > 5000


def test_without_matplotlib_no_plot_is_written(tmp_path, monkeypatch):
    Metrics(tmp_path / "metrics.jsonl").write(1, {"train_loss": 1.0})
    monkeypatch.setattr("model.training.plot.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw_losses(tmp_path)
    assert not (tmp_path / "loss.png").exists()
