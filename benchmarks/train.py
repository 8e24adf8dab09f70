#!/usr/bin/env python3
"""Compare training with transformers: the time of a step with its Llama, and the loss over time with its GPT-2.

    python benchmarks/train.py [--turns 7] [--compile] [--dtype float32]
    python benchmarks/train.py --race tinyshakespeare.txt [--config configs/shakespeare_fast.toml]

Without --race, each contender takes an optimizer step in turn. With it, both train to the end on the text, a step each
in turn. GPT-2 has the settings of nanoGPT's CPU run: 4 layers, 4 heads, width 128, context 64, batch size 12, 2,000
steps, AdamW at 1e-3 with a cosine decay to 1e-4. Losses are nats per character of all validation text, and the time for
validation is not counted. transformers runs in a process of its own (peers.py), with the same dtype of products.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup

import torch
from torch import Tensor

from benchmarks.peers import EVAL_TOKENS, PEAK_LR, STEPS, in_own_process, step
from benchmarks.timing import Measurement, alternate, machine, seconds
from model import ModelArgs, Transformer
from model.cli import instances, read_toml
from model.cli.machine import keep_freed_memory, pick_dtype
from model.fast.loss import NextTokenLoss
from model.text.dataset import load_dataset
from model.text.sources import open_documents
from model.text.tokenize import tokenize
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer
from model.training.config import DataArgs, TrainArgs
from model.training.optimizer import build_optimizers
from model.training.trainer import Trainer

CPU = torch.device("cpu")
ROWS, CONTEXT = 16, 256
ARGS = ModelArgs(dim=256, n_layers=6, n_heads=8, vocab_size=2048, max_seq_len=CONTEXT)
NANOGPT = ROOT / "configs" / "shakespeare_char.toml"


def step_seconds(turns: int, dtype: torch.dtype, compile: bool = False) -> dict[str, float]:
    """Median seconds of a step of each contender."""
    tokens, dtype_name = torch.randint(ARGS.vocab_size, (ROWS, CONTEXT + 1)), str(dtype)[6:]
    contenders: dict[str, Measurement] = {}

    def enter(name: str, model: Transformer, loss: Callable[[Tensor, Tensor], Tensor], optimizers: list) -> None:
        contenders[name] = partial(seconds, partial(step, model, loss, optimizers, dtype_name, tokens))

    contenders["transformers, AdamW"] = in_own_process("training", args=asdict(ARGS), rows=ROWS, dtype=dtype_name)
    for optimizer in ("adamw", "muon"):
        ours = Transformer(ARGS)
        optimizers = build_optimizers(ours, TrainArgs(optimizer=optimizer), dtype)
        enter(f"ropewalk, {optimizer}", ours, NextTokenLoss(ours, dtype), optimizers)
    if compile:
        ours = Transformer(ARGS)
        loss = torch.compile(NextTokenLoss(ours, dtype))
        enter("ropewalk compiled, adamw", ours, loss, build_optimizers(ours, TrainArgs(optimizer="adamw"), dtype))
    return alternate(contenders, turns)


def product_seconds(turns: int, dtype: torch.dtype) -> float:
    """Median seconds of the matrix products of a step, forward and backward, without everything around them."""
    weights = [p for name, p in Transformer(ARGS).named_parameters() if p.ndim == 2 and "embeddings" not in name]
    products = []
    for weight in (weight.detach().to(dtype) for weight in weights):
        x, grad = (torch.randn(ROWS * CONTEXT, size, dtype=dtype) for size in (weight.shape[1], weight.shape[0]))
        products += [(x, weight.T), (grad, weight), (grad.T, x)]

    def multiply_all() -> None:
        for a, b in products:
            a @ b

    return alternate({"products": partial(seconds, multiply_all)}, turns)["products"]


Curve = list[tuple[int, float, float]]  # of each validation: the step, the seconds of training, and the loss


def race(data: str, config: Path, optimizer: str) -> dict[str, Curve]:
    """Train this network with the settings of the file, and GPT-2; print and return the validations of both.

    ``adamw`` has GPT-2's peak learning rate here.
    """
    curves: dict[str, Curve] = {"ropewalk": [], "GPT-2": []}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        train_tokenizer((text for text, _ in open_documents([data])), scratch / "tokenizer.model", "char", 1024)
        tokenizer = SentencePieceTokenizer(scratch / "tokenizer.model")
        tokenize(scratch, open_documents([data]), tokenizer)
        settings = read_toml(config, DataArgs, ModelArgs, TrainArgs) | {"vocab_size": tokenizer.vocab_size}
        settings |= {"eval_tokens": EVAL_TOKENS}
        if optimizer == "adamw":
            settings |= {"optimizer": "adamw", "lr": PEAK_LR}
        _, args, train = instances(settings, DataArgs, ModelArgs, TrainArgs)
        trainer = Trainer(Transformer(args), load_dataset(scratch), train, scratch)
        dtype = str(trainer.dtype)[6:]
        gpt2_step = in_own_process("GPT-2", directory=str(scratch), vocab_size=args.vocab_size, dtype=dtype)
        gpt2_seconds = 0.0

        def note(name: str, step: int, time: float, loss: float) -> None:
            curves[name].append((step, time, loss))
            print(f"{name:8}  step {step:5} {time:7.1f} s  {loss:.4f}", file=sys.stderr, flush=True)

        ours = trainer.steps()
        for step in range(1, STEPS + 1):
            measured = next(ours, {})
            if "val_loss" in measured:
                note("ropewalk", trainer.progress.step, trainer.progress.train_seconds, measured["val_loss"])
            taken, loss = gpt2_step()
            gpt2_seconds += taken
            if loss is not None:
                note("GPT-2", step, gpt2_seconds, loss)
        for measured in ours:  # if the settings have more steps
            if "val_loss" in measured:
                note("ropewalk", trainer.progress.step, trainer.progress.train_seconds, measured["val_loss"])
    return curves


def seconds_to(target: float, curve: Curve) -> float:
    return min((time for _, time, loss in curve if loss <= target), default=math.inf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="also time the compiled network (takes a minute more)")
    parser.add_argument("--race", metavar="TEXT", help="train to the end beside GPT-2")
    parser.add_argument("--config", type=Path, default=NANOGPT, help="our settings in the race")
    parser.add_argument(
        "--optimizer", choices=("adamw", "muon"), default="muon", help="ours in the race; adamw has GPT-2's rate"
    )
    parser.add_argument("--dtype", default="auto", help="of a step's products; auto: bfloat16 if native")
    flags = parser.parse_args()
    keep_freed_memory()  # as in train.py
    print(machine())
    if flags.race:
        curves = race(flags.race, flags.config, flags.optimizer)
        target = curves["GPT-2"][-1][2]
        for name, curve in curves.items():
            steps, total, loss = curve[-1]
            to_target = f"{seconds_to(target, curve):.1f} s to {target:.4f}"
            print(f"{name}: {loss:.4f} after {steps} steps, {total:.1f} s; {to_target}")
        return
    dtype = pick_dtype(flags.dtype, CPU)
    times = step_seconds(flags.turns, dtype, flags.compile)
    products = product_seconds(flags.turns, dtype)
    print(f"{ROWS} x {CONTEXT} tokens; its matrix products take {1e3 * products:.0f} ms")
    print("| | ms a step | times as fast as transformers | times its products |\n|---|---|---|---|")
    for name, time in times.items():
        ratio = times["transformers, AdamW"] / time
        print(f"| {name} | {1e3 * time:.0f} | {ratio:.2f} | {time / products:.2f} |")


if __name__ == "__main__":
    startup.run(main, "train.py")
