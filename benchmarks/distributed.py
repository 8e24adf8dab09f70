#!/usr/bin/env python3
"""Check that train.py under torchrun gives the losses of a single process, and measure its memory.

    python benchmarks/distributed.py [--processes 2]

Losses: every run takes the same 20 steps with the same batches (AdamW, micro-batches, float32) in one process, with DDP
or with FSDP2, and is resumed after 10 steps in the same or in another way. Prints the largest difference of a training
loss from the run in one process, which must stay below 1e-5.

Memory: two steps of a model of 42 million parameters in bfloat16, and the best model written. Prints the peak of the
largest process.
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
optimizer = "adamw"
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
# Name: the modes of the first ten and of the last ten steps.
RUNS = {
    "one process, stopped and resumed": ("one", "one"),
    "DDP": ("ddp", "ddp"),
    "FSDP2": ("fsdp", "fsdp"),
    "DDP, then one process": ("ddp", "one"),
    "one process, then DDP": ("one", "ddp"),
    "FSDP2, then one process": ("fsdp", "one"),
    "one process, then FSDP2": ("one", "fsdp"),
}
LARGE = ["--dim=512", "--n_layers=13", "--n_heads=8", "--n_kv_heads=8", "--batch_size=2", "--micro_batch_size=1"]
LARGE += ["--max_steps=2", "--dtype=bfloat16", "--eval_tokens=100"]


def train(mode: str, processes: int, *arguments: str) -> int:
    """Train; returns the peak memory of the largest process in bytes."""
    command = [sys.executable]
    if mode != "one":
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += [str(ROOT / "train.py"), *arguments]
    if mode == "fsdp":
        command.append("--fsdp")
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, env=one_thread, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)  # includes the processes that torchrun starts
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{output.read()}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
        for mode in ("one", "ddp", "fsdp"):
            peak = train(mode, processes, *settings, *LARGE, "--out_dir", str(Path(scratch, mode)))
            print(f"{mode:<34} {peak / 1e6:.0f} MB", flush=True)
        uninterrupted = Path(scratch, "uninterrupted")
        train("one", processes, *settings, "--max_steps", "20", "--out_dir", str(uninterrupted))
        for number, (name, (first, second)) in enumerate(RUNS.items()):
            directory = Path(scratch, str(number))
            began = time.monotonic()
            # The learning rate is constant, so that the first 10 of 20 steps are the same as a run of 10 steps.
            train(first, processes, *settings, "--out_dir", str(directory), "--max_steps", "10")
            train(second, processes, *settings, "--out_dir", str(directory), "--max_steps", "20", "--resume")
            worst = max(abs(a - b) for a, b in zip(losses(directory), losses(uninterrupted), strict=True))
            print(f"{name:<34} {worst:.1e}   {time.monotonic() - began:4.0f} s", flush=True)
            assert worst < 1e-5, "the losses differ"


if __name__ == "__main__":
    main()
