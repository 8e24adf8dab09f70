"""What a run says of itself in numbers."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..cli.files import write_text
from ..text.dataset import Dataset


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without a last one that a kill cut short. Raises ValueError on a foreign one."""
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [{"step": 0} | json.loads(line) for line in lines]
    except (ValueError, TypeError):
        raise ValueError(f"{path} is damaged: mend or remove it") from None


class Metrics:
    """``metrics.jsonl``: one line a step with what was measured in it.

    Continuing after ``last_step`` drops the lines of later steps, which run again.
    """

    def __init__(self, path: Path, last_step: int = 0) -> None:
        self.path = path
        earlier = read_metrics(path) if last_step and path.exists() else []
        write_text(path, "".join(json.dumps(line) + "\n" for line in earlier if line["step"] <= last_step))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        line = {"step": step} | {name: float(f"{value:.7g}") for name, value in figures.items()}
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def sync(self) -> None:
        """A saved state must not outlive the lines before it, even in a power cut."""
        with self.path.open("ab") as file:
            os.fsync(file.fileno())


def bits_per_byte(nats_per_token: float, dataset: Dataset) -> float:
    """A loss that does not depend on the tokenizer: what a byte of the validation text costs, in bits."""
    return nats_per_token / math.log(2) * (len(dataset.val) - 1) / dataset.val_bytes
