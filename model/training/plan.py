"""A run that is resolved and checked; nothing of it has been written yet."""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..cli import Settings, from_settings, quantity, write_toml
from ..cli.machine import pick_device
from ..config import ModelArgs
from ..transformer import Transformer
from ..weights import find_network
from ..weights.hf_config import config_from
from .config import CLASSES, DataArgs, TrainArgs
from .distributed import Ranks, own_device
from .estimate import check_training_memory
from .sizing import has_architecture, placeholder, undecided

ALONE = Ranks()


@dataclass(frozen=True)
class Plan:
    """A run, resolved and checked, of which nothing has been written yet."""

    data: DataArgs
    model: ModelArgs
    train: TrainArgs
    directory: Path
    network: type[Transformer] = Transformer
    ranks: Ranks = ALONE
    resume: bool = False
    given: Settings = field(default_factory=dict)  # what the user and the file say, and only that
    base: Path | None = None  # without --out_dir, the directory is base, or else base-2, base-3 …
    found: Settings | None = None  # when resuming: the run's own settings
    changes: tuple[str, ...] = ()  # when resuming: what is set differently from before

    @property
    def undecided(self) -> bool:
        """Whether the model, or how to train it, is still to be chosen."""
        return not self.resume and undecided(self.given)

    @property
    def identity(self) -> Settings:
        """What a resume must agree with, beside the text."""
        train = {name: str(getattr(self.train, name) or "") for name in ("init_from", "network")}
        others = {"tokenizer": self.data.tokenizer, "optimizer": self.train.optimizer}
        return dataclasses.asdict(self.model) | others | train


def make_plan(settings: Settings, directory: Path, ranks: Ranks) -> Plan:
    """The plan that these settings describe. Raises ValueError for what can be known to fail without the text."""
    complete = settings | {"out_dir": directory}
    if undecided(settings) and not has_architecture(settings):  # the checks need some model that could be chosen
        complete = placeholder(settings) | complete
    data, model, train = (from_settings(cls, complete) for cls in CLASSES)
    device = own_device(pick_device(train.device), ranks)
    network = find_network(train.network) if train.network else Transformer
    config_from(model, "float32", {})  # what no checkpoint could say is refused before the work, not after it;
    write_toml(data, model, train)  # and so is a path that no settings file could name, which is UTF-8
    check_processes(data, train, ranks.world_size)
    check_training_memory(model, train, device, ranks.world_size)
    check_writable(directory)
    return Plan(data, model, train, directory, network, ranks, given=settings)


def check_processes(data: DataArgs, train: TrainArgs, processes: int) -> None:
    """``processes`` is torchrun's number of them, on all machines."""
    if train.batch_size % processes:
        raise ValueError(
            f"batch_size is {train.batch_size}, for {quantity(processes, 'process', 'processes')}: give a multiple "
            "of them"
        )
    if processes > 1 and "-" in (*data.data, *data.val_data):
        raise ValueError("data is -, which only one of several processes could read: save the text to a file")


def check_writable(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"out_dir is {directory}, a file: give a directory")
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ValueError(f"{nearest} cannot be written to: give another --out_dir")


def differences(before: Settings, after: Settings) -> tuple[str, ...]:
    """What is set in both, and differently: ``name old -> new``."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    return tuple(f"{name} {before[name]} -> {after[name]}" for name in changed)
