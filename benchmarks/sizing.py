#!/usr/bin/env python3
"""Fit the scaling law by which ``train.py`` chooses a model, and add runs to fit it to.

    python benchmarks/sizing.py                                   fit the law to sizing.jsonl; how well it predicts
    python benchmarks/sizing.py --run python-docs --dim 128 --n_layers 3 --tokens 1600000 --batch_size 4
    python benchmarks/sizing.py --run shakespeare --data tinyshakespeare.txt --tokenizer char ...

A run trains on a number of tokens, not for a time, so that even a busy machine may add to sizing.jsonl. The law is
fitted to the logarithm of the loss, with Huber's loss so that outliers hardly move it. Then each corpus in turn is held
out: the law is fitted to the others, and predicts its runs.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from torch import Tensor

from model import ModelArgs, Transformer
from model.cli import Parser, add_flags, instances, read_flags, run_script
from model.cli.machine import keep_freed_memory
from model.cli.settings import setting_fields
from model.training.config import SETTINGS_CLASSES, DataArgs, Run, TrainArgs
from model.training.distributed import Ranks
from model.training.estimate import count_parameters
from model.training.run_text import prepare_text
from model.training.sizing import Law, Planner, lowest_ngram_loss
from model.training.trainer import Trainer

START = Law(floor=0.5, model_scale=0.1, model_power=0.3, text_scale=0.25, text_power=0.5, repeat_limit=4.0)
SHAPE = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
RUNS = Path(__file__).parent / "sizing.jsonl"


@dataclass(frozen=True)
class RunArgs:
    """A run to add"""

    run: Annotated[str, "the name of its corpus; without it the law is fitted"] = ""
    tokens: Annotated[int, "tokens to train on"] = 1_000_000
    unique: Annotated[int, "use only this many tokens from the end of the training text (0: all)"] = 0


def main() -> int:
    parser = Parser(prog="sizing.py", description=__doc__)
    add_flags(parser, RunArgs, DataArgs, ModelArgs, TrainArgs)
    flags = read_flags(parser.parse_args(), RunArgs, DataArgs, ModelArgs, TrainArgs)
    if flags.get("run"):
        line = train(flags)
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line))
    else:
        report([json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()])
    return 0


def train(flags: dict) -> dict:
    """Train one run; settings without a flag are those that ``train.py`` would choose for this number of tokens."""
    keep_freed_memory()
    torch.manual_seed(flags.get("seed", TrainArgs.seed))
    with_heads = flags | {"n_heads": flags.get("n_heads", max(1, flags["dim"] // 32))}
    settings = {name: value for name, value in with_heads.items() if name in setting_fields(*SETTINGS_CLASSES)}
    run = Run(*instances(settings | {"sample_every": 0}, *SETTINGS_CLASSES), frozenset(settings), Path())
    run, text = prepare_text(run, Ranks())
    dataset, model = text.dataset, run.model
    if flags.get("unique"):
        dataset = replace(dataset, train=dataset.train[-flags["unique"] :])
    ngram_loss = lowest_ngram_loss(dataset, model.vocab_size)
    args = Planner(run, len(dataset.train), ngram_loss).training_settings(model, flags["tokens"])
    steps = round(flags["tokens"] / (args.batch_size * model.max_seq_len))
    args = replace(args, max_steps=steps)
    trainer = Trainer(Transformer(model), dataset, args)
    trainer.parallel.train()
    begin = time.process_time()
    losses = [measured["train_loss"] for measured in trainer.steps()]
    seconds = time.process_time() - begin
    loss = trainer.validation_loss()
    return {
        "corpus": flags["run"],
        "guess": round(ngram_loss, 4),
        "unique": len(dataset.train),
        "hidden": count_parameters(model).hidden,
        "tokens": steps * args.batch_size * model.max_seq_len,
        **{name: getattr(model, name) for name in SHAPE},
        **{name: getattr(args, name) for name in ("batch_size", "lr", "weight_decay", "dropout", "seed")},
        "train_loss": round(statistics.mean(losses[-max(20, steps // 20) :]), 4),
        "val_loss": round(loss, 4),
        "cpu_seconds": round(seconds),
    }  # fmt: skip


def fit(runs: list[dict]) -> Law:
    """The law with the smallest error.

    Each corpus has a separate scale during the fit, so that a hard text is not mistaken for a small model. The law
    itself has the geometric mean of these scales.
    """
    corpora = sorted({run["corpus"] for run in runs})
    corpus = torch.tensor([corpora.index(run["corpus"]) for run in runs])
    start = torch.tensor(START, dtype=torch.float64).log()
    logs = start.clone().requires_grad_()
    scales = torch.zeros(len(corpora), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logs, scales], max_iter=2000, line_search_fn="strong_wolfe")

    def total_error() -> Tensor:
        optimizer.zero_grad()
        residuals = scales[corpus] + errors(Law(*logs.exp()), runs)
        total = 1e4 * F.huber_loss(residuals, torch.zeros_like(residuals), delta=0.01)
        # Pull the mean of the scales to 0, because the law could absorb it, and keep parameters that the runs hardly
        # determine near their start.
        total = total + 100 * scales.mean().square() + 0.1 * (logs - start).square().sum()
        total.backward()
        return total

    optimizer.step(total_error)
    return Law(*(round(value, 4) for value in logs.exp().tolist()))


def best_of_each(runs: list[dict]) -> list[dict]:
    """Of runs that differ only in batch size, learning rates or regularization, the best one.

    The law is meant for runs with well-chosen settings.
    """
    best: dict[tuple, dict] = {}
    for run in sorted(runs, key=lambda run: run["val_loss"]):
        best.setdefault((run["corpus"], run["unique"], run["hidden"], round(run["tokens"], -5)), run)
    return list(best.values())


def errors(law: Law, runs: list[dict]) -> Tensor:
    """The logarithm of predicted / measured loss of each run."""

    def column(name: str) -> Tensor:
        return torch.tensor([run[name] for run in runs], dtype=torch.float64)

    predicted = law.loss(column("guess"), column("hidden"), column("tokens"), column("unique"))
    return (predicted / column("val_loss")).log()


def report(runs: list[dict]) -> None:
    """Print the law, and how well it predicts the runs of each corpus when it is fitted to the others.

    Prints two errors per corpus: of the predictions, and of the predictions scaled by a common factor, which does not
    matter for the choice of a model.
    """
    runs = best_of_each(runs)
    law = fit(runs)
    print(f"LAW = {law}")
    print(f"fitted to {len(runs)} runs: off by {percent(errors(law, runs))}")
    for corpus in sorted({run["corpus"] for run in runs}):
        held_out = [run for run in runs if run["corpus"] == corpus]
        residuals = errors(fit([run for run in runs if run["corpus"] != corpus]), held_out)
        error, scaled_error = percent(residuals), percent(residuals - residuals.mean())
        print(f"without {corpus:<16} its {len(held_out):2} runs are off by {error}, or {scaled_error} after scaling")


def percent(residuals: Tensor) -> str:
    """The root mean square."""
    return f"{100 * residuals.square().mean().sqrt():.1f}%"


if __name__ == "__main__":
    run_script(main, "sizing.py")
