"""What a run has measured, in its directory.

metrics.jsonl   a line for each step: its loss and, when they were measured, those of the validation text
score.json      at the end of the run: the loss of the best model on the validation text, as evaluate.py prints it
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..cli.files import read_json, write_text
from ..cli.settings import from_table
from ..config import Range

METRICS, SCORE = "metrics.jsonl", "score.json"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, except an unfinished last one. Raises ValueError if the file is damaged."""
    try:
        return [line for line in map(json.loads, path.read_bytes().split(b"\n")[:-1]) if line["step"] >= 0]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is damaged: restore or remove it") from None


def truncate_metrics(path: Path, last_step: int) -> None:
    """Keep the lines of a metrics file up to ``last_step``, -1 for none."""
    lines = read_metrics(path) if path.exists() else []
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= last_step))


def append_metrics(path: Path, step: int, measured: Mapping[str, float], sync: bool) -> None:
    """Append the measured values of a step as one line. With ``sync``, not even a power cut loses it."""
    line = {"step": step} | {name: float(f"{value:.7g}") for name, value in measured.items()}
    with path.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")
        if sync:
            file.flush()
            os.fsync(file.fileno())


@dataclass
class LastScore:
    """The loss of the best model on ``tokens`` tokens of the validation text, about ``max_tokens`` at most."""

    step: Annotated[int, Range(0)]
    nats_per_token: Annotated[float, Range(0)]
    bits_per_byte: Annotated[float, Range(0)]
    tokens: Annotated[int, Range(1)]
    max_tokens: Annotated[int, Range(1)]


def read_score(directory: Path) -> LastScore | None:
    """The score of a finished run; None if the run has not finished. Raises ValueError if the file is damaged."""
    path = directory / SCORE
    if not path.is_file():
        return None
    try:
        return LastScore(**from_table(read_json(path), LastScore))
    except (ValueError, TypeError):  # TypeError if one is missing
        raise ValueError(f"{path} is damaged: remove it") from None


class Smoothed:
    """A running mean: of all values, until there are ``span``, and later with weights that decay over ``span``."""

    def __init__(self, span: int) -> None:
        self.span = span
        self.count = 0
        self.mean = 0.0

    def add(self, value: float) -> float:
        self.count += 1
        self.mean += (value - self.mean) / min(self.count, self.span)
        return self.mean
