"""Every position encoding in the same small model: bits per byte at the trained length and beyond."""

import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from model.cli.files import INTEGER, NUMBER, TABLE, TEXT, check_fields, check_is_file
from model.ranges import Range
from model.weights.huggingface import WEIGHTS

from .positions import SCALINGS, SCHEMES, check_scheme
from .scheme_training import MULTIPLES, Budget, Line, model_directory, prepare_for_schemes, train_one
from .topic import Report, Table

RESULTS = Path(__file__).parents[1] / "benchmarks" / "compare.jsonl"
SCHEMES_PER_PANEL = 4  # of the picture


def compare(
    schemes: Annotated[tuple[str, ...], "position encodings (default: all)"] = (),
    seeds: Annotated[int, "runs of each", Range(1, 1000)] = 3,
    results: Annotated[
        Path | None,
        "file with a JSON line for each finished run; finished runs are not repeated (default: "
        "benchmarks/compare.jsonl)",
    ] = None,
    steps: Annotated[int, "optimizer steps", Range(1, 10**9)] = 600,
    batch_size: Annotated[int, "sequences a step", Range(1)] = 16,
    length: Annotated[int, "trained length, in tokens", Range(1)] = 64,
    dim: Annotated[int, "width of the model", Range(1)] = 64,
    n_layers: Annotated[int, "blocks of the model", Range(1)] = 2,
    n_heads: Annotated[int, "heads of each block", Range(1)] = 4,
    vocab_size: Annotated[int, "tokens of the BPE tokenizer trained on the data", Range(1)] = 512,
    data: Annotated[tuple[str, ...], "text; its last tenth is the validation text"] = ("python-docs",),
    windows: Annotated[int, "validation windows, each of 8 times the trained length", Range(1, 10**6)] = 32,
    keep: Annotated[
        Path | None,
        "save the trained models in this directory, for the topics that take a model; missing ones are trained again",
    ] = None,
    dry: Annotated[bool, "train nothing, only show the finished runs that have these settings"] = False,
) -> Report:
    """The same small model with each position encoding, several seeds, tested at 1, 2, 4 and 8 times its length."""
    schemes = tuple(check_scheme(scheme) for scheme in schemes) or tuple(SCHEMES)
    if not data:
        raise ValueError("data is empty: name at least one text")
    budget = Budget(steps, batch_size, length, dim, n_layers, n_heads, vocab_size, data, windows)
    results = results or RESULTS
    lines = read_results(results, budget)
    runs = [] if dry else missing_runs(schemes, seeds, lines, keep)
    if runs:
        append(results, [])  # a file that cannot be written is an error before anything is trained
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
        text = prepare_for_schemes(budget, dict(runs))
        for scheme, seed in runs:
            print(f"{scheme}, seed {seed} ...", file=sys.stderr, flush=True)
            finished = finished_runs(lines)
            trained = train_one(scheme, seed, text, budget, keep)
            new = [line for line in trained if (line["scheme"], seed) not in finished]
            append(results, new)
            lines += new
    return Report([scheme_table(schemes, budget, lines), *frequency_tables(lines)], lambda figure: draw(figure, lines))


FIELDS = {
    "scheme": TEXT,
    "seed": INTEGER,
    "bits_per_byte": TABLE,
    "tokens_per_second": INTEGER,
    "cache_bytes_per_token": INTEGER,
    "parameters": INTEGER,
    "budget": TABLE,
}


def read_results(path: Path, budget: Budget) -> list[Line]:
    """The finished runs with the same budget. Lines cut short by a kill are skipped.

    Raises ValueError, naming the line, if a line is JSON but not the result of a run.
    """
    if not path.exists():
        return []
    check_is_file(path)
    same_budget = json.loads(json.dumps(asdict(budget)))  # as it is read back, with lists for tuples
    results = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        try:
            check_line(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; remove the line to repeat the run") from None
        if line["budget"] == same_budget:
            results.append(line)
    return results


def check_line(line: Any) -> None:
    if not isinstance(line, dict) or not FIELDS.keys() <= line.keys():
        raise ValueError(f"it is not a table of {', '.join(FIELDS)}")
    check_fields(line, FIELDS | {"moved": NUMBER})
    check_fields(line["bits_per_byte"], {str(times): NUMBER for times in MULTIPLES})
    check_scheme(line["scheme"])


def finished_runs(lines: list[Line]) -> set[tuple[str, int]]:
    """Scheme and seed of each line."""
    return {(line["scheme"], line["seed"]) for line in lines}


def missing_runs(schemes: tuple[str, ...], seeds: int, lines: list[Line], keep: Path | None) -> list[tuple[str, int]]:
    """Scheme and seed of the runs still to train, seed by seed, so that all schemes have a result early.

    The scalings are results of rope's runs. With ``keep``, a run also needs its saved model, of which the weights are
    written last.
    """
    finished = finished_runs(lines)
    trained = dict.fromkeys("rope" if scheme in SCALINGS else scheme for scheme in schemes)
    runs = []
    for seed in range(seeds):
        for scheme in trained:
            saved = not keep or (model_directory(keep, scheme, seed) / WEIGHTS).exists()
            if (scheme, seed) not in finished or not saved:
                runs.append((scheme, seed))
    return runs


def append(path: Path, lines: list[Line]) -> None:
    """Append lines to the results file, on a new line if a kill cut its last line short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        cut_short = file.read() not in (b"", b"\n")
        if cut_short:
            file.write(b"\n")
        for line in lines:
            file.write(json.dumps(line).encode() + b"\n")


def scheme_table(schemes: tuple[str, ...], budget: Budget, lines: list[Line]) -> Table:
    """The schemes with results, best first by the mean at the trained length."""
    runs = {scheme: [line for line in lines if line["scheme"] == scheme] for scheme in SCHEMES}
    shown = [scheme for scheme in schemes if runs[scheme]]
    shown.sort(key=lambda scheme: statistics.mean(line["bits_per_byte"]["1"] for line in runs[scheme]))
    rows = [
        (
            scheme,
            SCHEMES[scheme].changes,
            *(mean_and_deviation(line["bits_per_byte"][str(times)] for line in runs[scheme]) for times in MULTIPLES),
            len(runs[scheme]),
            round(statistics.median(line["tokens_per_second"] for line in runs[scheme])),
            runs[scheme][0]["cache_bytes_per_token"],
            runs[scheme][0]["parameters"],
        )
        for scheme in shown
    ]
    return Table(
        f"Validation bits per byte, mean ± standard deviation, trained on {budget.length} tokens at a time",
        (
            "scheme",
            "changes",
            *(f"{times} x" for times in MULTIPLES),
            "seeds",
            "tokens/s",
            "cache B/token",
            "parameters",
        ),
        rows,
        [
            f"{budget.steps} steps of {budget.batch_size} x {budget.length} tokens, {budget.n_layers} layers of "
            f"{budget.dim}, {budget.n_heads} heads; each column is of the same validation text.",
            "linear, ntk and yarn: rope's weights, with RoPE scaled for each test length, without fine-tuning.",
            "tokens/s: training tokens per second of CPU time, summed over threads; other load hardly affects it.",
            "-: the scheme has no vector for those positions.",
        ],
    )


def mean_and_deviation(values: Iterable[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "-"
    deviation = f" ±{statistics.stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.3f}{deviation}"


def frequency_tables(lines: list[Line]) -> list[Table]:
    """The change of the learnable frequencies in training, which start at RoPE's."""
    rows = [(line["seed"], f"{line['moved']:.0%}") for line in lines if "moved" in line]
    if not rows:
        return []
    title = "learnable: relative change of a frequency in training, median over the pairs"
    return [Table(title, ("seed", "change"), sorted(rows))]


# A colour for each scheme; RoPE's is black. Schemes in one panel also differ in marker and dash.
PALETTE = {
    "rope": "#000000",
    "linear": "#E69F00",
    "ntk": "#009E73",
    "yarn": "#D55E00",
    "partial": "#0072B2",
    "2d": "#B8860B",
    "learnable": "#CC79A7",
    "none": "#7F7F7F",
    "sinusoidal": "#56B4E9",
    "learned": "#8C564B",
    "t5": "#2E8B57",
    "alibi": "#B22222",
    "shaw": "#4B0082",
    "transformer_xl": "#FF7F50",
    "tupe": "#20B2AA",
    "deberta": "#9ACD32",
}


PLACES = {"table": "rotation table", "embedding": "embedding", "bias": "bias of the scores", "score": "score function"}


def draw(figure: Any, lines: list[Line]) -> None:
    """Four schemes in a panel, their points side by side, so that none hides another; RoPE's line is in every panel."""
    results = {scheme: [line["bits_per_byte"] for line in lines if line["scheme"] == scheme] for scheme in SCHEMES}
    shown = [scheme for scheme in SCHEMES if results[scheme]]
    panels = [shown[i : i + SCHEMES_PER_PANEL] for i in range(0, len(shown), SCHEMES_PER_PANEL)] or [[]]
    rows = math.ceil(len(panels) / 2)
    figure.set_size_inches(8.5, 1 + 2.9 * rows)
    grid = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
    for axes, schemes in zip(grid.flat, panels):
        if results["rope"] and "rope" not in schemes:
            axes.plot(MULTIPLES, points(results["rope"])[1], color=PALETTE["rope"], linewidth=1, label="rope", zorder=0)
        for number, scheme in enumerate(schemes):
            times, means, deviations = points(results[scheme])
            beside = [time * 2 ** (0.09 * (number - 1.5)) for time in times]
            style = {"color": PALETTE[scheme], "marker": "osD^"[number], "linestyle": ("-", "--", "-.", ":")[number]}
            axes.errorbar(beside, means, deviations, linewidth=1.4, markersize=6, capsize=3, label=scheme, **style)
        axes.set_title(
            f"changed: {', '.join(dict.fromkeys(PLACES[SCHEMES[scheme].changes] for scheme in schemes))}", fontsize=10
        )
        axes.set_xscale("log", base=2)
        axes.set_xticks(MULTIPLES, [f"{times} x" for times in MULTIPLES])
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", fontsize=9)
    figure.supxlabel(
        "length of the test windows, as a multiple of the trained length (points shifted sideways to not overlap)",
        fontsize=10,
    )
    figure.supylabel("validation bits per byte, lower is better (mean, standard deviation)", fontsize=10)


def points(runs: list[dict[str, float | None]]) -> tuple[list[int], list[float], list[float]]:
    """The lengths at which a scheme was tested, with the mean and the standard deviation over its seeds."""
    times = [time for time in MULTIPLES if runs[0].get(str(time)) is not None]
    means, deviations = [], []
    for time in times:
        values = [run[str(time)] for run in runs]
        numbers = [value for value in values if value is not None]
        means.append(statistics.mean(numbers))
        deviations.append(statistics.stdev(numbers) if len(numbers) > 1 else 0.0)
    return times, means, deviations
