"""One run from a checked plan to its last words."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path

import torch

from ..cli import write_toml
from ..transformer import Transformer
from ..weights import load_model, save_tokenizer
from ..weights.files import write_text
from .config import TrainArgs
from .console import Console
from .device import pick_device
from .distributed import Ranks, join_ranks
from .loop import Progress, Trainer
from .run_directory import locked, read_notes
from .setup import CONFIG, Plan, Text, prepare_text


def run(plan: Plan, text: Text | None) -> int:
    """Train as planned; ``text`` is None in every process but the first. Returns the exit code."""
    device = pick_device(plan.train.device)
    with ExitStack() as stack:
        ranks = stack.enter_context(join_ranks(device))
        plan = dataclasses.replace(plan, directory=Path(ranks.share(str(plan.directory))))
        if ranks.is_first and text:
            plan.directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(plan.directory))
            write_run(plan, text)
        ranks.wait()
        text = text or prepare_text(dataclasses.replace(plan, resume=True), plan.directory)
        return train(plan, text, device, ranks)


def write_run(plan: Plan, text: Text) -> None:
    """What a run directory holds before the first step: enough for --resume to begin from."""
    if not plan.resume:
        save_tokenizer(text.tokenizer, plan.directory)
    write_text(plan.directory / CONFIG, write_toml(plan.data, text.model, plan.train))


def train(plan: Plan, text: Text, device: torch.device, ranks: Ranks) -> int:
    progress = restore_progress(plan, text)
    torch.manual_seed(plan.train.seed)
    model = build_model(plan.train, text).to(device)
    identity = plan.identity | {"vocab_size": text.model.vocab_size, "data": text.dataset.fingerprint}
    console = Console(plan.train, text.tokenizer, progress or Progress(), ranks.is_first)
    trainer = Trainer(
        model, text.dataset, plan.train, plan.directory,
        identity=identity, progress=progress, watcher=console, ranks=ranks,
    )  # fmt: skip
    console.greet(trainer, plan.changes)
    with console.watching():
        trainer.run()
    console.farewell(trainer)
    return 128 + console.signal if console.signal else 0


def build_model(args: TrainArgs, text: Text) -> Transformer:
    """Random weights, or those of ``init_from`` in a context that may be shorter than theirs."""
    if args.init_from is None:
        return Transformer(text.model)
    source = load_model(args.init_from, dtype=torch.float32)
    with torch.device("meta"):
        model = Transformer(text.model)
    model.load_state_dict(source.state_dict(), assign=True)
    return model.requires_grad_(True)


def restore_progress(plan: Plan, text: Text) -> Progress | None:
    """How far the run is, if it is one to go on with. Raises ValueError when its data were others."""
    if not plan.resume:
        return None
    notes = read_notes(plan.directory)
    if notes is None:
        return None
    if notes["identity"]["data"] != text.dataset.fingerprint:
        raise ValueError(
            f"{plan.directory} was trained on other text or another split: its fingerprint is "
            f"{notes['identity']['data'][:12]}, this one's {text.dataset.fingerprint[:12]}; give the same --data"
        )
    return Progress(**notes["progress"])
