#!/usr/bin/env python3
"""How long PyTorch's threads should wait, by GOMP_SPINCOUNT, and below which size a second thread does not help.

    python benchmarks/threads.py                 about ten minutes on an otherwise idle machine with Linux
    python benchmarks/threads.py --loops 0 1

A cell is the mean time of a token or of a training step in a process of its own, in ms, beside so many busy loops. It
is not the median, because beside them a few tokens take most of the time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup

import torch

from benchmarks.decode import SHAPES
from benchmarks.timing import machine
from model import ModelArgs, Trainer, Transformer, generate
from model.fast.step import for_decoding
from model.text.dataset import Dataset
from model.training.config import TrainArgs

SPINS = ("300000", "20000", "10000", "3000", "1000", "300")  # the first is libgomp's default
MIDDLE = ModelArgs(dim=224, n_layers=5, n_heads=7, vocab_size=2048, max_seq_len=256)  # 4 million parameters
NETWORKS = {"4M": MIDDLE, **SHAPES}
WORK = (  # what, the network, its dtype, and the number of threads
    ("token", "2.9M", "float32", 1),
    ("token", "2.9M", "float32", 2),
    ("token", "4M", "float32", 1),
    ("token", "4M", "float32", 2),
    ("token", "15M", "float32", 1),
    ("token", "15M", "float32", 2),
    ("token", "15M", "bfloat16", 1),
    ("token", "15M", "bfloat16", 2),
    ("token", "135M", "bfloat16", 1),
    ("token", "135M", "bfloat16", 2),
    ("compiled token", "2.9M", "float32", 2),
    ("compiled token", "15M", "float32", 2),
    ("training step", "4M", "float32", 2),
)
SECONDS = 2.0  # of a cell


def work(what: str, size: str, dtype: str) -> Iterator[Callable[[], object]]:
    """What is timed, again and again."""
    args = NETWORKS[size]
    model = Transformer(args).to(getattr(torch, dtype))
    if what == "training step":
        text = torch.randint(args.vocab_size, (100_000,)).numpy().astype("uint16")
        trainer = Trainer(
            model, Dataset(text, text[:999], 999, 998), TrainArgs(batch_size=8, dtype=dtype, device="cpu")
        )
        trainer.parallel_loss.train()
        while True:
            yield lambda: trainer.step(1.0)
    network = for_decoding(model, compile=what.startswith("compiled"))
    while True:
        tokens = generate(network, [[1]], 200)
        for _ in range(10):  # copies and compiled code are made in the first ones
            next(tokens)
        for _ in range(180):
            yield lambda tokens=tokens: next(tokens)


def cell(what: str, size: str, dtype: str, threads: int) -> float:
    """The mean of the milliseconds."""
    torch.set_num_threads(threads)
    times: list[float] = []
    begin = time.perf_counter()
    for call in work(what, size, dtype):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if len(times) == 1:
            begin = time.perf_counter()  # after what is made or compiled at first
        if time.perf_counter() - begin > SECONDS and len(times) > 3:
            return 1e3 * statistics.fmean(times[1:])
    raise AssertionError


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 1, 2], help="busy loops beside the work")
    parser.add_argument("--spins", nargs="+", default=SPINS)
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.cell:
        what, size, dtype, threads = flags.cell
        print(cell(what, size, dtype, int(threads)))
        return
    print(f"{machine()}\n\n| ms | {' | '.join(flags.spins)} |\n|{'---|' * (len(flags.spins) + 1)}", flush=True)
    for case in WORK:
        for loops in flags.loops:
            what, size, dtype, threads = map(str, case)
            row = [f"{what}, {size} {dtype}, {threads} thread{'s' * (threads != '1')}, {loops} busy loops"]
            for spins in flags.spins if threads != "1" else flags.spins[:1]:  # one thread waits for no other
                environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
                environment["GOMP_SPINCOUNT"] = spins
                command = [sys.executable, __file__, "--cell", what, size, dtype, threads]
                with busy_loops(loops):
                    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                row.append(f"{float(done.stdout.split()[-1]):.2f}")
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    startup.run(main, "threads.py")
