"""One run from a checked plan to its summary."""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_type_hints

import torch

from ..cli import Settings, quantity, read_toml, write_toml
from ..cli.files import write_text
from ..cli.machine import pick_device
from ..config import ModelArgs
from ..text.token_cache import note_use
from ..transformer import Transformer
from ..weights import open_checkpoint, save_tokenizer
from ..weights.variants import make_network
from .choice import choose_and_forecast
from .config import CLASSES, CONFIG_FILE
from .console import Console
from .distributed import own_device, process_group
from .estimate import build_seconds, check_training_memory, count_parameters
from .plan import Plan, differences, make_plan
from .prepared_text import PreparedText, prepare_text
from .run_directory import check_free, locked, make_first_free, read_notes
from .signals import stopping_on_signals
from .sizing import Forecast
from .summary import duration, format_rows, how_to_resume
from .trainer import Progress, Trainer

PATIENCE = 3.0  # seconds in which nothing need be said


def run(plan: Plan, text: PreparedText | None) -> int:
    """Train as planned; ``text`` is None in every process but the first. Returns the exit code."""
    device = own_device(pick_device(plan.train.device), plan.ranks)
    expected = None
    with ExitStack() as stack:
        if text:  # before the others are met: a mistake ends here, and they are still waiting
            if plan.undecided:
                plan, text, expected = choose_and_forecast(plan, text, device)
            check_training_memory(text.model, plan.train, device, plan.ranks.world_size)
            plan = stack.enter_context(claimed(plan))
            write_run(plan, text)
        stack.enter_context(process_group(plan.ranks, device))
        plan = dataclasses.replace(plan, directory=Path(plan.ranks.broadcast(str(plan.directory))))
        if text is None:
            plan, text = reread(plan)
        return train_and_show(plan, text, device, expected)


@contextmanager
def claimed(plan: Plan) -> Iterator[Plan]:
    """Make the run directory and keep other trainers out of it. Yields the plan with the directory that it got.

    Preparing the text may have taken hours, and another trainer may have come and gone. So the checks of ``resolve``
    are made again: no finished run is replaced, and none is resumed with settings that are out of date. Without
    ``--out_dir`` the directory is the first one that is free now. Raises ValueError if the run must not begin.
    """
    if plan.base is not None:
        directory = make_first_free(plan.base)
        plan = dataclasses.replace(plan, directory=directory, train=dataclasses.replace(plan.train, out_dir=directory))
    elif not plan.resume:
        plan.directory.mkdir(parents=True, exist_ok=True)
    with locked(plan.directory):
        if not plan.resume:
            check_free(plan.directory)
        elif read_toml(plan.directory / CONFIG_FILE, *CLASSES) != plan.found:
            raise ValueError(f"{plan.directory / CONFIG_FILE} changed after it was read: run again")
        yield plan


def reread(plan: Plan) -> tuple[Plan, PreparedText]:
    """What the first of several processes chose and prepared, for the others: its run directory and cache hold it."""
    written = make_plan(read_toml(plan.directory / CONFIG_FILE, *CLASSES), plan.directory, plan.ranks)
    text = prepare_text(dataclasses.replace(written, resume=True))
    note_uses(text, plan.directory)  # another machine has a cache of its own
    return dataclasses.replace(written, resume=plan.resume), text


def write_run(plan: Plan, text: PreparedText) -> None:
    """What a run directory holds before the first step: enough for --resume to begin from."""
    restore_progress(plan, text)  # refuses, before anything is written
    if not plan.resume:
        save_tokenizer(text.tokenizer, plan.directory)
    write_text(plan.directory / CONFIG_FILE, write_toml(text.data, text.model, plan.train))
    note_uses(text, plan.directory)


def note_uses(text: PreparedText, directory: Path) -> None:
    for entry in text.entries:
        note_use(entry, directory)


def train_and_show(plan: Plan, text: PreparedText, device: torch.device, expected: Forecast | None = None) -> int:
    progress = restore_progress(plan, text)
    torch.manual_seed(plan.train.seed)
    if plan.ranks.is_first:
        say_building(text.model)
    model = initial_model(plan, text.model, fresh=progress is None).to(device)
    trainer = Trainer(
        model,
        text.dataset,
        plan.train,
        plan.directory,
        identity=identity_of(plan, text),
        progress=progress,
        ranks=plan.ranks,
    )
    console = Console(trainer, text.tokenizer, text.data.start_text or "")
    console.announce(plan.changes, expected)
    try:
        with stopping_on_signals(trainer), console:
            for measured in trainer.steps():
                console.show(measured)
    except OSError as error:
        raise ValueError(
            f"{error.filename or plan.directory}: {error.strerror or error}; the state of step {trainer.saved_step} "
            f"stays; to go on from there: {how_to_resume(plan.directory)}"
        ) from None
    except torch.OutOfMemoryError:
        size = plan.train.micro_batch_size or plan.train.batch_size // plan.ranks.world_size
        raise ValueError(
            f"{device} has no memory for {quantity(size, 'sequence')} at once: lower --micro_batch_size"
        ) from None
    console.finish()
    return 128 + trainer.stopped_by if trainer.stopped_by else 0


def say_building(args: ModelArgs) -> None:
    """A note where it takes a while until the network is there, and there are its size and pace to show."""
    if (seconds := build_seconds(args)) > PATIENCE:
        parameters, layers = quantity(count_parameters(args)[0], "parameter"), quantity(args.n_layers, "layer")
        text = f"{parameters} in {layers}, about {duration(seconds)}"
        print(format_rows({"building": text}), file=sys.stderr, flush=True)


def initial_model(plan: Plan, args: ModelArgs, fresh: bool) -> Transformer:
    """Random weights, or those of ``init_from`` in a context that may be shorter than theirs.

    A run that is resumed needs neither: its state brings all weights.
    """
    if not (plan.train.init_from and fresh):
        return plan.network(args)
    checkpoint = open_checkpoint(plan.train.init_from)
    if dataclasses.replace(checkpoint.args, max_seq_len=args.max_seq_len) != args:
        raise ValueError(f"{plan.train.init_from} changed after it was read: run again")
    model = make_network(plan.network, args)
    model.load_state_dict(checkpoint.model(network=plan.network).state_dict(), assign=True)
    return model.requires_grad_(True)


def identity_of(plan: Plan, text: PreparedText) -> Settings:
    return plan.identity | {"vocab_size": text.model.vocab_size, "data": text.dataset.fingerprint}


def restore_progress(plan: Plan, text: PreparedText) -> Progress | None:
    """How far the run is, if it is one to go on with. Raises ValueError when its model or its text was another."""
    notes = read_notes(plan.directory, get_type_hints(Progress)) if plan.resume else None
    if notes is None:
        return None
    before, now = notes["identity"], identity_of(plan, text)
    refused = [change for change in differences(before, now) if not change.startswith("data ")]
    if before.get("data") != now["data"]:
        refused.append("data: another text, or another split of it")
    if refused:
        raise ValueError(
            f"{plan.directory} was trained on other text or as another model ({'; '.join(refused)}): give the same as "
            "before, or start a new run"
        )
    progress = Progress(**notes["progress"])
    if progress.step > plan.train.step_limit:
        raise ValueError(
            f"max_steps is {plan.train.max_steps}, but {plan.directory} has taken {quantity(progress.step, 'step')} "
            "already: give more than that, or leave it out"
        )
    return progress
