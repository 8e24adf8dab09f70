"""The forms of RoPE in study/positions/rope_forms.py, measured: deviation, time, memory."""

import math
import statistics
import time
from typing import Annotated, Any

import torch
from torch import Tensor

from model.cli.machine import check_memory
from model.ranges import Range

from .positions.rope_forms import RopeForm, chatglm_family, chatglm_ids, half_pairs, neighbour_pairs, plain_forms
from .topic import BLUE, MAX_HEAD_DIM, ORANGE, Report, Table, check_even

BLOCKS = 4  # equal parts of the text for ChatGLM; the first is the prompt


def forms(
    head_dim: Annotated[int, "width of one head", Range(2, MAX_HEAD_DIM)] = 64,
    length: Annotated[int, "positions", Range(1)] = 512,
    heads: Annotated[int, "heads", Range(1)] = 12,
    chatglm: Annotated[bool, "measure the rotations of ChatGLM instead, which have other angles"] = False,
    ratio: Annotated[float, "rope_ratio of ChatGLM2-32k: positions are divided by it", Range(1)] = 16.0,
    repeats: Annotated[int, "timed calls, of which the median is shown", Range(1, 10_000)] = 50,
) -> Report:
    """The published forms of RoPE, side by side: deviation, time, memory, permutation."""
    check_even("head_dim", head_dim)
    size = length * head_dim
    check_memory(
        size * (16 * head_dim + 100 * heads + 160),
        f"length {length} with {heads} heads of {head_dim}",
    )
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
    if not chatglm:
        measured = list(plain_forms(head_dim, length))
    else:
        measured = list(chatglm_family(head_dim, length, ratio, BLOCKS))
        table.columns = (*table.columns, "angle of pair i")
        tables.append(id_table(length))
    with torch.no_grad():
        for form in measured:
            off_by, kept_bytes = f"{deviation(form, x):.1e}", sum(t.nbytes for t in form.kept)
            if off_by == "nan":
                off_by = "-"
                table.notes.append(f"-: {form.name}: float16 rounds positions of 65520 and more to infinity.")
            low, middle, high = milliseconds(form, x, repeats)
            row = (form.name, off_by, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", kept_bytes, channel_order(form))
            table.rows.append((*row, angle(form.name, ratio)) if chatglm else row)
    return Report(tables, lambda figure: draw(figure, table))


def id_table(length: int) -> Table:
    """The two position ids of ChatGLM-6B around the end of the prompt."""
    context = math.ceil(length / BLOCKS)
    places = sorted({0, 1, *range(max(context - 2, 0), min(context + 3, length)), length - 1} & {*range(length)})
    ids = chatglm_ids(length, context)  # (2, T)
    return Table(
        f"ChatGLM-6B's two ids of each token: a prompt of {context} tokens, the last one the mask, "
        "then generated tokens",
        ("token", *map(str, places)),
        [("first id", *ids[0, places].tolist()), ("second id", *ids[1, places].tolist())],
    )


def angle(name: str, ratio: float) -> str:
    """The angles by which one of ChatGLM's forms rotates pair i of the two halves of the head."""
    if name == "position and block":
        return "p theta^(-4i/D), (p mod block) theta^(-4i/D)"
    if name.startswith("ChatGLM-6B"):
        return "first id theta^(-4i/D), second id theta^(-4i/D)"
    return "p theta^(-4i/D), 0" if name == "ChatGLM2" or ratio == 1 else f"p/{ratio:g} theta^(-4i/D), 0"


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


def draw(figure: Any, table: Table) -> None:
    """Bars for deviation and time, with thin lines between the quartiles of the times."""
    figure.set_size_inches(9, 4.5)
    names = [row[0] for row in table.rows]
    left, right = figure.subplots(1, 2, sharey=True)
    deviations = [1e-7 if row[1] == "-" else float(row[1]) for row in table.rows]  # the axis begins at 1e-7
    left.barh(names, deviations, log=True, color=BLUE)
    left.set(title="deviation", xlabel="largest difference from float64", ylabel="form", xlim=(1e-7, 200))
    times = [float(row[2]) for row in table.rows]
    spans = [[float(value) for value in row[3].split("-")] for row in table.rows]
    errors = [
        [max(0.0, middle - low) for middle, (low, _) in zip(times, spans)],
        [max(0.0, high - middle) for middle, (_, high) in zip(times, spans)],
    ]
    right.barh(names, times, xerr=errors, color=ORANGE, capsize=3, error_kw={"linewidth": 1})
    right.set(title="time", xlabel="ms per call: median and quartiles")
    for axes, column, lengths in ((left, 1, deviations), (right, 2, [high for _, high in spans])):
        axes.margins(x=0.2)
        for number, row in enumerate(table.rows):
            axes.annotate(
                row[column], (lengths[number], number), (4, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.grid(axis="x", alpha=0.3)
    left.invert_yaxis()
