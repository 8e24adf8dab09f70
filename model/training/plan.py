"""From settings to a checked plan with its text; what can be wrong is found before anything is written."""

import dataclasses
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..cli import Settings, build, local_path, read_toml, write_toml
from ..cli.machine import pick_device
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..text.prepare import prepare
from ..text.sources import open_documents
from ..text.token_cache import cache_home
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import KINDS, learn_tokenizer
from ..transformer import Transformer
from ..weights import find_network, load_tokenizer, open_checkpoint
from ..weights.checkpoint import RUNS, newest_run
from ..weights.hf_config import config_from
from .config import CLASSES, FINE_TUNING, RATE, DataArgs, TrainArgs
from .distributed import Ranks, own_device
from .estimate import check_memory
from .run_directory import check_free, numbered
from .sizing import shapes, undecided

CONFIG = "config.toml"
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
    base: Path | None = None  # if nobody named the directory: it is this one, or base-2, base-3 …
    found: Settings | None = None  # when resuming: the run's own settings
    changes: tuple[str, ...] = ()  # when resuming: what is set differently from before

    @property
    def undecided(self) -> bool:
        """Whether the model is still to be chosen."""
        return not self.resume and undecided(self.given)

    @property
    def identity(self) -> Settings:
        """What a resume must agree with, beside the text."""
        train = {name: str(getattr(self.train, name) or "") for name in ("init_from", "network")}
        others = {"tokenizer": self.data.tokenizer, "optimizer": self.train.optimizer}
        return dataclasses.asdict(self.model) | others | train


def resolve(config: Path | None, default_config: Path, flags: Settings, resume: bool, ranks: Ranks = ALONE) -> Plan:
    """Defaults < file < flags; when resuming, the run's own settings lie between defaults and file.

    ``max_steps`` as a flag puts aside the minutes of the default config, which nobody named: by the clock the learning
    rate would differ from run to run.
    """
    if resume:
        return resolve_resume(read_toml(config, *CLASSES) if config else {}, flags, ranks)
    file = read_toml(config or default_config, *CLASSES)
    if not config and "max_steps" in flags:
        file.pop("minutes", None)
    settings = file | flags
    if "init_from" in settings:
        given = settings if config and "init_from" in file else flags
        settings = fine_tuning(settings, given, flags)
    if named := settings.get("out_dir"):
        check_free(named)
        return assemble(settings, named, ranks)
    base = RUNS / local_path(run_name(config, flags.get("data"), default_config))
    directory = next(path for path in numbered(base) if not path.exists())
    return dataclasses.replace(assemble(settings, directory, ranks), base=base)


def resolve_resume(file: Settings, flags: Settings, ranks: Ranks) -> Plan:
    given = file | flags
    directory = given.get("out_dir") or newest_run(CONFIG)
    if not (directory / CONFIG).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG} is missing): start one without --resume")
    own = read_toml(directory / CONFIG, *CLASSES)
    if own.get("tokenizer") != "bpe":
        given.pop("vocab_size", None)  # it was only a wish: the tokenizer has as many as it has
    before, after = assemble(own, directory, ranks), assemble(own | given, directory, ranks)
    refused = differences(before.identity, after.identity)
    if refused:
        raise ValueError(f"{directory} cannot go on with {'; '.join(refused)}: leave that out, or start a new run")
    changes = differences(vars(before.data) | vars(before.train), vars(after.data) | vars(after.train))
    return dataclasses.replace(after, resume=True, found=own, changes=changes)


def differences(before: Settings, after: Settings) -> tuple[str, ...]:
    """What is set in both, and differently: ``name old -> new``."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    return tuple(f"{name} {before[name]} -> {after[name]}" for name in changed)


def fine_tuning(settings: Settings, given: Settings, flags: Settings) -> Settings:
    """Architecture and tokenizer are those of ``init_from``; only the context may be set, and only to less.

    Learning rates that are not among the ``given`` ones are a tenth of those for training from scratch.
    """
    source = settings["init_from"]
    checkpoint = open_checkpoint(source)
    if checkpoint.network not in (None, settings.get("network")):
        raise ValueError(f"{source} holds the weights of {checkpoint.network}: give --network {checkpoint.network}")
    own = vars(checkpoint.args)
    for name in own.keys() & flags.keys() - {"max_seq_len"}:
        if flags[name] != own[name]:
            raise ValueError(f"{name} is {flags[name]}, but {source} has {own[name]}: leave it out with init_from")
    context = flags.get("max_seq_len", own["max_seq_len"])
    if context > own["max_seq_len"]:
        raise ValueError(f"max_seq_len is {context}: {source} was made for {own['max_seq_len']}; give at most that")
    tokenizer = flags.get("tokenizer", str(source))
    if tokenizer in KINDS:
        raise ValueError(f"tokenizer is {tokenizer}: {source} reads only its own; leave it out, or give its FILE")
    usual = {"lr": RATE if settings.get("optimizer", "muon") == "muon" else TrainArgs.lr, "muon_lr": RATE}
    rates = {name: settings.get(name, rate) for name, rate in usual.items() if name not in given}
    rates = {name: float(f"{FINE_TUNING * rate:.6g}") for name, rate in rates.items()}
    return settings | own | rates | {"max_seq_len": context, "tokenizer": tokenizer}


def assemble(settings: Settings, directory: Path, ranks: Ranks) -> Plan:
    first = next(shapes({"vocab_size": ModelArgs.vocab_size} | settings), None) if undecided(settings) else None
    known = (vars(first) if first else {}) | settings | {"out_dir": directory}  # one that could be chosen, until it is
    data, model, train = (build(cls, known) for cls in CLASSES)
    device = own_device(pick_device(train.device), ranks)
    network = find_network(train.network) if train.network else Transformer
    config_from(model, "float32", {})  # what no checkpoint could say is refused before the work, not after it;
    write_toml(data, model, train)  # and so is a path that no settings file could name, which is UTF-8
    check_processes(data, train, ranks.world_size)
    check_memory(model, train, device, ranks.world_size)
    check_writable(directory)
    return Plan(data, model, train, directory, network, ranks, given=settings)


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


def run_name(config: Path | None, data: tuple[str, ...] | None, default_config: Path) -> str:
    """A run is called after its config, or else its text, or else the default config."""
    if config or not data:
        return (config or default_config).stem
    parts = [part for part in Path(urlsplit(data[0]).path).parts if not set(part) & set("*?[")]
    name = re.sub(r"[^\w.-]+", "-", parts[-1] if parts else "").split(".")[0].strip("-")
    return name or "text"


@dataclass(frozen=True)
class Text:
    """A plan's text as tokens, and the model for it."""

    tokenizer: Tokenizer
    dataset: Dataset
    model: ModelArgs  # the plan's, with the vocabulary the tokenizer really has
    entries: list[Path]  # of the cache: the text's tokens, and the tokenizer where it was learnt from the text


def prepare_text(plan: Plan) -> Text:
    """Train or load the tokenizer, tokenize, split. What was done before with the same files comes from the cache."""
    data, model = plan.data, plan.model
    sources: dict[str, Any] = {"text_key": data.text_key, "doc_separator": data.doc_separator or None}
    sources["patterns"] = data.glob
    learned, documents = None, None
    if plan.resume:
        tokenizer = load_tokenizer(plan.directory, model.vocab_size)
    elif data.tokenizer in KINDS:
        documents = open_documents(data.data, **sources)
        wanted = plan.given.get("vocab_size")
        learned = learn_tokenizer(documents, cache_home(), data.tokenizer, wanted, data.data)
        tokenizer = load_tokenizer(learned)
        if data.tokenizer == "bpe" and wanted is None:
            print(f"vocab_size     {tokenizer.vocab_size}, chosen to fit the text", file=sys.stderr)
    else:
        tokenizer = load_tokenizer(local_path(data.tokenizer), model.vocab_size if plan.train.init_from else None)
    if not (plan.resume or plan.train.init_from):
        model = dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
    if plan.train.sample_every:
        check_prompt(len(tokenizer.encode(plan.train.sample_prompt)), model.max_seq_len)
    dataset = prepare(
        data.data, tokenizer, context=model.max_seq_len, cache_dir=cache_home(),
        val_fraction=data.val_fraction, val_specs=data.val_data or None, **sources,
    )  # fmt: skip
    if documents:
        documents.check_unchanged()  # the tokenizer is of this very text
    entries = [dataset.entry, learned.parent if learned else None]
    return Text(tokenizer, dataset, model, [entry for entry in entries if entry])


def check_prompt(tokens: int, context: int) -> None:
    if tokens >= context:
        raise ValueError(
            f"sample_prompt is {tokens} tokens long, which leaves none of the {context} positions (max_seq_len) to "
            "write in: shorten it, or give --sample_every 0"
        )
