"""The forms of RoPE in study/positions/rope_forms.py, measured: deviation, time, memory."""

import math
import statistics
import time
from typing import Annotated, Any

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
from .topic import BLUE, MAX_HEAD_DIM, ORANGE, Report, Table, check_even


def forms(
    head_dim: Annotated[int, "width of one head", Range(2, MAX_HEAD_DIM)] = 64,
    length: Annotated[int, "positions", Range(1)] = 512,
    heads: Annotated[int, "heads", Range(1)] = 12,
    chatglm: Annotated[bool, "measure the rotations of ChatGLM instead, which have other angles"] = False,
    repeats: Annotated[int, "timed calls, of which the median is shown", Range(1, 10_000)] = 50,
) -> Report:
    """The published forms of RoPE, side by side: deviation, time, memory, permutation."""
    check_even("head_dim", head_dim)
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
            deviations.append(deviation(form, x))
            times.append(milliseconds(form, x, repeats))
            low, middle, high = times[-1]
            off_by, kept_bytes = f"{deviations[-1]:.1e}", sum(t.nbytes for t in form.kept)
            if off_by == "nan":
                off_by = "-"
                table.notes.append(f"-: {form.name}: float16 rounds positions of 65520 and more to infinity.")
            row = (form.name, off_by, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", kept_bytes, channel_order(form))
            table.rows.append((*row, form.angle) if chatglm else row)
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


def deviation(form: RopeForm, x: Tensor) -> float:
    return float((form.rotate(x).double() - form.in_float64(x)).abs().max())


def milliseconds(form: RopeForm, x: Tensor, repeats: int) -> tuple[float, float, float]:
    """First quartile, median and third quartile of the times of ``repeats`` calls, after two calls to warm up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        form.rotate(x)
        times.append(1000 * (time.perf_counter() - start))
    ordered = sorted(times[2:])
    return ordered[repeats // 4], statistics.median(ordered), ordered[-1 - repeats // 4]


def channel_order(form: RopeForm) -> str:
    dim = form.pairs.numel()
    if torch.equal(form.pairs, neighbour_pairs(dim)):
        return "none needed"
    permutation = form.pairs.flatten().tolist()
    kind = "halves" if torch.equal(form.pairs, half_pairs(dim)) else "halves of each half"
    return f"{kind}: {', '.join(map(str, permutation[:4]))} .. {permutation[-1]}"


def draw(figure: Any, table: Table, deviations: list[float], times: list[tuple[float, float, float]]) -> None:
    """Bars for deviation and time, with thin lines between the quartiles of the times."""
    figure.set_size_inches(9, 4.5)
    names = [row[0] for row in table.rows]
    left, right = figure.subplots(1, 2, sharey=True)
    lengths = [1e-7 if math.isnan(deviation) else deviation for deviation in deviations]  # the axis begins at 1e-7
    left.barh(names, lengths, log=True, color=BLUE)
    left.set(title="deviation", xlabel="largest difference from float64", ylabel="form", xlim=(1e-7, 200))
    errors = [[middle - low for low, middle, _ in times], [high - middle for _, middle, high in times]]
    medians = [middle for _, middle, _ in times]
    right.barh(names, medians, xerr=errors, color=ORANGE, capsize=3, error_kw={"linewidth": 1})
    right.set(title="time", xlabel="ms per call: median and quartiles")
    for axes, column, ends in ((left, 1, lengths), (right, 2, [high for _, _, high in times])):
        axes.margins(x=0.2)
        for number, (row, end) in enumerate(zip(table.rows, ends)):
            axes.annotate(row[column], (end, number), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.grid(axis="x", alpha=0.3)
    left.invert_yaxis()
