#!/usr/bin/env python3
"""Speed on a quiet machine, and beside one endless loop per core: do the threads that the scripts choose hold?

python benchmarks/busy.py                       ten minutes on two cores that have nothing else to do
python benchmarks/busy.py --every_setting       the settings that were not chosen, too: three times as long

Trains the demo's network with the real script and generates with random weights, each in a process of its own: what
libgomp reads, it reads when it is loaded. The bars: when the machine is quiet, what the scripts choose is within 3% of
the best setting; when it is busy at the start, it keeps 0.35 of that speed. What a process keeps that was started in
quiet is shown, too: how its threads wait cannot be changed any more. Exit code 1 where a bar is missed, 2 where the
machine was not quiet to begin with.
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

from model import ModelArgs, Transformer, generate
from model.cli.machine import choose_threads, count_cores
from model.scripts import startup

CHOSEN, LATER = "as the scripts choose", "the same, busy later"
SETTINGS: dict[str, dict[str, str]] = {
    CHOSEN: {},
    LATER: startup.WHEN_QUIET,
    "one thread": {"OMP_NUM_THREADS": "1"},
    "a thread per core": {"OMP_NUM_THREADS": str(count_cores())},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}
SETTINGS |= {f"GOMP_SPINCOUNT={count}": {"GOMP_SPINCOUNT": str(count)} for count in (1000, 3000, 30_000)}
FEW = {False: [CHOSEN, "one thread", "a thread per core"], True: [CHOSEN, LATER]}  # quiet, busy: what the bars need
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
# What configs/demo.toml chooses on two cores: in three seconds it would choose another, and not the same each time.
DEMO = ["--dim", "128", "--n_layers", "4", "--n_heads", "4", "--n_kv_heads", "2", "--batch_size", "8"]
BARS = {"quiet": 0.97, "busy": 0.35}  # of the best setting; of the own speed when quiet


def generation_speed(size: str, seconds: float) -> float:
    """Tokens a second of one greedy text, prefill and two tokens apart."""
    dtype = torch.bfloat16 if size == "1.1B" else torch.float32
    with torch.device("meta"):
        model = Transformer(SIZES[size]).to(dtype)
    model.load_state_dict({name: torch.full(p.shape, 0.01, dtype=dtype) for name, p in model.state_dict().items()},
                          assign=True)  # fmt: skip
    choose_threads(torch.device("cpu"), sum(p.numel() for p in model.parameters()))
    tokens, spent = 0, 0.0
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
    """Tokens a second of the median step of ``train.py configs/demo.toml``."""
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
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))}
    if setting == CHOSEN and case != "train":  # that one is a script, and chooses itself
        own |= startup.WHEN_BUSY if startup.machine_is_busy() else startup.WHEN_QUIET
    command = [sys.executable, __file__, "--one", case, "--seconds", str(seconds)]
    done = subprocess.run(
        command, env=own | SETTINGS[setting], stdout=subprocess.PIPE, text=True, check=True, encoding="utf-8"
    )
    return float(done.stdout)


def compare(case: str, seconds: float, rounds: int, settings: dict[bool, list[str]]) -> bool:
    """Print the case's rows and whether the bars hold; the settings take turns, so that drift meets all alike."""
    found: dict[tuple[str, bool], list[float]] = {}
    for busy in (False, True):
        with endless_loops(count_cores() if busy else 0):
            for _ in range(rounds):
                for setting in settings[busy]:
                    found.setdefault((setting, busy), []).append(measure(case, setting, seconds))
    speed = {key: statistics.median(values) for key, values in found.items()}
    quiet = speed[CHOSEN, False]
    for setting in SETTINGS:
        shown = [speed.get((setting, busy)) for busy in (False, True)]
        if any(shown):
            row = "".join(f"{value:10,.1f}{value / quiet:7.2f}" if value else 17 * " " for value in shown)
            print(f"{case:6} {setting:24}{row}", flush=True)
    shares = {"quiet": quiet / max(value for (_, busy), value in speed.items() if not busy),
              "busy": speed[CHOSEN, True] / quiet}  # fmt: skip
    words = [f"{name} {share:.2f} ({'held' if share >= BARS[name] else 'MISSED'}, bar {BARS[name]})"
             for name, share in shares.items()]  # fmt: skip
    print(f"{case:6} bars: {', '.join(words)}\n", flush=True)
    return all(share >= BARS[name] for name, share in shares.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=["train", *SIZES], default=CASES)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement, after a warm-up")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each setting; the median counts")
    parser.add_argument("--every_setting", action="store_true", help="measure all of them, quiet and busy")
    parser.add_argument("--one", choices=["train", *SIZES], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(training_speed(given.seconds) if given.one == "train" else generation_speed(given.one, given.seconds))
        return 0
    settings = {busy: list(SETTINGS) for busy in (False, True)} if given.every_setting else FEW
    quiet = not startup.machine_is_busy()
    print(f"{count_cores()} cores, {'quiet' if quiet else 'BUSY at the start'}, torch {torch.__version__}; tokens/s, "
          f"and as a share of the first row's when quiet\n")  # fmt: skip
    print(f"{'case':6} {'setting':24}{'quiet':>10}{'share':>7}{'busy':>10}{'share':>7}")
    held = [compare(case, given.seconds, given.rounds, settings) for case in given.cases]
    return 2 if not quiet else 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
