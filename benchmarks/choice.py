#!/usr/bin/env python3
"""Compare the settings that train.py chooses with settings chosen by hand, on the same text and minutes.

    python benchmarks/choice.py --data tinyshakespeare.txt --minutes 1.1 --tokenizer char

Each run is one train.py process. A run is judged by its best validation loss, because that model is saved; the last
loss is shown, too. All runs validate equally often, on the same text.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STEP_TOKENS = 2048
VALIDATION = ["--eval_every", "150", "--eval_tokens", "40000", "--sample_every", "0"]
CHOSEN_RATES = {"lr": 0.02, "decay_start": 0.1}  # those of the choice
DEFAULT_RATES = {"lr": 0.003, "decay_start": 0.3}  # those of train.py without a choice


def by_hand(width: int, layers: int, context: int, dropout: float, rates: dict[str, float]) -> dict[str, float]:
    model = {"dim": width, "n_layers": layers, "n_heads": width // 32, "max_seq_len": context}
    return model | {"batch_size": STEP_TOKENS // context, "dropout": dropout} | rates


BY_HAND = [
    by_hand(96, 3, 128, 0.0, CHOSEN_RATES),
    by_hand(160, 5, 256, 0.0, CHOSEN_RATES),
    by_hand(128, 4, 128, 0.0, DEFAULT_RATES),
    by_hand(128, 2, 256, 0.1, CHOSEN_RATES),
    by_hand(192, 3, 128, 0.1, DEFAULT_RATES),
    by_hand(256, 4, 256, 0.2, DEFAULT_RATES),
]


class Result(NamedTuple):
    """``config`` is the run's config.json."""

    best_loss: float
    last_loss: float
    steps: int
    config: dict


def train(directory: Path, common: list[str], settings: dict[str, float]) -> Result:
    """Train one run with the ``common`` flags and these settings."""
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, str(ROOT / "train.py"), *common, "--out_dir", str(directory), *flags, *VALIDATION]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [row["val_loss"] for row in rows if "val_loss" in row]
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return Result(min(losses), losses[-1], rows[-1]["step"], config)


def describe(result: Result, settings: dict[str, float]) -> str:
    config = result.config
    width, layers, context = (config[key] for key in ("hidden_size", "num_hidden_layers", "max_position_embeddings"))
    name = f"{width} wide, {layers} layers, context {context}"
    if not settings:
        return f"{name}: the choice"
    return f"{name}, dropout {settings['dropout']}, lr {settings['lr']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    flags, other_flags = parser.parse_known_args()
    common = ["--data", *flags.data, "--minutes", str(flags.minutes), *other_flags]
    print("| | steps | best validation loss, nats per token | the last one |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for number, settings in enumerate([{}, *BY_HAND]):
            result = train(Path(temporary) / str(number), common, settings)
            name = describe(result, settings)
            print(f"| {name} | {result.steps:,} | {result.best_loss:.4f} | {result.last_loss:.4f} |", flush=True)


if __name__ == "__main__":
    main()
