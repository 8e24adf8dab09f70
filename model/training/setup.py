"""From what the user said to everything a run needs; what can be wrong is found before anything is written.

Imports no torch, so that a mistake is answered at once.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cli import Settings, build, read_toml
from ..config import ModelArgs
from ..text.dataset import Dataset, prepare
from ..text.sources import open_documents
from ..text.tokenizer import Tokenizer, train_tokenizer
from ..weights import load_args, load_tokenizer
from .config import DataArgs, TrainArgs

CLASSES = (DataArgs, ModelArgs, TrainArgs)
RUNS = Path("runs")
CONFIG = "config.toml"
HELD = ("training_state.safetensors", "model.safetensors", "config.json")  # any of them: a model lives here


@dataclass(frozen=True)
class Plan:
    """A run, resolved and checked, of which nothing has been written yet."""

    data: DataArgs
    model: ModelArgs
    train: TrainArgs
    directory: Path
    resume: bool
    changes: tuple[str, ...] = ()  # when resuming: what is set differently from before

    @property
    def identity(self) -> dict[str, Any]:
        """What a resume must agree with, beside the data."""
        return dataclasses.asdict(self.model) | {"optimizer": self.train.optimizer}


def resolve(config: Path | None, default_config: Path, flags: Settings, resume: bool) -> Plan:
    """Defaults < file < flags; when resuming, the run's own file comes before the one given."""
    if resume:
        return resolve_resume(read_toml(config, *CLASSES) if config else {}, flags)
    settings = read_toml(config or default_config, *CLASSES) | flags
    if "init_from" in settings:
        settings = adopt(settings, flags)
    directory = settings.get("out_dir") or unused(RUNS / (config or default_config).stem)
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"out_dir is {directory}, a file: give a directory")
    held = next((name for name in HELD if (directory / name).exists()), None)
    if held:
        raise ValueError(
            f"{directory} holds {held} already: give another --out_dir, or --resume to go on with that run"
        )
    return assemble(settings, directory)


def resolve_resume(file: Settings, flags: Settings) -> Plan:
    directory = flags.get("out_dir") or newest_run()
    if not (directory / CONFIG).exists():
        raise ValueError(f"{directory} holds no run ({CONFIG} is missing): start one without --resume")
    own = read_toml(directory / CONFIG, *CLASSES)
    new = {name: value for name, value in (file | flags).items() if name not in ("out_dir", "vocab_size", "tokenizer")}
    before, after = assemble(own, directory), assemble(own | new, directory)
    if before.identity != after.identity:
        refused = "; ".join(differences(before.identity, after.identity))
        raise ValueError(f"{directory} cannot go on as another model ({refused}): leave that out, or start a new run")
    changes = differences(vars(before.data) | vars(before.train), vars(after.data) | vars(after.train))
    return dataclasses.replace(after, resume=True, changes=changes)


def differences(before: Settings, after: Settings) -> tuple[str, ...]:
    return tuple(f"{name} {before[name]} -> {value}" for name, value in after.items() if value != before[name])


def adopt(settings: Settings, flags: Settings) -> Settings:
    """Fine-tuning: the architecture is the given model's; only the context may be set, and only to less."""
    source = settings["init_from"]
    own = vars(load_args(source))
    context = settings.get("max_seq_len", own["max_seq_len"]) if "max_seq_len" in flags else own["max_seq_len"]
    for name in own.keys() & flags.keys() - {"max_seq_len"}:
        if flags[name] != own[name]:
            raise ValueError(f"{name} is {flags[name]}, but {source} has {own[name]}: leave it out with init_from")
    if context > own["max_seq_len"]:
        raise ValueError(f"max_seq_len is {context}: {source} was made for {own['max_seq_len']}; give at most that")
    return settings | own | {"max_seq_len": context}


def assemble(settings: Settings, directory: Path) -> Plan:
    data, model, train = (build(cls, settings | {"out_dir": directory}) for cls in CLASSES)
    return Plan(data, model, train, directory, resume=False)


def newest_run() -> Path:
    runs = sorted(RUNS.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise ValueError(f"there is no run below {RUNS}: name one with --out_dir, or start one without --resume")
    return runs[-1].parent


def unused(directory: Path) -> Path:
    """``directory``, or the first of directory-2, directory-3 … that does not exist."""
    candidates = (directory.with_name(f"{directory.name}-{n}") for n in range(2, 1_000_000))
    return next(candidate for candidate in (directory, *candidates) if not candidate.exists())


@dataclass(frozen=True)
class Text:
    """The plan's text, as tokens."""

    tokenizer: Tokenizer
    tokenizer_file: Path
    dataset: Dataset
    model: ModelArgs  # the plan's, with the vocabulary the tokenizer really has


def prepare_text(plan: Plan, scratch: Path) -> Text:
    """Train or load the tokenizer, tokenize, split. A tokenizer that is trained goes to ``scratch``."""
    data = plan.data
    sources = {"text_key": data.text_key, "doc_separator": data.doc_separator or None}
    if plan.resume:
        tokenizer = load_tokenizer(plan.directory)
    elif data.tokenizer in ("bpe", "char"):
        documents = (text for text, _ in open_documents(data.data, **sources))
        train_tokenizer(documents, scratch / "tokenizer.model", data.tokenizer, plan.model.vocab_size)
        tokenizer = load_tokenizer(scratch / "tokenizer.model")
    else:
        tokenizer = load_tokenizer(Path(data.tokenizer))
    model = dataclasses.replace(plan.model, vocab_size=tokenizer.vocab_size)
    dataset = prepare(
        data.data,
        tokenizer,
        val_fraction=data.val_fraction,
        val_specs=data.val_data or None,
        context=plan.model.max_seq_len,
        cache_dir=None,
        **sources,
    )
    return Text(tokenizer, tokenizer.path, dataset, model)
