"""What the user left open, chosen before a run; and ``--plan``, which shows the choice and keeps it for the run."""

import dataclasses
import hashlib
import json
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from ..cli import Settings, format_flags, print_note, script_command
from ..cli.files import read_json, write_json
from ..cli.machine import pick_device, pick_dtype
from ..cli.settings import from_table, setting_fields
from ..config import ModelArgs
from .config import CLASSES
from .distributed import own_device
from .estimate import check_training_memory
from .evaluation import guessing_losses
from .plan import Plan, make_plan
from .prepared_text import PreparedText
from .sizing import LAW, Forecast, Machine, choose_settings, forecast, text_facts
from .summary import RunFacts, announcement, format_rows

KEPT_FOR = 24 * 3600.0  # seconds that a choice of --plan holds: later this machine may be faster or slower


class Choice(NamedTuple):
    """The settings that were chosen, and what to expect of a run with them and the given ones."""

    chosen: Settings
    expected: Forecast


def show_plan(plan: Plan, text: PreparedText) -> int:
    """Print what the run would take and come to, and the command that repeats it. Returns the exit code.

    The choice is kept in the cache, beside the tokens of the text, and holds for the runs of the next day.
    """
    device = own_device(pick_device(plan.train.device), plan.ranks)
    undecided, given = plan.undecided, plan.given
    choice = choose(plan, text, device)
    if undecided:
        keep(choice, choice_file(plan, text, device))
    plan, text = with_choice(plan, text, choice)
    facts = RunFacts(
        args=plan.train,
        model=text.model,
        parameters=sum(p.numel() for p in plan.network(text.model).parameters()),
        dataset=text.dataset,
        device=device,
        dtype=pick_dtype(plan.train.dtype, device),
        processes=plan.ranks.world_size,
        unigram=guessing_losses(text.dataset, text.model.vocab_size)[0],
    )
    print(announcement(facts, forecast=choice.expected))
    if undecided:
        print(format_rows({"to repeat it": command(given | choice.chosen)}))
    return 0


def command(settings: Settings) -> str:
    """What a user types to train with these settings."""
    if settings.get("init_from"):  # whose architecture is not named again
        inherited = setting_fields(ModelArgs).keys() - {"max_seq_len"}
        settings = {name: value for name, value in settings.items() if name not in inherited}
    return f"{script_command('train')} {format_flags(settings, *CLASSES)}"


def choose_and_forecast(plan: Plan, text: PreparedText, device: torch.device) -> tuple[Plan, PreparedText, Forecast]:
    """Choose what the user has left open, now that the text is known, and say what to expect of the run.

    What ``--plan`` chose in the last day for the same settings, text and machine is taken as it is.
    """
    choice = kept_choice(choice_file(plan, text, device))
    if choice is None:
        choice = choose(plan, text, device)
    else:
        print_note(format_rows({"choice": "that of --plan, made less than a day ago"}))
    plan, text = with_choice(plan, text, choice)
    check_training_memory(text.model, plan.train, device, plan.ranks.world_size)
    return plan, text, choice.expected


def choose(plan: Plan, text: PreparedText, device: torch.device) -> Choice:
    known = text_facts(text.dataset, text.model.vocab_size)
    machine = Machine(plan.network, text.dataset, device, plan.ranks.world_size)
    chosen: Settings = {}
    if plan.undecided:
        settings = choose_settings(plan.given, known, machine)
        chosen = {name: value for name, value in settings.items() if name not in plan.given}
    plan, text = with_choice(plan, text, Choice(chosen, Forecast(0.0, 0)))
    check_training_memory(text.model, plan.train, device, machine.processes)
    expected = forecast(text.model, plan.train, known, machine)
    return Choice(chosen, dataclasses.replace(expected, ends_early="max_steps" in chosen))


def with_choice(plan: Plan, text: PreparedText, choice: Choice) -> tuple[Plan, PreparedText]:
    """The plan and the text's model with the chosen settings."""
    if not choice.chosen:
        return plan, text
    decided = make_plan(plan.given | choice.chosen, plan.directory, plan.ranks)
    model = dataclasses.replace(decided.model, vocab_size=text.model.vocab_size)
    return dataclasses.replace(decided, base=plan.base), dataclasses.replace(text, model=model)


def choice_file(plan: Plan, text: PreparedText, device: torch.device) -> Path:
    """Where the choice for these settings on this machine is kept: in the cache, beside the tokens of the text."""
    settings = {name: str(value) for name, value in sorted(plan.given.items()) if name != "out_dir"}
    machine = [platform.node(), str(device), torch.get_num_threads(), torch.__version__, plan.ranks.world_size]
    facts = json.dumps([settings, machine, text.model.vocab_size, LAW])
    return text.entries[0] / f"choice-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.json"


def keep(choice: Choice, file: Path) -> None:
    """Without a word where the cache cannot be written: the command that ``--plan`` prints says the same."""
    with suppress(OSError):
        write_json(file, {"chosen": choice.chosen, "expected": vars(choice.expected)})


def kept_choice(file: Path) -> Choice | None:
    try:
        if time.time() - file.stat().st_mtime > KEPT_FOR:
            return None
        kept = read_json(file)
        return Choice(from_table(kept["chosen"], *CLASSES), Forecast(**kept["expected"]))
    except (OSError, ValueError, TypeError, KeyError):  # there is none, or it was damaged: choose again
        return None
