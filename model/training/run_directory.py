"""The run directory: made, locked, its settings and metrics.jsonl written."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..cli import toml_text
from ..cli.files import remove_unfinished, write_text
from ..text.token_cache import note_use
from ..weights import save_tokenizer
from .config import CONFIG_FILE, Run
from .distributed import Ranks, check_shared
from .run_text import Text
from .state import STATE

METRICS = "metrics.jsonl"
MODEL_FILES = (STATE, "model.safetensors", "config.json")  # a directory with any of these holds a model


@contextmanager
def run_directory(run: Run, text: Text, ranks: Ranks) -> Iterator[Path]:
    """Make the run directory, lock it against other trainers, and write settings and tokenizer. Yields its path.

    ``--resume`` works even before the first checkpoint, except for text from a pipe, which must be given again.
    Raises ValueError if the run must not start.
    """
    with ExitStack() as lock:  # held by the first process
        directory = ranks.first(lambda: write_run(run, text, lock))
        check_shared(directory, ranks)
        if ranks.local_rank == 0 and text.dataset.entry:  # each machine may have a separate cache
            note_use(text.dataset.entry, directory)
        yield directory


def write_run(run: Run, text: Text, lock: ExitStack) -> Path:
    directory = run.directory
    if not run.resume and not run.train.out_dir:
        directory = make_first_free(directory)
    directory.mkdir(parents=True, exist_ok=True)
    lock.enter_context(locked(directory))
    if not run.resume:
        check_free(directory)  # again: another run may have finished here while the text was prepared
        save_tokenizer(text.tokenizer, directory)
    write_text(directory / CONFIG_FILE, toml_text(run.data, run.model, replace(run.train, out_dir=directory)))
    return directory


def check_free(directory: Path) -> None:
    """Raise ValueError if the directory holds a model, so that no run replaces another."""
    for name in MODEL_FILES:
        if (directory / name).exists():
            raise ValueError(f"{directory} holds {name}: give another --out_dir, or --resume to continue that run")


def make_first_free(base: Path) -> Path:
    """Make the first of ``base``, base-2, base-3 … that does not exist. Concurrent processes get different ones."""
    directory = base
    for number in count(2):
        try:
            directory.mkdir(parents=True)
            break
        except FileExistsError:
            directory = base.with_name(f"{base.name}-{number}")
    return directory


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against a second trainer, and delete the unfinished files of a killed one.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    try:
        lock = FileLock(directory / ".lock").acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{directory} is in use by another trainer: give another --out_dir") from None
    with lock:
        remove_unfinished(directory)
        yield


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, except an unfinished last one. Raises ValueError if the file is damaged."""
    try:
        return [line for line in map(json.loads, path.read_bytes().split(b"\n")[:-1]) if line["step"] >= 0]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is damaged: restore or remove it") from None


def truncate_metrics(path: Path, saved_step: int) -> None:
    """Keep the lines of a metrics file up to ``saved_step``, after which the run continues; -1 for none of them."""
    lines = read_metrics(path) if path.exists() else []
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= saved_step))


def append_metrics(path: Path, step: int, measured: Mapping[str, float], sync: bool) -> None:
    """Append the measured values of a step as one line. With ``sync``, not even a power cut loses it."""
    line = {"step": step} | {name: float(f"{value:.7g}") for name, value in measured.items()}
    with path.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")
        if sync:
            file.flush()
            os.fsync(file.fileno())
