"""One run from a checked plan to its last words."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path

import torch

from ..cli import Settings, write_toml
from ..cli.files import write_text
from ..cli.machine import pick_device
from ..transformer import Transformer
from ..weights import load_model, save_tokenizer
from .config import TrainArgs
from .console import Console, how_to_resume
from .distributed import Ranks, join_ranks, own_device
from .loop import Trainer
from .progress import Progress
from .run_directory import locked, read_notes
from .setup import CONFIG, Plan, differences
from .text import Text, reread_text


def run(plan: Plan, text: Text | None) -> int:
    """Train as planned; ``text`` is None in every process but the first. Returns the exit code."""
    device = own_device(pick_device(plan.train.device))
    with ExitStack() as stack:
        if text:  # before the others are met: a mistake ends here, and they are still waiting
            plan.directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(plan.directory))
            write_run(plan, text)
        ranks = stack.enter_context(join_ranks(device))
        plan = dataclasses.replace(plan, directory=Path(ranks.share(str(plan.directory))))
        return train(plan, text or reread_text(plan.directory), device, ranks)


def write_run(plan: Plan, text: Text) -> None:
    """What a run directory holds before the first step: enough for --resume to begin from."""
    restore_progress(plan, text)  # refuses, before anything is written
    if not plan.resume:
        save_tokenizer(text.tokenizer, plan.directory)
    write_text(plan.directory / CONFIG, write_toml(plan.data, text.model, plan.train))


def train(plan: Plan, text: Text, device: torch.device, ranks: Ranks) -> int:
    progress = restore_progress(plan, text)
    torch.manual_seed(plan.train.seed)
    model = build_model(plan.train, text, fresh=progress is None).to(device)
    console = Console(plan.train, text.tokenizer, ranks)
    trainer = Trainer(
        model, text.dataset, plan.train, plan.directory,
        identity=identity_of(plan, text), progress=progress, watcher=console, ranks=ranks,
    )  # fmt: skip
    try:
        with console.watching(trainer, plan.changes):
            trainer.run()
    except OSError as error:
        raise ValueError(
            f"{error.filename or plan.directory}: {error.strerror or error}; the state of step {trainer.saved_step} "
            f"stays; to go on from there: {how_to_resume(plan.directory)}"
        ) from None
    except torch.OutOfMemoryError:
        size = plan.train.micro_batch_size or plan.train.batch_size // ranks.world_size
        raise ValueError(f"{device} has no memory for {size} sequences at once: lower --micro_batch_size") from None
    console.farewell(trainer)
    return 128 + trainer.signal if trainer.signal else 0


def build_model(args: TrainArgs, text: Text, fresh: bool) -> Transformer:
    """Random weights, or those of ``init_from`` in a context that may be shorter than theirs.

    A run that goes on needs neither: its state brings all weights.
    """
    if args.init_from is None or not fresh:
        return Transformer(text.model)
    source = load_model(args.init_from)
    with torch.device("meta"):
        model = Transformer(text.model)
    model.load_state_dict(source.state_dict(), assign=True)
    return model.requires_grad_(True)


def identity_of(plan: Plan, text: Text) -> Settings:
    return plan.identity | {"vocab_size": text.model.vocab_size, "data": text.dataset.fingerprint}


def restore_progress(plan: Plan, text: Text) -> Progress | None:
    """How far the run is, if it is one to go on with. Raises ValueError when its model or its text was another."""
    notes = read_notes(plan.directory) if plan.resume else None
    if notes is None:
        return None
    refused = differences(notes["identity"], identity_of(plan, text))
    if refused:
        raise ValueError(
            f"{plan.directory} was trained on other text or as another model ({'; '.join(refused)}, data being the "
            "text's fingerprint): give the same as before, or start a new run"
        )
    return Progress(**notes["progress"])
