"""A run, and where the values of its settings come from: defaults, file and flags, or the run that is resumed."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from ..cli import Settings, instances, machine, quantity, read_toml
from ..cli.files import RUNS
from ..cli.settings import setting_fields, toml_value, values
from ..config import ModelArgs
from ..fast.step import check_compiler
from ..text.sources import STDIN
from ..text.train_tokenizer import TOKENIZER_KINDS
from ..transformer import Transformer
from ..weights import find_network, open_checkpoint
from ..weights.checkpoint import newest_run
from ..weights.tensors import WEIGHTS
from .config import CONFIG_FILE, SETTINGS_CLASSES, SIZE, DataArgs, TrainArgs
from .distributed import Machine, Ranks, local_device, product_dtype

DEFAULT_MINUTES = 2.5  # if there is neither a config nor --minutes nor --max_steps
FINE_TUNING_CONTEXT = 1024  # by default at most: a published model's whole context needs far more memory than a run


@dataclass(frozen=True)
class Run:
    """A run to start or to resume."""

    data: DataArgs
    model: ModelArgs
    train: TrainArgs
    decided: frozenset[str]  # the names of the user's settings and of the chosen ones; the others are open
    # A new run without --out_dir appends a number to the name if it is taken, when the directory is made.
    directory: Path
    resume: bool = False

    @property
    def has_size(self) -> bool:
        """Whether the size of the model is given."""
        return self.train.init_from is not None or not self.decided.isdisjoint(SIZE)

    @property
    def needs_choice(self) -> bool:
        """Whether settings that are not given are chosen to suit the minutes."""
        return self.train.minutes is not None and not self.resume

    @property
    def network(self) -> type[Transformer]:
        return find_network(self.train.network) if self.train.network else Transformer

    def machine(self, ranks: Ranks) -> Machine:
        """What a process of the run trains on. Raises ValueError if its device is missing."""
        device = local_device(self.train.device, ranks)
        dtype = product_dtype(self.train, device)
        return Machine(device, dtype, ranks.world_size, ranks.local_world_size, machine.free_memory(device))

    def values(self) -> dict[str, Any]:
        """Every setting by its name."""
        return values(self.data, self.model, self.train)

    def fill(self, **settings: Any) -> "Run":
        """The run with those of ``settings`` that were left open; they are decided from then on."""
        open_settings = {name: value for name, value in settings.items() if name not in self.decided}
        of_model = {name: open_settings.pop(name) for name in setting_fields(ModelArgs) if name in open_settings}
        model, train = replace(self.model, **of_model), replace(self.train, **open_settings)
        return replace(self, model=model, train=train, decided=self.decided | settings.keys())


def resolve(config: Path | None, flags: Settings, resume: bool, ranks: Ranks) -> Run:
    """Combine the settings: the file overrides the defaults, and the flags override the file.

    When resuming, the saved settings of the run override the defaults. Raises ValueError for every mistake that is
    known without the text, because preparing a text may take hours.
    """
    for name, value in flags.items():
        text = toml_value(value)
        try:
            text.encode()
        except UnicodeEncodeError:  # the name of a file may be any bytes, but a TOML file is UTF-8
            raise ValueError(f"{name} is {text}, which is not UTF-8: rename the file, or retype the value") from None
    run = resolve_resumed(config, flags) if resume else resolve_new(config, flags)
    train = run.train
    if train.batch_size % ranks.world_size and ("batch_size" in run.decided or not run.needs_choice):
        raise ValueError(
            f"batch_size is {train.batch_size}, for {quantity(ranks.world_size, 'process', 'processes')}: give a "
            f"multiple of {ranks.world_size}"
        )
    if train.network:
        find_network(train.network)  # called for its ValueError
    device = run.machine(ranks).device.type
    if train.compile:
        check_compiler(device, "give --no-compile")
    return run


def resolve_new(config: Path | None, flags: Settings) -> Run:
    file = read_toml(config, *SETTINGS_CLASSES) if config else {}
    if not config and flags.keys().isdisjoint({"minutes", "max_steps"}):
        file = {"minutes": DEFAULT_MINUTES}
    settings = file | flags
    decided = frozenset(settings)
    if "init_from" in settings:
        settings |= fine_tuning_settings(settings["init_from"], flags, settings.get("network"))
    data, model, train = instances(settings, *SETTINGS_CLASSES)
    first = "stdin" if data.data[0] == STDIN else data.data[0]
    name = config.stem if config else Path(first).name.split(".")[0]
    name = re.sub(r"[^\w.-]+", "-", name).strip("-")
    return Run(data, model, train, decided, train.out_dir or RUNS / (name or "text"))


def resolve_resumed(config: Path | None, flags: Settings) -> Run:
    """The run to resume.

    Raises ValueError if there is no run, or if its text, model or optimizer would change. ``eval_tokens`` cannot change
    either, because losses on different tokens do not tell which model is the best.
    """
    settings = (read_toml(config, *SETTINGS_CLASSES) if config else {}) | flags
    directory = settings.get("out_dir") or newest_run(CONFIG_FILE)
    if not (directory / CONFIG_FILE).exists():
        raise cannot_resume(directory, CONFIG_FILE)
    saved = read_toml(directory / CONFIG_FILE, *SETTINGS_CLASSES)
    settings.pop("vocab_size", None)  # it was only a request; the tokenizer has decided
    if "minutes" in settings and "max_steps" not in settings:
        saved.pop("max_steps", None)  # the first minutes chose it if the text was small: it would end the new ones, too
    data, model, train = instances(saved | settings, *SETTINGS_CLASSES)
    before = values(*instances(saved, *SETTINGS_CLASSES))
    fixed = {"optimizer", "init_from", "network", "eval_tokens", *setting_fields(DataArgs, ModelArgs)}
    changed = {name: value for name, value in settings.items() if name in fixed and value != before[name]}
    if changed:
        conflicts = [f"{name} {toml_value(before[name])} -> {toml_value(value)}" for name, value in changed.items()]
        raise ValueError(f"{directory} cannot be resumed with {'; '.join(conflicts)}: leave it out, or start a new run")
    decided = frozenset(setting_fields(*SETTINGS_CLASSES))
    return Run(data, model, train, decided, directory, resume=True)


def cannot_resume(directory: Path, missing: str) -> ValueError:
    """The error for a directory in which a file is missing that --resume needs."""
    if not (directory / WEIGHTS).exists():
        return ValueError(f"{directory} holds no run ({missing} is missing): start one without --resume")
    return ValueError(
        f"{directory} holds a model, but {missing} is missing, so --resume cannot continue its run: "
        f"`python train.py --init_from {quote(str(directory))} --data TEXT` trains the model further, in a new run"
    )


def fine_tuning_settings(source: Path, flags: Settings, network: str | None) -> Settings:
    """The architecture and the tokenizer of ``source``, which replace those of a config.

    A flag may lower ``max_seq_len``. Raises ValueError if the weights are those of another subclass than ``network``,
    or if the ``flags`` set another architecture or ask for a new tokenizer.
    """
    checkpoint = open_checkpoint(source)
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
    tokenizer = flags.get("tokenizer", str(checkpoint.path))
    if tokenizer in TOKENIZER_KINDS:
        raise ValueError(
            f"tokenizer is {tokenizer}, which would train a new one, but {source} must keep its tokenizer: leave "
            "--tokenizer out, or give the file of that tokenizer"
        )
    return fixed | {"tokenizer": tokenizer}
