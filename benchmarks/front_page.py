#!/usr/bin/env python3
"""The table of figures in README.md: this network and others on one machine in one run.

    python benchmarks/front_page.py --data tinyshakespeare.txt --llama2c path/to/run.c

This takes about eight minutes on an otherwise idle machine. Contenders take turns, and medians are compared. For
details see time_to_loss.py, train.py, generate.py and peers.py.
"""

import argparse
import contextlib
import io
import platform
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup  # noqa: F401, I001  must come before torch
import torch

from benchmarks import generate, peers, time_to_loss, train
from model import kernels
from model.cli.machine import pick_dtype
from model.training.config import TrainArgs
from model.training.evaluation import validation_loss
from model.training.loss import NextTokenLoss
from model.weights import load_model

CPU = torch.device("cpu")
NANOGPT = ROOT / "configs" / "shakespeare_char.toml"
TOKENS = 200
Row = tuple[str, str, str]  # what is measured, the program, its figure


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


def generation(llama2c: Path | None) -> list[Row]:
    """Speed and launch for stories15M's shape in float32, and the largest difference of a logit on random tokens."""
    from transformers import LlamaForCausalLM

    options = argparse.Namespace(tokens=TOKENS, threads=torch.get_num_threads())
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary, "15M")
        directory.mkdir()
        program = None if llama2c is None else peers.build_llama2c(llama2c, Path(temporary))
        peers.write_model(generate.ARGS, directory)
        speeds = generate.alternate(peers.contenders(directory, "float32", program, options), 5)
        rows = [("tokens/s generated, float32", way, f"{figure:.0f}") for way, figure in speeds.items()]
        launches = {way: partial(run, 1) for way, run in peers.launches(directory, program, options.threads).items()}
        del launches["compiled"]
        times = generate.alternate(launches, 3)
        rows += [("seconds from launch to the first token", way, f"{figure:.2f}") for way, figure in times.items()]
        tokens = torch.randint(generate.ARGS.vocab_size, (2, 200))
        theirs = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = load_model(directory, dtype=torch.float32)(tokens)
            difference = (logits - theirs(tokens).logits).abs().max().item()
    rows.append(("largest difference of a logit from transformers", "eager", f"{difference:.0e}"))
    rows.append(("largest logit", "eager", f"{logits.abs().max().item():.1f}"))
    return rows


def training_step() -> list[Row]:
    dtype = pick_dtype("auto", CPU)
    label = f"ms of a training step, {str(dtype).removeprefix('torch.')}"
    return [(label, way, f"{1e3 * figure:.0f}") for way, figure in train.step_seconds(CPU, dtype, 7).items()]


def shakespeare(data: str) -> list[Row]:
    """This network and GPT-2 in nanoGPT's setting, trained with the same sizes, data and number of steps."""
    race = time_to_loss.finished_race(data, NANOGPT, time_to_loss.TARGET)
    gpt2 = race.gpt2
    theirs = validation_loss(
        NextTokenLoss(gpt2), race.trainer.dataset, TrainArgs(batch_size=64), 64, race.trainer.ranks
    )
    what = "nats per character after {} steps"
    rows = [
        (what.format(race.trainer.progress.step), "ropewalk", f"{race.curve[-1][1]:.3f}"),
        (what.format(gpt2.step_number), "GPT-2", f"{theirs:.3f}"),
    ]
    what = f"seconds of training to {time_to_loss.TARGET}"
    rows += [(what, "ropewalk", f"{race.ours:.1f}"), (what, "GPT-2", f"{race.theirs:.1f}")]
    what = "seconds of training, all steps"
    rows += [(what, "ropewalk", f"{race.curve[-1][0]:.1f}"), (what, "GPT-2", f"{gpt2.seconds:.1f}")]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="tinyshakespeare")
    parser.add_argument("--llama2c", type=Path, metavar="RUN.C", help="llama2.c's run.c, compiled and measured, too")
    options = parser.parse_args()
    from transformers import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    print(f"{processor()}\n\n| what | program | figure |\n|---|---|---|", flush=True)
    for measure in (lambda: generation(options.llama2c), training_step, lambda: shakespeare(options.data)):
        with contextlib.redirect_stdout(io.StringIO()):  # the tables that each benchmark prints
            rows = measure()
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
