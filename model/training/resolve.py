"""Combine defaults, file and flags into a plan: a new run, or one to resume."""

import dataclasses
import re
from pathlib import Path
from urllib.parse import urlsplit

from ..cli import Settings, read_toml
from ..weights.checkpoint import RUNS, newest_run
from .config import CONFIG_FILE, SETTINGS_CLASSES
from .distributed import Ranks
from .fine_tuning import fine_tuning_settings
from .plan import SINGLE_PROCESS, Plan, check_pipes, differences, make_plan
from .run_directory import check_free, numbered


def resolve(
    config: Path | None, default_config: Path, flags: Settings, resume: bool, ranks: Ranks = SINGLE_PROCESS
) -> Plan:
    """Make a plan: the file overrides the defaults, and the flags override the file.

    When resuming, the saved settings of the run override the defaults. Raises ValueError before anything is written.
    """
    if resume:
        plan = resolve_resumed(read_toml(config, *SETTINGS_CLASSES) if config else {}, flags, ranks)
    else:
        plan = resolve_new(config, default_config, flags, ranks)
    if not plan.keeps_text:
        check_pipes(plan.data, ranks.world_size)
    return plan


def resolve_new(config: Path | None, default_config: Path, flags: Settings, ranks: Ranks) -> Plan:
    """The plan of a new run.

    If ``max_steps`` is a flag, the minutes of the default config are dropped: the user did not ask for them, and they
    could end the run before its last step.
    """
    file = read_toml(config or default_config, *SETTINGS_CLASSES)
    if not config and "max_steps" in flags:
        file.pop("minutes", None)
    settings = file | flags
    if "init_from" in settings:
        # Learning rates of flags, or of a config with init_from, are used as they are. A config without init_from was
        # written for training from scratch, so its rates are lowered.
        source_of_rates = settings if config and "init_from" in file else flags
        settings = fine_tuning_settings(settings, flags, kept_rates={"lr", "muon_lr"} & source_of_rates.keys())
    if directory := settings.get("out_dir"):
        check_free(directory)
        return make_plan(settings, directory, ranks)
    base = RUNS / Path(run_name(config, flags.get("data"), default_config))
    directory = next(path for path in numbered(base) if not path.exists())
    return dataclasses.replace(make_plan(settings, directory, ranks), base=base)


def resolve_resumed(file: Settings, flags: Settings, ranks: Ranks) -> Plan:
    """The plan of a resumed run. Raises ValueError if the model, the tokenizer or the optimizer would change."""
    settings = file | flags
    directory = settings.get("out_dir") or newest_run(CONFIG_FILE)
    if not (directory / CONFIG_FILE).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG_FILE} is missing): start one without --resume")
    saved = read_toml(directory / CONFIG_FILE, *SETTINGS_CLASSES)
    if saved.get("tokenizer") != "bpe":
        # It matters only for a bpe tokenizer that is trained. With any other, the original run ignored it, too.
        settings.pop("vocab_size", None)
    before = make_plan(saved, directory, ranks)
    after = make_plan(saved | settings, directory, ranks)
    conflicts = differences(before.identity, after.identity)
    if conflicts:
        raise ValueError(f"{directory} cannot be resumed with {'; '.join(conflicts)}: leave it out, or start a new run")
    changes = differences(vars(before.data) | vars(before.train), vars(after.data) | vars(after.train))
    text_settings = vars(after.data).keys() - {"start_text", "tokenizer"}
    keeps_text = settings.keys().isdisjoint(text_settings)
    return dataclasses.replace(after, resume=True, keeps_text=keeps_text, saved_settings=saved, changes=changes)


def run_name(config: Path | None, data: tuple[str, ...] | None, default_config: Path) -> str:
    """The name of the config, if there is one, or else of the text.

    For several text files of one folder it is the name of the folder, otherwise that of the first text. Without a
    config and a text it is the name of the default config.
    """
    if config or not data:
        return (config or default_config).stem
    paths = [Path(urlsplit(name).path) for name in data]
    folders = {path.parent.absolute() for path in paths}
    named = paths[0]
    if len(paths) > 1 and len(folders) == 1:  # for example the files that a shell finds for ``*.py``
        named = folders.pop()
    parts = [part for part in named.parts if not set(part) & set("*?[")]
    name = re.sub(r"[^\w.-]+", "-", parts[-1] if parts else "").split(".")[0].strip("-")
    return name or "text"
