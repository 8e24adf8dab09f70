"""A picture of a run, for those who have matplotlib (the extra ``plot``)."""

from importlib.util import find_spec
from pathlib import Path

from ..weights.files import write_atomically
from .metrics import read_metrics

SMOOTH = 0.98  # share of the running mean that each step keeps


def draw_losses(directory: Path) -> None:
    """``loss.png`` beside ``metrics.jsonl``; nothing without matplotlib."""
    metrics = read_metrics(directory / "metrics.jsonl") if find_spec("matplotlib") else []
    if not metrics:
        return
    from matplotlib.figure import Figure

    train = [(line["step"], line["train_loss"]) for line in metrics if "train_loss" in line]
    validation = [(line["step"], line["val_loss"]) for line in metrics if "val_loss" in line]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*train), color="tab:blue", alpha=0.2, linewidth=0.7)
    axes.plot([step for step, _ in train], smoothed([loss for _, loss in train]), color="tab:blue", label="training")
    if validation:
        best = min(loss for _, loss in validation)
        axes.plot(*zip(*validation), "o-", color="tab:orange", markersize=3, label=f"validation, best {best:.3f}")
    axes.set(xlabel="step", ylabel="loss in nats per token", title=directory.absolute().name)
    axes.grid(alpha=0.3)
    axes.legend()
    write_atomically(directory / "loss.png", lambda temporary: figure.savefig(temporary, format="png"))


def smoothed(values: list[float]) -> list[float]:
    """A running mean that weighs the first values fairly: the sum of the weights so far divides it."""
    means, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = SMOOTH * total + value, SMOOTH * weight + 1
        means.append(total / weight)
    return means
