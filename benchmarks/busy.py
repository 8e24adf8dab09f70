#!/usr/bin/env python3
"""Measure whether the scripts choose good thread settings, on a quiet machine and beside one endless loop per core.

python benchmarks/busy.py                       ten minutes on two otherwise idle cores
python benchmarks/busy.py --every_setting       also the settings that were not chosen: three times as long

Trains a small network with train.py, and generates with constant weights. Each measurement is a new process, because
libgomp reads its settings when it is loaded. The bars: on a quiet machine, the chosen settings reach 0.97 of the speed
of the best ones; on a machine that is busy from the start, they keep 0.35 of their speed on the quiet one. The speed of
a process that started on a quiet machine is shown, too, because its wait policy can no longer be changed. Exit code 1
if a bar is missed, 2 if the machine is busy at the start.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import torch

import startup
from model import ModelArgs, Transformer, generate
from model.cli.machine import choose_threads, count_cores

CHOSEN = "as the scripts choose"
LATER = "the same, busy later"
SETTINGS: dict[str, dict[str, str]] = {
    CHOSEN: {},
    LATER: startup.WHEN_QUIET,
    "one thread": {"OMP_NUM_THREADS": "1"},
    "a thread per core": {"OMP_NUM_THREADS": str(count_cores())},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}
SETTINGS |= {f"GOMP_SPINCOUNT={count}": {"GOMP_SPINCOUNT": str(count)} for count in (1000, 10_000, 1_000_000)}
# The settings to measure on a quiet machine (False) and on a busy one (True); the bars need no others.
NEEDED = {False: [CHOSEN, "one thread", "a thread per core"], True: [CHOSEN, LATER]}
SIZES = {
    "0.7M": ModelArgs(dim=128, n_layers=3, n_heads=4, vocab_size=1024, max_seq_len=256, tie_embeddings=True),
    "4M": ModelArgs(dim=256, n_layers=4, n_heads=4, vocab_size=2048, max_seq_len=256, tie_embeddings=True),
    "15M": ModelArgs(
        dim=288, n_layers=6, n_heads=6, hidden_dim=768, vocab_size=32000, max_seq_len=256, tie_embeddings=True
    ),
    "1.1B": ModelArgs(
        dim=2048, n_layers=22, n_heads=32, n_kv_heads=4, hidden_dim=5632, vocab_size=32000, max_seq_len=2048
    ),
}
CASES = ["train", "0.7M", "15M", "1.1B"]
# A model that configs/demo.toml may choose for its minutes; fixed, because for three seconds it would be smaller.
DEMO = ["--dim", "128", "--n_layers", "4", "--n_heads", "4", "--n_kv_heads", "2", "--batch_size", "8"]
BARS = {"quiet": 0.97, "busy": 0.35}  # fraction of the best setting's speed; fraction of its speed when quiet


def generation_speed(size: str, seconds: float) -> float:
    """Tokens/s of a greedy text, without the prefill and the first two decode steps."""
    dtype = torch.bfloat16 if size == "1.1B" else torch.float32
    with torch.device("meta"):
        model = Transformer(SIZES[size]).to(dtype)
    weights = {name: torch.full(p.shape, 0.01, dtype=dtype) for name, p in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    choose_threads(torch.device("cpu"), sum(p.numel() for p in model.parameters()))
    tokens = 0
    spent = 0.0
    while spent < seconds:
        steps = generate(model, [[1, 2, 3, 4]], model.args.max_seq_len - 4)
        for _ in range(3):
            next(steps)
        begin = time.perf_counter()
        for _ in steps:
            tokens += 1
            if spent + time.perf_counter() - begin > seconds:
                break
        spent += time.perf_counter() - begin
    return tokens / spent


def training_speed(seconds: float) -> float:
    """Tokens/s of the median step of ``train.py configs/demo.toml``."""
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--out_dir", f"{directory}/run", "--minutes", f"{seconds / 60:.4f}", "--device", "cpu"]
        flags += ["--eval_every", "1000000", "--sample_every", "0", "--eval_tokens", "1000", *DEMO]
        command = [sys.executable, ROOT / "train.py", ROOT / "configs" / "demo.toml", *flags]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        if done.returncode:
            raise RuntimeError(done.stderr)
        lines = Path(directory, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    speeds = [json.loads(line)["tokens_per_second"] for line in lines]
    return statistics.median(speeds[min(3, len(speeds) - 1) :])


@contextmanager
def endless_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(case: str, setting: str, seconds: float) -> float:
    """Tokens/s of a case with a setting, in a new process."""
    thread_variables = ("OMP_", "GOMP_", "KMP_", "MKL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(thread_variables)}
    if setting == CHOSEN and case != "train":  # train.py chooses its settings itself
        environment |= startup.waiting(startup.count_running())
    environment |= SETTINGS[setting]
    command = [sys.executable, __file__, "--one", case, "--seconds", str(seconds)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, encoding="utf-8")
    return float(done.stdout)


def compare(case: str, seconds: float, rounds: int, settings: dict[bool, list[str]]) -> bool:
    """Print the rows of a case; returns whether the bars hold. The settings take turns, so that drift affects all."""
    speeds: dict[tuple[str, bool], list[float]] = {}
    for busy in (False, True):
        with endless_loops(count_cores() if busy else 0):
            for _ in range(rounds):
                for setting in settings[busy]:
                    speeds.setdefault((setting, busy), []).append(measure(case, setting, seconds))
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    quiet = medians[CHOSEN, False]
    for setting in SETTINGS:
        row = [medians.get((setting, busy)) for busy in (False, True)]
        if any(row):
            cells = "".join(f"{speed:10,.1f}{speed / quiet:7.2f}" if speed else 17 * " " for speed in row)
            print(f"{case:6} {setting:24}{cells}", flush=True)
    best = max(speed for (_, busy), speed in medians.items() if not busy)
    shares = {"quiet": quiet / best, "busy": medians[CHOSEN, True] / quiet}
    held = {name: share >= BARS[name] for name, share in shares.items()}
    verdicts = []
    for name, share in shares.items():
        verdict = "held" if held[name] else "MISSED"
        verdicts.append(f"{name} {share:.2f} ({verdict}, bar {BARS[name]})")
    print(f"{case:6} bars: {', '.join(verdicts)}\n", flush=True)
    return all(held.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=["train", *SIZES], default=CASES)
    parser.add_argument("--seconds", type=float, default=3, help="seconds of each measurement, after a warm-up")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each setting; the median counts")
    parser.add_argument("--every_setting", action="store_true", help="measure all settings, quiet and busy")
    parser.add_argument("--one", choices=["train", *SIZES], help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one == "train":
        print(training_speed(flags.seconds))
        return 0
    if flags.one:
        print(generation_speed(flags.one, flags.seconds))
        return 0
    settings = {busy: list(SETTINGS) for busy in (False, True)} if flags.every_setting else NEEDED
    quiet = startup.count_running() == 0
    state = "quiet" if quiet else "BUSY at the start"
    print(f"{count_cores()} cores, {state}, torch {torch.__version__}; ", end="")
    print("tokens/s, and as a share of the first row's when quiet\n")
    print(f"{'case':6} {'setting':24}{'quiet':>10}{'share':>7}{'busy':>10}{'share':>7}")
    held = [compare(case, flags.seconds, flags.rounds, settings) for case in flags.cases]
    if not quiet:
        return 2
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
