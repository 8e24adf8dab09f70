"""The worked example: five vectors of length 4, one for each position, cut into two pairs and turned."""

import cmath
from typing import Any

import torch

from ..rope import apply_rotary_emb, precompute_freqs_cis
from .options import Rotate
from .report import Report, Table

VECTORS = ((1, 0, 1, 0), (0, 1, 0, 1), (1, 1, 1, 1), (1, -1, 1, -1), (0.5, 0.5, 0.5, 0.5))

# What a published tutorial prints in its two columns of rotated pairs.
PRINTED = (
    ("1", "0", "1", "0"),
    ("-0.8415", "0.5403", "-0.0100", "0.9999"),
    ("-1.3254", "0.4932", "0.9798", "1.0198"),
    ("-0.8489", "1.1311", "1.0296", "-0.9696"),
    ("0.0516", "-0.7052", "0.4796", "0.5196"),
)


def turned(theta: float) -> torch.Tensor:
    """The five vectors at positions 0 .. 4, turned: (5, 4)."""
    x = torch.tensor(VECTORS)[None, :, None]  # (1, 5, 1, 4)
    return apply_rotary_emb(x, x, precompute_freqs_cis(4, 5, theta))[0][0, :, 0]  # (5, 4)


def exact(m: int, vector: tuple[float, ...], theta: float) -> list[float]:
    """The four numbers of position m in float64, for the last digit's sake."""
    numbers = []
    for i in (0, 1):
        new = complex(*vector[2 * i : 2 * i + 2]) * cmath.rect(1, m * theta ** (-2 * i / 4))
        numbers += [new.real, new.imag]
    return numbers


def run(options: Rotate) -> Report:
    angles = precompute_freqs_cis(4, 5, options.theta).angle() % (2 * torch.pi)  # (5, 2)
    table = Table(
        "The five vectors, turned",
        ("position", "vector", "pair 1", "pair 2", "angles", "pair 1 turned", "pair 2 turned"),
    )
    for m, (vector, new) in enumerate(zip(VECTORS, turned(options.theta).tolist())):
        cells = [f"{value:.4f}" for value in new]
        for i, (value, printed) in enumerate(zip(exact(m, vector, options.theta), PRINTED[m])):
            if options.theta == Rotate.theta and float(printed) != round(value, 4):
                cells[i] += "*"
                table.notes.append(f"* position {m}: often printed as {printed}; {value:.7f} rounds to {value:.4f}")
        old = [f"{value:g}" for value in vector]
        turns = ", ".join(f"{angle:.4g}" for angle in angles[m].tolist())
        pairs = [f"[{a}, {b}]" for a, b in (old[:2], old[2:], cells[:2], cells[2:])]
        table.rows.append((m, f"[{', '.join(old)}]", *pairs[:2], turns, *pairs[2:]))
    return Report([table], lambda figure: draw(figure, options.theta))


def draw(figure: Any, theta: float) -> None:
    after = turned(theta)  # (5, 4)
    for number, axes in enumerate(figure.subplots(1, 2)):
        for m, vector in enumerate(VECTORS):
            old, new = vector[2 * number : 2 * number + 2], after[m, 2 * number : 2 * number + 2].tolist()
            style = {"angles": "xy", "scale_units": "xy", "scale": 1, "color": f"C{m}", "width": 0.008}
            axes.quiver(0, 0, *old, **style | {"alpha": 0.25})
            axes.quiver(0, 0, *new, **style, label=f"position {m}")
        axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal")
        axes.set_title(f"pair {number + 1}: {theta ** (-number / 2):g} radians a token")
        axes.grid(alpha=0.3)
    axes.legend(loc="lower left", fontsize=8)
