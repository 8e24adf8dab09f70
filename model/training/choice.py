"""Measure how fast this machine trains models of several sizes, and choose from them what the user left open."""

import dataclasses
import math
import time
from typing import NamedTuple

import torch

from ..cli import Settings, format_flags, from_settings, note_if_slow
from ..cli.settings import setting_fields
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..weights.variants import make_network
from .config import SETTINGS_CLASSES, Run, TrainArgs
from .distributed import Ranks, local_device
from .estimate import check_training_memory, fits_memory
from .prepared_text import Text
from .settings import check
from .sizing import (
    Forecast,
    TextFacts,
    best_model,
    candidate_models,
    choose_settings,
    forecast,
    needs_choice,
    planned_tokens,
    predicted_loss,
    text_facts,
    training_settings,
)
from .summary import announcement, format_rows, run_facts
from .trainer import Trainer

ROUNDS = 3  # of timing; the fastest step of each model counts, so that a short load does not decide
FIRST_GUESS = 1e4  # tokens per second of a model before it is timed, to choose the batch size at which it is timed


class Choice(NamedTuple):
    """A run whose settings are complete, what to expect of it, and the command that trains with these settings."""

    run: Run
    forecast: Forecast | None = None  # None if nothing was chosen and no forecast was asked for
    command: str = ""  # empty if nothing was chosen


def choose(run: Run, text: Text, ranks: Ranks, with_forecast: bool = False) -> Choice:
    """Complete the settings with those found in the text, and with a choice if ``minutes`` leave some open.

    Raises ValueError for settings that are wrong, and for runs that do not fit into the memory.
    """
    complete = dataclasses.replace(run, settings=run.settings | text.settings)
    if not needs_choice(run):
        check(complete, ranks)
        if not with_forecast:
            return Choice(complete)
    machine = Machine(run, text.dataset, ranks)
    with note_if_slow("timing         models on this machine, to know what fits into the time"):
        facts = text_facts(text.dataset, complete.settings["vocab_size"])
        if not needs_choice(run):
            speed = machine.tokens_per_second(complete.model, complete.train)
            return Choice(complete, forecast(complete.model, complete.train, facts, speed))
        speeds = time_models(machine, complete.settings, facts)
    model = best_model(speeds, complete.settings, facts, ranks.world_size)
    chosen = choose_settings(model, speeds[model], complete.settings, facts, ranks.world_size)
    complete = dataclasses.replace(complete, settings=complete.settings | chosen)
    check(complete, ranks)
    expected = forecast(complete.model, complete.train, facts, speeds[model])
    expected = dataclasses.replace(expected, ends_early="max_steps" in chosen)
    return Choice(complete, expected, train_command(run.settings | chosen))


def plan_text(choice: Choice, text: Text, ranks: Ranks) -> str:
    """The size and the forecast of the run, and if something was chosen, the command that trains with it."""
    run = choice.run
    device = local_device(run.train.device, ranks)
    facts = run_facts(make_network(run.network, run.model), run.train, text.dataset, device, ranks)
    rows = announcement(facts, run.directory, forecast=choice.forecast)
    return f"{rows}\n{format_rows({'command': choice.command})}" if choice.command else rows


def train_command(settings: Settings) -> str:
    """The command that trains with these settings."""
    if settings.get("init_from"):  # the architecture comes from that model
        inherited = setting_fields(ModelArgs).keys() - {"max_seq_len"}
        settings = {name: value for name, value in settings.items() if name not in inherited}
    return f"python train.py {format_flags(settings, *SETTINGS_CLASSES)}"


def time_models(machine: "Machine", settings: Settings, facts: TextFacts) -> dict[ModelArgs, float]:
    """The tokens per second of the candidate models, from small to large.

    It stops when the next one has a higher predicted loss, or does not fit into the memory. A model is timed with about
    the batch size that it would get, which depends on its speed, or before it is known, on that of the one before it.
    """
    speeds: dict[ModelArgs, float] = {}
    candidates = candidate_models(settings)
    for _ in range(ROUNDS):
        speed = FIRST_GUESS
        lowest_loss = math.inf
        for model in candidates:
            tokens = planned_tokens(model, speeds.get(model, speed), settings, facts, machine.processes)
            chosen = training_settings(model, tokens, facts.train_tokens, settings, machine.processes)
            train = from_settings(TrainArgs, chosen)
            if not fits_memory(model, train, machine.device, machine.processes):
                break
            speed = speeds[model] = max(speeds.get(model, 0.0), machine.tokens_per_second(model, train))
            loss = predicted_loss(model, planned_tokens(model, speed, settings, facts, machine.processes), facts)
            if loss >= lowest_loss:
                break
            lowest_loss = loss
    if not speeds:
        check_training_memory(model, train, machine.device, machine.processes)
    return speeds


class Machine:
    """The device, and the number of processes. Measures how fast a model trains there on the given text."""

    def __init__(self, run: Run, dataset: Dataset, ranks: Ranks) -> None:
        self.network = run.network
        self.dataset = dataset
        self.device = local_device(run.settings.get("device", TrainArgs.device), ranks)
        self.processes = ranks.world_size

    def tokens_per_second(self, model: ModelArgs, train: TrainArgs) -> float:
        """Tokens per second of the fastest of three or more steps, for 0.35 seconds or longer.

        Once 1.5 seconds have passed it stops, even after a single step. The fastest step counts because other programs
        can only make a step slower. One process is timed, with its share of the batch; the others are assumed to be as
        fast, and the result is the speed of all together.
        """
        torch.manual_seed(train.seed)
        trainer = Trainer(self.network(model).to(self.device), self.dataset, self._single_process(train))
        trainer.model.train()
        fastest = math.inf
        spent = 0.0
        steps = 0
        while spent < 1.5 and (steps < 3 or spent < 0.35):
            begin = time.perf_counter()
            trainer.step(1.0)
            if self.device.type != "cpu":
                torch.accelerator.synchronize(self.device)  # the optimizer may still be running
            seconds = time.perf_counter() - begin
            fastest = min(fastest, seconds)
            spent += seconds
            steps += 1
        return train.batch_size * model.max_seq_len / fastest

    def _single_process(self, train: TrainArgs) -> TrainArgs:
        """The settings of a single process that trains on its share of the batch."""
        rows = train.batch_size // self.processes
        micro_batch_size = train.micro_batch_size and math.gcd(rows, train.micro_batch_size)  # must divide the rows
        return dataclasses.replace(train, batch_size=rows, micro_batch_size=micro_batch_size, compile=False, fsdp=False)
