#!/usr/bin/env python3
"""Compare the batch size and learning rates that train.py chooses for fine-tuning with other ones.

    python benchmarks/fine_tuning.py runs/demo --minutes 0.4 1 --data tinyshakespeare.txt --rates 0.03 0.3

Each batch size is timed first, and then trained for the number of steps that fit into the minutes, so that other
programs do not disturb the comparison. A run is judged by its best validation loss, because that model is saved.
``--rates`` tries the chosen batch size with other fractions of the learning rates for training from scratch; train.py
uses 0.3.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

from model.cli import Settings, from_settings
from model.cli.machine import keep_freed_memory
from model.training.config import PEAK_LR, TrainArgs
from model.training.distributed import Ranks
from model.training.evaluation import validation_loss
from model.training.plan import Plan
from model.training.prepared_text import PreparedText, prepare_text
from model.training.resolve import resolve_new
from model.training.run import initial_model
from model.training.sizing import OVERHEAD, Machine, choose_settings, text_facts, validation_settings
from model.training.trainer import Trainer

BATCHES = (2, 4, 8, 16)


def best_loss(plan: Plan, text: PreparedText, train: TrainArgs) -> float:
    """Train a run; returns the best of its about ten validation losses."""
    torch.manual_seed(train.seed)
    trainer = Trainer(initial_model(plan, text.model, fresh=True), text.dataset, train)
    trainer.model.train()
    losses = []
    for _ in trainer.steps():
        step = trainer.progress.step
        if step % train.eval_every == 0 or step == train.max_steps:
            with trainer.autocast:
                losses.append(validation_loss(trainer.network, trainer.model, text.dataset, train, Ranks()))
    return min(losses)


def by_steps(settings: Settings, minutes: float, text: PreparedText, machine: Machine) -> TrainArgs:
    """The settings with the number of steps that fit into the minutes, instead of the minutes."""
    speed = machine.tokens_per_second(text.model, from_settings(TrainArgs, settings))
    tokens = 60 * minutes * (1 - OVERHEAD) * speed
    steps = max(1, int(tokens / (settings["batch_size"] * text.model.max_seq_len)))
    if settings.get("max_steps"):  # the choice ends a run early that would see a small text too often
        steps = min(steps, settings["max_steps"])
    length = validation_settings(steps, tokens) | {"minutes": None, "max_steps": steps}
    return from_settings(TrainArgs, settings | length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--minutes", nargs="+", type=float, required=True)
    parser.add_argument("--rates", nargs="*", type=float, default=[])
    arguments = parser.parse_args()
    keep_freed_memory()
    print("| minutes | | batch | steps | best validation loss, nats per token |\n|---|---|---|---|---|")
    for minutes in arguments.minutes:
        flags = {"data": tuple(arguments.data), "minutes": minutes, "init_from": arguments.model, "sample_every": 0}
        plan = resolve_new(None, ROOT / "configs" / "demo.toml", flags, Ranks())
        text = prepare_text(plan)
        machine = Machine(plan.network, text.dataset, torch.device("cpu"))
        chosen = choose_settings(plan.settings, text_facts(text.dataset, text.model.vocab_size), machine)
        trials = [("the choice", chosen)]
        by_hand = chosen | {"max_steps": None}
        trials += [("by hand", by_hand | {"batch_size": size}) for size in BATCHES if size != chosen["batch_size"]]
        for fraction in arguments.rates:
            rate = fraction * PEAK_LR
            trials.append((f"{fraction} of the rates", chosen | {"lr": rate, "muon_lr": rate}))
        runs = [(name, by_steps(settings, minutes, text, machine)) for name, settings in trials]
        for name, train in runs:
            loss = best_loss(plan, text, train)
            print(f"| {minutes} | {name} | {train.batch_size} | {train.max_steps:,} | {loss:.4f} |", flush=True)


if __name__ == "__main__":
    main()
