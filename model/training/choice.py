"""Measure how fast this machine trains models of several sizes, and choose from them what the user left open."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ..cli import note_if_slow
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..transformer import Transformer
from .config import Run, TrainArgs
from .distributed import Ranks, local_device
from .estimate import check_training_memory
from .run_text import Text
from .sizing import Forecast, Planner, lowest_ngram_loss, needs_choice
from .trainer import Trainer

ROUNDS = 3  # of timing; the fastest step of each model counts, so that a short load does not decide
FIRST_GUESS = 1e4  # tokens per second of a model before it is timed, to choose the batch size at which it is timed


def choose(run: Run, text: Text, ranks: Ranks, with_forecast: bool = False) -> tuple[Run, Forecast | None]:
    """Choose what ``minutes`` leave open: the size of the model, the batch size and other settings of the training.

    Returns the run with the chosen settings, and what to expect of it, if anything was open or ``with_forecast``.
    Raises ValueError if the run does not fit into the memory.
    """
    choosing = needs_choice(run)
    if not choosing:
        check_training_memory(run.model, run.train, ranks)
        if not with_forecast:
            return run, None
    measure = partial(tokens_per_second, run.network, text.dataset, ranks)
    with note_if_slow("timing         models on this machine, to know what fits into the time"):
        ngram_loss = lowest_ngram_loss(text.dataset, text.tokenizer.vocab_size)
        planner = Planner(run, len(text.dataset.train), ngram_loss, ranks.world_size)
        if not choosing:
            return run, planner.forecast(run.model, run.train, measure(run.model, run.train))
        speeds = time_models(measure, planner, ranks)
    run, forecast = planner.choose(speeds)
    check_training_memory(run.model, run.train, ranks)
    return run, forecast


def time_models(
    measure: Callable[[ModelArgs, TrainArgs], float], planner: Planner, ranks: Ranks
) -> dict[ModelArgs, float]:
    """The tokens per second of the candidate models, from small to large, by ``measure``.

    It stops when the next one has a higher predicted loss, or does not fit into the memory. A model is timed with about
    the batch size that it would get, which depends on its speed, or before it is known, on that of the one before it.
    Raises ValueError if not even the first one fits.
    """
    speeds: dict[ModelArgs, float] = {}
    for _ in range(ROUNDS):
        speed = FIRST_GUESS
        lowest_loss = math.inf
        for model in planner.candidates():
            tokens = planner.planned_tokens(model, speeds.get(model, speed))
            train = planner.training_settings(model, tokens)
            try:
                check_training_memory(model, train, ranks)
            except ValueError:
                if speeds:
                    break
                raise
            speed = speeds[model] = max(speeds.get(model, 0.0), measure(model, train))
            loss = planner.predicted_loss(model, planner.planned_tokens(model, speed))
            if loss >= lowest_loss:
                break
            lowest_loss = loss
    return speeds


def tokens_per_second(
    network: type[Transformer], dataset: Dataset, ranks: Ranks, model: ModelArgs, train: TrainArgs
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
    trainer.parallel.train()
    seconds: list[float] = []
    while sum(seconds) < 1.5 and (len(seconds) < 3 or sum(seconds) < 0.35):
        begin = time.perf_counter()
        trainer.step(1.0)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)  # the optimizer may still be running
        seconds.append(time.perf_counter() - begin)
    return train.batch_size * model.max_seq_len / min(seconds)
