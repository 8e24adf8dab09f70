"""Every setting of a training run, and its range."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..cli import Settings, read_toml
from ..cli.machine import DeviceName
from ..config import ModelArgs
from ..ranges import raise_problems
from ..text.sources import Documents, open_documents

CONFIG_FILE = "config.toml"  # in a run directory: every setting of the run
DEFAULT_STEPS = 2000
# The peak learning rate of Muon, tuned for models that train in minutes. If train.py chooses the settings, the AdamW
# beside Muon has the same peak learning rate.
PEAK_LR = 0.02
# Fine-tuning uses this fraction of PEAK_LR, or of the config's rates. In up to a minute of fine-tuning on another kind
# of text, a fraction of 0.1 gave a loss 2 to 6% higher than 0.3, and a fraction of 1 about the same loss as 0.3
# (benchmarks/choice.py).
FINE_TUNING_LR_FRACTION = 0.3
Globs = Annotated[tuple[str, ...], "which files of a folder to read, for example '*.py' (default: all text)"]
TextKey = Annotated[str, "the field of a JSON line or object, or the column of a CSV or TSV, that holds the text"]


@dataclass(frozen=True)
class DataArgs:
    """The text, and how it becomes tokens.

    Raises ValueError that lists all problems at once, each with its value and the fix.
    """

    data: Annotated[
        tuple[str, ...], "text: files, folders, globs, URLs, - for stdin; reads .jsonl, .json, .csv, .tsv and .gz too"
    ] = ("python-docs",)
    glob: Globs = ()
    val_data: Annotated[tuple[str, ...], "validation text (default: the end of the data)"] = ()
    val_fraction: Annotated[float, "fraction of the data, from its end, that is kept for validation"] = 0.1
    text_key: TextKey = "text"
    doc_separator: Annotated[
        str | None, "separator between the documents of a file; '' for none (default: recognized)"
    ] = None
    start_text: Annotated[
        str | None, "text put before a generation without a prompt, and not printed (default: chosen from the data)"
    ] = None
    tokenizer: Annotated[str, "bpe or char: train one on the data; or the FILE of a trained one"] = "bpe"

    def __post_init__(self) -> None:
        raise_problems(self._problems())

    def _problems(self) -> Iterator[str]:
        if not self.data:
            yield "data is empty: name at least one file"
        if not 1e-5 <= self.val_fraction <= 0.9 and not self.val_data:
            yield f"val_fraction is {self.val_fraction}: give a fraction from 0.00001 to 0.9, for example 0.1"

    def documents(self) -> Documents:
        """The text to train on, and to validate on unless ``val_data`` is given."""
        return open_documents(self.data, self.text_key, self.doc_separator or None, self.glob)

    def val_documents(self) -> Documents | None:
        """The validation text; None if it is the end of the training text."""
        if not self.val_data:
            return None
        return open_documents(self.val_data, self.text_key, self.doc_separator or None, self.glob)


@dataclass(frozen=True)
class TrainArgs:
    """The training run.

    Raises ValueError that lists all problems at once, each with its value and the fix.
    """

    out_dir: Annotated[Path | None, "the run directory (default: a new one in runs/)"] = None
    seed: Annotated[int, "random seed of the initial weights, the batches and dropout"] = 1337
    batch_size: Annotated[int, "sequences per optimizer step, in all micro-batches and processes together"] = 32
    micro_batch_size: Annotated[int | None, "sequences in memory at once, per process (default: all)"] = None
    max_steps: Annotated[int | None, "optimizer steps (default: no limit if minutes are given, else 2000)"] = None
    minutes: Annotated[float | None, "stop after this many minutes; the learning rate follows the clock"] = None
    eval_every: Annotated[int, "steps between validations; each validation saves a checkpoint"] = 250
    eval_tokens: Annotated[int, "about this many tokens in a validation"] = 200_000
    sample_every: Annotated[int, "steps between generated samples (0: none)"] = 500
    sample_prompt: Annotated[str, "prompt of the samples"] = ""

    optimizer: Annotated[Literal["muon", "adamw"], "muon: Muon for hidden matrices, AdamW for the rest"] = "muon"
    lr: Annotated[
        float, "peak learning rate of AdamW (beside muon: 0.02 if train.py chooses settings, 0.006 with --init_from)"
    ] = 3e-3
    muon_lr: Annotated[float, "peak learning rate of Muon (with --init_from: 0.006)"] = PEAK_LR
    warmup: Annotated[float, "fraction of the run during which the learning rate rises"] = 0.02
    decay_start: Annotated[float, "fraction of the run after which the learning rate decays"] = 0.3
    schedule: Annotated[Literal["linear", "cosine"], "shape of the learning rate decay"] = "linear"
    min_lr: Annotated[float, "learning rate at the end of the decay, as a fraction of the peak"] = 0.0
    weight_decay: Annotated[float, "decoupled weight decay of matrices"] = 0.1
    beta1: Annotated[float, "AdamW beta1"] = 0.9
    beta2: Annotated[float, "AdamW beta2"] = 0.95
    grad_clip: Annotated[float, "clip the gradient norm to this (0: no clipping)"] = 1.0
    dropout: Annotated[float, "dropout probability; helps when the text is small"] = 0.0

    device: DeviceName = "auto"
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], "for matrix products; auto: bfloat16 if native"] = "auto"
    compile: Annotated[bool, "use torch.compile; the speedup depends on the model and the processor"] = False
    init_from: Annotated[Path | None, "fine-tune: start from this model instead of random weights"] = None
    network: Annotated[str | None, "train this subclass of Transformer: MODULE:CLASS"] = None
    fsdp: Annotated[bool, "under torchrun: shard the model (FSDP2) instead of copying it (DDP)"] = False

    def __post_init__(self) -> None:
        raise_problems(self._problems())

    def _problems(self) -> Iterator[str]:
        for name in ("batch_size", "micro_batch_size", "max_steps", "eval_every", "eval_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} is {value}: give at least 1"
            if value is not None and value >= 2**63:
                yield f"{name} is {value}: give at least 1 and less than 2**63"
        for name in ("seed", "sample_every"):
            if not 0 <= getattr(self, name) < 2**63:
                yield f"{name} is {getattr(self, name)}: give a number of at least 0 and less than 2**63"
        if self.minutes is not None and not 0 < self.minutes <= 1e6:
            yield f"minutes is {self.minutes}: give a number above 0, at most 1000000"
        for name in ("lr", "muon_lr"):
            if not 1e-12 <= getattr(self, name) <= 100:
                yield f"{name} is {getattr(self, name)}: give a number from 1e-12 to 100, for example 0.003"
        for name in ("warmup", "decay_start", "min_lr"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}: give a number of at least 0 and less than 1"
        for name, highest in {"beta1": 0.9999, "beta2": 0.99999, "dropout": 0.95, "weight_decay": 100.0}.items():
            if not 0 <= getattr(self, name) <= highest:
                yield f"{name} is {getattr(self, name)}: give a number from 0 to {highest}"
        if self.grad_clip != 0 and not 1e-6 <= self.grad_clip <= 1e6:
            yield f"grad_clip is {self.grad_clip}: give a number from 1e-6 to 1e6, or 0 for no clipping"
        micro_batch = self.micro_batch_size or 1
        if micro_batch > 0 and self.batch_size % micro_batch:
            yield f"batch_size is {self.batch_size}, not a multiple of micro_batch_size {self.micro_batch_size}"

    @property
    def step_limit(self) -> float:
        """The maximum number of steps; infinity if only the minutes end the run."""
        if self.max_steps is not None:
            return self.max_steps
        return DEFAULT_STEPS if self.minutes is None else math.inf

    def rows_at_once(self, world_size: int = 1) -> int:
        """The sequences that each of ``world_size`` processes computes at the same time."""
        rows = self.batch_size // world_size
        return min(self.micro_batch_size or rows, rows)

    def fraction_done(self, step: int, seconds: float) -> float:
        """The fraction of the run that is done, 1 at its end: by steps or by the clock, whichever is larger."""
        by_steps = step / self.step_limit
        if self.minutes is None:
            return by_steps
        return max(by_steps, seconds / (60 * self.minutes))


SETTINGS_CLASSES = (DataArgs, ModelArgs, TrainArgs)  # their fields are the settings of a TOML file and of the flags


def read_run_settings(model: Path) -> Settings:
    """The settings of the run that made this model; empty if no run made it, or if they cannot be read."""
    file = model / CONFIG_FILE
    try:
        return read_toml(file, *SETTINGS_CLASSES) if file.is_file() else {}
    except ValueError:  # written by another program, or by another version of this one
        return {}
