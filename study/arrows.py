"""Vectors of one pair as arrows in the plane, and the angles between them as arcs."""

import math
from typing import Any


def plane(axes: Any, reach: float) -> None:
    """Set up a plane with equal axes from -reach to reach, and lines through the origin."""
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.axhline(0, color="0.85", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.85", linewidth=0.8, zorder=0)


def arrow(axes: Any, tip: complex, color: str, **style: Any) -> None:
    axes.quiver(
        0, 0, tip.real, tip.imag, angles="xy", scale_units="xy", scale=1, color=color, **{"width": 0.012} | style
    )


def arc(axes: Any, start: float, end: float, radius: float, color: str) -> None:
    """An arc from angle ``start`` to ``end``, in radians, including full turns between them."""
    steps = max(2, math.ceil(abs(end - start) / 0.05))
    angles = [start + (end - start) * step / steps for step in range(steps + 1)]
    axes.plot([radius * math.cos(a) for a in angles], [radius * math.sin(a) for a in angles], color=color, linewidth=1)
