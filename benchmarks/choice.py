#!/usr/bin/env python3
"""Settings that one might choose by hand, beside what train.py chooses: the same text and minutes, one after another.

    python benchmarks/choice.py --data tinyshakespeare.txt --minutes 1.1 --tokenizer char

Each run is the whole command, in a process of its own. What counts is a run's best validation loss, for that state is
kept; the last one is shown beside it. All validate equally often, on the same text.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHOSEN, DEFAULT = {"lr": 0.02, "decay_start": 0.1}, {"lr": 0.003, "decay_start": 0.3}  # rates: the choice's, train.py's
BY_HAND = [  # width, layers, context, dropout, rates
    (96, 3, 128, 0.0, CHOSEN),
    (160, 5, 256, 0.0, CHOSEN),
    (128, 4, 128, 0.0, DEFAULT),
    (128, 2, 256, 0.1, CHOSEN),
    (192, 3, 128, 0.1, DEFAULT),
    (256, 4, 256, 0.2, DEFAULT),
]
TOKENS = 2048  # of a step
VALIDATION = ["--eval_every", "150", "--eval_tokens", "40000", "--sample_every", "0"]


def train(directory: Path, given: list[str], settings: dict[str, float]) -> tuple[float, float, int, dict]:
    """The best validation loss, the last one, the steps, and the configuration of one run."""
    flags = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    command = [sys.executable, str(ROOT / "train.py"), *given, "--out_dir", str(directory), *flags, *VALIDATION]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [row["val_loss"] for row in rows if "val_loss" in row]
    return (
        min(losses),
        losses[-1],
        rows[-1]["step"],
        json.loads((directory / "config.json").read_text(encoding="utf-8")),
    )


def by_hand(width: int, layers: int, context: int, dropout: float, rates: dict[str, float]) -> dict[str, float]:
    model = {"dim": width, "n_layers": layers, "n_heads": width // 32, "max_seq_len": context}
    return model | {"batch_size": TOKENS // context, "dropout": dropout} | rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    given, more = parser.parse_known_args()
    common = ["--data", *given.data, "--minutes", str(given.minutes), *more]
    print("| | steps | best validation loss, nats per token | the last one |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for number, settings in enumerate([{}, *(by_hand(*each) for each in BY_HAND)]):
            best, last, steps, config = train(Path(temporary) / str(number), common, settings)
            size = (config[name] for name in ("hidden_size", "num_hidden_layers", "max_position_embeddings"))
            name = "{} wide, {} layers, context {}".format(*size)
            name += f", dropout {settings['dropout']}, lr {settings['lr']}" if settings else ": the choice"
            print(f"| {name} | {steps:,} | {best:.4f} | {last:.4f} |", flush=True)


if __name__ == "__main__":
    main()
