"""The forms of RoPE in study/positions/rope_forms.py, measured: deviation, time, memory."""

import time
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from model.cli.machine import check_memory
from model.ranges import Range

from .positions.rope_forms import (
    RopeForm,
    chatglm_family,
    chatglm_ids,
    half_pairs,
    neighbour_pairs,
    plain_forms,
    prompt_length,
)
from .topic import BLUE, ORANGE, HeadDim, Heads, Report, Table


def forms(
    head_dim: HeadDim = 64,
    length: Annotated[int, "positions", Range(1, 32_768)] = 512,
    heads: Heads = 12,
    chatglm: Annotated[bool, "measure the rotations of ChatGLM instead, which have other angles"] = False,
    repeats: Annotated[int, "timed calls, of which the median is shown", Range(1, 10_000)] = 50,
) -> Report:
    """The published forms of RoPE, side by side: deviation, time, memory, permutation."""
    size = length * head_dim
    check_memory(size * (16 * head_dim + 100 * heads + 160), f"length {length} with {heads} heads of {head_dim}")
    x = torch.randn(1, length, heads, head_dim, generator=torch.manual_seed(0))  # (1, T, H, D)
    table = Table(
        f"RoPE on {length} positions, {heads} heads of {head_dim}, float32",
        ("form", "off by", "ms/call", "quartiles", "bytes kept", "to LLaMA's order"),
        notes=[
            "off by: largest deviation from the same rotation in float64.",
            "ms/call: median of the calls. quartiles: first and third quartile of the calls.",
            "to LLaMA's order: x[..., order] puts pairs where LLaMA has them; shown: order's first four and last.",
        ],
    )
    tables = [table]
    measured = list(chatglm_family(head_dim, length) if chatglm else plain_forms(head_dim, length))
    if chatglm:
        table.columns = (*table.columns, "angle of pair i")
        tables.append(id_table(length))
    deviations, times = [], []
    with torch.no_grad():
        for form in measured:
            deviations.append(float((form.rotate(x).double() - form.in_float64(x)).abs().max()))
            times.append(milliseconds(form, x, repeats))
            low, middle, high = times[-1]
            kept = sum(t.nbytes for t in form.kept)
            row = (form.name, f"{deviations[-1]:.1e}", f"{middle:.2f}", f"{low:.2f}-{high:.2f}", kept)
            table.rows.append((*row, channel_order(form), form.angle)[: len(table.columns)])
    return Report(tables, lambda figure: draw(figure, table, deviations, times))


def id_table(length: int) -> Table:
    """The two position ids of ChatGLM-6B around the end of the prompt."""
    context = prompt_length(length)
    places = sorted({0, 1, *range(max(context - 2, 0), min(context + 3, length)), length - 1} & {*range(length)})
    ids = chatglm_ids(length, context)  # (2, T)
    return Table(
        f"ChatGLM-6B's two ids of each token: a prompt of {context} tokens, the last one the mask, "
        "then generated tokens",
        ("token", *map(str, places)),
        [("first id", *ids[0, places].tolist()), ("second id", *ids[1, places].tolist())],
    )


def milliseconds(form: RopeForm, x: Tensor, repeats: int) -> list[float]:
    """First quartile, median and third quartile of the times of ``repeats`` calls, after two calls to warm up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        form.rotate(x)
        times.append(1000 * (time.perf_counter() - start))
    return np.percentile(times[2:], (25, 50, 75)).tolist()


def channel_order(form: RopeForm) -> str:
    dim = form.pairs.numel()
    if torch.equal(form.pairs, neighbour_pairs(dim)):
        return "none needed"
    permutation = form.pairs.flatten().tolist()
    kind = "halves" if torch.equal(form.pairs, half_pairs(dim)) else "halves of each half"
    return f"{kind}: {', '.join(map(str, permutation[:4]))} .. {permutation[-1]}"


def draw(figure: Any, table: Table, deviations: list[float], times: list[list[float]]) -> None:
    """Bars for deviation and time, with thin lines between the quartiles of the times."""
    figure.set_size_inches(9, 4.5)
    names = [row[0] for row in table.rows]
    lows, medians, highs = np.array(times).T
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(names, deviations, log=True, color=BLUE)
    left.set(title="deviation", xlabel="largest difference from float64", ylabel="form", xlim=(1e-7, 200))
    errors = (medians - lows, highs - medians)
    right.barh(names, medians, xerr=errors, color=ORANGE, capsize=3, error_kw={"linewidth": 1})
    right.set(title="time", xlabel="ms per call: median and quartiles")
    for axes, column, ends in ((left, 1, deviations), (right, 2, highs)):
        axes.margins(x=0.2)
        for number, (row, end) in enumerate(zip(table.rows, ends)):
            axes.annotate(row[column], (end, number), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.grid(axis="x", alpha=0.3)
    left.invert_yaxis()
