"""The forms of RoPE in study/positions/rope_forms.py, measured: deviation, time, memory."""

import time
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from .positions.rope_forms import (
    RopeForm,
    chatglm_family,
    chatglm_ids,
    half_pairs,
    neighbour_pairs,
    plain_forms,
    prompt_length,
)
from .topic import BLUE, ORANGE, Report, Table

HEAD_DIM, LENGTH, HEADS = 64, 512, 12
REPEATS = 50  # timed calls, of which the median is shown


def forms(
    chatglm: Annotated[bool, "measure the rotations of ChatGLM instead, which have other angles"] = False,
) -> Report:
    """The published forms of RoPE, side by side: deviation, time, memory, permutation."""
    x = torch.randn(1, LENGTH, HEADS, HEAD_DIM, generator=torch.manual_seed(0))  # (1, T, H, D)
    table = Table(
        f"RoPE on {LENGTH} positions, {HEADS} heads of {HEAD_DIM}, float32",
        ("form", "off by", "ms/call", "quartiles", "bytes kept", "to LLaMA's order"),
        notes=[
            "off by: largest deviation from the same rotation in float64.",
            "ms/call: median of the calls. quartiles: first and third quartile of the calls.",
            "to LLaMA's order: x[..., order] puts pairs where LLaMA has them; shown: order's first four and last.",
        ],
    )
    tables = [table]
    measured = list(chatglm_family(HEAD_DIM, LENGTH) if chatglm else plain_forms(HEAD_DIM, LENGTH))
    if chatglm:
        table.columns = (*table.columns, "angle of pair i")
        tables.append(id_table())
    deviations, times = [], []
    with torch.no_grad():
        for form in measured:
            deviations.append(float((form.rotate(x).double() - form.in_float64(x)).abs().max()))
            times.append(milliseconds(form, x))
            low, middle, high = times[-1]
            kept = sum(t.nbytes for t in form.kept)
            row = (form.name, f"{deviations[-1]:.1e}", f"{middle:.2f}", f"{low:.2f}-{high:.2f}", kept)
            table.rows.append((*row, channel_order(form), form.angle)[: len(table.columns)])
    return Report(tables, lambda figure: draw(figure, table, deviations, times))


def id_table() -> Table:
    """The two position ids of ChatGLM-6B around the end of the prompt."""
    context = prompt_length(LENGTH)
    places = [0, 1, *range(context - 2, context + 3), LENGTH - 1]
    ids = chatglm_ids(LENGTH, context)  # (2, T)
    return Table(
        f"ChatGLM-6B's two ids of each token: a prompt of {context} tokens, the last one the mask, "
        "then generated tokens",
        ("token", *map(str, places)),
        [("first id", *ids[0, places].tolist()), ("second id", *ids[1, places].tolist())],
    )


def milliseconds(form: RopeForm, x: Tensor) -> list[float]:
    """First quartile, median and third quartile of the times of REPEATS calls, after two calls to warm up."""
    times = []
    for _ in range(REPEATS + 2):
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
