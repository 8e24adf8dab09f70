#!/usr/bin/env python3
"""Plot the validation loss of runs over minutes of training, with nanoGPT's published losses for comparison.

    python benchmarks/curves.py RUN ... --out docs/images/shakespeare.png

The minutes are those of the training steps in ``metrics.jsonl``, without validation and checkpoints.
"""

import argparse
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from model.training.run_directory import read_metrics

# From nanoGPT's README, for the same text and split: its CPU setting, and its GPU setting after 3 minutes on an A100.
PUBLISHED = {"nanoGPT, CPU setting: 1.88": 1.88, "nanoGPT, 3 minutes of an A100: 1.4697": 1.4697}


def curve(run: Path) -> tuple[list[float], list[float]]:
    """The minutes at which the run was validated, and the validation losses."""
    settings = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    seconds, minutes, losses = 0.0, [], []
    for line in read_metrics(run / "metrics.jsonl"):
        seconds += settings["batch_size"] * settings["max_seq_len"] / line["tokens_per_second"]
        if "val_loss" in line:
            minutes.append(seconds / 60)
            losses.append(line["val_loss"])
    return minutes, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    flags = parser.parse_args()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    for run in flags.runs:
        minutes, losses = curve(run)
        axes.plot(minutes, losses, "o-", markersize=3, label=f"{run.name}: {min(losses):.3f}")
    for (label, loss), style in zip(PUBLISHED.items(), (":", "--")):
        axes.axhline(loss, color="black", linewidth=1, linestyle=style, label=label)
    axes.set(xlabel="minutes of training on two CPU cores", ylabel="validation loss, nats per character")
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlim=(0.04, 12), ylim=(1.35, 2.2))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(flags.out)
    print(f"wrote {flags.out}")


if __name__ == "__main__":
    main()
