"""Does attention decay with distance by itself? RoFormer's bound and the inner product, over distance (3.4.3)."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import torch
from torch import Tensor

from ..cli.machine import check_memory
from ..rope import apply_rotary_emb, precompute_freqs_cis
from .topic import COLORS, Report, Table, check_even, check_options, check_theta


@dataclass(frozen=True)
class Decay:
    """Long-term decay: RoFormer's bound and the inner product itself, over distance."""

    head_dim: Annotated[int, "width of one head"] = 128
    length: Annotated[int, "largest distance"] = 4096
    thetas: Annotated[tuple[float, ...], "bases of the frequencies"] = (100.0, 10000.0, 500000.0)


FIRST = 64  # the picture shows each distance up to here, and farther ones as a mean with a band


def inner(dim: int, length: int, theta: float) -> Tensor:
    """q . k for q = k = ones, by distance, as a fraction of what it is at distance 0: (length + 1,)."""
    ones = torch.ones(1, length + 1, 1, dim)  # (1, length + 1, 1, D)
    rotated = apply_rotary_emb(ones, ones, precompute_freqs_cis(dim, length + 1, theta))[0]
    return rotated.sum(-1).flatten() / dim  # (length + 1,): row 0 is not rotated, so this is its product with row n


def bound(dim: int, length: int, theta: float) -> Tensor:
    """Mean of |S_j|, by distance n: (length + 1,). S_j is the sum of e^(i n theta_i) over the first j pairs.

    Equation 37 bounds the product by max |h_(i+1) - h_i| times their sum. At distance 0 the mean is (D/2 + 1) / 2.
    """
    sums = precompute_freqs_cis(dim, length + 1, theta).cumsum(-1)  # (length + 1, D/2)
    return sums.abs().mean(-1)


def run(options: Decay) -> Report:
    check_even(options, "head_dim")
    check_options(options, 2, "length")
    if not options.thetas:
        raise ValueError("thetas is empty: give at least one base, such as 10000")
    for theta in options.thetas:
        check_theta(theta)
    D = options.head_dim
    check_memory(90 * options.length * D + 24 * D**2, f"length {options.length} with head_dim {D}")
    names = [f"{theta:g}" for theta in options.thetas]
    distances = [0, *(2**i for i in range(options.length.bit_length()))]
    products = [inner(options.head_dim, options.length, theta) for theta in options.thetas]
    bounds = [bound(options.head_dim, options.length, theta) for theta in options.thetas]
    curves = Table(
        f"q . k for q = k = ones, head_dim {options.head_dim}, relative to distance 0; and the bound's mean |S_j|",
        ("distance", *(f"q.k {name}" for name in names), *(f"bound {name}" for name in names)),
        [(d, *(f"{curve[d]:+.3f}" for curve in products), *(f"{curve[d]:.2f}" for curve in bounds)) for d in distances],
    )
    swings = Table(
        "How it oscillates",
        ("theta", "first rise", "rises", "first below 0", "lowest", "bound rises"),
        [
            (name, *_oscillation(product), f"{_rises(limit).float().mean():.0%}")
            for name, product, limit in zip(names, products, bounds)
        ],
        ["first rise: the first distance whose product exceeds the one before. rises: how many steps go up."],
    )
    return Report([curves, swings, even_spacing(options)], lambda figure: draw(figure, names, products, bounds))


def even_spacing(options: Decay) -> Table:
    """Is any smooth, falling choice of frequencies as good? Evenly spaced ones come back in phase."""
    D = options.head_dim
    distances = torch.arange(round(math.pi * D) + 2)
    product = torch.cos(torch.outer(distances, 1 - torch.arange(D // 2) / (D / 2))).mean(-1)  # (distances,)
    beyond = D // 2 + int(product[D // 2 :].argmax())  # the first distances are near 1 in any case
    return Table(
        "Frequencies 1 - 2i/D instead: evenly spaced",
        ("distance", "q.k"),
        [(d, f"{product[d]:+.3f}") for d in sorted({1, D // 8, D // 2, beyond})],
        [f"At distance {beyond}, about pi D, all pairs are in phase again: that token scores like the token itself."],
    )


def _rises(curve: Tensor) -> Tensor:
    return curve[1:] > curve[:-1]


def _oscillation(curve: Tensor) -> tuple[str, str, str, str]:
    rises = _rises(curve)
    below = curve < 0
    first_rise = str(int(rises.nonzero()[0]) + 1) if rises.any() else "-"
    first_below = str(int(below.nonzero()[0])) if below.any() else "-"
    return first_rise, f"{rises.float().mean():.0%}", first_below, f"{curve.min():+.3f}"


def quarter_octaves(curve: Tensor) -> list[tuple[float, float, float, float]]:
    """From FIRST on, for each quarter of an octave: its middle, and the mean, least and largest value there."""
    last = len(curve) - 1
    edges = [min(FIRST, last - 1)]
    while edges[-1] < last:
        edges.append(min(last, math.ceil(edges[-1] * 2 ** (1 / 4) + 1)))
    found = []
    for a, b in pairwise(edges):
        part = curve[a : b + 1]
        found.append((math.sqrt(a * b), part.mean().item(), part.min().item(), part.max().item()))
    return found


def draw(figure: Any, names: list[str], products: list[Tensor], bounds: list[Tensor]) -> None:
    figure.set_size_inches(9, 4.5)
    left, right = figure.subplots(1, 2)
    for axes, curves in ((left, products), (right, bounds)):
        for name, color, dash, curve in zip(names, COLORS * len(names), ("-", "--", "-.", ":") * len(names), curves):
            near = curve[: FIRST + 1]
            middles, means, least, most = zip(*quarter_octaves(curve))
            axes.plot(near, color=color, linewidth=1, linestyle=dash)
            axes.plot(middles, means, color=color, linewidth=2, linestyle=dash, label=f"theta = {name}")
            axes.fill_between(middles, least, most, color=color, alpha=0.2, linewidth=0)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, len(curves[0]) - 1)
        axes.set_xlabel("distance m - n, in tokens")
        axes.grid(alpha=0.3)
    left.set(title="inner product for q = k = ones", ylabel="q . k, relative to distance 0")
    left.axhline(0, color="black", linewidth=0.8)
    right.set(title="RoFormer's bound", ylabel="mean |S_j|")
    right.legend()
    figure.suptitle(f"thin: each distance up to {FIRST}; thick: mean of nearby distances, with the band they lie in")
