"""Every scheme against every other: who is best at the trained length, and who survives past it."""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..cli.settings import nearest
from ..positions import SCALINGS, SCHEMES
from .options import Compare
from .report import Report, Table
from .scheme_training import TIMES, Line, budget, prepare_text, run_one


def run(options: Compare) -> Report:
    for scheme in options.schemes:
        if scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {scheme!r}{nearest(scheme, SCHEMES)}")
    for name in ("seeds", "steps", "batch_size", "length", "windows"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}: give at least 1")
    lines = read(options)
    todo = [] if options.dry else missing(options, lines)
    if todo:
        with tempfile.TemporaryDirectory() as scratch:
            text = prepare_text(options, Path(scratch))
            for scheme, seed in todo:
                print(f"{scheme}, seed {seed} ...", file=sys.stderr, flush=True)
                new = run_one(scheme, seed, text, options)
                append(options.results, new)
                lines += new
    return Report([table(options, lines), *moved(lines)], lambda figure: draw(figure, lines))


def read(options: Compare) -> list[Line]:
    """The finished runs of this very budget. A line that a kill cut short is none."""
    if not options.results.exists():
        return []
    whole = [line for line in options.results.read_text().splitlines(keepends=True) if line.endswith("}\n")]
    wanted = json.loads(json.dumps(budget(options)))
    return [line for line in map(json.loads, whole) if line["budget"] == wanted]


def missing(options: Compare, lines: list[Line]) -> list[tuple[str, int]]:
    """Seed by seed, so that a table of all schemes is there early. The scalings come with rope."""
    done = {(line["scheme"], line["seed"]) for line in lines}
    asked = options.schemes or tuple(SCHEMES)
    trained = dict.fromkeys("rope" if scheme in SCALINGS else scheme for scheme in asked)
    return [(scheme, seed) for seed in range(options.seeds) for scheme in trained if (scheme, seed) not in done]


def append(path: Path, lines: list[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_short = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write("\n" * cut_short + "".join(json.dumps(line) + "\n" for line in lines))


def table(options: Compare, lines: list[Line]) -> Table:
    """Best first, by the mean at the trained length."""
    runs = {scheme: [line for line in lines if line["scheme"] == scheme] for scheme in SCHEMES}
    shown = [scheme for scheme in options.schemes or SCHEMES if runs[scheme]]
    shown.sort(key=lambda scheme: statistics.mean(line["bits_per_byte"]["1"] for line in runs[scheme]))
    rows = [
        (
            scheme,
            SCHEMES[scheme].slot,
            *(spread(line["bits_per_byte"][str(times)] for line in runs[scheme]) for times in TIMES),
            len(runs[scheme]),
            round(statistics.median(line["tokens_per_second"] for line in runs[scheme])),
            runs[scheme][0]["cache_bytes_per_token"],
            runs[scheme][0]["parameters"],
        )
        for scheme in shown
    ]
    return Table(
        f"Validation bits per byte, mean ± standard deviation, trained on {options.length} tokens at a time",
        ("scheme", "slot", *(f"{times} x" for times in TIMES), "seeds", "tokens/s", "cache B/token", "parameters"),
        rows,
        [
            f"{options.steps} steps of {options.batch_size} x {options.length} tokens, {options.n_layers} layers of "
            f"{options.dim}, {options.n_heads} heads; each column reads the same validation text.",
            "linear, ntk and yarn are rope's weights, scaled by the multiple when tested; nothing is fine-tuned.",
            "tokens/s: in training, per second of processor time, so that a busy machine does not count.",
            "-: the scheme has no vector for those positions.",
        ],
    )


def spread(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    deviation = f" ±{statistics.stdev(known):.3f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.3f}{deviation}"


def moved(lines: list[Line]) -> list[Table]:
    """How far the learnable frequencies went from where RoPE has them."""
    shares = [line["moved"] for line in lines if "moved" in line]
    if not shares:
        return []
    return [
        Table(
            "learnable: median relative change of a frequency",
            ("mean of the seeds",),
            [(f"{statistics.mean(shares):.1%}",)],
        )
    ]


def draw(figure: Any, lines: list[Line]) -> None:
    from matplotlib import colormaps

    axes = figure.subplots()
    for number, scheme in enumerate(SCHEMES):
        runs = [line["bits_per_byte"] for line in lines if line["scheme"] == scheme]
        points = [
            (times, statistics.mean(run[str(times)] for run in runs)) for times in TIMES if runs and runs[0][str(times)]
        ]
        if points:
            axes.plot(*zip(*points), marker="ov^s"[number % 4], label=scheme, color=colormaps["tab20"](number))
    axes.set_xscale("log", base=2)
    axes.set_xticks(TIMES, [f"{times} x" for times in TIMES])
    axes.set(xlabel="text read at a time, as a multiple of the trained length", ylabel="validation bits per byte")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
