#!/usr/bin/env python3
"""The table of figures in README.md: this network and others on one machine in one run, all without torch.compile.

    python benchmarks/front_page.py --data tinyshakespeare.txt

This takes about five minutes on an otherwise idle machine. Contenders take turns, and medians are compared. For details
see time_to_loss.py, train.py and generate.py.
"""

import argparse
import contextlib
import io
import platform
import re
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import generate, time_to_loss, train
from model import Transformer, kernels
from model.cli.machine import pick_device, pick_dtype
from model.weights import load_model, save_model

CPU = torch.device("cpu")


def processor() -> str:
    """A line with the name of the processor, its threads, its memory's speed, and the version of PyTorch."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # only Linux has this file
        match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        name = match[1] if match else name
    bfloat16 = "native bfloat16" if kernels.CPU.bfloat16 else "no bfloat16 instructions"
    rate = generate.bandwidth(CPU) / 1e9
    threads = torch.get_num_threads()
    return f"{name}, {threads} threads, {bfloat16}; memory reads {rate:.0f} GB/s; torch {torch.__version__}"


def logits_difference(ours: Transformer, theirs: torch.nn.Module) -> float:
    """The largest difference of a logit on random tokens."""
    tokens = torch.randint(generate.ARGS.vocab_size, (2, 200))
    with torch.no_grad():
        return (ours(tokens) - theirs(tokens).logits).abs().max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="tinyshakespeare")
    options = parser.parse_args()
    from transformers import LlamaForCausalLM, logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    print(processor(), flush=True)
    hidden = io.StringIO()  # the tables that each benchmark prints
    with contextlib.redirect_stdout(hidden), tempfile.TemporaryDirectory() as directory:
        model = Transformer(generate.ARGS).eval()
        save_model(model, directory)
        reference = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        difference = logits_difference(model, reference)
        int8 = load_model(directory, "cpu", int8=True)
        tokens_per_second = generate.speed(model, int8, reference, torch.float32, 3, compile=False)
        launch = generate.launch(model, 3)
        dtype = pick_dtype("auto", pick_device("cpu"))
        step = train.step_seconds(CPU, dtype, 5)
        race = time_to_loss.finished_race(options.data, time_to_loss.FAST, time_to_loss.TARGET)
    ours, theirs = tokens_per_second["eager"], tokens_per_second["transformers"]
    rows = [
        ("seconds of training to 1.8857 nats per character", f"{race.ours:.1f}", f"{race.theirs:.1f}, GPT-2 (1)"),
        (
            f"ms of a training step, {str(dtype).removeprefix('torch.')} (2)",
            f"{1e3 * step['ropewalk, AdamW']:.0f}",
            f"{1e3 * step['transformers, AdamW']:.0f}, transformers",
        ),
        ("tokens/s generated, float32 (3)", f"{ours:.0f}", f"{theirs:.0f}, transformers"),
        (
            "seconds from launch to the first token (3)",
            f"{launch['ropewalk']:.1f}",
            f"{launch['transformers']:.1f}, transformers",
        ),
        ("largest difference of a logit from transformers (3)", f"{difference:.0e}", ""),
    ]
    print("\n| | Ropewalk | others |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
