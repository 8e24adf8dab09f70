"""Choose the settings that the user left open. ``--plan`` shows the choice and saves it for the run."""

import dataclasses
import hashlib
import json
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from ..cli import Settings, format_flags, print_note
from ..cli.files import read_json, write_json
from ..cli.machine import pick_device
from ..cli.settings import from_table, setting_fields
from ..config import ModelArgs
from ..weights.variants import make_network
from .config import SETTINGS_CLASSES
from .distributed import local_device
from .estimate import check_training_memory
from .plan import Plan, make_plan
from .prepared_text import PreparedText
from .sizing import LAW, Forecast, Machine, choose_settings, forecast, text_facts
from .summary import announcement, format_rows, run_facts

CHOICE_MAX_AGE = 24 * 3600.0  # seconds; the speed of the machine may change with its load


class Choice(NamedTuple):
    """The chosen settings, and the forecast of a run with them."""

    chosen: Settings
    expected: Forecast


def show_plan(plan: Plan, text: PreparedText) -> int:
    """Print the size and the forecast of the run. Returns the exit code.

    If something was chosen, also print the command that trains with these settings, and save the choice in the cache,
    beside the tokens of the text. Runs reuse it for a day.
    """
    device = local_device(pick_device(plan.train.device), plan.ranks)
    needs_choice = plan.needs_choice
    choice = choose_and_forecast(plan, text, device)
    if needs_choice:
        save_choice(choice, choice_file(plan, text, device))
    plan, text = apply_choice(plan, text, choice.chosen)
    facts = run_facts(make_network(plan.network_class, text.model_args), plan.train, text.dataset, device, plan.ranks)
    print(announcement(facts, forecast=choice.expected))
    if needs_choice:
        print(format_rows({"command": train_command(plan.settings)}))
    return 0


def train_command(settings: Settings) -> str:
    """The command that trains with these settings."""
    if settings.get("init_from"):  # the architecture comes from that model
        inherited = setting_fields(ModelArgs).keys() - {"max_seq_len"}
        settings = {name: value for name, value in settings.items() if name not in inherited}
    return f"python train.py {format_flags(settings, *SETTINGS_CLASSES)}"


def reuse_or_choose(plan: Plan, text: PreparedText, device: torch.device) -> tuple[Plan, PreparedText, Forecast]:
    """Complete the settings that the user left open, and forecast the run.

    Reuses the choice that ``--plan`` made in the last day for the same settings, text and machine.
    """
    choice = load_choice(choice_file(plan, text, device))
    if choice is None:
        choice = choose_and_forecast(plan, text, device)
    else:
        print_note(format_rows({"choice": "reused from --plan, less than a day old"}))
    plan, text = apply_choice(plan, text, choice.chosen)
    return plan, text, choice.expected


def choose_and_forecast(plan: Plan, text: PreparedText, device: torch.device) -> Choice:
    """Choose the settings that the user left open, if there are any, and forecast the run."""
    facts = text_facts(text.dataset, text.model_args.vocab_size)
    machine = Machine(plan.network_class, text.dataset, device, plan.ranks.world_size)
    chosen: Settings = {}
    if plan.needs_choice:
        complete = choose_settings(plan.settings, facts, machine)
        chosen = {name: value for name, value in complete.items() if name not in plan.settings}
    plan, text = apply_choice(plan, text, chosen)
    check_training_memory(text.model_args, plan.train, device, machine.processes)
    expected = forecast(text.model_args, plan.train, facts, machine)
    return Choice(chosen, dataclasses.replace(expected, ends_early="max_steps" in chosen))


def apply_choice(plan: Plan, text: PreparedText, chosen: Settings) -> tuple[Plan, PreparedText]:
    """The plan and the prepared text with the chosen settings."""
    if not chosen:
        return plan, text
    chosen_plan = make_plan(plan.settings | chosen, plan.directory, plan.ranks)
    model = dataclasses.replace(chosen_plan.model_args, vocab_size=text.model_args.vocab_size)
    return dataclasses.replace(chosen_plan, base=plan.base), dataclasses.replace(text, model_args=model)


def choice_file(plan: Plan, text: PreparedText, device: torch.device) -> Path:
    """The cache file of the choice for these settings on this machine, beside the tokens of the text."""
    settings = {name: str(value) for name, value in sorted(plan.settings.items()) if name != "out_dir"}
    machine = [platform.node(), str(device), torch.get_num_threads(), torch.__version__, plan.ranks.world_size]
    facts = json.dumps([settings, machine, text.model_args.vocab_size, LAW])
    return text.entries[0] / f"choice-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.json"


def save_choice(choice: Choice, file: Path) -> None:
    """Write the choice. A cache that cannot be written is ignored, because ``--plan`` also prints the command."""
    with suppress(OSError):
        write_json(file, {"chosen": choice.chosen, "expected": vars(choice.expected)})


def load_choice(file: Path) -> Choice | None:
    """The saved choice; None if it is missing, damaged or older than a day."""
    try:
        if time.time() - file.stat().st_mtime > CHOICE_MAX_AGE:
            return None
        table = read_json(file)
        return Choice(from_table(table["chosen"], *SETTINGS_CLASSES), Forecast(**table["expected"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
