#!/usr/bin/env python3
"""Generation and training on one card, beside transformers: the tables of README.md in at most six minutes.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cpu --small          a minute, to try the program out

All weights are random, and the dtype is the one that the card multiplies fastest. transformers generates with a static
cache, whose forward pass it compiles, and trains in a plain loop with autocast. What would begin after ``--seconds``,
or is compiled and would begin a minute before, is left out. The share of the memory's rate counts the weights once a
token. A training step has six operations for each multiplication of a forward pass; MFU is their rate as a share of
that of the card's data sheet, and what a large product reaches here is beside it.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.decode import SHAPES
from benchmarks.peers import fused_adamw, llama, llama_loss
from benchmarks.timing import memory_rate, seconds
from model import ModelArgs, Transformer, generate
from model.cli import instances
from model.cli.machine import pick_device, pick_dtype
from model.fast.step import for_decoding
from model.text.dataset import Dataset
from model.training.choice import choose_model, fitting_micro_batch, multiplications, step_seconds
from model.training.config import SETTINGS_CLASSES
from model.training.distributed import Ranks
from model.training.estimate import count_parameters
from model.training.run import Run

GPT = ModelArgs(dim=768, n_layers=12, n_heads=12, vocab_size=32000, max_seq_len=1024)  # 85 million in the layers
TINY = ModelArgs(dim=64, n_layers=2, n_heads=2, vocab_size=256, max_seq_len=64)
WAYS = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 0}}
FIRST = 3  # of the tokens that count: one is of the prompt, and with two a step may be compiled and recorded
COMPILING = 60.0  # seconds
# Operations/s of products in 16 bits, without sparsity, as NVIDIA's data sheets state them
DATA_SHEETS = {"H200": 989e12, "H100 80GB HBM3": 989e12, "A100": 312e12, "T4": 65e12}


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    shapes: dict[str, ModelArgs]
    tokens: int  # generated in each text
    prompt: int  # tokens, of which the first token's time is measured
    trained: ModelArgs
    rows: int  # of a training step
    product: int  # rows and columns of the matrices whose product shows what the card can do
    text_tokens: int  # of the text that a model is chosen for


# Of so many tokens that ten minutes do not end before the text has been read often enough
LARGE = Sizes({name: SHAPES[name] for name in ("1.1B", "15M")}, 250, 500, GPT, 32, 8192, 100_000_000)
SMALL = Sizes({"tiny": TINY}, 8, 20, TINY, 2, 256, 20_000)


class Report:
    """Measures as long as there is time, and keeps the rows of tables until all is measured."""

    def __init__(self, limit: float) -> None:
        self.end = time.monotonic() + limit

    def has(self, seconds: float) -> bool:
        return time.monotonic() + seconds <= self.end

    def measure(self, name: str, figure: Callable[[], Any], needed: float = 0.0) -> Any:
        """What ``figure`` returns, or None if ``needed`` seconds are not left, or if this machine cannot do it."""
        if not self.has(needed):
            return None
        try:
            found = figure()
        except Exception as error:  # no memory, no compiler, no transformers or another one: the rest still counts
            found = f"{type(error).__name__}: {str(error)[:200]}"
            print(f"{name}: {found}", file=sys.stderr)
            return None
        print(f"{name}: {found:.4g}" if isinstance(found, float) else f"{name}: done", file=sys.stderr)
        return found


def print_table(*rows: list[object]) -> None:
    head, *body = ["| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    print(head, "|" + len(rows[0]) * "---|", *body, "", sep="\n", flush=True)


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def rate(times: list[float]) -> float:
    """Tokens/s of one text, from the times at which its tokens were on the CPU."""
    return (len(times) - FIRST) / (times[-1] - times[FIRST - 1])


def our_speed(network: Transformer, rows: int, tokens: int, sampling: dict[str, float]) -> float:
    """Tokens/s of all rows."""
    return rows * rate([time.perf_counter() for _ in generate(network, [[1, 2, 3]] * rows, tokens, **sampling)])


def first_token_seconds(network: Transformer, lengths: Iterable[int]) -> list[float]:
    """The time to the first token after a prompt, for each of these lengths in turn."""
    return [seconds(partial(next, generate(network, [[1] * length], 1))) for length in lengths]


def prompts_of_new_lengths(model: Transformer, length: int) -> str:
    """What a prompt of a length that has not been seen costs; some libraries prepare themselves for each."""
    network = for_decoding(model, False)
    _, *repeated = first_token_seconds(network, [length] * 6)
    new = first_token_seconds(network, range(length + 1, length + 6))
    return (
        f"The first token after a prompt of {length} tokens takes {1e3 * median(repeated):,.1f} ms, after prompts of "
        f"{length + 1} to {length + 5}, each for the first time, {1e3 * median(new):,.1f} ms."
    )


@dataclass
class Streamer:
    """transformers gives it the prompt and then the tokens of each step, on the CPU."""

    times: list[float] = field(default_factory=list)

    def put(self, tokens: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def transformers_speed(model: nn.Module, rows: int, tokens: int, sampling: dict[str, float]) -> float:
    """The same with its static cache, in the second text, because the first one compiles it."""
    prompts = torch.tensor([[1, 2, 3]] * rows, device=next(model.parameters()).device)
    options: dict[str, Any] = {"cache_implementation": "static", "pad_token_id": 0, "do_sample": bool(sampling)}
    if sampling:
        options |= {"temperature": sampling["temperature"], "top_p": sampling["top_p"], "top_k": 0}
    for _ in range(2):
        streamer = Streamer()
        length = {"min_new_tokens": tokens, "max_new_tokens": tokens}
        model.generate(prompts, streamer=streamer, **length, **options)  # type: ignore[operator]
    return rows * rate(streamer.times[1:])


class Generation:
    """One network of ours and one of transformers."""

    def __init__(self, name: str, args: ModelArgs, device: torch.device, dtype: torch.dtype, report: Report) -> None:
        torch.manual_seed(0)
        self.name, self.report = name, report
        self.figures: dict[tuple[int, str, str], float | None] = {}  # by the texts at a time, how, and the way
        with device:  # on a CPU, the random numbers of 1.1 billion weights take ten seconds
            self.model = report.measure(f"our {name}", lambda: Transformer(args).to(device, dtype).eval())
            self.theirs = report.measure(f"transformers' {name}", lambda: llama(args).to(device, dtype).eval())
        read = count_parameters(args).total - args.dim * args.vocab_size * (not args.tie_embeddings)
        self.share = read * dtype.itemsize / memory_rate(device=device)  # of a second, for a token

    def measure_ours(self, texts: int, tokens: int, compile: bool) -> None:
        way, needed = "`--compile`" if compile else "default", COMPILING * compile
        if self.model is None:
            return
        network = self.report.measure(f"a step, {way}", partial(for_decoding, self.model, compile), needed)
        for how, sampling in WAYS.items():
            if network is not None:
                speed = partial(our_speed, network, texts, tokens, sampling)
                name = f"{self.row_name(texts, how)}, {way}"
                self.figures[texts, how, way] = found = self.report.measure(name, speed, needed)
                needed = needed if found is None else 0.0  # it has been compiled

    def measure_theirs(self, texts: int, tokens: int) -> None:
        torch.compiler.reset()  # or else transformers' second number of texts would be compiled for all numbers
        for how, sampling in WAYS.items():
            if self.theirs is not None:
                speed = partial(transformers_speed, self.theirs, texts, tokens, sampling)
                name = f"{self.row_name(texts, how)}, transformers"
                self.figures[texts, how, "transformers"] = self.report.measure(name, speed, COMPILING)

    def row_name(self, texts: int, how: str) -> str:
        return f"{self.name}, {texts} {'text' if texts == 1 else 'texts'}, {how}"

    def rows(self, texts: int) -> list[list[object]]:
        """The rows of the table with so many texts at a time."""
        rows: list[list[object]] = []
        for how in WAYS:
            cells: list[object] = [self.row_name(texts, how)]
            for way in ("default", "`--compile`", "transformers"):
                figure = self.figures.get((texts, how, way))
                cells += [figure and f"{figure:,.0f}", figure and f"{figure / texts * self.share:.0%}"]
            rows.append(cells)
        return rows


def training_run(sizes: Sizes, device: torch.device, **settings: object) -> Run:
    values = {**vars(sizes.trained), "batch_size": sizes.rows, "device": str(device), "optimizer": "adamw", **settings}
    return Run(*instances(values, *SETTINGS_CLASSES), frozenset(values), Path("run"))


def random_text(vocab_size: int, tokens: int) -> Dataset:
    ids = np.random.default_rng(0).integers(vocab_size, size=tokens, dtype=np.uint16)
    return Dataset(ids, ids[:1000], val_bytes=1000, val_tokens=999)


def transformers_step_seconds(sizes: Sizes, rows: int, device: torch.device, dtype: torch.dtype) -> float:
    """The fastest of five steps of a plain loop, ``rows`` at a time. In float16 the time of a scaler is missing."""
    model = llama(sizes.trained).to(device)
    optimizer = fused_adamw(model)
    tokens = torch.randint(sizes.trained.vocab_size, (sizes.rows, sizes.trained.max_seq_len + 1), device=device)

    def step() -> None:
        for part in tokens.split(rows):
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = llama_loss(model, part[:, :-1], part[:, 1:]) / tokens[:, 1:].numel()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(device)

    return min(seconds(step) for _ in range(5))


def product_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations/s of a large matrix product: the fastest of ten."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / min(seconds(lambda: (a @ b, wait(device))) for _ in range(10))


def data_sheet_rate(name: str, dtype: torch.dtype) -> float | None:
    """Operations/s of the card of this name, if they are known; in float32 they depend on PyTorch's settings."""
    known = (rate for card, rate in DATA_SHEETS.items() if re.search(rf"\b{card}\b", name))
    return None if dtype == torch.float32 else next(known, None)


def training(sizes: Sizes, device: torch.device, name_of_card: str, report: Report) -> list[list[object]]:
    run, text = training_run(sizes, device), random_text(sizes.trained.vocab_size, sizes.text_tokens)
    machine, context = run.machine(Ranks()), sizes.trained.max_seq_len
    step_tokens = sizes.rows * context
    rows = fitting_micro_batch(run.model, run.train, machine)
    train = replace(run.train, micro_batch_size=rows)
    product = report.measure("a large product", partial(product_rate, device, machine.dtype, sizes.product))

    peak = data_sheet_rate(name_of_card, machine.dtype)

    def our_seconds(model: ModelArgs, compile: bool, optimizer: str = "adamw") -> float:
        return step_seconds(run, model, replace(train, compile=compile, optimizer=optimizer), text, device)

    grouped = replace(run.model, n_kv_heads=run.model.n_heads // 2)
    steps: dict[str, tuple[ModelArgs, Callable[[], float], float]] = {
        "eager": (run.model, partial(our_seconds, run.model, False), 0.0),
        "eager, Muon": (run.model, partial(our_seconds, run.model, False, "muon"), 0.0),
        "eager, two heads share keys": (grouped, partial(our_seconds, grouped, False), 0.0),
        "transformers": (run.model, partial(transformers_step_seconds, sizes, rows, device, machine.dtype), 0.0),
        "compiled": (run.model, partial(our_seconds, run.model, True), COMPILING),
        "compiled, Muon": (run.model, partial(our_seconds, run.model, True, "muon"), COMPILING),
        "compiled, two heads share keys": (grouped, partial(our_seconds, grouped, True), COMPILING),
    }
    table: list[list[object]] = []
    for name, (model, step, needed) in steps.items():
        if device.type == "cpu" and name.startswith("compiled"):
            continue
        taken = report.measure(f"a training step, {name}", step, needed)
        speed = taken and step_tokens / taken
        operations = speed and 6 * multiplications(model) * speed
        cells = [taken and f"{1e3 * taken:,.1f}", speed and f"{speed:,.0f}", speed and f"{operations / 1e12:,.1f}"]
        shares = [operations and rate and f"{operations / rate:.0%}" for rate in (peak, product)]
        table.append([name, *cells, *shares])
    heading = f"training, {sizes.rows} x {context} tokens a step, {rows} at once, AdamW unless Muon is named"
    mfu = f"MFU of the {peak / 1e12:,.0f} of the data sheet" if peak else "MFU"
    large = product and f"share of the {product / 1e12:,.1f} of a product of {sizes.product:,} x {sizes.product:,}"
    return [[heading, "ms a step", "tokens/s", "TFLOPS", mfu, large], *table]


def choice(sizes: Sizes, device: torch.device, report: Report) -> str:
    """What ``--minutes 10`` chooses."""
    settings: dict[str, object] = {"minutes": 10.0, "device": str(device), "vocab_size": 4096}
    asked = "`--minutes 10`"
    if not report.has(1.5 * COMPILING):
        settings["compile"] = False
        asked += " with `--no-compile`"
    run = Run(*instances(settings, *SETTINGS_CLASSES), frozenset(settings), Path("run"))
    run, speed = choose_model(run, random_text(run.model.vocab_size, sizes.text_tokens), run.machine(Ranks()))
    model, train = run.model, run.train
    return (
        f"{asked} for {sizes.text_tokens:,} tokens chooses {model.dim} x {model.n_layers} with {train.batch_size} x "
        f"{model.max_seq_len} tokens a step, {'compiled' if train.compile else 'eager'}: {speed:,.0f} tokens/s."
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
    print(f"{name}, {str(dtype)[6:]}; memory reads {memory_rate(device=device) / 1e9:,.0f} GB/s; ", end="")
    print(f"torch {torch.__version__}, {date.today()}\n", flush=True)

    # The defaults come first, then training, and last what compiles for generation, because time may run out.
    networks = [Generation(size, args, device, dtype, report) for size, args in sizes.shapes.items()]
    each = [(network, texts) for network in networks for texts in (1, 16)]
    for network, texts in each:
        network.measure_ours(texts, sizes.tokens, compile=False)
    if networks[0].model is not None:
        told = report.measure("prompts", partial(prompts_of_new_lengths, networks[0].model, sizes.prompt))
        print(told or "", end="\n\n", flush=True)
    print_table(*training(sizes, device, name, report))
    print(report.measure("the choice", partial(choice, sizes, device, report), COMPILING) or "", end="\n\n", flush=True)
    for network, texts in each:
        network.measure_ours(texts, sizes.tokens, compile=True)
        network.measure_theirs(texts, sizes.tokens)
    generated = [row for network, texts in each for row in network.rows(texts)]
    head = ["tokens/s generated", "default", "share of the memory's rate", "`--compile`", "share", "transformers"]
    print_table([*head, "share"], *generated)


if __name__ == "__main__":
    startup.run(main, "gpu.py")
