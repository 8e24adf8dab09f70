#!/usr/bin/env python3
"""How the loss depends on the model, the tokens it sees and the text: runs, and the law that ``train.py`` chooses by.

    python benchmarks/sizing.py                                   fit the law to sizing.jsonl; how well it predicts
    python benchmarks/sizing.py --run python-docs --dim 128 --n_layers 3 --tokens 1600000 --batch_size 4
    python benchmarks/sizing.py --run shakespeare --data tinyshakespeare.txt --tokenizer char ...

A run trains for a number of tokens, not for a time: any machine may add to sizing.jsonl, busy or not. The law is fitted
to the logarithm of the loss, with weights that a few runs far from it do not move (Huber). It is then fitted without
each corpus in turn, to predict the runs of that corpus, which it has not seen.
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
from model.cli import Parser, add_flags, from_settings, read_flags, run_script
from model.cli.machine import keep_freed_memory
from model.training.config import DataArgs, TrainArgs
from model.training.distributed import Ranks
from model.training.estimate import count_parameters
from model.training.evaluation import validation_loss
from model.training.plan import Plan
from model.training.prepared_text import prepare_text
from model.training.sizing import Law, best_ngram_loss, training_settings
from model.training.trainer import Trainer

START = Law(floor=0.5, model=0.1, model_power=0.3, text=0.25, text_power=0.5, repeats=4.0)
SHAPE = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
RUNS = Path(__file__).parent / "sizing.jsonl"


@dataclass(frozen=True)
class RunArgs:
    """A run to add"""

    run: Annotated[str, "the name of its corpus; without it the law is fitted"] = ""
    tokens: Annotated[int, "tokens to train on"] = 1_000_000
    unique: Annotated[int, "use only the last so many tokens of the training text (0: all)"] = 0


def main() -> int:
    parser = Parser(prog="sizing.py", description=__doc__)
    add_flags(parser, RunArgs, DataArgs, ModelArgs, TrainArgs)
    given = read_flags(parser.parse_args(), RunArgs, DataArgs, ModelArgs, TrainArgs)
    if given.get("run"):
        line = train(given)
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line))
    else:
        report([json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()])
    return 0


def train(given: dict) -> dict:
    """One run; what is not given is what ``train.py`` would take for so many tokens."""
    keep_freed_memory()
    torch.manual_seed(given.get("seed", TrainArgs.seed))
    settings = given | {"n_heads": given.get("n_heads", max(1, given["dim"] // 32))}
    data, architecture = from_settings(DataArgs, given), from_settings(ModelArgs, settings)
    text = prepare_text(Plan(data, architecture, TrainArgs(sample_every=0), Path(), settings=given))
    dataset, model = text.dataset, text.model
    if given.get("unique"):
        dataset = replace(dataset, train=dataset.train[-given["unique"] :])
    settings = training_settings(model, given["tokens"], len(dataset.train), given)
    steps = round(given["tokens"] / (settings["batch_size"] * model.max_seq_len))
    args = from_settings(TrainArgs, settings | {"max_steps": steps})
    trainer = Trainer(Transformer(model), dataset, args)
    trainer.model.train()
    begin = time.process_time()
    losses = [measured["train_loss"] for measured in trainer.steps()]
    seconds = time.process_time() - begin
    with trainer.autocast:
        loss = validation_loss(trainer.network, trainer.model, dataset, replace(args, batch_size=16), Ranks())
    return {
        "corpus": given["run"],
        "guess": round(best_ngram_loss(dataset, model.vocab_size), 4),
        "unique": len(dataset.train),
        "hidden": count_parameters(model).hidden,
        "tokens": steps * args.batch_size * model.max_seq_len,
        **{name: getattr(model, name) for name in SHAPE},
        **{name: getattr(args, name) for name in ("batch_size", "lr", "muon_lr", "weight_decay", "dropout", "seed")},
        "train_loss": round(statistics.mean(losses[-max(20, steps // 20) :]), 4),
        "val_loss": round(loss, 4),
        "cpu_seconds": round(seconds),
    }  # fmt: skip


def fit(runs: list[dict]) -> Law:
    """The law with the least error.

    Each corpus has a scale of its own while the shape is fitted, so that how hard a text is does not pass for how
    large its model was; the law's scale is the (geometric) mean of them.
    """
    corpora = sorted({run["corpus"] for run in runs})
    corpus = torch.tensor([corpora.index(run["corpus"]) for run in runs])
    start = torch.tensor(START, dtype=torch.float64).log()
    logs = start.clone().requires_grad_()
    scales = torch.zeros(len(corpora), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logs, scales], max_iter=2000, line_search_fn="strong_wolfe")

    def error() -> Tensor:
        optimizer.zero_grad()
        wrong = scales[corpus] + errors(Law(*logs.exp()), runs)
        total = 1e4 * F.huber_loss(wrong, torch.zeros_like(wrong), delta=0.01)
        # The scales add up to nothing, or they and the law's own would move against each other without end; and what
        # few runs say little of stays near where it was.
        total = total + 100 * scales.mean().square() + 0.1 * (logs - start).square().sum()
        total.backward()
        return total

    optimizer.step(error)
    return Law(*(round(value, 4) for value in logs.exp().tolist()))


def best_of_each(runs: list[dict]) -> list[dict]:
    """Of runs that differ in their batch, rates or regularization alone, the best: the law is of runs done well."""
    best: dict[tuple, dict] = {}
    for run in sorted(runs, key=lambda run: run["val_loss"]):
        best.setdefault((run["corpus"], run["unique"], run["hidden"], round(run["tokens"], -5)), run)
    return list(best.values())


def errors(law: Law, runs: list[dict]) -> Tensor:
    """The logarithm of expected over measured loss, of each run."""
    names = ("guess", "hidden", "tokens", "unique", "val_loss")
    *known, measured = (torch.tensor([run[name] for run in runs], dtype=torch.float64) for name in names)
    return (law.loss(*known) / measured).log()


def report(runs: list[dict]) -> None:
    """The law, and how well it predicts the runs of each corpus when fitted to the others alone.

    Two numbers for each: how far the predictions are from the measured losses, and how far they are when they may be
    off by one factor for the whole corpus, which is all that the choice of a model needs.
    """
    runs = best_of_each(runs)
    law = fit(runs)
    print(f"LAW = {law}")
    print(f"fitted to {len(runs)} runs: off by {percent(errors(law, runs))}")
    for corpus in sorted({run["corpus"] for run in runs}):
        held_out = [run for run in runs if run["corpus"] == corpus]
        wrong = errors(fit([run for run in runs if run["corpus"] != corpus]), held_out)
        shape = percent(wrong - wrong.mean())
        print(
            f"without {corpus:<16} its {len(held_out):2} runs are off by {percent(wrong)}, but for a factor by {shape}"
        )


def percent(wrong: Tensor) -> str:
    """The root of the mean square."""
    return f"{100 * wrong.square().mean().sqrt():.1f}%"


if __name__ == "__main__":
    run_script(main, "sizing.py")
