"""From the defaults, the file and the flags to a plan: a new run, or one to go on with."""

import dataclasses
import re
from pathlib import Path
from urllib.parse import urlsplit

from ..cli import Settings, local_path, read_toml
from ..weights.checkpoint import RUNS, newest_run
from .config import CLASSES, CONFIG_FILE
from .distributed import Ranks
from .fine_tuning import fine_tuning
from .plan import ALONE, Plan, differences, make_plan
from .run_directory import check_free, numbered


def resolve(config: Path | None, default_config: Path, flags: Settings, resume: bool, ranks: Ranks = ALONE) -> Plan:
    """Defaults < file < flags; when resuming, the run's own settings lie between defaults and file.

    What can be wrong is found here, before anything is written: raises ValueError.
    """
    if resume:
        return resolve_resumed(read_toml(config, *CLASSES) if config else {}, flags, ranks)
    return resolve_new(config, default_config, flags, ranks)


def resolve_new(config: Path | None, default_config: Path, flags: Settings, ranks: Ranks) -> Plan:
    """``max_steps`` as a flag overrides the minutes of the default config.

    By the clock the learning rate would differ from run to run, and nobody asked for these minutes.
    """
    file = read_toml(config or default_config, *CLASSES)
    if not config and "max_steps" in flags:
        file.pop("minutes", None)
    settings = file | flags
    if "init_from" in settings:
        named_by_file = config is not None and "init_from" in file
        settings = fine_tuning(settings, settings if named_by_file else flags, flags)
    if directory := settings.get("out_dir"):
        check_free(directory)
        return make_plan(settings, directory, ranks)
    base = RUNS / local_path(run_name(config, flags.get("data"), default_config))
    directory = next(path for path in numbered(base) if not path.exists())
    return dataclasses.replace(make_plan(settings, directory, ranks), base=base)


def resolve_resumed(file: Settings, flags: Settings, ranks: Ranks) -> Plan:
    """Raises ValueError if the model, the tokenizer or the optimizer would be another than before."""
    given = file | flags
    directory = given.get("out_dir") or newest_run(CONFIG_FILE)
    if not (directory / CONFIG_FILE).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG_FILE} is missing): start one without --resume")
    own = read_toml(directory / CONFIG_FILE, *CLASSES)
    if own.get("tokenizer") != "bpe":
        given.pop("vocab_size", None)  # it was a request; the tokenizer decides
    before = make_plan(own, directory, ranks)
    after = make_plan(own | given, directory, ranks)
    refused = differences(before.identity, after.identity)
    if refused:
        raise ValueError(f"{directory} cannot go on with {'; '.join(refused)}: leave that out, or start a new run")
    changes = differences(vars(before.data) | vars(before.train), vars(after.data) | vars(after.train))
    return dataclasses.replace(after, resume=True, found=own, changes=changes)


def run_name(config: Path | None, data: tuple[str, ...] | None, default_config: Path) -> str:
    """A run is called after its config, or else its text (or the folder of several), or else the default config."""
    if config or not data:
        return (config or default_config).stem
    paths = [Path(urlsplit(name).path) for name in data]
    folders = {path.parent.absolute() for path in paths}
    named = paths[0]
    if len(paths) > 1 and len(folders) == 1:  # files of one folder, such as a shell finds for ``*.py``
        named = folders.pop()
    parts = [part for part in named.parts if not set(part) & set("*?[")]
    name = re.sub(r"[^\w.-]+", "-", parts[-1] if parts else "").split(".")[0].strip("-")
    return name or "text"
