#!/usr/bin/env python3
"""Kill a training run again and again, and see whether it comes out as if nobody had.

    python benchmarks/kill.py [--kills 25] [--seed 0]

SIGKILL hits train.py at random moments, every second time in the midst of writing a file; then the run is resumed.
After each kill the directory must hold a whole state, at least as far as before. At the end the latest and the best
weights, the optimizer's state and the metrics must equal those of an undisturbed run, bit for bit.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from model.weights.tensors import load_tensors, read_metadata

SETTINGS = """
tokenizer = "char"
dim = 32
n_layers = 2
n_heads = 2
max_seq_len = 32
batch_size = 8
micro_batch_size = 4
dropout = 0.1
eval_every = 5
eval_tokens = 500
sample_every = 0
dtype = "float32"
"""
STATE, BEST, METRICS = "training_state.safetensors", "model.safetensors", "metrics.jsonl"


class Process(Protocol):
    """What is needed of subprocess.Popen."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


def kill_repeatedly(
    start: Callable[[], Process], directory: Path, kills: int, patience: float, seed: int
) -> Counter[str]:
    """Start the trainer and kill it, ``kills`` times, at most ``patience`` seconds after it went on; then let it end.

    Returns where the kills hit. Raises AssertionError when a kill costs more than the steps since the last checkpoint.
    """
    generator, hits, last = random.Random(seed), Counter[str](), 0
    for number in range(kills):
        before = age(directory)
        process = start()
        while process.poll() is None and age(directory) == before:
            time.sleep(0.001)
        time.sleep(generator.uniform(0, patience))
        while number % 2 and process.poll() is None and not any(directory.glob(".*.tmp")):
            pass  # a file is half-written for a millisecond or two
        process.kill()
        finish(process)
        hits["in the midst of writing a file" if any(directory.glob(".*.tmp")) else "elsewhere"] += 1
        step = saved_step(directory)
        assert step >= last, f"a kill took the saved state from step {last} back to step {step}"
        last = step
    assert finish(start()) == 0, "the last resume failed"
    return hits


def finish(process: Process) -> int:
    while (code := process.poll()) is None:
        time.sleep(0.001)
    return code


def age(directory: Path) -> int:
    """Changes with each step: starting takes seconds, in which there is nothing to disturb."""
    metrics = directory / METRICS
    return metrics.stat().st_size if metrics.exists() else 0


def saved_step(directory: Path) -> int:
    if not (directory / STATE).exists():
        return 0
    return json.loads(read_metadata(directory / STATE)["notes"])["progress"]["step"]


def compare(directory: Path, undisturbed: Path) -> None:
    """Raises AssertionError at the first thing that differs. Times are the machine's, and are left out."""
    for name in (STATE, BEST):
        mine, theirs = load_tensors(directory / name), load_tensors(undisturbed / name)
        assert mine.keys() == theirs.keys(), f"{name} holds other tensors"
        assert all(mine[key].equal(theirs[key]) for key in mine), f"{name} differs"
    lines, expected = (
        [without_times(line) for line in (path / METRICS).open(encoding="utf-8")] for path in (directory, undisturbed)
    )
    assert lines == expected, f"{METRICS} differs"


def without_times(line: str) -> dict[str, float]:
    return {name: value for name, value in json.loads(line).items() if name != "tokens_per_second"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text, config = Path(scratch, "text.txt"), Path(scratch, "config.toml")
        text.write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(3000)), encoding="utf-8")
        config.write_text(SETTINGS + f"max_steps = {40 * flags.kills + 100}\n", encoding="utf-8")
        command = [sys.executable, str(ROOT / "train.py"), str(config), "--data", str(text), "--out_dir"]
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # so small a network is slower on two
        undisturbed, directory = Path(scratch, "undisturbed"), Path(scratch, "killed")

        def start() -> Process:
            resume = ["--resume"] if (directory / "config.toml").exists() else []
            return subprocess.Popen([*command, str(directory), *resume], stderr=subprocess.DEVNULL, env=one_thread)

        subprocess.run([*command, str(undisturbed)], check=True, stderr=subprocess.DEVNULL, env=one_thread)
        began = time.monotonic()
        hits = kill_repeatedly(start, directory, flags.kills, 0.5, flags.seed)
        compare(directory, undisturbed)
        print(f"{flags.kills} kills in {time.monotonic() - began:.0f} seconds; {dict(hits)}")
        print(f"all {saved_step(directory)} steps, weights, optimizer state and metrics as in the undisturbed run")


if __name__ == "__main__":
    main()
