"""Resolve the settings of a run: defaults < TOML file < flags, or those of the run that is resumed."""

import os
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ..cli import Settings, instances, print_note, quantity, read_toml
from ..cli.settings import setting_fields, values
from ..config import ModelArgs
from ..text.train_tokenizer import TOKENIZER_KINDS
from ..weights import Checkpoint, find_network
from ..weights.checkpoint import RUNS, newest_run
from .config import CONFIG_FILE, SETTINGS_CLASSES, DataArgs, Run
from .distributed import Ranks, local_device
from .state import read_progress

DEFAULT_MINUTES = 2.5  # if there is neither a config nor --minutes nor --max_steps
FINE_TUNING_CONTEXT = 1024  # by default at most: a published model's whole context needs far more memory than a run
# If the size is chosen, runs of fewer minutes use half the context: with it the loss was 5% lower after 500 steps, and
# 0.7% higher after 1,400 (benchmarks/choice.py).
SHORT_RUN_MINUTES, SHORT_CONTEXT = 2.0, 128


def resolve(config: Path | None, flags: Settings, resume: bool, ranks: Ranks) -> Run:
    """Combine the settings: the file overrides the defaults, and the flags override the file.

    When resuming, the saved settings of the run override the defaults. Raises ValueError for every mistake that is
    known without the text, because preparing a text may take hours.
    """
    run = resolve_resumed(config, flags) if resume else resolve_new(config, flags)
    nearest = next(path for path in (run.directory, *run.directory.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ValueError(f"out_dir is {run.directory}, but {nearest} is no directory that can be written to")
    train = run.train
    if train.batch_size % ranks.world_size and ("batch_size" in run.given or not run.needs_choice):
        raise ValueError(
            f"batch_size is {train.batch_size}, for {quantity(ranks.world_size, 'process', 'processes')}: give a "
            f"multiple of {ranks.world_size}"
        )
    if train.network:
        find_network(train.network)
    local_device(train.device, ranks)
    return run


def resolve_new(config: Path | None, flags: Settings) -> Run:
    file = read_toml(config, *SETTINGS_CLASSES) if config else {}
    if not config and flags.keys().isdisjoint({"minutes", "max_steps"}):
        file = {"minutes": DEFAULT_MINUTES}
    settings = file | flags
    given = frozenset(settings)
    if "init_from" in settings:
        settings |= fine_tuning_settings(settings["init_from"], flags, settings.get("network"))
    data, model, train = instances(settings, *SETTINGS_CLASSES)
    name = config.stem if config else Path(urlsplit(data.data[0]).path).name.split(".")[0]
    name = re.sub(r"[^\w.-]+", "-", name).strip("-")
    run = Run(data, model, train, given, train.out_dir or RUNS / (name or "text"))
    is_short = train.minutes is not None and train.minutes < SHORT_RUN_MINUTES
    if is_short and run.needs_choice and not run.has_size and "max_seq_len" not in given:
        run = replace(run, model=replace(model, max_seq_len=SHORT_CONTEXT))
    return run


def resolve_resumed(config: Path | None, flags: Settings) -> Run:
    """The run to resume.

    Raises ValueError if the text, the model or the optimizer would change, or if ``max_steps`` have been exceeded. The
    number of validated tokens stays, too, because losses of different tokens do not tell which model is the best.
    """
    settings = (read_toml(config, *SETTINGS_CLASSES) if config else {}) | flags
    directory = settings.get("out_dir") or newest_run(CONFIG_FILE)
    if not (directory / CONFIG_FILE).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG_FILE} is missing): start one without --resume")
    saved = read_toml(directory / CONFIG_FILE, *SETTINGS_CLASSES)
    if saved.get("tokenizer") != "bpe":
        # It matters only for a bpe tokenizer that is trained. With any other, the original run ignored it, too.
        settings.pop("vocab_size", None)
    given = frozenset(setting_fields(*SETTINGS_CLASSES))  # nothing is left to choose
    data, model, train = instances(saved | settings, *SETTINGS_CLASSES)
    before, after = values(*instances(saved, *SETTINGS_CLASSES)), values(data, model, train)
    changes = {name: f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]}
    fixed = {"optimizer", "init_from", "network", "eval_tokens", *setting_fields(DataArgs, ModelArgs)} - {"start_text"}
    conflicts = [change for name, change in changes.items() if name in fixed]
    if conflicts:
        raise ValueError(f"{directory} cannot be resumed with {'; '.join(conflicts)}: leave it out, or start a new run")
    run = Run(data, model, train, given, directory, resume=True, changes=tuple(changes.values()))
    progress = read_progress(directory)
    if progress and progress.step > run.train.step_limit:
        raise ValueError(
            f"max_steps is {run.train.max_steps}, but {directory} has already taken {quantity(progress.step, 'step')}: "
            "give more than that, or leave it out"
        )
    return run


def fine_tuning_settings(source: Path, flags: Settings, network: str | None) -> Settings:
    """The architecture and the tokenizer of ``source``, which replace those of a config.

    A flag may lower ``max_seq_len``. Raises ValueError if the ``flags`` set another architecture, or ask for a new
    tokenizer.
    """
    checkpoint = Checkpoint(source)
    if checkpoint.subclass_name not in (None, network):
        name = checkpoint.subclass_name
        raise ValueError(f"{source} holds the weights of {name}: give --network {name}")
    longest = checkpoint.args.max_seq_len
    context = flags.get("max_seq_len", FINE_TUNING_CONTEXT)
    fixed = vars(checkpoint.args) | {"max_seq_len": min(context, longest)}
    for name, value in flags.items():
        if name in fixed and value != fixed[name]:
            raise ValueError(
                f"{name} is {value}, but {source} has {fixed[name]}: leave {name} out, because init_from sets it"
            )
    tokenizer = flags.get("tokenizer", str(source))
    if tokenizer in TOKENIZER_KINDS:
        raise ValueError(
            f"tokenizer is {tokenizer}, which would train a new one, but {source} must keep its tokenizer: leave "
            "--tokenizer out, or give the file of that tokenizer"
        )
    if "max_seq_len" not in flags and longest > context:
        print_note(
            f"note: to save memory, the run has a context of {context:,} tokens; {source} has {longest:,}, and "
            "--max_seq_len sets another number"
        )
    return fixed | {"tokenizer": tokenizer}
