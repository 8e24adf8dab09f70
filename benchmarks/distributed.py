#!/usr/bin/env python3
"""Start train.py under torchrun, and see whether several processes do what one does.

    python benchmarks/distributed.py [--processes 2]

Every run takes the same 20 steps with the same batches (Muon, micro-batches), spread in another way: one process,
copies (DDP), shards (FSDP2), and each of these taking over from another after 10 steps. Printed is the largest
difference of a training loss from the one-process run, which must stay below 1e-5.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = """
tokenizer = "char"
dim = 64
n_layers = 3
n_heads = 4
n_kv_heads = 2
max_seq_len = 64
batch_size = 16
micro_batch_size = 4
eval_every = 10
eval_tokens = 2000
sample_every = 0
dtype = "float32"
device = "cpu"
warmup = 0.0
decay_start = 0.99
"""
# Name: how the first ten steps and how the last ten are taken.
RUNS = {
    "one process, stopped and resumed": ("one", "one"),
    "copies (DDP)": ("ddp", "ddp"),
    "shards (FSDP2)": ("fsdp", "fsdp"),
    "copies, then one process": ("ddp", "one"),
    "one process, then copies": ("one", "ddp"),
    "shards, then one process": ("fsdp", "one"),
    "one process, then shards": ("one", "fsdp"),
}


def train(spread: str, processes: int, *arguments: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    start = [sys.executable] if spread == "one" else torchrun
    command = [*start, str(ROOT / "train.py"), *arguments, *(["--fsdp"] if spread == "fsdp" else [])]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=False, encoding="utf-8")
    if ended.returncode:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr}")


def losses(directory: Path) -> list[float]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21)), "the metrics have gaps or repeats"
    return [line["train_loss"] for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    processes = parser.parse_args().processes
    with tempfile.TemporaryDirectory() as scratch:
        text, config = Path(scratch, "text.txt"), Path(scratch, "config.toml")
        text.write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(3000)), encoding="utf-8")
        config.write_text(CONFIG, encoding="utf-8")
        settings = [str(config), "--data", str(text)]
        alone = Path(scratch, "alone")
        train("one", processes, *settings, "--max_steps", "20", "--out_dir", str(alone))
        for number, (name, (first, second)) in enumerate(RUNS.items()):
            directory = Path(scratch, str(number))
            began = time.monotonic()
            # The schedule is flat, so that ten steps of twenty are ten steps of ten.
            train(first, processes, *settings, "--out_dir", str(directory), "--max_steps", "10")
            train(second, processes, *settings, "--out_dir", str(directory), "--max_steps", "20", "--resume")
            worst = max(abs(a - b) for a, b in zip(losses(directory), losses(alone), strict=True))
            print(f"{name:<34} {worst:.1e}   {time.monotonic() - began:4.0f} s")
            assert worst < 1e-5, "the losses differ"


if __name__ == "__main__":
    main()
