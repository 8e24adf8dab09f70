"""Which two channels of a head form a pair, in the layouts of published code, and what happens if they are mixed."""

import math
from typing import Any

import torch
from torch import Tensor

from .topic import COLORS, Report, Table

D = 8  # channels of the head
BASE = 10000.0
PLACES = ((5, 0), (105, 100), (1005, 1000))  # positions of the query and the key


def rotate(x: Tensor, m: int, pairs: list[tuple[int, int]], angles: Tensor) -> Tensor:
    """Rotate the two channels of ``pairs[i]`` in x (D,) by m angles[i]: (D,)."""
    out = x.clone()
    for (a, b), theta in zip(pairs, angles.tolist()):
        cos, sin = math.cos(m * theta), math.sin(m * theta)
        out[a], out[b] = x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos
    return out


def mix(x: Tensor, m: int, angles: Tensor) -> Tensor:
    """``rotate_half`` with the table of the neighbours: channel i pairs with i + D/2, but θ_0, θ_0, θ_1 … turn them."""
    half = len(x) // 2
    angle = m * angles.repeat_interleave(2)  # (D,)
    return x * angle.cos() + torch.cat((-x[half:], x[:half])) * angle.sin()


def example() -> dict[str, list[float]]:
    """The query and the key whose scores are shown, (D,) each, as numbers for the article's figure."""
    q, k = torch.randn(2, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return {"q": q.tolist(), "k": k.tolist()}


def layouts() -> Report:
    """Which two channels are a pair: neighbours, halves, and a mixture that is not relative."""
    angles = BASE ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,); at 1000, float32 is off by 1e-4
    neighbours = [(2 * i, 2 * i + 1) for i in range(D // 2)]
    halves = [(i, i + D // 2) for i in range(D // 2)]
    q, k = (torch.tensor(x, dtype=torch.float64) for x in example().values())  # (D,) each
    order = torch.tensor(neighbours).T.flatten()  # (D,): 0 2 4 6 1 3 5 7
    rotations = {
        "neighbours": (neighbours, lambda x, m: rotate(x, m, neighbours, angles)),
        "halves": (halves, lambda x, m: rotate(x, m, halves, angles)),
        "halves, q and k permuted": (halves, lambda x, m: rotate(x[order], m, halves, angles)),
        "mixed": (halves, lambda x, m: mix(x, m, angles)),
    }
    table = Table(
        f"The pairs of a head of {D}, and the score of one q and one k, 5 apart",
        ("layout", "pairs", *(f"q at {m}, k at {n}" for m, n in PLACES)),
        notes=[
            "permuted: channels 2i and 2i + 1 moved to i and i + D/2.",
            "mixed: the channels of halves, turned by the angles of neighbours.",
        ],
    )
    for name, (pairs, turn) in rotations.items():
        scores = [turn(q, m) @ turn(k, n) for m, n in PLACES]
        shown = " ".join(f"({a},{b})" for a, b in pairs)
        table.rows.append((name, shown, *(f"{score:.4f}" for score in scores)))
    return Report([table], lambda figure: draw(figure, {"neighbours": neighbours, "halves": halves}))


def draw(figure: Any, pairs_of: dict[str, list[tuple[int, int]]]) -> None:
    """Eight coloured channels for each layout: channels of one colour are a pair. Arcs join them."""
    figure.set_size_inches(5.5, 3.4)
    code = {"neighbours": "Meta: view_as_complex", "halves": "transformers: rotate_half"}
    for axes, (name, pairs) in zip(figure.subplots(2, 1), pairs_of.items()):
        for i, (a, b) in enumerate(pairs):
            for channel in (a, b):
                axes.barh(0, 0.9, left=channel - 0.45, height=0.8, color=COLORS[i])
                axes.text(channel, 0, channel, ha="center", va="center", color="white", fontweight="bold")
            x = torch.linspace(a, b, 30)
            axes.plot(x, 0.45 + (x - a) * (b - x) * 1.4 / (b - a) ** 1.5, color=COLORS[i], linewidth=2)
            axes.text((a + b) / 2, 0.55 + 0.35 * (b - a) ** 0.5, f"pair {i}", ha="center", color=COLORS[i])
        axes.set(xlim=(-0.6, D - 0.4), ylim=(-0.5, 1.7), xticks=[], yticks=[])
        axes.set_title(f"{name} ({code[name]})", loc="left")
        for side in axes.spines.values():
            side.set_visible(False)
