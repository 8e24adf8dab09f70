"""The run directory: made, locked, its settings and metrics.jsonl written."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..cli import quantity, read_toml, toml_text
from ..cli.files import check_is_file, remove_unfinished, write_text
from ..text.token_cache import note_use
from ..weights import save_tokenizer
from ..weights.tokenizers import TEMPLATE
from .config import CONFIG_FILE, SETTINGS_CLASSES, Run
from .distributed import Ranks
from .prepared_text import Text
from .state import STATE, read_progress

METRICS = "metrics.jsonl"
MODEL_FILES = (STATE, "model.safetensors", "config.json")  # a directory with any of these holds a model
TOKENIZER_FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
RUN_FILES = (*MODEL_FILES, *TOKENIZER_FILES, TEMPLATE, "generation_config.json", CONFIG_FILE, METRICS, "loss.png")


@contextmanager
def run_directory(run: Run, text: Text, ranks: Ranks) -> Iterator[Path]:
    """Make the run directory, lock it against other trainers, and write settings and tokenizer. Yields its path.

    ``--resume`` works even before the first checkpoint, except for text from a pipe, which must be given again.

    Preparing the text may have taken hours, so checks of ``resolve`` are repeated under the lock: another process may
    have finished a run in this directory, or resumed it with other settings. Raises ValueError if the run must not
    start.
    """
    with ExitStack() as lock:  # held by the first process
        directory = ranks.first(lambda: write_run(run, text, lock))
        if ranks.local_rank == 0:  # each machine may have a separate cache
            for entry in text.entries:
                note_use(entry, directory)
        yield directory


def write_run(run: Run, text: Text, lock: ExitStack) -> Path:
    directory = make_first_free(run.base) if run.base else run.directory
    directory.mkdir(parents=True, exist_ok=True)
    lock.enter_context(locked(directory))
    if run.saved is None:
        check_free(directory)
        save_tokenizer(text.tokenizer, directory)
    else:
        if read_toml(directory / CONFIG_FILE, *SETTINGS_CLASSES) != run.saved:
            raise ValueError(f"{directory / CONFIG_FILE} changed after it was read: run again")
        check_resumable(run, text)
    write_text(directory / CONFIG_FILE, toml_text(run.data, run.model, replace(run.train, out_dir=directory)))
    return directory


def check_resumable(run: Run, text: Text) -> None:
    """Raise ValueError if the state is from other text, or has already taken more than ``max_steps`` steps."""
    saved = read_progress(run.directory)
    if saved is None:
        return
    if saved.text != text.dataset.fingerprint:
        raise ValueError(
            f"{run.directory} was trained on another text, or another split of it: give the same --data as before, "
            "leave it out, or start a new run"
        )
    if saved.progress.step > run.train.step_limit:
        raise ValueError(
            f"max_steps is {run.train.max_steps}, but {run.directory} has already taken "
            f"{quantity(saved.progress.step, 'step')}: give more than that, or leave it out"
        )


def check_free(directory: Path) -> None:
    """Raise ValueError if the directory holds a model, so that no run replaces another."""
    for name in MODEL_FILES:
        if (directory / name).exists():
            raise ValueError(f"{directory} holds {name}: give another --out_dir, or --resume to continue that run")


def numbered(base: Path) -> Iterator[Path]:
    """Yield ``base``, base-2, base-3 … endlessly."""
    yield base
    for number in itertools.count(2):
        yield base.with_name(f"{base.name}-{number}")


def make_first_free(base: Path) -> Path:
    """Make the first of the ``numbered`` directories that does not exist. Concurrent processes get different ones."""
    base.parent.mkdir(parents=True, exist_ok=True)
    for directory in numbered(base):
        try:
            directory.mkdir()
            break
        except FileExistsError:
            continue
    return directory


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against a second trainer, and delete the unfinished files of a killed one.

    Only temporary files of RUN_FILES are deleted, because the directory may hold the user's files.
    The operating system releases the lock when the process ends, even if it is killed.
    """
    try:
        lock = FileLock(directory / ".lock").acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{directory} is in use by another trainer: give another --out_dir") from None
    with lock:
        remove_unfinished(directory, RUN_FILES)
        yield


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, except an unfinished last one. Raises ValueError if the file is damaged."""
    check_is_file(path)
    try:
        lines = [{"step": 0} | json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        values = [value for line in lines for value in line.values()]
        valid = all(isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63) for value in values)
    except (ValueError, TypeError, RecursionError):
        valid = False
    if not valid:
        raise ValueError(f"{path} is damaged: restore or remove it")
    return lines


class Metrics:
    """``metrics.jsonl``: one line per step with the measured values.

    A run that resumes after ``last_step`` drops the lines of later steps, because it takes these steps again.
    """

    def __init__(self, path: Path, last_step: int | None = None) -> None:
        self.path = path
        kept = []
        if last_step is not None and path.exists():
            kept = [line for line in read_metrics(path) if line["step"] <= last_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, step: int, measured: Mapping[str, float]) -> None:
        line = {"step": step} | {name: float(f"{value:.7g}") for name, value in measured.items()}
        with self.path.open("r+b") as file:  # fails, instead of making a new file, if the run was removed
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(line).encode() + b"\n")

    def sync(self) -> None:
        """Sync to disk. Called before a state is saved, so that even a power cut cannot lose the lines before it."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())
