"""Every setting of a training run: its range, and where its value comes from."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import torch

from ..cli import Settings, instances, machine, quantity, read_toml
from ..cli.machine import DeviceName, pick_dtype
from ..cli.settings import setting_fields, toml_value, values
from ..config import UNSET, ModelArgs, Range, check_settings
from ..fast.step import check_compiler
from ..text.sources import STDIN, TEXT_KEY, DocSeparator, Documents, TextKey, open_documents
from ..text.train_tokenizer import TOKENIZER_KINDS
from ..transformer import Transformer
from ..weights import find_network, open_checkpoint
from ..weights.checkpoint import RUNS, newest_run
from ..weights.tensors import WEIGHTS
from .distributed import Machine, Ranks, local_device

CONFIG_FILE = "config.toml"  # in a run directory: every setting of the run
DEFAULT_STEPS = 2000
DEFAULT_MINUTES = 2.5  # if there is neither a config nor --minutes nor --max_steps
# By optimizer. The AdamW beside Muon has Muon's peak, which was tuned for models that train in minutes.
PEAK_LR = {"muon": 0.02, "adamw": 3e-3}
# Fine-tuning takes AdamW and this fraction of its peak. Of a published model of 135 million parameters, 20 steps with
# 1/30 and 1/10 lowered the loss from 4.14 to 3.68 and 3.69, with 3/10 to 3.98. They took 46 seconds on a busy machine,
# where 20 steps of Muon had not ended after 500.
FINE_TUNING_LR_FRACTION = 0.1
FINE_TUNING_CONTEXT = 1024  # by default at most: a published model's whole context needs far more memory than a run
MPS_TOKENS = 32_768  # of a micro-batch on an Apple GPU, because gradients of larger ones were wrong (pytorch 177116)


@dataclass(frozen=True)
class DataArgs:
    """The text, and how it becomes tokens.

    Raises ValueError that lists all problems at once, each with its value and the fix.
    """

    data: Annotated[
        tuple[str, ...],
        "text: files, folders, globs, pipes, - for stdin; reads .jsonl, .json, .csv, .tsv, .parquet, .arrow and .gz "
        "too; rows with messages, or with a question and an answer, are conversations",
    ] = ("python-docs",)
    val_data: Annotated[tuple[str, ...], "validation text (default: a part of the data)"] = ()
    val_fraction: Annotated[
        float,
        "fraction of the data kept for validation: every tenth document, and the last tenth of very long ones",
        Range(0.00001, 0.9),
    ] = 0.1
    text_key: TextKey = TEXT_KEY
    doc_separator: DocSeparator = None
    tokenizer: Annotated[str, "bpe or char: train one on the data; or the FILE of a trained one"] = "bpe"

    def __post_init__(self) -> None:
        check_settings(self, [] if self.data else ["data is empty: name at least one file"])

    def open(self, specs: Sequence[str]) -> Documents:
        """The text of ``specs``, which is ``data`` or ``val_data``."""
        return open_documents(specs, self.text_key, self.doc_separator)


@dataclass(frozen=True)
class TrainArgs:
    """The training run.

    Raises ValueError that lists all problems at once, each with its value and the fix.
    """

    out_dir: Annotated[Path | None, "the run directory (default: a new one in runs/)"] = None
    seed: Annotated[int, "random seed of the initial weights, the batches and dropout", Range(0)] = 1337
    batch_size: Annotated[int, "sequences per optimizer step, in all micro-batches and processes", Range(1)] = 32
    micro_batch_size: Annotated[int | None, "sequences in memory at once, per process (default: all)", Range(1)] = None
    max_steps: Annotated[
        int | None,
        "optimizer steps, those before --resume included (default: no limit if minutes are given, else 2000)",
        Range(1),
    ] = None
    minutes: Annotated[
        float | None,
        "stop after this many minutes, those before --resume included; the learning rate follows the clock (default: "
        "2.5 if there is neither a config nor --max_steps)",
        Range(1e-9, 1_000_000),
    ] = None
    eval_every: Annotated[int, "steps between validations; each validation saves a checkpoint", Range(1)] = 250
    eval_tokens: Annotated[
        int, "about this many tokens of the validation text in a validation; the last score is of all", Range(1)
    ] = 8192
    sample_every: Annotated[int, "steps between generated samples (0: none; with fsdp never)", Range(0)] = 500
    sample_prompt: Annotated[str, "prompt of the samples"] = ""

    optimizer: Annotated[
        Literal["muon", "adamw"],
        "muon: for hidden matrices, AdamW for the rest (default: muon; adamw with --init_from or --fsdp)",
    ] = UNSET
    lr: Annotated[
        float,
        "peak learning rate (default: 0.02 for muon, 0.003 for adamw; with --init_from a tenth)",
        Range(1e-12, 100),
    ] = UNSET
    warmup: Annotated[float, "fraction of the run during which the learning rate rises", Range(0, 0.999)] = 0.02
    context_warmup: Annotated[
        float,
        "fraction of the run during which sequences of a text have half of the context, which is learnt faster",
        Range(0, 0.999),
    ] = 0.0
    decay_start: Annotated[float, "fraction of the run after which the learning rate decays", Range(0, 0.999)] = 0.3
    min_lr: Annotated[float, "learning rate at the end of the decay, as a fraction of the peak", Range(0, 0.999)] = 0.0
    weight_decay: Annotated[float, "decoupled weight decay of matrices", Range(0, 100)] = 0.1
    grad_clip: Annotated[float, "clip the gradient norm to this (0: no clipping)", Range(0, 1_000_000)] = 1.0
    dropout: Annotated[float, "dropout probability; helps when the text is small", Range(0, 0.95)] = 0.0

    device: DeviceName = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "for matrix products; auto: bfloat16 if native, float16 on NVIDIA cards before Ampere, else float32",
    ] = "auto"
    compile: Annotated[
        bool | None,
        "use torch.compile: on a card a minute first, then up to twice the tokens (default: in runs of 5 minutes or "
        "10,000 steps and more); on a CPU half a minute, then a sixth less time a step (default: no)",
    ] = None
    init_from: Annotated[
        Path | None, "fine-tune: start from this model (run, checkpoint, id of the Hub) instead of random weights"
    ] = None
    network: Annotated[str | None, "train this subclass of Transformer: MODULE:CLASS"] = None
    fsdp: Annotated[bool, "under torchrun: shard the model (FSDP2) instead of copying it (DDP)"] = False

    def __post_init__(self) -> None:
        if self.optimizer is UNSET:
            optimizer = "adamw" if self.init_from or self.fsdp else "muon"
            object.__setattr__(self, "optimizer", optimizer)  # because the dataclass is frozen
        if self.lr is UNSET:
            peak = PEAK_LR.get(self.optimizer, 0.0)
            lr = round(FINE_TUNING_LR_FRACTION * peak, 6) if self.init_from else peak
            object.__setattr__(self, "lr", lr)
        conflicts = []
        if self.fsdp and self.optimizer == "muon":
            conflicts.append(
                "optimizer is muon, which needs whole matrices, but fsdp shards them: give adamw, or leave fsdp out"
            )
        if self.fsdp and self.dtype == "float16":
            conflicts.append(
                "dtype is float16, whose gradients fsdp would add up without a scale that fits them: give float32 or "
                "bfloat16, or leave fsdp out"
            )
        check_settings(self, conflicts)

    @property
    def step_limit(self) -> float:
        """The maximum number of steps; infinity if only the minutes end the run."""
        if self.max_steps is not None:
            return self.max_steps
        return DEFAULT_STEPS if self.minutes is None else math.inf

    def product_dtype(self, device: torch.device) -> torch.dtype:
        """The dtype of matrix products on ``device``; with ``fsdp`` never float16."""
        dtype = pick_dtype(self.dtype, device)
        return torch.float32 if self.fsdp and dtype == torch.float16 else dtype

    def micro_batch_rows(self, context: int, device: str, world_size: int = 1) -> int:
        """The sequences of ``context`` tokens that each of ``world_size`` processes computes at once on ``device``.

        The last time they may be fewer.
        """
        rows = self.batch_size // world_size
        rows = min(self.micro_batch_size or rows, rows)
        return min(rows, max(1, MPS_TOKENS // context)) if device == "mps" else rows

    def fraction_done(self, step: int, seconds: float) -> float:
        """The fraction of the run that is done, 1 at its end: by steps or by the clock, whichever is larger."""
        by_clock = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(step / self.step_limit, by_clock))


SETTINGS_CLASSES = (DataArgs, ModelArgs, TrainArgs)  # their fields are the settings of a TOML file and of the flags

SIZE = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim")  # chosen together, or not at all


# Settings that ``--minutes`` chooses if they are not given, and that have defaults without it. vocab_size is always
# chosen.
CHOSEN: tuple[str, ...] = ("dim", "n_layers", "n_heads", "tie_embeddings", "batch_size", "eval_every", "sample_every")
CHOSEN += ("context_warmup", "decay_start", "weight_decay")


def chosen_defaults() -> dict[str, str]:
    """For ``--help``: what is used for the settings that a rule chooses, if they are not given."""
    defaults = values(ModelArgs(), TrainArgs())
    chosen = {name: f"chosen; {toml_value(defaults[name])} with --max_steps" for name in CHOSEN}
    return chosen | {"vocab_size": "chosen for the text; with char its characters"}


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
        dtype = self.train.product_dtype(device)
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
    run = resolve_resumed(config, flags) if resume else resolve_new(config, flags)
    train = run.train
    if train.batch_size % ranks.world_size and ("batch_size" in run.decided or not run.needs_choice):
        raise ValueError(
            f"batch_size is {train.batch_size}, for {quantity(ranks.world_size, 'process', 'processes')}: give a "
            f"multiple of {ranks.world_size}"
        )
    if train.network:
        find_network(train.network)
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

    Raises ValueError if the text, the model or the optimizer would change. The number of validated tokens stays, too,
    because losses of different tokens do not tell which model is the best.
    """
    settings = (read_toml(config, *SETTINGS_CLASSES) if config else {}) | flags
    directory = settings.get("out_dir") or newest_run(CONFIG_FILE)
    if not (directory / CONFIG_FILE).exists():
        raise cannot_resume(directory, CONFIG_FILE)
    saved = read_toml(directory / CONFIG_FILE, *SETTINGS_CLASSES)
    settings.pop("vocab_size", None)  # it was only a request; the tokenizer has decided
    if "minutes" in settings and "max_steps" not in settings:
        saved.pop("max_steps", None)  # of a small text the first minutes chose it, and the new ones would do nothing
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

    A flag may lower ``max_seq_len``. Raises ValueError if the ``flags`` set another architecture, or ask for a new
    tokenizer.
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
