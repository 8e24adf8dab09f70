"""The forms of RoPE in study/positions/rope_forms.py, measured: deviation, time, memory."""

import time
from typing import Annotated

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
from .topic import Report, Table

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
    with torch.no_grad():
        for form in measured:
            deviation = float((form.rotate(x).double() - form.in_float64(x)).abs().max())
            low, middle, high = milliseconds(form, x)
            kept = sum(t.nbytes for t in form.kept)
            row = (form.name, f"{deviation:.1e}", f"{middle:.2f}", f"{low:.2f}-{high:.2f}", kept)
            table.rows.append((*row, channel_order(form), form.angle)[: len(table.columns)])
    return Report(tables)


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
