"""What a topic finds: tables to print, and the picture to draw when somebody asks for it."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cli.files import write_atomically

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, RED, SKY, PINK, BLACK)
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (2, 1)))


@dataclass
class Table:
    """Rows under column names. Numbers align right, text left; ``notes`` go below, one line each."""

    title: str
    columns: Sequence[str]
    rows: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        cells = [[str(cell) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells)]
        right = [all(_is_number(row[i]) for row in cells[1:]) for i in range(len(widths))]
        lines = [
            "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)).rstrip() for row in cells
        ]
        return "\n".join([self.title, *lines, *self.notes])


def _is_number(cell: str) -> bool:
    return cell.lstrip("+-−<").rstrip("%*x±")[:1].isdigit() or cell in ("-", "")


@dataclass
class Report:
    tables: list[Table]
    draw: Callable[[Any], None]  # fills an empty matplotlib Figure
    code: int = 0  # the status the script ends with

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))


def check_plot(path: Path) -> None:
    """Raises ValueError where ``save_plot`` could not write ``path``: ask before anything is computed."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install -e '.[plot]'") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ValueError(f"--plot is {path}: its ending must be one of {', '.join(sorted(kinds))}")
    if not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"--plot is {path}: give a file in a directory that exists and can be written to")


def save_plot(draw: Callable[[Any], None], path: Path, size: tuple[float, float] = (8, 4.5)) -> None:
    """Draw into ``path``, whole or not at all. Raises ValueError as ``check_plot`` does."""
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=100, layout="constrained")
    draw(figure)
    write_atomically(path, lambda part: write_figure(figure, part, path.suffix[1:].lower()))


def write_figure(figure: Any, path: Path, kind: str) -> None:
    figure.savefig(path, format=kind)
    if kind == "png":  # 256 colours are enough, and a quarter of the bytes
        from PIL import Image

        with Image.open(path) as picture:
            small = picture.convert("RGB").quantize(256)
        small.save(path, format="png", optimize=True)


def label_ends(axes: Any, lines: list[tuple[str, str, float, float]], gap: float = 0.06) -> None:
    """Names beside the right ends of lines, (name, color, x, y) each, at least ``gap`` of the axis's height apart."""
    low, high = axes.get_ylim()
    heights: list[float] = []
    for name, color, x, y in sorted(lines, key=lambda line: line[3]):
        height = max([(y - low) / (high - low), *(before + gap for before in heights[-1:])])
        heights.append(height)
        axes.annotate(
            name, (x, y), (1.02, height), textcoords="axes fraction", color=color, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6},
        )  # fmt: skip


def short(value: float, digits: int = 4) -> str:
    """A number as a reader likes it: 4 decimals, powers of ten where those would show nothing."""
    if value and not math.isinf(value) and (abs(value) < 10.0 ** (1 - digits) or abs(value) >= 1e6):
        return f"{value:.1e}"
    return f"{value:.{digits}f}"
