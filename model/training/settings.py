"""Resolve the settings of a run: defaults < TOML file < flags, or those of the run that is resumed; and check them."""

import dataclasses
import os
import re
from collections.abc import Set
from pathlib import Path
from urllib.parse import urlsplit

from ..cli import Settings, from_settings, quantity, read_toml, toml_text
from ..text.sources import is_pipe
from ..text.train_tokenizer import TOKENIZER_KINDS
from ..weights import find_network, open_checkpoint
from ..weights.checkpoint import RUNS, newest_run
from ..weights.hf_config import config_from
from .config import CONFIG_FILE, FINE_TUNING_LR_FRACTION, PEAK_LR, SETTINGS_CLASSES, DataArgs, Run, TrainArgs
from .distributed import Ranks, local_device
from .estimate import check_training_memory
from .run_directory import check_free, numbered
from .sizing import architecture_settings, batch_unit, candidate_models, needs_choice
from .summary import format_rows

DEFAULT_MINUTES = 2.5  # if there is neither a config nor --minutes nor --max_steps
FINE_TUNING_CONTEXT = 1024  # by default at most: a published model's whole context needs far more memory than a run


def resolve(config: Path | None, default_config: Path, flags: Settings, resume: bool, ranks: Ranks) -> Run:
    """Combine the settings: the file overrides the defaults, and the flags override the file.

    When resuming, the saved settings of the run override the defaults. Raises ValueError for every mistake that can be
    found without reading the text.
    """
    run = resolve_resumed(config, flags) if resume else resolve_new(config, default_config, flags)
    check_writable(run.directory)
    if not run.keeps_text:
        check_pipes(run.data, ranks.world_size)
    check(smallest_choice(run, ranks) if needs_choice(run) else run, ranks)
    return run


def smallest_choice(run: Run, ranks: Ranks) -> Run:
    """The run with the smallest model and batch, to find mistakes in the other settings before they are chosen."""
    model = architecture_settings(candidate_models(run.settings)[0])
    batch_size = max(1, batch_unit(run.settings, ranks.world_size))
    return dataclasses.replace(run, settings=model | {"batch_size": batch_size} | run.settings)


def resolve_new(config: Path | None, default_config: Path, flags: Settings) -> Run:
    """A new run. The default config is used if nothing says what else to train, and for how long."""
    if not config and flags.keys().isdisjoint({"data", "minutes", "init_from"}):
        config = default_config
    if config:
        file = read_toml(config, *SETTINGS_CLASSES)
    else:
        file = {} if {"minutes", "max_steps"} & flags.keys() else {"minutes": DEFAULT_MINUTES}
    settings = file | flags
    notes: tuple[str, ...] = ()
    if "init_from" in settings:
        settings, notes = fine_tuning_settings(file, flags)
    if directory := settings.get("out_dir"):
        check_free(directory)
        return Run(settings, directory, notes=notes)
    base = RUNS / run_name(config, settings.get("data", DataArgs.data))
    directory = next(path for path in numbered(base) if not path.exists())
    return Run(settings, directory, base=base, notes=notes)


def resolve_resumed(config: Path | None, flags: Settings) -> Run:
    """The run to resume. Raises ValueError if the model, the tokenizer or the optimizer would change."""
    settings = (read_toml(config, *SETTINGS_CLASSES) if config else {}) | flags
    directory = settings.get("out_dir") or newest_run(CONFIG_FILE)
    if not (directory / CONFIG_FILE).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG_FILE} is missing): start one without --resume")
    saved = read_toml(directory / CONFIG_FILE, *SETTINGS_CLASSES)
    if saved.get("tokenizer") != "bpe":
        # It matters only for a bpe tokenizer that is trained. With any other, the original run ignored it, too.
        settings.pop("vocab_size", None)
    conflicts = differences(identity(saved), identity(saved | settings))
    if conflicts:
        raise ValueError(f"{directory} cannot be resumed with {'; '.join(conflicts)}: leave it out, or start a new run")
    text_settings = vars(DataArgs()).keys() - {"start_text", "tokenizer"}
    keeps_text = settings.keys().isdisjoint(text_settings)
    return Run(saved | settings, directory, saved=saved, keeps_text=keeps_text)


def identity(settings: Settings) -> Settings:
    """The settings that must not change when a run is resumed. The text must not change either."""
    data, model, train = (from_settings(cls, settings) for cls in SETTINGS_CLASSES)
    others = {"tokenizer": data.tokenizer, "optimizer": train.optimizer}
    others |= {"init_from": train.init_from or "", "network": train.network or ""}
    return dataclasses.asdict(model) | others


def differences(before: Settings, after: Settings) -> list[str]:
    """``name old -> new`` for each setting that is in both with different values."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    return [f"{name} {before[name]} -> {after[name]}" for name in changed]


def changes(run: Run) -> list[str]:
    """The settings of a resumed run that are not as they were."""
    if run.saved is None:
        return []
    before = vars(from_settings(DataArgs, run.saved)) | vars(from_settings(TrainArgs, run.saved))
    return differences(before, vars(run.data) | vars(run.train))


def run_name(config: Path | None, data: tuple[str, ...]) -> str:
    """The name of the config, if there is one, or else of the text.

    For several text files of one folder it is the name of the folder, otherwise that of the first text.
    """
    if config:
        return config.stem
    paths = [Path(urlsplit(name).path) for name in data]
    folders = {path.parent.absolute() for path in paths}
    named = paths[0] if paths else Path()
    if len(paths) > 1 and len(folders) == 1:  # for example the files that a shell finds for ``*.py``
        named = folders.pop()
    parts = [part for part in named.parts if not set(part) & set("*?[")]
    name = re.sub(r"[^\w.-]+", "-", parts[-1] if parts else "").split(".")[0].strip("-")
    return name or "text"


def fine_tuning_settings(file: Settings, flags: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The settings with the architecture and the tokenizer of ``init_from``, which replace those of a config; notes.

    A flag may lower ``max_seq_len``. Learning rates of flags, or of a config with ``init_from``, are used as they are.
    A config without it was written for training from scratch, so its rates are lowered.

    Raises ValueError if the ``flags`` set another architecture, or ask for a new tokenizer.
    """
    settings = file | flags
    source = settings["init_from"]
    checkpoint = open_checkpoint(source)
    subclass_name = checkpoint.subclass_name
    if subclass_name not in (None, settings.get("network")):
        raise ValueError(f"{source} holds the weights of {subclass_name}: give --network {subclass_name}")
    architecture = vars(checkpoint.args)
    for name in (architecture.keys() & flags.keys()) - {"max_seq_len"}:
        if flags[name] != architecture[name]:
            raise ValueError(
                f"{name} is {flags[name]}, but {source} has {architecture[name]}: leave {name} out, because init_from "
                "sets it"
            )
    longest = architecture["max_seq_len"]
    context = flags.get("max_seq_len", longest)
    if context > longest:
        raise ValueError(f"max_seq_len is {context}, but {source} has a context of {longest}: give at most that")
    tokenizer = flags.get("tokenizer", str(source))
    if tokenizer in TOKENIZER_KINDS:
        raise ValueError(
            f"tokenizer is {tokenizer}, which would train a new one, but the weights in {source} are for the tokenizer "
            "that they were trained with: leave --tokenizer out, or give the file of that tokenizer"
        )
    rates = lowered_rates(settings, {"lr", "muon_lr"} & (settings if "init_from" in file else flags).keys())
    notes: tuple[str, ...] = ()
    if "max_seq_len" not in flags and longest > FINE_TUNING_CONTEXT:
        context = FINE_TUNING_CONTEXT
        note = f"{context:,} of the {longest:,} positions of {source}, to save memory; --max_seq_len changes that"
        notes = (format_rows({"context": note}),)
    return settings | architecture | rates | {"tokenizer": tokenizer, "max_seq_len": context}, notes


def lowered_rates(settings: Settings, kept: Set[str]) -> Settings:
    """The learning rates times FINE_TUNING_LR_FRACTION, without those in ``kept``.

    A missing rate counts as PEAK_LR, except ``lr`` if the optimizer is adamw: it counts as ``TrainArgs.lr``.
    """
    from_scratch = {"lr": PEAK_LR if settings.get("optimizer", "muon") == "muon" else TrainArgs.lr, "muon_lr": PEAK_LR}
    rates = {}
    for name, rate in from_scratch.items():
        if name not in kept:
            lower = FINE_TUNING_LR_FRACTION * settings.get(name, rate)
            rates[name] = float(f"{lower:.6g}")  # 0.0009, and not 0.0008999999999999999
    return rates


def check(run: Run, ranks: Ranks) -> None:
    """Raise ValueError for settings that are wrong, that cannot be saved, or that need more memory than is free."""
    config_from(run.model, "float32", {})
    toml_text(run.data, run.model, dataclasses.replace(run.train, out_dir=run.directory))
    if run.train.network:
        find_network(run.train.network)
    if run.train.batch_size % ranks.world_size:
        raise ValueError(
            f"batch_size is {run.train.batch_size}, for {quantity(ranks.world_size, 'process', 'processes')}: give a "
            f"multiple of {ranks.world_size}"
        )
    device = local_device(run.train.device, ranks)
    check_training_memory(run.model, run.train, device, ranks.world_size)


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
