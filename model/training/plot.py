"""loss.png: training and validation loss over the steps of a run."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ..cli.files import displayable_name, write_atomically
from .run_directory import METRICS, read_metrics


def draw_losses(directory: Path) -> None:
    """Draw ``loss.png`` from ``metrics.jsonl`` in the same directory; does nothing without matplotlib."""
    metrics = read_metrics(directory / METRICS) if find_spec("matplotlib") else []
    if not metrics:
        return
    from matplotlib.figure import Figure

    train = [(line["step"], line["train_loss"]) for line in metrics if "train_loss" in line]
    validation = [(line["step"], line["val_loss"]) for line in metrics if "val_loss" in line]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*train), color="tab:blue", alpha=0.2, linewidth=0.7)
    mean = running_mean([loss for _, loss in train])
    axes.plot([step for step, _ in train], mean, color="tab:blue", label="training")
    if validation:
        best = min(loss for _, loss in validation)
        axes.plot(*zip(*validation), "o-", color="tab:orange", markersize=3, label=f"validation, best {best:.3f}")
    axes.set(xlabel="step", ylabel="loss in nats per token", title=displayable_name(directory.absolute().name))
    axes.grid(alpha=0.3)
    axes.legend()
    write_atomically(directory / "loss.png", lambda temporary: figure.savefig(temporary, format="png"))


def running_mean(values: list[float]) -> list[float]:
    """Mean over a centered window of a fiftieth of the values, cut off at both ends."""
    count = len(values)
    radius = count // 100
    sums = np.concatenate([[0.0], np.cumsum(values)])
    starts = np.maximum(np.arange(count) - radius, 0)
    ends = np.minimum(np.arange(count) + radius + 1, count)
    return ((sums[ends] - sums[starts]) / (ends - starts)).tolist()
