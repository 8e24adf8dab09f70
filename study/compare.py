"""Every position encoding in the same small model: bits per byte at the trained length and beyond."""

import json
import math
import statistics
import sys
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from model.config import Range
from model.weights.checkpoint import WEIGHTS

from .positions import SCALINGS, SCHEMES, check_scheme
from .scheme_training import MULTIPLES, Budget, Line, prepare, train_one
from .topic import BLACK, COLORS, Report, Table

# A JSON line for each finished run. Files of two machines are not mixed, because the documentation that is the default
# text differs between Python versions.
PUBLISHED = Path(__file__).parents[1] / "benchmarks" / "compare.jsonl"  # read only
RESULTS = Path("runs", "compare.jsonl")
SCHEMES_PER_PANEL = 4  # of the picture


def compare(
    schemes: Annotated[tuple[str, ...], "position encodings (default: all)"] = (),
    seeds: Annotated[int, "runs of each", Range(1, 1000)] = 3,
    steps: Annotated[int, "optimizer steps", Range(1, 10**9)] = 600,
    data: Annotated[tuple[str, ...], "text; its last tenth is the validation text"] = ("python-docs",),
    vocab_size: Annotated[int, "tokens of the BPE tokenizer trained on the data", Range(1)] = 512,
    keep: Annotated[
        Path | None,
        "save the trained models in this directory, for the topics that take a model; missing ones are trained again",
    ] = None,
    dry: Annotated[bool, "train nothing, show the runs of benchmarks/compare.jsonl that have these settings"] = False,
) -> Report:
    """The same small model with each position encoding, tested at up to 8 times its length.

    Results are added to runs/compare.jsonl. A run that has one there is not repeated.
    """
    schemes = tuple(check_scheme(scheme) for scheme in schemes) or tuple(SCHEMES)
    budget = Budget(steps, data, vocab_size)
    lines = read_results(PUBLISHED if dry else RESULTS, budget)
    finished = {(line["scheme"], line["seed"]) for line in lines}
    trained = dict.fromkeys("rope" if scheme in SCALINGS else scheme for scheme in schemes)
    missing = []
    for seed, scheme in product(range(seeds), trained):  # seed by seed, so that all schemes have a result early
        directory = keep / f"{scheme}-{seed}" if keep else None
        is_saved = directory is None or (directory / WEIGHTS).exists()  # the weights are written last
        if (scheme, seed) not in finished or not is_saved:
            missing.append((scheme, seed, directory))
    if missing and not dry:
        with TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # Windows does not remove files that are mapped
            prepare(budget, Path(scratch))
            for scheme, seed, directory in missing:
                print(f"{scheme}, seed {seed} ...", file=sys.stderr, flush=True)
                found = train_one(scheme, seed, budget, Path(scratch), directory)
                new = [line for line in found if (line["scheme"], seed) not in finished]
                append(RESULTS, new)
                lines += new
    return Report([scheme_table(schemes, budget, lines)], lambda figure: draw(figure, lines))


def read_results(path: Path, budget: Budget) -> list[Line]:
    """The finished runs with the same budget. A line cut short by a kill is skipped, so its run is repeated."""
    lines = []
    same_budget = json.loads(json.dumps(asdict(budget)))  # as it is read back, with lists for tuples
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            line = json.loads(text)
            lines += [line] if line["budget"] == same_budget else []
    return lines


def append(path: Path, lines: list[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def scheme_table(schemes: tuple[str, ...], budget: Budget, lines: list[Line]) -> Table:
    """The schemes with results, best first by the mean at the trained length."""
    table = Table(
        f"Validation bits per byte, mean ± standard deviation, trained on {budget.length} tokens at a time",
        ("scheme", "changes", *(f"{times} x" for times in MULTIPLES), "seeds", "parameters"),
        notes=[
            f"{budget.steps} steps of {budget.batch_size} x {budget.length} tokens, {budget.n_layers} layers of "
            f"{budget.dim}, {budget.n_heads} heads; each column is of the same validation text.",
            "linear, ntk and yarn: rope's weights, with RoPE scaled for each test length, without fine-tuning.",
            "-: the scheme has no vector for those positions.",
        ],
    )
    bits = {scheme: mean_bits(lines, scheme) for scheme in schemes}
    for scheme in sorted(filter(bits.get, schemes), key=lambda scheme: bits[scheme][1]):
        runs = [line for line in lines if line["scheme"] == scheme]
        cells = []
        for times in MULTIPLES:
            mean, deviation = bits[scheme].get(times, (None, None))
            cells.append("-" if mean is None else f"{mean:.3f}" + (f" ±{deviation:.3f}" if len(runs) > 1 else ""))
        table.rows.append((scheme, SCHEMES[scheme].changes, *cells, len(runs), runs[0]["parameters"]))
    return table


def mean_bits(lines: list[Line], scheme: str) -> dict[int, tuple[float, float]]:
    """Mean and standard deviation of the bits per byte over the runs of a scheme, at each length that it was tested."""
    bits = {}
    for times in MULTIPLES:
        values = [line["bits_per_byte"][str(times)] for line in lines if line["scheme"] == scheme]
        if values and None not in values:
            bits[times] = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    return bits


PLACES = {"table": "rotation table", "embedding": "embedding", "bias": "bias of the scores", "score": "score function"}


def draw(figure: Any, lines: list[Line]) -> None:
    """Four schemes in a panel, their points side by side, so that none hides another; RoPE's line is in every panel."""
    bits = {scheme: mean_bits(lines, scheme) for scheme in SCHEMES}
    shown = [scheme for scheme in SCHEMES if bits[scheme]]
    panels = [shown[i : i + SCHEMES_PER_PANEL] for i in range(0, len(shown), SCHEMES_PER_PANEL)] or [[]]
    rows = math.ceil(len(panels) / 2)
    figure.set_size_inches(6.4, 1 + 3.1 * rows)
    grid = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
    for axes, schemes in zip(grid.flat, panels):
        if bits["rope"] and "rope" not in schemes:
            rope = [mean for mean, _ in bits["rope"].values()]
            axes.plot(MULTIPLES, rope, color=BLACK, linewidth=1, label="rope", zorder=0)
        for number, (scheme, color, marker, dash) in enumerate(zip(schemes, COLORS, "osD^", ("-", "--", "-.", ":"))):
            beside = [times * 2 ** (0.09 * (number - 1.5)) for times in bits[scheme]]
            means, deviations = zip(*bits[scheme].values())
            style = {"color": BLACK if scheme == "rope" else color, "marker": marker, "linestyle": dash}
            axes.errorbar(beside, means, deviations, linewidth=1.4, markersize=6, capsize=3, label=scheme, **style)
        places = dict.fromkeys(PLACES[SCHEMES[scheme].changes] for scheme in schemes)
        axes.set_title(f"changed: {', '.join(places)}")
        axes.set_xscale("log", base=2)
        axes.set_xticks(MULTIPLES, [f"{times} x" for times in MULTIPLES])
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    figure.supxlabel("length of the test windows / trained length")
    figure.supylabel("bits per byte, lower is better (mean, standard deviation)")
