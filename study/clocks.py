"""The frequencies of a head as clocks: how fast each pair rotates."""

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from model.config import Range, RopeScaling
from model.rope import precompute_freqs_cis

from .topic import BLUE, Report, Table

MAX_PAIRS = 8  # rows of the table, and clocks in a row of the picture
POSITIONS = (0, 1, 2, 6, 44, 1000)  # rows of the picture; 6 and 44 are near 1 and 7 turns of pair 0


def frequencies(dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """theta^(-2i/dim) of each pair, from the library's table: float64 (dim/2,), in radians per token."""
    return precompute_freqs_cis(dim, 2, theta, scaling)[1].angle().double()  # the angles at position 1


def shown_pairs(pairs: int) -> list[int]:
    """Up to MAX_PAIRS pairs, evenly spaced from the first to the last."""
    count = min(pairs, MAX_PAIRS)
    return sorted({round(i * (pairs - 1) / max(count - 1, 1)) for i in range(count)})


def clocks(
    head_dim: Annotated[int, "width of one head", Range(2, 1024)] = 16,
    theta: Annotated[float, "base of the frequencies", Range(1, 1e30)] = 10000.0,
    length: Annotated[int, "trained length, in tokens", Range(1, 10**9)] = 64,
) -> Report:
    """The pairs of a head as clocks: their frequencies, and how many tokens a turn takes."""
    freqs = frequencies(head_dim, theta)  # (D/2,)
    pairs = shown_pairs(len(freqs))
    speeds = Table(
        f"The pairs of a head of {head_dim}, base {theta:g}",
        ("pair i", "radians per token", "tokens per turn", f"turns in {length} tokens"),
    )
    for i in pairs:
        rate = float(freqs[i])
        turns = length * rate / (2 * math.pi)
        speeds.rows.append((i, f"{rate:.6f}", f"{2 * math.pi / rate:.2f}", f"{turns:.3f}"))
    return Report([speeds], lambda figure: draw(figure, freqs, pairs))


def period(tokens: float) -> str:
    return f"{tokens:.1f}" if tokens < 1000 else f"{tokens:.0f}"


def draw(figure: Any, freqs: Tensor, pairs: list[int]) -> None:
    """One row of clocks for each position; hands start at three o'clock and turn counterclockwise."""
    figure.set_size_inches(5.8, 1 + 0.62 * len(POSITIONS))
    grid = figure.subplots(len(POSITIONS), len(pairs), squeeze=False)
    circle = torch.linspace(0, 2 * math.pi, 40)
    for row, position in zip(grid, POSITIONS):
        for axes, i in zip(row, pairs):
            axes.plot(circle.cos(), circle.sin(), color="0.7", linewidth=1)
            angle = position * float(freqs[i])
            axes.plot([0, math.cos(angle)], [0, math.sin(angle)], color=BLUE, linewidth=2.2, solid_capstyle="round")
            axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal", xticks=[], yticks=[])
            for side in axes.spines.values():
                side.set_visible(False)
        row[0].set_ylabel(f"position\n{position}", rotation=0, ha="right", va="center")
    for axes, i in zip(grid[0], pairs):
        axes.set_title(f"{i}\n{period(2 * math.pi / float(freqs[i]))}")
    figure.suptitle("pair i, and the tokens that one turn takes")
