"""Make and check the plan of a run."""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..cli import Settings, from_settings, quantity, toml_text
from ..cli.machine import pick_device
from ..config import ModelArgs
from ..text.sources import is_pipe
from ..transformer import Transformer
from ..weights import find_network
from ..weights.hf_config import config_from
from .config import SETTINGS_CLASSES, DataArgs, TrainArgs
from .distributed import Ranks, local_device
from .estimate import check_training_memory
from .sizing import batch_unit, has_architecture, needs_choice, smallest_architecture

SINGLE_PROCESS = Ranks()


@dataclass(frozen=True)
class Plan:
    """The settings of a run, resolved and checked, before any file is written."""

    data: DataArgs
    model_args: ModelArgs
    train: TrainArgs
    directory: Path
    network_class: type[Transformer] = Transformer
    ranks: Ranks = SINGLE_PROCESS
    resume: bool = False
    # From the file, the flags and the choice. For a new run, settings that were neither given nor chosen are missing.
    settings: Settings = field(default_factory=dict)
    base: Path | None = None  # without --out_dir: the directory is the first free one of base, base-2, base-3 …
    # When resuming: no setting of the text was given again, so the run's cached tokens are used if they are still there
    keeps_text: bool = False
    saved_settings: Settings | None = None  # when resuming: those in the run directory
    changes: tuple[str, ...] = ()  # when resuming: the differences from the saved settings

    @property
    def needs_choice(self) -> bool:
        """Whether the model or its training settings are still to be chosen."""
        return not self.resume and needs_choice(self.settings)

    @property
    def identity(self) -> Settings:
        """Settings that must not change when the run is resumed. The text must not change either."""
        train = {name: str(getattr(self.train, name) or "") for name in ("init_from", "network")}
        tokenizer_and_optimizer = {"tokenizer": self.data.tokenizer, "optimizer": self.train.optimizer}
        return dataclasses.asdict(self.model_args) | tokenizer_and_optimizer | train


def make_plan(settings: Settings, directory: Path, ranks: Ranks) -> Plan:
    """Make and check the plan that these settings describe.

    Raises ValueError for every mistake that can be found without reading the text.
    """
    complete = settings | {"out_dir": directory}
    if needs_choice(settings):  # the checks need some batch size and some model
        complete = {"batch_size": max(1, batch_unit(settings, ranks.world_size))} | complete
        if not has_architecture(settings):
            complete = smallest_architecture(settings) | complete
    data, model, train = (from_settings(cls, complete) for cls in SETTINGS_CLASSES)
    device = local_device(pick_device(train.device), ranks)
    network = find_network(train.network) if train.network else Transformer
    # The next two calls are only checks: they raise ValueError for settings that cannot be saved.
    config_from(model, "float32", {})
    toml_text(data, model, train)
    check_processes(train, ranks.world_size)
    check_training_memory(model, train, device, ranks.world_size)
    check_writable(directory)
    return Plan(data, model, train, directory, network, ranks, settings=settings)


def check_processes(train: TrainArgs, processes: int) -> None:
    """Raise ValueError if ``processes``, the number on all machines, cannot share the batch."""
    if train.batch_size % processes:
        raise ValueError(
            f"batch_size is {train.batch_size}, for {quantity(processes, 'process', 'processes')}: give a multiple "
            f"of {processes}"
        )


def check_pipes(data: DataArgs, processes: int) -> None:
    """Raise ValueError if several processes would read a pipe."""
    for spec in (*data.data, *data.val_data):
        if processes > 1 and is_pipe(spec):
            raise ValueError(f"{spec} is a pipe, which only one of several processes can read: save the text to a file")


def check_writable(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"out_dir is {directory}, a file: give a directory")
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ValueError(f"{nearest} cannot be written to: give another --out_dir")


def differences(before: Settings, after: Settings) -> tuple[str, ...]:
    """``name old -> new`` for each setting that is in both with different values."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    return tuple(f"{name} {before[name]} -> {after[name]}" for name in changed)
