"""What can be set about a training run. Imports no torch: a wrong setting is answered at once."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..config import ModelArgs

DEFAULT_STEPS = 2000


@dataclass(frozen=True)
class DataArgs:
    """The text, and how it becomes tokens."""

    data: Annotated[tuple[str, ...], "text: files, folders, globs, URLs, - for stdin; .jsonl and .gz are unpacked"] = (
        "python-docs",
    )
    glob: Annotated[tuple[str, ...], "which files of a folder are read, such as '*.py' (default: all text)"] = ()
    val_data: Annotated[tuple[str, ...], "validation text (default: the end of the data)"] = ()
    val_fraction: Annotated[float, "share of the data, from its end, that is kept for validation"] = 0.1
    text_key: Annotated[str, "the field of a .jsonl line that holds the text"] = "text"
    doc_separator: Annotated[str, "a string that separates the documents inside a file"] = ""
    tokenizer: Annotated[str, "bpe or char: train one on the data; or the FILE of a trained one"] = "bpe"

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("data is empty: name at least one file")
        if not 0 < self.val_fraction < 1 and not self.val_data:
            raise ValueError(f"val_fraction is {self.val_fraction}: give a share above 0 and below 1, such as 0.1")


@dataclass(frozen=True)
class TrainArgs:
    """The training run.

    Raises ValueError that lists every problem at once, each with its value and the fix.
    """

    out_dir: Annotated[Path | None, "the run directory (default: a new one below runs/)"] = None
    seed: Annotated[int, "everything random follows from it"] = 1337
    batch_size: Annotated[int, "sequences of one optimizer step, over all micro-batches and processes"] = 32
    micro_batch_size: Annotated[int | None, "sequences in memory at once, per process (default: all)"] = None
    max_steps: Annotated[int | None, "optimizer steps (default: 2000, or no limit if minutes is given)"] = None
    minutes: Annotated[float | None, "stop after so long; the schedule follows the clock"] = None
    eval_every: Annotated[int, "steps between validations, each with a checkpoint"] = 250
    eval_tokens: Annotated[int, "validation reads at most so many tokens"] = 200_000
    sample_every: Annotated[int, "steps between samples, written where validation is (0: none)"] = 500
    sample_prompt: Annotated[str, "what the samples continue"] = ""

    optimizer: Annotated[Literal["muon", "adamw"], "muon: Muon for hidden matrices, AdamW for the rest"] = "muon"
    lr: Annotated[float, "peak learning rate of AdamW"] = 3e-3
    muon_lr: Annotated[float, "peak learning rate of Muon"] = 0.02
    warmup: Annotated[float, "share of the run in which the rate rises"] = 0.02
    hold: Annotated[float, "share of the run after which the rate decays"] = 0.3
    schedule: Annotated[Literal["linear", "cosine"], "the form of the decay"] = "linear"
    min_lr: Annotated[float, "where the decay ends, as a share of the peak"] = 0.0
    weight_decay: Annotated[float, "pulls matrices towards zero"] = 0.1
    beta1: Annotated[float, "AdamW's memory of gradients"] = 0.9
    beta2: Annotated[float, "AdamW's memory of their squares"] = 0.95
    grad_clip: Annotated[float, "longest gradient; longer ones are shortened (0: never)"] = 1.0
    dropout: Annotated[float, "share of activations dropped in training; helps on small data"] = 0.0

    device: Annotated[str, "auto, cpu, cuda, cuda:1, mps"] = "auto"
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], "of products; auto: bfloat16 where native"] = "auto"
    compile: Annotated[bool, "compile the network: a minute's wait, then faster steps"] = False
    init_from: Annotated[Path | None, "start from this model instead of random weights"] = None
    fsdp: Annotated[bool, "under torchrun: shard the model (FSDP2) instead of copying it (DDP)"] = False

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        for name in ("batch_size", "micro_batch_size", "max_steps", "eval_every", "eval_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} is {value}: give at least 1"
        for name in ("minutes", "lr", "muon_lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                yield f"{name} is {value}: give a number above 0"
        for name in ("warmup", "hold", "min_lr", "beta1", "beta2", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}: give a number from 0 up to, but below, 1"
        for name in ("seed", "sample_every", "weight_decay", "grad_clip"):
            if not 0 <= getattr(self, name) < 2**63:
                yield f"{name} is {getattr(self, name)}: give a number from 0 up to, but below, 2**63"
        if self.micro_batch_size and self.batch_size % self.micro_batch_size:
            yield f"batch_size is {self.batch_size}, not a multiple of micro_batch_size {self.micro_batch_size}"

    def share_done(self, step: int, seconds: float) -> float:
        """How much of the run is done, 1 at its end: by steps or by the clock, whichever is further."""
        max_steps = self.max_steps or (math.inf if self.minutes else DEFAULT_STEPS)
        return max(step / max_steps, seconds / (60 * self.minutes) if self.minutes else 0.0)


CLASSES = (DataArgs, ModelArgs, TrainArgs)  # whose fields a TOML file and the flags may set
