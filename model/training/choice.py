"""Measure how fast this machine trains models of several sizes, and choose from them what the user left open."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from ..cli import Settings, format_flags, from_settings, note_if_slow
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..transformer import Transformer
from .config import SETTINGS_CLASSES, Run, TrainArgs
from .distributed import Ranks, local_device
from .estimate import check_training_memory
from .run_text import Text
from .sizing import (
    Forecast,
    TextFacts,
    candidate_models,
    choose_settings,
    forecast,
    needs_choice,
    planned_tokens,
    predicted_loss,
    text_facts,
    training_settings,
)
from .trainer import Trainer

ROUNDS = 3  # of timing; the fastest step of each model counts, so that a short load does not decide
FIRST_GUESS = 1e4  # tokens per second of a model before it is timed, to choose the batch size at which it is timed

Measure = Callable[[ModelArgs, TrainArgs], float]  # the tokens per second of a model with these settings


class Choice(NamedTuple):
    """A run whose settings are complete, what to expect of it, and the command that trains with these settings."""

    run: Run
    forecast: Forecast | None = None  # None if nothing was chosen and no forecast was asked for
    command: str = ""  # empty if nothing was chosen


def choose(run: Run, text: Text, ranks: Ranks, with_forecast: bool = False) -> Choice:
    """Complete the settings with those found in the text, and with a choice if ``minutes`` leave some open.

    Raises ValueError for settings that are wrong, and for runs that do not fit into the memory.
    """
    complete = replace(run, settings=run.settings | text.settings)
    device = local_device(run.train.device, ranks)
    choosing = needs_choice(run.settings)
    if not choosing:
        check_training_memory(complete.model, complete.train, device, ranks.world_size)
        if not with_forecast:
            return Choice(complete)

    def measure(model: ModelArgs, train: TrainArgs) -> float:
        return tokens_per_second(complete.network, text.dataset, model, train, ranks)

    with note_if_slow("timing         models on this machine, to know what fits into the time"):
        facts = text_facts(text.dataset, text.tokenizer.vocab_size)
        if not choosing:
            speed = measure(complete.model, complete.train)
            return Choice(complete, forecast(complete.model, complete.train, facts, speed))
        speeds = time_models(measure, complete.settings, facts, ranks)
    chosen, speed = choose_settings(speeds, complete.settings, facts, ranks.world_size)
    complete = replace(complete, settings=complete.settings | chosen)
    check_training_memory(complete.model, complete.train, device, ranks.world_size)
    expected = forecast(complete.model, complete.train, facts, speed, ends_early="max_steps" in chosen)
    return Choice(complete, expected, f"python train.py {format_flags(run.settings | chosen, *SETTINGS_CLASSES)}")


def time_models(measure: Measure, settings: Settings, facts: TextFacts, ranks: Ranks) -> dict[ModelArgs, float]:
    """The tokens per second of the candidate models, from small to large, by ``measure``.

    It stops when the next one has a higher predicted loss, or does not fit into the memory. A model is timed with about
    the batch size that it would get, which depends on its speed, or before it is known, on that of the one before it.
    Raises ValueError if not even the first one fits.
    """
    speeds: dict[ModelArgs, float] = {}
    for _ in range(ROUNDS):
        speed = FIRST_GUESS
        lowest_loss = math.inf
        for model in candidate_models(settings):
            tokens = planned_tokens(model, speeds.get(model, speed), settings, facts, ranks.world_size)
            chosen = training_settings(model, tokens, facts.train_tokens, settings, ranks.world_size)
            train = from_settings(TrainArgs, chosen)
            try:
                check_training_memory(model, train, local_device(train.device, ranks), ranks.world_size)
            except ValueError:
                if speeds:
                    break
                raise
            speed = speeds[model] = max(speeds.get(model, 0.0), measure(model, train))
            loss = predicted_loss(model, planned_tokens(model, speed, settings, facts, ranks.world_size), facts)
            if loss >= lowest_loss:
                break
            lowest_loss = loss
    return speeds


def tokens_per_second(
    network: type[Transformer], dataset: Dataset, model: ModelArgs, train: TrainArgs, ranks: Ranks
) -> float:
    """Tokens per second of the fastest of three or more steps, for 0.35 seconds or longer.

    Once 1.5 seconds have passed it stops, even after a single step. The fastest step counts because other programs can
    only make a step slower. One process is timed, with its share of the batch; the others are assumed to be as fast,
    and the result is the speed of all together.
    """
    device = local_device(train.device, ranks)
    share = replace(train, batch_size=train.batch_size // ranks.world_size, compile=False, fsdp=False)
    torch.manual_seed(train.seed)
    trainer = Trainer(network(model).to(device), dataset, share)
    trainer.model.train()
    seconds: list[float] = []
    while sum(seconds) < 1.5 and (len(seconds) < 3 or sum(seconds) < 0.35):
        begin = time.perf_counter()
        trainer.step(1.0)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)  # the optimizer may still be running
        seconds.append(time.perf_counter() - begin)
    return train.batch_size * model.max_seq_len / min(seconds)
