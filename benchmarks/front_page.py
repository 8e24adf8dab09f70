#!/usr/bin/env python3
"""The table of numbers in README.md: this network and others on one machine in one run.

    python benchmarks/front_page.py --data tinyshakespeare.txt --llama2c path/to/run.c --model path/to/SmolLM2

This takes about ten minutes on an otherwise idle machine. decode.py and train.py explain what is measured.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup

from benchmarks import decode, train
from benchmarks.threads import busy_loops
from benchmarks.timing import alternate, machine
from model.cli.machine import keep_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="tinyshakespeare")
    parser.add_argument("--llama2c", type=Path, metavar="RUN.C", help="llama2.c's run.c, which is built and measured")
    parser.add_argument("--model", type=Path, help="the Hugging Face directory of a published model in bfloat16")
    flags = parser.parse_args()
    keep_freed_memory()
    print(f"{machine()}\n\n| what | figures |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        directory = decode.write_model(decode.SHAPES["15M"], Path(temporary, "15M"))
        program = flags.llama2c and decode.build_llama2c(flags.llama2c, Path(temporary))
        speeds = alternate(decode.speeds(directory, "float32", program, 200), 5)
        show("tokens/s generated, 15M, float32", speeds, ".0f")
        show("seconds from launch to the first token", alternate(decode.launches(directory, program, 1), 3), ".2f")
        with busy_loops(os.cpu_count() or 1):
            times = alternate(decode.launches(directory, program, 200), 3)
        show("seconds from launch to 200 tokens beside a busy loop a core", times, ".1f")
        if flags.model:
            speeds = alternate(decode.speeds(flags.model, "bfloat16", None, 200), 5)
            show(f"tokens/s generated, {flags.model.name}, bfloat16", speeds, ".1f")
    show(
        "ms of a training step",
        {name: 1e3 * time for name, time in train.step_seconds(7, train.pick_dtype("auto", train.CPU)).items()},
        ".0f",
    )
    for optimizer in ("adamw", "muon"):
        curves = train.race(flags.data, train.NANOGPT, optimizer)
        losses = {name: curve[-1][2] for name, curve in curves.items()}
        times = {name: train.seconds_to(losses["GPT-2"], curve) for name, curve in curves.items()}
        show(f"nats per character after {train.STEPS:,} steps, ours with {optimizer}", losses, ".3f")
        show(f"seconds of training to GPT-2's loss at the end, ours with {optimizer}", times, ".1f")


def show(what: str, figures: dict[str, float], digits: str) -> None:
    print(f"| {what} | {', '.join(f'{name} {figure:{digits}}' for name, figure in figures.items())} |", flush=True)


if __name__ == "__main__":
    startup.run(main, "front_page.py")
