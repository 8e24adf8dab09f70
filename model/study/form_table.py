"""Every form of RoPE in model/positions/rope_forms.py, measured: deviation, time, memory."""

import math
import statistics
import time
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ..cli.machine import check_memory
from ..positions.rope_forms import RopeForm, every_rope_form, halves, neighbours
from .topic import BLUE, ORANGE, Report, Table, check_options


@dataclass(frozen=True)
class Forms:
    """Every way of writing RoPE, side by side: deviation, time, memory, permutation."""

    head_dim: Annotated[int, "width of one head"] = 64
    length: Annotated[int, "positions"] = 512
    heads: Annotated[int, "heads"] = 12
    ratio: Annotated[float, "rope_ratio of ChatGLM2-32k: positions are divided by it"] = 16.0
    repeats: Annotated[int, "calls of which the median time is taken"] = 20


MOST_REPEATS = 10_000


def run(options: Forms) -> Report:
    check_options(options, 1, "length", "heads", "repeats")
    check_options(options, 4, "head_dim")
    if not (math.isfinite(options.ratio) and options.ratio >= 1):
        raise ValueError(f"ratio is {options.ratio:g}: give a number of at least 1")
    if options.repeats > MOST_REPEATS:
        raise ValueError(f"repeats is {options.repeats}: give at most {MOST_REPEATS}")
    size = options.length * options.head_dim
    check_memory(
        size * (16 * options.head_dim + 100 * options.heads + 160),
        f"length {options.length} with {options.heads} heads of {options.head_dim}",
    )
    x = torch.randn(1, options.length, options.heads, options.head_dim, generator=torch.manual_seed(0))  # (1, T, H, D)
    table = Table(
        f"RoPE on {options.length} positions, {options.heads} heads of {options.head_dim}, float32",
        ("form", "off by", "ms/call", "bytes kept", "to LLaMA's order", "angle of pair i"),
        notes=[
            "off by: largest deviation from the same rotation in float64.",
            "to LLaMA's order: x[..., order] has the pairs where LLaMA has them; numbers are its first four and last.",
        ],
    )
    every = list(every_rope_form(options.head_dim, options.length, ratio=options.ratio))
    with torch.no_grad():
        for form in every:
            off, kept = f"{deviation(form, x):.1e}", sum(t.nbytes for t in form.kept)
            if off == "nan":
                off = "-"
                table.notes.append(f"-: {form.name} holds no position from 65520 on, which float16 rounds to infinity.")
            took = f"{milliseconds(form, x, options.repeats):.2f}"
            order = channel_order(form, options.head_dim)
            table.rows.append((form.name, off, took, kept, order, angle(form, every[0])))
    return Report([table], lambda figure: draw(figure, table))


def angle(form: RopeForm, llama: RopeForm) -> str:
    """By which angle a form rotates pair i at position p; LLaMA's is p theta^(-2i/D)."""
    if torch.equal(form.angles, llama.angles):
        return "p theta^(-2i/D)"
    if form.name.startswith("ChatGLM-6B"):
        return "p theta^(-4i/D), block p theta^(-4i/D)"
    ratio = llama.angles[-1, 0] / form.angles[-1, 0]
    return "p theta^(-4i/D), 0" if ratio == 1 else f"p/{ratio:g} theta^(-4i/D), 0"


def deviation(form: RopeForm, x: Tensor) -> float:
    return float((form.rotate(x).double() - form.exact(x)).abs().max())


def milliseconds(form: RopeForm, x: Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        form.rotate(x)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[2:])


def channel_order(form: RopeForm, dim: int) -> str:
    if torch.equal(form.pairs, neighbours(dim)):
        return "none needed"
    permutation = form.pairs.flatten().tolist()
    kind = "halves" if torch.equal(form.pairs, halves(dim)) else "halves of each half"
    return f"{kind}: {', '.join(map(str, permutation[:4]))} .. {permutation[-1]}"


def draw(figure: Any, table: Table) -> None:
    names = [row[0] for row in table.rows]
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(names, [0 if row[1] == "-" else float(row[1]) for row in table.rows], log=True, color=BLUE)
    left.set(title="deviation", xlabel="largest difference from float64", ylabel="form", xlim=(1e-7, 2))
    right.barh(names, [float(row[2]) for row in table.rows], color=ORANGE)
    right.set(title="time", xlabel="milliseconds per call (median)")
    left.invert_yaxis()
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
