#!/usr/bin/env python3
"""List the runs of train.py, or compare some of them: their settings, and their loss curves.

python runs.py                                  list the runs in runs/, the best one of each text first
python runs.py demo text-2                      compare runs/demo and runs/text-2
python runs.py demo text-2 --plot curves.svg    also draw their curves into a picture
"""

import startup

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from model.cli import POSITIONAL, Parser, Settings, instances, parse, print_note, read_toml, user_path
from model.cli.files import RUNS
from model.cli.settings import toml_value, values
from model.config import check_settings
from model.text.dataset import load_dataset
from model.training.config import CONFIG_FILE, SETTINGS_CLASSES
from model.training.metrics import METRICS, Smoothed, read_metrics, read_score

# Everything that imports PyTorch is imported by the functions that use it, so that --help does not wait for it.

WIDTH, HEIGHT, BLOCKS = 68, 8, " ▁▂▃▄▅▆▇█"  # of a curve in the terminal, in characters
LONGEST = 24  # characters of a setting
RESULTS = ("parameters", "steps", "minutes", "nats", "bits/byte")
Curve = list[tuple[float, float]]  # steps or minutes, and the loss


@dataclass(frozen=True)
class Options:
    """Curves."""

    run: Annotated[tuple[str, ...], "runs to compare, by name or path (default: list all)", POSITIONAL] = ()
    minutes: Annotated[bool, "draw them over the minutes of training instead of the steps"] = False
    plot: Annotated[Path | None, "also draw them into this picture: .png, .svg and others"] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.run and (self.minutes or self.plot):
            raise ValueError("--minutes and --plot are for curves: name the runs, for example runs.py demo")
        if self.plot:
            from study.topic import check_plot

            check_plot(self.plot, chinese=False)


def main() -> None:
    options, _ = parse(Parser(prog="runs.py", description=__doc__), Options)
    if not options.run:
        return print_list()

    from study.topic import Report, save_plot

    runs = [read_run(find(name), options.minutes) for name in options.run]
    report = Report([comparison(runs), terminal_curves(runs)], lambda figure: draw(figure, runs))
    print(report)
    if len({run.text for run in runs}) > 1:
        print_note("note: their texts differ, and losses on different texts cannot be compared")
    if options.plot:
        save_plot(report, options.plot)


@dataclass(frozen=True)
class RunRecord:
    """What the files in the directory of a run say."""

    name: str
    settings: Settings
    text: tuple[Any, ...]  # what two runs must share, so that their losses can be compared
    held_out: str  # the validation text, in words
    last_step: float  # when it was, in seconds since 1970
    steps: int
    minutes: float  # of training
    parameters: int
    nats: float  # per token of the validation text; infinity before the first validation
    bits: float  # per byte
    part: str  # why nats and bits may not be compared with those of other runs, if so
    training: Curve  # smoothed
    validations: Curve
    unit: str  # of the curves: steps or minutes


def read_run(path: Path, by_minutes: bool = False) -> RunRecord:
    """Read the run in a directory. Raises ValueError or OSError if one of its files is missing or damaged."""
    from model.training.estimate import count_parameters

    data, model, train = instances(read_toml(path / CONFIG_FILE, *SETTINGS_CLASSES), *SETTINGS_CLASSES)
    dataset, score = load_dataset(path), read_score(path)
    metrics = path / METRICS
    lines = read_metrics(metrics) if metrics.exists() else []
    step_tokens = train.batch_size * dataset.window_tokens(model.max_seq_len)
    speeds = [line.get("tokens_per_second", math.inf) for line in lines]
    minutes = list(accumulate(step_tokens / max(speed, 1e-9) / 60 for speed in speeds))
    places = minutes if by_minutes else [line["step"] for line in lines]
    smoothed = Smoothed(max(10, len(lines) // 50))
    validated = [(line["val_loss"], line["val_bits_per_byte"]) for line in lines if "val_loss" in line]
    nats, bits = min(validated, default=(math.inf, math.inf))
    part = dataset.part(dataset.val_count(model.max_seq_len, train.eval_tokens)).strip(" ()")
    part = f"not finished, {part}" if part else "not finished"
    if score:
        nats, bits, part = score.nats_per_token, score.bits_per_byte, dataset.part(score.tokens).strip(" ()")
    name = path.name if path.parent == RUNS else str(path)
    return RunRecord(
        name=name.encode(errors="replace").decode(),  # a path may be any bytes, but a picture needs UTF-8
        settings=values(data, model, train),
        # The size tells two texts from stdin apart
        text=(data.data, data.val_data, data.val_fraction, data.text_key, "-" in data.data and dataset.val_bytes),
        held_out=f"{dataset.validation} of {dataset.val_name}",
        last_step=(metrics if lines else path / CONFIG_FILE).stat().st_mtime,
        steps=lines[-1]["step"] if lines else 0,
        minutes=minutes[-1] if lines else 0.0,
        parameters=count_parameters(model).total,
        nats=nats,
        bits=bits,
        part=part,
        training=[(x, smoothed.add(line["train_loss"])) for x, line in zip(places, lines) if "train_loss" in line],
        validations=[(x, line["val_loss"]) for x, line in zip(places, lines) if "val_loss" in line],
        unit="minutes" if by_minutes else "steps",
    )


def find(name: str) -> Path:
    for path in (user_path(name), RUNS / name):
        if (path / CONFIG_FILE).is_file():
            return path
    known = ", ".join(path.name for path in all_runs()) or "none"
    raise ValueError(f"{name} is not a run: give one of those in {RUNS}/ ({known}), or the path of its directory")


def all_runs() -> list[Path]:
    return [file.parent for file in sorted(RUNS.glob(f"*/{CONFIG_FILE}"))]


def print_list() -> None:
    """Print the runs of each text, the best one first."""
    runs = []
    for path in all_runs():
        try:
            runs.append(read_run(path))
        except (OSError, ValueError) as error:  # the list of the others is still worth having
            print_note(f"note: {path} is left out: {error}")
    if not runs:
        raise ValueError(f"there is no run in {RUNS}/ yet: start one with `python train.py`")
    texts: dict[tuple[Any, ...], list[RunRecord]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.bits, run.name)):
        texts[run.text].append(run)
    for same in texts.values():
        rows = [[run.name, *results(run), time.strftime("%d %b %H:%M", time.localtime(run.last_step))] for run in same]
        print(f"validated on {same[0].held_out}\n{table([['run', *RESULTS, 'last step'], *rows], same)}\n")


def results(run: RunRecord) -> list[str]:
    mark = "*" if run.part else " "
    losses = [f"{loss:.4f}{mark}" if loss < math.inf else "- " for loss in (run.nats, run.bits)]
    return [f"{run.parameters:,}", f"{run.steps:,}", f"{run.minutes:.1f}", *losses]


def table(rows: Sequence[Sequence[str]], runs: Sequence[RunRecord]) -> str:
    """The rows, the first column aligned left and the others right, and what the mark * means."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join([*lines, *dict.fromkeys(f"* {run.part}" for run in runs if run.part)])


def comparison(runs: Sequence[RunRecord]) -> str:
    """The settings in which the runs differ, and their results."""
    rows = [["", *(run.name for run in runs)]]
    for name in runs[0].settings:
        cells = ["-" if run.settings[name] is None else toml_value(run.settings[name]) for run in runs]
        if name != "out_dir" and len(set(cells)) > 1:
            rows.append([name, *(cell if len(cell) <= LONGEST else f"{cell[: LONGEST - 3]}..." for cell in cells)])
    return table([*rows, *([name, *cells] for name, *cells in zip(RESULTS, *map(results, runs)))], runs)


def bounds(runs: Sequence[RunRecord]) -> tuple[float, float]:
    """The lowest loss, and that after a tenth of the run: those before it are so high that the rest would be flat."""
    for run in runs:
        if not run.training:
            raise ValueError(f"{run.name} has no curve, because it has no step yet: leave it out")
    low = min(loss for run in runs for _, loss in [*run.training, *run.validations])
    return low, max(run.training[len(run.training) // 10][1] for run in runs) + 1e-6


def terminal_curves(runs: Sequence[RunRecord]) -> str:
    """The curves in blocks, one below the other, on the same axes."""
    low, high = bounds(runs)
    end = max(run.training[-1][0] for run in runs)
    lines = []
    for run in runs:
        columns: list[list[float]] = [[] for _ in range(WIDTH)]
        for x, loss in run.training:
            columns[min(WIDTH - 1, int(WIDTH * x / end))].append(loss)
        text = [[" "] * WIDTH for _ in range(HEIGHT)]
        column = [high]
        for x in range(min(WIDTH, math.ceil(WIDTH * run.training[-1][0] / end))):
            column = columns[x] or column  # with few steps some are empty: they repeat the one before
            eighths = round(8 * HEIGHT * (sum(column) / len(column) - low) / (high - low))
            eighths = min(max(1, eighths), 8 * HEIGHT)
            for row in range(HEIGHT):
                text[row][x] = BLOCKS[min(max(0, eighths - 8 * row), 8)]
        for x, loss in run.validations:
            row = int(HEIGHT * (loss - low) / (high - low))
            text[min(row, HEIGHT - 1)][min(WIDTH - 1, int(WIDTH * x / end))] = "o"
        labels = [f"{low:.3f}", *[""] * (HEIGHT - 2), f"{high:.3f}"]
        rows = [f"{label:>7} {''.join(row)}".rstrip() for label, row in zip(labels, text)]
        lines += [f"        {run.name}", *reversed(rows)]
    last = f"{end:,.2f}" if runs[0].unit == "minutes" else f"{end:,}"
    legend = "0" + f"{last} {runs[0].unit}".rjust(WIDTH - 1)
    return "\n".join([*lines, f"        {legend}", "blocks: the loss in training, smoothed; o: validations"])


def draw(figure: Any, runs: Sequence[RunRecord]) -> None:
    """The curves in one picture."""
    from study.topic import COLORS

    axes = figure.subplots()
    for run, color in zip(runs, COLORS * len(runs)):
        axes.plot(*zip(*run.training), color=color, linewidth=1, label=f"{run.name}: {results(run)[3].strip()} nats")
        if run.validations:
            axes.plot(*zip(*run.validations), "o", color=color, markersize=4)
    low, high = bounds(runs)
    axes.set_ylim(low - 0.05 * (high - low), high)
    axes.set_xlabel(f"{runs[0].unit}\nline: training, smoothed; points: validation")
    axes.set_ylabel("loss in nats per token")
    axes.legend()


if __name__ == "__main__":
    startup.run(main, "runs.py")
