"""to_neighbours and to_halves: their probes, and usual mistakes by where a row goes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.weights.layout import to_halves, to_pairs

from .compare import Exercise, Mistake, View, first, near, of_parts, plain
from .rope import HALVES, NEIGHBOURS


def permuted(layout: str, wq: Tensor, wk: Tensor, n_heads: int, n_kv_heads: int) -> list[Tensor]:
    """The rows of both in this layout, if they are in the other one."""
    return [(to_pairs if layout == NEIGHBOURS else to_halves)(w, len(wq) // n_heads) for w in (wq, wk)]


def weights(D: int, n_heads: int, n_kv_heads: int, dim: int) -> tuple[Any, ...]:
    """W_q and W_k, whose numbers are 100 times their row, plus their column, and negative in W_k; and the heads."""
    wq, wk = (100 * torch.arange(D * n)[:, None] + torch.arange(dim) + 1.0 for n in (n_heads, n_kv_heads))
    return wq, -wk, n_heads, n_kv_heads


def probes(function: View) -> Iterator[tuple[str, Any]]:
    for size in ((16, 4, 2, 16), (8, 3, 3, 24)):
        wq, wk, *counts = weights(*size)
        yield f"wq {tuple(wq.shape)}, wk {tuple(wk.shape)}", function(wq, wk, *counts)


# fmt: off
def mistakes(layout: str, function: View, _: str) -> Iterator[Mistake]:
    given = weights(16, 4, 2, 32)
    inverse = permuted(HALVES if layout == NEIGHBOURS else NEIGHBOURS, *given)
    found = [row_mistakes(*parts, layout) for parts in zip(given, plain(function(*given)), inverse)]
    yield from of_parts(("wq", "wk"), found)


def row_mistakes(w: Tensor, x: Tensor, inverse: Tensor, layout: str) -> list[Mistake]:
    """From where each row of one matrix goes."""
    def of_heads(*counts: int) -> bool:
        return any(near(x, permuted(layout, w, w, count, count)[0].double()) for count in counts)

    return first(
        (of_heads(len(w) // 16), ""),
        (near(x, w.double()), "not permuted: scores multiply channel by channel"),
        (near(x, inverse.double()), "the other direction: row i of halves is 2i of neighbours"),
        (of_heads(1, 2, 4, 8), "the width of a head: wq.shape[0] / n_heads in both"),
        (near(x.sort(1)[0], w.double().sort(1)[0]), "columns are permuted: RoPE pairs rows, axis 0"),
    )
# fmt: on


def exercise_to(layout: str) -> Exercise:
    arguments, ours = ("wq", "wk", "n_heads", "n_kv_heads"), partial(permuted, layout)
    return Exercise(3, arguments, lambda _: ours, probes, ("row", "column"), arguments[:2], partial(mistakes, layout))


TO_NEIGHBOURS, TO_HALVES = map(exercise_to, (NEIGHBOURS, HALVES))
