"""Long-term decay: RoFormer's bound (section 3.4.3) and the inner product itself, over distance."""

import math
from typing import Any

import torch
from torch import Tensor

from model.rope import apply_rotary_emb, precompute_freqs_cis

from .rotation_examples import rotate_to
from .topic import COLORS, Report, Table

D = 128  # width of the head
THETAS = (100.0, 10000.0, 500000.0)  # bases of the frequencies
LENGTH = 2**12  # the largest distance
BASE = 10000.0
PAIRS = 2000  # of random q and k
CORRELATIONS = (1.0, 0.3, 0.0)  # of q and k before the rotation


def inner(theta: float) -> Tensor:
    """q . k for q = k = ones, by distance, as a fraction of what it is at distance 0: (LENGTH + 1,)."""
    rotated = rotate_to(torch.ones(D), torch.arange(LENGTH + 1), precompute_freqs_cis(D, LENGTH + 1, theta))
    return rotated.sum(-1) / D  # (LENGTH + 1,): row 0 is not rotated, so this is its product with row n


def bound(theta: float) -> Tensor:
    """RoFormer's bound on |q . k| for q = k = ones, by distance n, relative to q . k at distance 0: (LENGTH + 1,).

    Equation 37 bounds the product by max |h_(i+1) - h_i| times |S_1| + .. + |S_(D/2)|, where S_m is the sum of
    exp(j n theta_i) over the first m pairs. Here every h_i is 2 and h_(D/2) is 0, so the maximum is 2, and q . k at
    distance 0 is D. The relative bound is therefore the mean of |S_m|. At distance 0 it is (D/2 + 1) / 2.
    """
    sums = precompute_freqs_cis(D, LENGTH + 1, theta).cumsum(-1)  # (LENGTH + 1, D/2)
    return sums.abs().mean(-1)


def decay() -> Report:
    """Long-term decay: RoFormer's bound and the inner product itself, over distance."""
    names = [f"{theta:g}" for theta in THETAS]
    products = [inner(theta) for theta in THETAS]
    bounds = [bound(theta) for theta in THETAS]
    # The bound if h_i = 2 (1 - 2i/D) instead, which falls evenly to h_(D/2) = 0. The maximum of |h_(i+1) - h_i| is then
    # 4/D instead of 2, and the product at distance 0 is D/2 + 1 instead of D.
    falling = bounds[1] * (4 / D) / 2 * D / (D / 2 + 1)
    curves = Table(
        f"q . k for q = k = ones, head_dim {D}, and RoFormer's bound on it; both divided by q . k at distance 0",
        ("distance", *(f"q.k {name}" for name in names), *(f"bound {name}" for name in names), f"falling {names[1]}"),
        notes=[
            "The number after q.k and bound is the base. No q . k can exceed 1 here, so a bound above 1 says nothing.",
            "falling: the bound for vectors whose products fall evenly, from 2 in the first pair to 0 after the last.",
        ],
    )
    for d in (0, *(2**i for i in range(13))):  # 0, 1, 2, 4 .. LENGTH
        cells = [f"{curve[d]:+.3f}" for curve in products] + [f"{curve[d]:.2f}" for curve in (*bounds, falling)]
        curves.rows.append((d, *cells))
    return Report([curves, correlated_pairs()], lambda figure: draw(figure, names, products))


def correlated_pairs() -> Table:
    """The mean score of random q and k by their correlation before the rotation, as a fraction of D."""
    q, noise = torch.randn(2, PAIRS, 1, 1, D, generator=torch.Generator().manual_seed(0))  # (PAIRS, 1, 1, D) each
    table = Table(
        f"Mean of q . k / D of {PAIRS:,} random q and k, base {BASE:g}, by their correlation before the rotation",
        ("distance", *(f"{correlation:g}" for correlation in CORRELATIONS)),
    )
    for distance in (0, *(4**i for i in range(1, 6))):
        rotation = precompute_freqs_cis(D, distance + 1, BASE)[-1:]  # (1, D/2)
        cells = []
        for correlation in CORRELATIONS:
            k = correlation * q + math.sqrt(1 - correlation**2) * noise  # at position 0, which is not rotated
            rotated = apply_rotary_emb(q, k, rotation)[0]  # (PAIRS, 1, 1, D)
            cells.append(f"{(rotated * k).sum(-1).mean() / D:+.3f}")
        table.rows.append((distance, *cells))
    return table


def quarter_octaves(curve: Tensor) -> list[tuple[float, float, float, float]]:
    """For each quarter of an octave of distances: its middle, and the mean, smallest and largest value there.

    Distances 0 to 5 are one range each.
    """
    ranges = []
    start = 0
    while start < len(curve):
        end = min(len(curve), max(start + 1, math.ceil(start * 2 ** (1 / 4))))
        part = curve[start:end]
        ranges.append(((start + end - 1) / 2, part.mean().item(), part.min().item(), part.max().item()))
        start = end
    return ranges


def draw(figure: Any, names: list[str], products: list[Tensor]) -> None:
    """The score by distance: for three bases, and for q and k that agree more and less before the rotation."""
    figure.set_size_inches(5.5, 6.4)
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    for name, color, dash, product in zip(names, COLORS, ("-", "--", "-."), products):
        draw_ranges(upper, product, color, dash, f"base {name}")
    for correlation, color, dash in zip(CORRELATIONS, (COLORS[1], COLORS[2], COLORS[3]), ("--", "-", ":")):
        draw_ranges(lower, correlation * products[1], color, dash, f"correlation {correlation:g}")
    for axes in (upper, lower):
        axes.set_xscale("symlog", linthresh=1)
        ticks = (0, 1, 10, 100, 1000)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xlim(0, LENGTH)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.grid(alpha=0.3)
        axes.legend()
    upper.set(title="q = k", ylabel="mean of q . k / D")
    lower.set(title=f"base {names[1]}", ylabel="mean of q . k / D", xlabel="distance m - n, in tokens")


def draw_ranges(axes: Any, curve: Tensor, color: str, dash: str, label: str) -> None:
    middles, means, lowest, highest = zip(*quarter_octaves(curve))
    axes.plot(middles, means, color=color, linewidth=2, linestyle=dash, label=label)
    axes.fill_between(middles, lowest, highest, color=color, alpha=0.2, linewidth=0)
