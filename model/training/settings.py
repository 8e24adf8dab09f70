"""Resolve the settings of a run: defaults < TOML file < flags, or those of the run that is resumed."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from ..cli import Settings, instances, quantity, read_toml
from ..cli.settings import setting_fields, values
from ..config import ModelArgs
from ..text.train_tokenizer import TOKENIZER_KINDS
from ..weights import Checkpoint, find_network
from ..weights.checkpoint import RUNS, newest_run
from .config import CONFIG_FILE, SETTINGS_CLASSES, DataArgs, Run
from .distributed import Ranks, local_device

DEFAULT_MINUTES = 2.5  # if there is neither a config nor --minutes nor --max_steps
FINE_TUNING_CONTEXT = 1024  # by default at most: a published model's whole context needs far more memory than a run


def resolve(config: Path | None, flags: Settings, resume: bool, ranks: Ranks) -> Run:
    """Combine the settings: the file overrides the defaults, and the flags override the file.

    When resuming, the saved settings of the run override the defaults. Raises ValueError for every mistake that is
    known without the text, because preparing a text may take hours.
    """
    run = resolve_resumed(config, flags) if resume else resolve_new(config, flags)
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
    return Run(data, model, train, given, train.out_dir or RUNS / (name or "text"))


def resolve_resumed(config: Path | None, flags: Settings) -> Run:
    """The run to resume.

    Raises ValueError if the text, the model or the optimizer would change. The number of validated tokens stays, too,
    because losses of different tokens do not tell which model is the best.
    """
    settings = (read_toml(config, *SETTINGS_CLASSES) if config else {}) | flags
    directory = settings.get("out_dir") or newest_run(CONFIG_FILE)
    if not (directory / CONFIG_FILE).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG_FILE} is missing): start one without --resume")
    saved = read_toml(directory / CONFIG_FILE, *SETTINGS_CLASSES)
    settings.pop("vocab_size", None)  # it was only a request; the tokenizer has decided
    data, model, train = instances(saved | settings, *SETTINGS_CLASSES)
    before = values(*instances(saved, *SETTINGS_CLASSES))
    fixed = {"optimizer", "init_from", "network", "eval_tokens", *setting_fields(DataArgs, ModelArgs)} - {"start_text"}
    changed = {name: value for name, value in settings.items() if name in fixed and value != before[name]}
    if changed:
        conflicts = [f"{name} {before[name]} -> {value}" for name, value in changed.items()]
        raise ValueError(f"{directory} cannot be resumed with {'; '.join(conflicts)}: leave it out, or start a new run")
    given = frozenset(setting_fields(*SETTINGS_CLASSES))  # nothing is left to choose
    return Run(data, model, train, given, directory, resume=True)


def fine_tuning_settings(source: Path, flags: Settings, network: str | None) -> Settings:
    """The architecture and the tokenizer of ``source``, which replace those of a config.

    A flag may lower ``max_seq_len``. Raises ValueError if the ``flags`` set another architecture, or ask for a new
    tokenizer.
    """
    checkpoint = Checkpoint(source)
    if checkpoint.subclass_name not in (None, network):
        name = checkpoint.subclass_name
        raise ValueError(f"{source} holds the weights of {name}: give --network {name}")
    context = min(flags.get("max_seq_len", FINE_TUNING_CONTEXT), checkpoint.args.max_seq_len)
    fixed = vars(checkpoint.args) | {"max_seq_len": context}
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
    return fixed | {"tokenizer": tokenizer}
