"""Shared by all topics: tables, pictures, checks of options, and opening a trained model and its text."""

import io
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.cli.files import write_atomically
from model.text.dataset import META, load_dataset
from model.text.sources import PYTHON_DOCS, open_documents
from model.text.tokenizer import Tokenizer
from model.transformer import Transformer
from model.weights import Checkpoint, open_checkpoint
from model.weights.checkpoint import newest_run
from model.weights.variants import name_of

from .chinese import chinese_font, in_chinese, translate_labels
from .positions import SCHEMES

# Okabe and Ito's palette, which colour-blind readers can distinguish.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, RED, SKY, PINK, BLACK)
WINDOWS = 16  # texts on which a trained model is measured, if its validation text is long enough
# Style of an SVG in dark pages: light and dark exchanged, colours kept; a map keeps its scale.
DARK = b"""<style>@media (prefers-color-scheme: dark) {
 #figure_1 { filter: invert(0.9) hue-rotate(180deg) } image { filter: hue-rotate(180deg) invert(1) } }</style>
"""
Translate = Callable[[str], str]  # of a phrase: str for English, in_chinese for Chinese
ModelPath = Annotated[Path | None, "a trained model (default: the newest run)"]


class Text(NamedTuple):
    """A text whose phrases are translated before its lines are wrapped, with a section of chinese.toml."""

    write: Callable[[Translate], str]
    section: str

    def __str__(self) -> str:
        return self.write(str)

    def in_chinese(self) -> str:
        return self.write(partial(in_chinese, section=self.section))


@dataclass
class Table:
    """Rows under column names: numbers aligned right, text left. ``notes`` follow, one line each."""

    title: str
    columns: Sequence[str]
    rows: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        cells = [[str(cell) for cell in row] for row in (self.columns, *self.rows)]
        columns = []
        for column in zip(*cells):
            widest = max(map(width, column))
            is_numeric = all(cell.lstrip("+-−<")[:1].isdigit() or cell in ("-", "") for cell in column[1:])
            padded = []
            for cell in column:
                spaces = " " * (widest - width(cell))
                padded.append(spaces + cell if is_numeric else cell + spaces)
            columns.append(padded)
        lines = ["  ".join(row).rstrip() for row in zip(*columns)]
        return "\n".join([self.title, *lines, *self.notes])

    def in_chinese(self) -> "Table":
        columns = [in_chinese(column) for column in self.columns]
        rows = [[in_chinese(str(cell)) for cell in row] for row in self.rows]
        return Table(in_chinese(self.title), columns, rows, [in_chinese(note) for note in self.notes])


def width(text: str) -> int:
    """The columns of a terminal that the text takes: two for each Chinese character."""
    return len(text) + sum(map(is_wide, text))


def is_wide(character: str) -> bool:
    """Whether this is a Chinese character or punctuation mark; False for the empty string."""
    return character != "" and unicodedata.east_asian_width(character) in "WF"


@dataclass
class Report:
    """The output of a topic: tables to print, and a picture for --plot if there is one."""

    tables: Sequence[Table | Text | str]
    draw: Callable[[Any], None] = lambda figure: None  # draws into an empty matplotlib Figure
    code: int = 0  # the exit status of the script

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def in_chinese(self) -> "Report":
        """The same report, with the tables and the labels of the picture in Chinese."""

        def draw(figure: Any) -> None:
            self.draw(figure)
            translate_labels(figure)

        tables: list[Table | Text | str] = []
        for table in self.tables:
            if isinstance(table, str):
                tables.append("\n".join(map(in_chinese, table.splitlines())))
            else:
                tables.append(table.in_chinese())
        return Report(tables, draw, self.code)


def check_plot(path: Path, chinese: bool) -> None:
    """Raise ValueError if ``save_plot`` could not write ``path``. Call it before the computation starts."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise ValueError(f"--plot is {path}: its ending must be one of {', '.join(sorted(formats))}")
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError(f"--plot is {path}: give a file in a directory that exists")
    if chinese:
        chinese_font()


def save_plot(report: Report, path: Path) -> None:
    """Draw the picture of a report into the file ``path``, atomically.

    A PNG or SVG also stores the printed report, so that the picture can be compared with the table. An SVG is dark
    where the reader's page is.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file_format = path.suffix[1:].lower()
    of_format = {"png": {}, "svg": {"Date": None}}  # the date would change the file
    metadata = of_format[file_format] | {"Description": str(report)} if file_format in of_format else None
    content = io.BytesIO()
    with rc_context({"font.size": 11, "axes.titlesize": 11, "svg.hashsalt": "ropewalk"}):
        figure = Figure(figsize=(5.5, 3.8), dpi=100, layout="constrained")
        report.draw(figure)
        figure.savefig(content, format=file_format, metadata=metadata)
    picture = content.getvalue()
    if file_format == "svg":
        picture = picture.replace(b"<defs>", DARK + b"<defs>", 1)
    write_atomically(path, lambda part: Path(part).write_bytes(picture))


def short(value: float, digits: int = 4) -> str:
    """The number with ``digits`` decimals, or in scientific notation if it is too small or too large for them."""
    if value and not math.isinf(value) and (abs(value) < 10.0 ** (1 - digits) or abs(value) >= 1e6):
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def open_rope_checkpoint(path: Path | None) -> Checkpoint:
    """The model with RoPE at ``path``, by default the newest run. Raises ValueError for another position encoding."""
    checkpoint = open_checkpoint(path or newest_run())
    if checkpoint.subclass_name:
        raise ValueError(
            f"{checkpoint.path} holds the weights of {checkpoint.subclass_name}: give a model that was trained "
            "without --network, because this topic needs RoPE"
        )
    return checkpoint


def open_model(path: Path | None) -> tuple[Transformer, Tokenizer]:
    """The model with RoPE, and its tokenizer. Raises ValueError if ``path`` has none."""
    checkpoint = open_rope_checkpoint(path)
    return checkpoint.model().float().eval(), checkpoint.tokenizer()


def open_scheme(path: Path | None) -> tuple[Transformer, Tokenizer]:
    """The model, with RoPE or another of ``SCHEMES``, and its tokenizer. Raises ValueError if ``path`` has none."""
    checkpoint = open_checkpoint(path or newest_run())
    saved = {name_of(scheme.network): scheme.network for scheme in SCHEMES.values()}
    if checkpoint.subclass_name and checkpoint.subclass_name not in saved:
        raise ValueError(
            f"{checkpoint.path} holds the weights of {checkpoint.subclass_name}: this topic opens the networks of "
            "SCHEMES in study/positions/__init__.py; add a line for yours"
        )
    return checkpoint.model(network=saved.get(checkpoint.subclass_name)).float().eval(), checkpoint.tokenizer()


def open_windows(path: Path | None, tokenizer: Tokenizer, length: int, most: int = WINDOWS) -> tuple[Tensor, str]:
    """At most ``most`` texts of ``length`` tokens, evenly spaced over a longer text, (windows, length), and its name.

    That text is the validation text of a run, and the end of the documentation bundled with Python for other models.
    Raises ValueError if it is shorter than ``length``.
    """
    path = path or newest_run()
    if not (path / META).is_file():
        text = "".join(open_documents((PYTHON_DOCS,)).texts())
        ids = np.array(tokenizer.encode(text[-16 * most * length :]))  # a token has fewer than 16 characters on average
        name = f"the end of {PYTHON_DOCS}"
    else:
        dataset = load_dataset(path)
        ids, name = dataset.val, f"the validation text of {dataset.val_name}"
    windows = min(most, len(ids) // length)
    if windows == 0:
        raise ValueError(f"{name} has {len(ids)} tokens, {length} are needed: name a run with a longer text")
    starts = np.linspace(0, len(ids) - length, windows).astype(int)
    return torch.from_numpy(np.stack([ids[start : start + length] for start in starts]).astype(np.int64)), name


def losses_of(model: Transformer, inputs: Tensor, targets: Tensor, rows: int) -> Tensor:
    """The loss of each target, in nats, computed ``rows`` texts at a time: (N, T), (N, T) -> (N, T)."""
    # Allocated before the logits, because small tensors between large ones that are freed fragment the memory.
    losses = torch.empty(inputs.shape)  # (N, T)
    for x, y, out in zip(inputs.split(rows), targets.split(rows), losses.split(rows)):
        logits = model(x).float()  # (rows, T, V)
        out.copy_(F.cross_entropy(logits.transpose(1, 2), y, reduction="none"))
    return losses
