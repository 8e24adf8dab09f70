"""From what the user said to a plan; what can be wrong is found before anything is written."""

import dataclasses
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from ..cli import Settings, build, read_toml
from ..cli.machine import pick_device
from ..config import ModelArgs
from ..text.train_tokenizer import KINDS
from ..weights import load_args
from ..weights.checkpoint import RUNS, newest_run
from .config import CLASSES, DataArgs, TrainArgs

CONFIG = "config.toml"
HELD = ("training_state.safetensors", "model.safetensors", "config.json")  # any of them: a model lives here


@dataclass(frozen=True)
class Plan:
    """A run, resolved and checked, of which nothing has been written yet."""

    data: DataArgs
    model: ModelArgs
    train: TrainArgs
    directory: Path
    resume: bool = False
    vocab_size: int | None = None  # of a tokenizer to be trained; None is what fits the text
    changes: tuple[str, ...] = ()  # when resuming: what is set differently from before

    @property
    def identity(self) -> Settings:
        """What a resume must agree with, beside the text."""
        said = {"tokenizer": self.data.tokenizer, "init_from": str(self.train.init_from or "")}
        return dataclasses.asdict(self.model) | said | {"optimizer": self.train.optimizer}


def resolve(config: Path | None, default_config: Path, flags: Settings, resume: bool) -> Plan:
    """Defaults < file < flags; when resuming, the run's own settings lie between defaults and file."""
    if resume:
        return resolve_resume(read_toml(config, *CLASSES) if config else {}, flags)
    settings = read_toml(config or default_config, *CLASSES) | flags
    if "init_from" in settings:
        settings = adopt(settings, flags)
    directory = settings.get("out_dir") or unused(RUNS / (config or default_config).stem)
    held = next((name for name in HELD if (directory / name).exists()), None)
    if held:
        raise ValueError(f"{directory} holds {held}: give another --out_dir, or --resume to go on with that run")
    return assemble(settings, directory)


def resolve_resume(file: Settings, flags: Settings) -> Plan:
    said = file | flags
    directory = said.get("out_dir") or newest_run(CONFIG)
    if not (directory / CONFIG).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG} is missing): start one without --resume")
    own = read_toml(directory / CONFIG, *CLASSES)
    if own.get("tokenizer") != "bpe":
        said.pop("vocab_size", None)  # it was only a wish: the tokenizer has as many as it has
    before, after = assemble(own, directory), assemble(own | said, directory)
    refused = differences(before.identity, after.identity)
    if refused:
        raise ValueError(f"{directory} cannot go on with {'; '.join(refused)}: leave that out, or start a new run")
    changes = differences(vars(before.data) | vars(before.train), vars(after.data) | vars(after.train))
    return dataclasses.replace(after, resume=True, changes=changes)


def differences(before: Settings, after: Settings) -> tuple[str, ...]:
    """What is set in both, and differently: ``name old -> new``."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    return tuple(f"{name} {before[name]} -> {after[name]}" for name in changed)


def adopt(settings: Settings, flags: Settings) -> Settings:
    """Fine-tuning: architecture and tokenizer are the given model's; only the context may be set, and only to less."""
    source = settings["init_from"]
    own = vars(load_args(source))
    for name in own.keys() & flags.keys() - {"max_seq_len"}:
        if flags[name] != own[name]:
            raise ValueError(f"{name} is {flags[name]}, but {source} has {own[name]}: leave it out with init_from")
    context = flags.get("max_seq_len", own["max_seq_len"])
    if context > own["max_seq_len"]:
        raise ValueError(f"max_seq_len is {context}: {source} was made for {own['max_seq_len']}; give at most that")
    tokenizer = flags.get("tokenizer", str(source))
    if tokenizer in KINDS:
        raise ValueError(f"tokenizer is {tokenizer}: {source} reads only its own; leave it out, or give its FILE")
    return settings | own | {"max_seq_len": context, "tokenizer": tokenizer}


def assemble(settings: Settings, directory: Path) -> Plan:
    data, model, train = (build(cls, settings | {"out_dir": directory}) for cls in CLASSES)
    pick_device(train.device)
    check_processes(data, train, int(os.environ.get("WORLD_SIZE", 1)))
    check_writable(directory)
    return Plan(data, model, train, directory, vocab_size=settings.get("vocab_size"))


def check_processes(data: DataArgs, train: TrainArgs, processes: int) -> None:
    """``processes`` is torchrun's number of them, on all machines."""
    if train.batch_size % processes:
        raise ValueError(f"batch_size is {train.batch_size}, for {processes} processes: give a multiple of them")
    if processes > 1 and "-" in (*data.data, *data.val_data):
        raise ValueError("data is -, which only one of several processes could read: save the text to a file")


def check_writable(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"out_dir is {directory}, a file: give a directory")
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ValueError(f"{nearest} cannot be written to: give another --out_dir")


def unused(directory: Path) -> Path:
    """``directory``, or the first of directory-2, directory-3 … that does not exist."""
    numbered = (directory.with_name(f"{directory.name}-{n}") for n in itertools.count(2))
    return next(path for path in itertools.chain([directory], numbered) if not path.exists())
