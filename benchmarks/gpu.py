#!/usr/bin/env python3
"""Generation and training on one card, beside transformers: the tables of docs/numbers.md in at most six minutes.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cpu --small          a minute, to try the program out

All weights are random, and the dtype is the one that the card multiplies fastest. transformers generates with a static
cache, whose forward pass it compiles, and trains in a plain loop with autocast. A cell that would begin after
``--seconds`` stays empty. The share of the memory's rate counts the weights once a token, and MFU counts six operations
for each multiplication of a forward pass, as a share of what a large product reaches here.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup  # noqa: F401, I001  must come before torch
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.decode import SHAPES
from benchmarks.peers import fused_adamw, llama, llama_loss
from benchmarks.timing import memory_rate, seconds
from model import ModelArgs, Transformer, generate
from model.cli import instances
from model.cli.machine import pick_device, pick_dtype
from model.text.dataset import Dataset
from model.training.choice import choose_model, multiplications, step_seconds
from model.training.config import SETTINGS_CLASSES, Run
from model.training.distributed import Ranks

GPT = ModelArgs(dim=768, n_layers=12, n_heads=12, vocab_size=32000, max_seq_len=1024)  # 85 million in the layers
TINY = ModelArgs(dim=64, n_layers=2, n_heads=2, vocab_size=256, max_seq_len=64)
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 0}


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    shapes: dict[str, ModelArgs]
    tokens: int  # generated in each text
    trained: ModelArgs
    rows: int  # of a training step
    product: int  # rows and columns of the matrices whose product shows what the card can do
    text_tokens: int  # of the text that a model is chosen for


LARGE = Sizes({name: SHAPES[name] for name in ("15M", "1.1B")}, 128, GPT, 32, 8192, 6_000_000)
SMALL = Sizes({"tiny": TINY}, 8, TINY, 2, 256, 20_000)


class Report:
    """Measures cells as long as there is time, and prints them in rows."""

    def __init__(self, limit: float) -> None:
        self.end = time.monotonic() + limit

    def measure(self, figure: Callable[[], float], needed: float = 0.0) -> float | None:
        """The figure, or None if less than ``needed`` seconds are left, or if this machine cannot do it."""
        if time.monotonic() + needed > self.end:
            return None
        try:
            return figure()
        except (ImportError, RuntimeError, ValueError) as error:  # without transformers, memory or a compiler
            print(f"not measured: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return None

    def row(self, *cells: object) -> None:
        print("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |", flush=True)


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def our_speed(model: Transformer, rows: int, tokens: int, compile: bool, sampling: dict[str, float]) -> float:
    """Tokens/s of all rows, after the two steps in which the first is computed and the second compiled or recorded."""
    device = model.tok_embeddings.weight.device
    steps = generate(model, [[1, 2, 3]] * rows, tokens + 2, compile=compile, **sampling)
    next(steps), next(steps)
    wait(device)
    return rows * tokens / seconds(lambda: (list(steps), wait(device)))


def transformers_speed(model: nn.Module, rows: int, tokens: int, sampling: dict[str, float]) -> float:
    """The same with its static cache, after a text that compiles it."""
    device = next(model.parameters()).device
    prompts = torch.tensor([[1, 2, 3]] * rows, device=device)
    options = {"cache_implementation": "static", "pad_token_id": 0, "do_sample": bool(sampling)}
    options |= {name: value for name, value in sampling.items() if name != "seed"}

    def continue_texts() -> None:
        model.generate(prompts, min_new_tokens=tokens, max_new_tokens=tokens, **options)  # type: ignore[operator]
        wait(device)

    continue_texts()
    return rows * tokens / seconds(continue_texts)


def generation(sizes: Sizes, device: torch.device, dtype: torch.dtype, report: Report) -> None:
    rate = memory_rate(device=device)
    report.row("tokens/s generated", "default", "share of the memory's rate", "`--compile`", "share", "transformers")
    report.row(*["---"] * 6)
    for name, args in sizes.shapes.items():
        torch.manual_seed(0)
        model = Transformer(args).to(device, dtype).eval()
        theirs = report.measure(lambda args=args: llama(args).to(device, dtype).eval())
        size = sum(weight.nbytes for key, weight in model.named_parameters() if key != "tok_embeddings.weight")
        for rows in (1, 16):
            for how, sampling in {"greedy": {}, "sampled": SAMPLED}.items():
                cells: list[object] = [f"{name}, {rows} {'text' if rows == 1 else 'texts'}, {how}"]
                for compile in (False, True):
                    speed = report.measure(
                        partial(our_speed, model, rows, sizes.tokens, compile, sampling), 45 * compile
                    )
                    cells += [speed and f"{speed:,.0f}", speed and f"{speed / rows * size / rate:.0%}"]
                other = None
                if theirs is not None:
                    other = report.measure(partial(transformers_speed, theirs, rows, sizes.tokens, sampling), 45)
                report.row(*cells, other and f"{other:,.0f}")
        del model, theirs


def training_run(sizes: Sizes, device: torch.device, **settings: object) -> Run:
    values = {**vars(sizes.trained), "batch_size": sizes.rows, "device": str(device), "optimizer": "adamw", **settings}
    return Run(*instances(values, *SETTINGS_CLASSES), frozenset(values), Path("run"))


def random_text(vocab_size: int, tokens: int) -> Dataset:
    ids = np.random.default_rng(0).integers(vocab_size, size=tokens).astype(np.uint16)
    return Dataset(ids, ids[:1000], val_bytes=1000, val_tokens=999)


def transformers_step_seconds(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> float:
    """The fastest of five steps of a plain loop. In float16 the time of a scaler is missing."""
    model = llama(sizes.trained).to(device)
    optimizer = fused_adamw(model)
    tokens = torch.randint(sizes.trained.vocab_size, (sizes.rows, sizes.trained.max_seq_len + 1), device=device)

    def step() -> Tensor:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = llama_loss(model, tokens[:, :-1], tokens[:, 1:]) / tokens[:, 1:].numel()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return min(seconds(lambda: (step().item(), wait(device))) for _ in range(5))


def product_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations/s of a large matrix product: the fastest of ten."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / min(seconds(lambda: (a @ b, wait(device))) for _ in range(10))


def training(sizes: Sizes, device: torch.device, report: Report) -> None:
    run, text = training_run(sizes, device), random_text(sizes.trained.vocab_size, sizes.text_tokens)
    dtype = run.train.product_dtype(device)
    rate, context = product_rate(device, dtype, sizes.product), sizes.trained.max_seq_len
    step_tokens = sizes.rows * context

    def our_seconds(compile: bool) -> float:
        return step_seconds(run, run.model, replace(run.train, compile=compile), context, text)

    report.row(f"training, {sizes.rows} x {context} tokens a step, AdamW", "ms a step", "tokens/s", "MFU")
    report.row(*["---"] * 4)
    ways: dict[str, tuple[Callable[[], float], float]] = {
        "eager": (partial(our_seconds, False), 0.0),
        "compiled": (partial(our_seconds, True), 90.0),
        "transformers": (partial(transformers_step_seconds, sizes, device, dtype), 0.0),
    }
    for name, (step, needed) in ways.items():
        time_taken = report.measure(step, needed) if name != "compiled" or device.type != "cpu" else None
        speed = time_taken and step_tokens / time_taken
        share = speed and 6 * multiplications(sizes.trained) * speed / rate
        report.row(name, time_taken and f"{1e3 * time_taken:,.1f}", speed and f"{speed:,.0f}", share and f"{share:.0%}")
    print(
        f"\nA product of {sizes.product:,} x {sizes.product:,} in {str(dtype)[6:]} reaches {rate / 1e12:,.1f} TFLOPS."
    )


def choice(sizes: Sizes, device: torch.device, report: Report) -> None:
    """What ``--minutes 10`` chooses, uncompiled if there is too little time to compile two models."""
    settings: dict[str, object] = {"minutes": 10.0, "device": str(device), "vocab_size": 4096}
    if time.monotonic() + 180 > report.end:
        settings["compile"] = False
    run = Run(*instances(settings, *SETTINGS_CLASSES), frozenset(settings), Path("run"))
    run, speed = choose_model(run, random_text(run.model.vocab_size, sizes.text_tokens), Ranks())
    model, train = run.model, run.train
    way = "compiled" if train.compile else "eager"
    print(
        f"`--minutes 10` for {sizes.text_tokens:,} tokens chooses {model.dim} x {model.n_layers} with "
        f"{train.batch_size} x {model.max_seq_len} tokens a step, {way}: {speed:,.0f} tokens/s."
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--seconds", type=float, default=330, help="after which nothing more is begun")
    flags = parser.parse_args(arguments)
    device, sizes, report = pick_device(flags.device), SMALL if flags.small else LARGE, Report(flags.seconds)
    dtype = pick_dtype("auto", device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    rate = memory_rate(device=device) / 1e9
    print(f"{name}, {str(dtype)[6:]}; memory reads {rate:,.0f} GB/s; torch {torch.__version__}, {date.today()}\n")
    training(sizes, device, report)
    print()
    generation(sizes, device, dtype, report)
    print()
    choice(sizes, device, report)


if __name__ == "__main__":
    main()
