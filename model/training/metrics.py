"""What a run says of itself in numbers."""

import json
import math
from pathlib import Path

from ..weights.files import write_atomically


class Metrics:
    """``metrics.jsonl``: one line a step with what was measured in it.

    Continuing after ``last_step`` drops the lines of later steps, which run again, and one that a kill cut short.
    """

    def __init__(self, path: Path, last_step: int = 0) -> None:
        lines = path.read_bytes().splitlines(keepends=True) if last_step and path.exists() else []
        kept = [line for line in lines if line.endswith(b"}\n") and json.loads(line)["step"] <= last_step]
        write_atomically(path, lambda temporary: temporary.write_bytes(b"".join(kept)) and None)
        self.file = path.open("ab", buffering=0)

    def write(self, step: int, **figures: float | None) -> None:
        line = {"step": step} | {name: float(f"{x:.7g}") for name, x in figures.items() if x is not None}
        self.file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        self.file.close()


def bits_per_byte(nats_per_token: float, tokens_per_byte: float) -> float:
    """A loss that does not depend on the tokenizer: what a byte of the text costs, in bits."""
    return nats_per_token / math.log(2) * tokens_per_byte
