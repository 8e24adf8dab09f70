"""Every setting of a training run, with its help, its range and its default.

This file does not import PyTorch, so that ``--help`` does not wait for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..cli.settings import DeviceName, toml_value, values
from ..config import UNSET, ModelArgs, Range, check_settings
from ..text.sources import TEXT_KEY, DocSeparator, Documents, TextKey, open_documents

CONFIG_FILE = "config.toml"  # in a run directory: every setting of the run
DEFAULT_STEPS = 2000
# By optimizer. The AdamW beside Muon has Muon's peak, which was tuned for models that train in minutes.
PEAK_LR = {"muon": 0.02, "adamw": 3e-3}
# Fine-tuning takes AdamW and this fraction of its peak. 20 steps of a published model of 135 million parameters lowered
# the loss from 4.14 to 3.68 with 1/30 of the peak, to 3.69 with 1/10, and to 3.98 with 3/10. They took 46 seconds on a
# busy machine, where 20 steps of Muon had not ended after 500.
FINE_TUNING_LR_FRACTION = 0.1
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

    def micro_batch_rows(self, context: int, device: str, world_size: int = 1) -> int:
        """The sequences of ``context`` tokens that each of ``world_size`` processes computes at once on ``device``.

        The last micro-batch of a step may have fewer.
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
CHOSEN = (
    "dim", "n_layers", "n_heads", "tie_embeddings", "batch_size", "eval_every", "sample_every", "context_warmup",
    "decay_start", "weight_decay",
)  # fmt: skip


def chosen_defaults() -> dict[str, str]:
    """For ``--help``: what is used for the settings that a rule chooses, if they are not given."""
    defaults = values(ModelArgs(), TrainArgs())
    chosen = {name: f"chosen; {toml_value(defaults[name])} with --max_steps" for name in CHOSEN}
    return chosen | {"vocab_size": "chosen for the text; with char its characters"}
