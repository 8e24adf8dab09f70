"""The rotation itself: the worked example of five vectors, and why a score depends on the distance only."""

import cmath
import math
from typing import Annotated, Any

import torch
from torch import Tensor

from model.rope import apply_rotary_emb, precompute_freqs_cis

from .arrows import arc, arrow, plane
from .topic import COLORS, Report, Table
from .word_order import QUERY

VECTORS = ("1,0,1,0", "0,1,0,1", "1,1,1,1", "1,-1,1,-1", "0.5,0.5,0.5,0.5")
THETA = 10000.0
DISTANCE = 7  # of the query from the key, in positions
SHIFTS = (0, 1, 10, 100, 1000, 4000)


def exact(m: int, vector: tuple[float, ...]) -> list[float]:
    """The four numbers of position m in float64, because float32 rounds cos 0.01 to just below 0.99995."""
    numbers = []
    for i in (0, 1):
        rotated = complex(*vector[2 * i : 2 * i + 2]) * cmath.rect(1, m * THETA ** (-2 * i / 4))
        numbers += [rotated.real, rotated.imag]
    return numbers


def four_numbers(text: str) -> tuple[float, ...]:
    """``1,0,1,0`` -> (1.0, 0.0, 1.0, 0.0). Raises ValueError if the text is anything else."""
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"vectors has {text!r}: give four numbers, such as 1,0,1,0")
    return numbers


def rotate(
    vectors: Annotated[tuple[str, ...], "vectors of four numbers, at positions 0, 1, 2 ..."] = VECTORS,
) -> Report:
    """The worked example: vectors of four numbers, rotated pair by pair."""
    rows = [four_numbers(vector) for vector in vectors]
    angles = precompute_freqs_cis(4, len(rows)).angle() % (2 * torch.pi)  # (vectors, 2)
    table = Table(
        "The five vectors, rotated" if vectors == VECTORS else "The vectors, rotated",
        ("position", "vector", "pair 0", "pair 1", "angles", "pair 0 rotated", "pair 1 rotated"),
    )
    for m, vector in enumerate(rows):
        rotated = exact(m, vector)
        cells = [f"{value:.4f}" for value in rotated]
        plain = [f"{value:g}" for value in vector]
        by = ", ".join(f"{angle:.4g}" for angle in angles[m].tolist())
        pairs = [f"[{a}, {b}]" for a, b in (plain[:2], plain[2:], cells[:2], cells[2:])]
        table.rows.append((m, f"[{', '.join(plain)}]", *pairs[:2], by, *pairs[2:]))
    return Report([table], draw_rotate)


def draw_rotate(figure: Any) -> None:
    """The query of the walk at positions 0 to 4, in a fast and a slow pair."""
    figure.set_size_inches(5.5, 3.2)
    fast, slow = figure.subplots(1, 2)
    for axes, speed, name in ((fast, 1.0, "pair 0: 1 rad per position"), (slow, 0.01, "pair 1: 0.01 rad")):
        plane(axes, 1.25)
        for m in range(5):
            tip = QUERY * cmath.rect(1, m * speed)
            arrow(axes, tip, COLORS[m])
            if speed == 1:
                axes.text(1.17 * tip.real, 1.17 * tip.imag, str(m), color=COLORS[m], ha="center", va="center")
                arc(axes, cmath.phase(QUERY), cmath.phase(QUERY) + m, 0.13 * m, COLORS[m])
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], title=name)
    slow.text(1.17 * QUERY.real - 0.1, 1.17 * QUERY.imag, "0 to 4", ha="center", va="center")
    figure.suptitle("the query (0.5, 0.8) at positions 0 to 4")


def rotate_to(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """One vector (D,) rotated to each of the positions: (positions, D)."""
    rows = x.expand(1, len(positions), 1, -1)  # (1, positions, 1, D)
    return apply_rotary_emb(rows, rows, table[positions])[0][0, :, 0]  # (positions, D)


def relative() -> Report:
    """Scores depend on m - n only if q and k are rotated, and not if the embedding is."""
    D = 64
    random = torch.randn(2 * D + 2, D, generator=torch.Generator().manual_seed(0))
    (x, y), wq, wk = random.split((2, D, D))  # (D,) each, (D, D) each
    wq, wk = wq / D**0.5, wk / D**0.5
    n = torch.arange(SHIFTS[-1] + 1)  # positions of y; x is at n + DISTANCE
    rotations = precompute_freqs_cis(D, len(n) + DISTANCE)  # (positions, D/2)
    q, k = rotate_to(wq @ x, n + DISTANCE, rotations), rotate_to(wk @ y, n, rotations)  # (positions, D) each
    moved_x, moved_y = rotate_to(x, n + DISTANCE, rotations), rotate_to(y, n, rotations)  # (positions, D) each
    scores = (q * k).sum(-1)  # (positions,)
    embedding_scores = ((moved_x @ wq.T) * (moved_y @ wk.T)).sum(-1)  # (positions,)
    norms = q.norm(dim=-1) / (wq @ x).norm()  # (positions,)
    columns = (scores, embedding_scores, norms)
    table = Table(
        f"One q and one k, {DISTANCE} apart, at increasing positions",
        ("n", "m", "q and k rotated", "embedding rotated", "norm of q, rotated / plain"),
        [(shift, shift + DISTANCE, *(f"{column[shift]:.4f}" for column in columns)) for shift in SHIFTS],
        [f"smallest and largest: over all n from 0 to {SHIFTS[-1]}."],
    )
    table.rows += [
        ("smallest", "", *(f"{column.min():.4f}" for column in columns)),
        ("largest", "", *(f"{column.max():.4f}" for column in columns)),
    ]
    return Report([table])
