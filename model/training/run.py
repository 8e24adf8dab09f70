"""Carry out a checked plan: choose, write the run directory, train, print the summary."""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from ..cli import Settings, explain_out_of_memory, quantity, read_toml, toml_text
from ..cli.files import write_text
from ..cli.machine import pick_device
from ..config import ModelArgs
from ..text.token_cache import note_use
from ..transformer import Transformer
from ..weights import open_checkpoint, save_tokenizer
from ..weights.variants import make_network
from .choice import reuse_or_choose
from .config import CONFIG_FILE, SETTINGS_CLASSES
from .console import Console
from .distributed import local_device, process_group
from .estimate import build_seconds, check_training_memory, count_parameters
from .plan import Plan, differences, make_plan
from .prepared_text import PreparedText, prepare_text
from .run_directory import Progress, check_free, locked, make_first_free, read_progress_and_identity
from .signals import stopping_on_signals
from .sizing import Forecast
from .summary import duration, format_rows, resume_command
from .trainer import Trainer

LONG_BUILD = 3.0  # seconds; a longer build is announced


def run(plan: Plan, text: PreparedText | None) -> int:
    """Train as planned; ``text`` is None in every process but the first. Returns the exit code."""
    device = local_device(pick_device(plan.train.device), plan.ranks)
    expected = None
    with ExitStack() as stack:
        # The first process does this before it joins the others, which wait in process_group: if it fails here,
        # torchrun ends them.
        if text:
            if plan.needs_choice:
                plan, text, expected = reuse_or_choose(plan, text, device)
            check_training_memory(text.model_args, plan.train, device, plan.ranks.world_size)
            plan = stack.enter_context(locked_run_directory(plan))
            write_run(plan, text)
        stack.enter_context(process_group(plan.ranks, device))
        plan = dataclasses.replace(plan, directory=Path(plan.ranks.broadcast(str(plan.directory))))
        if text is None:
            plan, text = read_run(plan)
        return train_and_show(plan, text, device, expected)


@contextmanager
def locked_run_directory(plan: Plan) -> Iterator[Plan]:
    """Make the run directory and lock it against other trainers. Yields the plan with this directory.

    Repeats checks of ``resolve``, because preparing the text may have taken hours: another process may have finished a
    run in this directory, or resumed it with other settings. A new run without ``--out_dir`` takes the first directory
    that is free now. Raises ValueError if the run must not start.
    """
    if plan.base is not None:
        directory = make_first_free(plan.base)
        plan = dataclasses.replace(plan, directory=directory, train=dataclasses.replace(plan.train, out_dir=directory))
    elif not plan.resume:
        plan.directory.mkdir(parents=True, exist_ok=True)
    with locked(plan.directory):
        if not plan.resume:
            check_free(plan.directory)
        elif read_toml(plan.directory / CONFIG_FILE, *SETTINGS_CLASSES) != plan.saved_settings:
            raise ValueError(f"{plan.directory / CONFIG_FILE} changed after it was read: run again")
        yield plan


def read_run(plan: Plan) -> tuple[Plan, PreparedText]:
    """For all processes but the first: read the plan that the first has written, and its text.

    The text comes from the cache. On a machine with another cache it is tokenized again.
    """
    written = make_plan(read_toml(plan.directory / CONFIG_FILE, *SETTINGS_CLASSES), plan.directory, plan.ranks)
    # With ``resume`` the tokenizer is read from the run directory. With ``keeps_text`` the tokens of the last
    # checkpoint are used; a new run has none, and ``prepare`` finds them by their key in the cache.
    text = prepare_text(dataclasses.replace(written, resume=True, keeps_text=True))
    note_cache_use(text, plan.directory)  # each machine may have a separate cache
    return dataclasses.replace(written, resume=plan.resume), text


def write_run(plan: Plan, text: PreparedText) -> None:
    """Write the tokenizer and the settings, so that --resume works even before the first checkpoint.

    Text from a pipe is an exception: before the first checkpoint, it must be given again.
    """
    read_progress(plan, text)  # raises ValueError before anything is written
    if not plan.resume:
        save_tokenizer(text.tokenizer, plan.directory)
    write_text(plan.directory / CONFIG_FILE, toml_text(text.data, text.model_args, plan.train))
    note_cache_use(text, plan.directory)


def note_cache_use(text: PreparedText, directory: Path) -> None:
    for entry in text.entries:
        note_use(entry, directory)


def train_and_show(plan: Plan, text: PreparedText, device: torch.device, expected: Forecast | None = None) -> int:
    """Build or restore the model, train it, and show the run in the terminal. Returns the exit code."""
    progress = read_progress(plan, text)
    torch.manual_seed(plan.train.seed)
    if plan.ranks.is_first:
        announce_building(text.model_args)
    model = initial_model(plan, text.model_args, fresh=progress is None).to(device)
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
    rows = quantity(plan.train.rows_at_once(plan.ranks.world_size), "sequence")
    advice = f"lower --micro_batch_size (now {rows} at once), or train a smaller model"
    try:
        with explain_out_of_memory(advice, device), stopping_on_signals(trainer), console:
            for measured in trainer.steps():
                console.show(measured)
    except OSError as error:
        kept = f"the state of step {trainer.saved_step} is kept" if trainer.saved_step else "no step is saved yet"
        raise ValueError(
            f"{error.filename or plan.directory}: {error.strerror or error}; {kept}; to resume: "
            f"{resume_command(plan.directory)}"
        ) from None
    console.finish()
    return 128 + trainer.stopped_by if trainer.stopped_by else 0


def announce_building(args: ModelArgs) -> None:
    """Print the size of the network and the estimated time to build it, if that takes long."""
    seconds = build_seconds(args)
    if seconds > LONG_BUILD:
        parameters = quantity(count_parameters(args).total, "parameter")
        text = f"{parameters} in {quantity(args.n_layers, 'layer')}, about {duration(seconds)}"
        print(format_rows({"building": text}), file=sys.stderr, flush=True)


def initial_model(plan: Plan, args: ModelArgs, fresh: bool) -> Transformer:
    """A model with random weights, or with the weights of ``init_from`` and a context that may be shorter.

    ``fresh`` is False if a saved state will replace the weights, so that they do not matter.
    """
    if not (plan.train.init_from and fresh):
        return plan.network_class(args)
    checkpoint = open_checkpoint(plan.train.init_from)
    if dataclasses.replace(checkpoint.args, max_seq_len=args.max_seq_len) != args:
        raise ValueError(f"{plan.train.init_from} changed after it was read: run again")
    model = make_network(plan.network_class, args)
    model.load_state_dict(checkpoint.model(network=plan.network_class).state_dict(), assign=True)
    return model.requires_grad_(True)


def identity_of(plan: Plan, text: PreparedText) -> Settings:
    return plan.identity | {"vocab_size": text.model_args.vocab_size, "data": text.dataset.fingerprint}


def read_progress(plan: Plan, text: PreparedText) -> Progress | None:
    """The saved progress of a resumed run, else None. Raises ValueError if its model or its text has changed.

    Also raises it if the run has already taken more than ``max_steps`` steps.
    """
    saved = read_progress_and_identity(plan.directory) if plan.resume else None
    if saved is None:
        return None
    progress, before = saved
    now = identity_of(plan, text)
    conflicts = [change for change in differences(before, now) if not change.startswith("data ")]
    if before.get("data") != now["data"]:
        conflicts.append("data: another text, or another split of it")
    if conflicts:
        raise ValueError(
            f"{plan.directory} was trained on other text or as another model ({'; '.join(conflicts)}): give the same "
            "as before, or start a new run"
        )
    if progress.step > plan.train.step_limit:
        raise ValueError(
            f"max_steps is {plan.train.max_steps}, but {plan.directory} has already taken "
            f"{quantity(progress.step, 'step')}: give more than that, or leave it out"
        )
    return progress
