#!/usr/bin/env python3
"""Compare the settings that train.py chooses for the minutes with settings chosen by hand.

    python benchmarks/choice.py --minutes 2 10 --data tinyshakespeare.txt --tokenizer char
    python benchmarks/choice.py --minutes 2 10 --data tinyshakespeare.txt --contexts
    python benchmarks/choice.py --minutes 1 --data tinyshakespeare.txt --init_from runs/demo --rates 0.03 0.3

A new model is compared with three models set by hand; with ``--contexts`` these are the chosen one with its whole
context and with half of it from the first to the last step, and the next larger one with half of it. With
``--init_from``, the chosen batch size is compared with half and twice as many, and ``--rates`` tries other fractions of
the peak learning rate; train.py uses 0.1.

All settings are timed first. Then each is trained for the number of steps that fit into the minutes, so that other
programs disturb only the timing. A run is judged by its best validation loss, because that model is saved; the last one
shows whether the run was too long for its text. The third loss is over the first 20,000 tokens of the validation text
with a stride of 64, because in windows that do not overlap more tokens have few before them if the context is short.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

from model.cli import Settings, instances
from model.cli.machine import keep_freed_memory
from model.decoding.scoring import Score, score_texts, windows
from model.training.choice import LADDER, TRAINING_SHARE, choose, step_seconds
from model.training.config import PEAK_LR, SETTINGS_CLASSES, SIZE, UNSET
from model.training.distributed import Ranks
from model.training.run import Run, resolve_new
from model.training.run_text import Text, open_text, prepare_text
from model.training.trainer import Trainer, initial_model

STEP_TOKENS = 2048
SCORED_TOKENS, STRIDE = 20_000, 64


def by_hand(width: int, layers: int, context: int, dropout: float) -> Settings:
    model = {"dim": width, "n_layers": layers, "n_heads": width // 32, "max_seq_len": context}
    return model | {"batch_size": STEP_TOKENS // context, "dropout": dropout, "decay_start": 0.1}


NEW_MODELS = [by_hand(96, 3, 128, 0.0), by_hand(160, 5, 256, 0.0), by_hand(256, 4, 256, 0.2)]


class Trial(NamedTuple):
    """One run of the comparison, with a number of steps instead of minutes."""

    name: str
    run: Run
    text: Text


def other_contexts(chosen: Run) -> list[tuple[str, Run]]:
    sizes = [size[:2] for size in LADDER]
    larger = LADDER[min(sizes.index((chosen.model.dim, chosen.model.n_layers)) + 1, len(LADDER) - 1)]
    larger_model = replace(chosen.model, **dict(zip(SIZE, (*larger, UNSET, UNSET))))
    compared = []
    for model, parts in ((chosen.model, 1), (chosen.model, 2), (larger_model, 2)):
        model = replace(model, max_seq_len=model.max_seq_len // parts)
        train = replace(chosen.train, batch_size=chosen.train.batch_size * parts, context_warmup=0.0)
        compared.append(("by hand", replace(chosen, model=model, train=replace(train, micro_batch_size=None))))
    return compared


def trials(run: Run, text: Text, fractions: list[float], contexts: bool) -> list[Trial]:
    """The choice, and the settings by hand to compare it with."""
    chosen = choose(run, text.dataset, run.machine(Ranks()))[0]
    compared = [("the choice", chosen)]
    if run.train.init_from:
        for size in (chosen.train.batch_size // 2, chosen.train.batch_size * 2):
            train = replace(chosen.train, batch_size=max(1, size), max_steps=None)
            compared.append(("by hand", replace(chosen, train=train)))
        for fraction in fractions:
            train = replace(chosen.train, lr=fraction * PEAK_LR[chosen.train.optimizer])
            compared.append((f"{fraction} of the rates", replace(chosen, train=train)))
    elif contexts:
        compared += other_contexts(chosen)
    else:
        for settings in NEW_MODELS:
            values = (
                {name: run.values()[name] for name in run.decided} | {"vocab_size": run.model.vocab_size} | settings
            )
            data, model, train = instances(values, *SETTINGS_CLASSES)
            compared.append(("by hand", replace(run, data=data, model=model, train=train)))
    return [by_steps(Trial(name, settings, text)) for name, settings in compared]


def by_steps(trial: Trial) -> Trial:
    """Time the settings, and replace the minutes by the number of steps that fit into them."""
    run, context, dataset = trial.run, trial.run.model.max_seq_len, trial.text.dataset
    seconds = step_seconds(run, run.model, replace(run.train, context_warmup=0.0), context, dataset)
    if run.train.context_warmup:  # the first step, and all of this part, have half of the context
        short = step_seconds(run, run.model, run.train, context, dataset)
        seconds += run.train.context_warmup * (short - seconds)
    steps = max(1, int(60 * TRAINING_SHARE * run.train.minutes / seconds))
    if run.train.max_steps:  # the choice ends a run early that would see a small text too often
        steps = min(steps, run.train.max_steps)
    train = replace(
        run.train,
        minutes=None,
        max_steps=steps,
        eval_every=max(1, steps // 10),
        eval_tokens=200_000,  # the same text for all
    )
    return trial._replace(run=replace(run, train=train))


def new_trainer(trial: Trial) -> Trainer:
    torch.manual_seed(trial.run.train.seed)
    trainer = Trainer(
        initial_model(trial.run, trial.run.machine(Ranks()), Ranks()), trial.text.dataset, trial.run.train
    )
    trainer.parallel_loss.train()
    return trainer


def losses(trial: Trial) -> tuple[list[float], float]:
    """Train a run; returns its about ten validation losses, and at the end the one with a stride."""
    trainer = new_trainer(trial)
    found = []
    for _ in trainer.steps():
        step = trainer.progress.step
        if step % trainer.args.eval_every == 0 or step == trainer.args.max_steps:
            found.append(trainer.validation_loss())
    context = trainer.model.args.max_seq_len
    batches = windows(trial.text.dataset.val[:SCORED_TOKENS].tolist(), context, min(STRIDE, context))
    (score,) = score_texts(trainer.model.eval(), [(Score(trial.name), batches)], lambda count: None)
    return found, score.nats / score.tokens


def plan_trials(
    data: list[str], minutes: float, flags: Settings, fractions: list[float], contexts: bool
) -> list[Trial]:
    settings = {name: value for name, value in flags.items() if value is not None}
    settings |= {"data": tuple(data), "minutes": minutes, "device": "cpu"}
    run = prepare_text(replace(resolve_new(None, settings), directory=Path(tempfile.mkdtemp())))
    return trials(run, open_text(run), fractions, contexts)


def describe(minutes: float, trial: Trial) -> str:
    model, train = trial.run.model, trial.run.train
    size = f"{model.dim} wide, {model.n_layers} layers, context {model.max_seq_len}"
    if train.context_warmup:
        size += f", half of it for {train.context_warmup:.0%}"
    training = f"batch size {train.batch_size}, dropout {train.dropout}, lr {train.lr}"
    return f"| {minutes} | {trial.name} | {size}, {training} | {train.max_steps:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--minutes", nargs="+", type=float, required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--init_from", type=Path)
    parser.add_argument("--rates", nargs="*", type=float, default=[])
    parser.add_argument("--contexts", action="store_true")
    arguments = parser.parse_args()
    keep_freed_memory()
    flags = {"tokenizer": arguments.tokenizer, "init_from": arguments.init_from, "sample_every": 0}
    planned = [
        (minutes, trial)
        for minutes in arguments.minutes
        for trial in plan_trials(arguments.data, minutes, flags, arguments.rates, arguments.contexts)
    ]
    head = "best and last validation loss, nats per token | with a stride of 64"
    print(f"| minutes | | settings | steps | {head} |\n|---|---|---|---|---|---|")
    for minutes, trial in planned:
        found, with_stride = losses(trial)
        print(f"{describe(minutes, trial)} {min(found):.4f}, {found[-1]:.4f} | {with_stride:.4f} |", flush=True)


if __name__ == "__main__":
    main()
