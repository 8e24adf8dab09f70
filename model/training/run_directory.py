"""The run directory: made, locked, its settings and metrics.jsonl written."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..cli import toml_text
from ..cli.files import remove_unfinished, write_text
from .config import CONFIG_FILE, Run
from .distributed import Ranks
from .state import STATE

METRICS = "metrics.jsonl"
LOCK = ".lock"
RUN_FILES = (STATE, "model.safetensors", "config.json", CONFIG_FILE)  # a directory with any of these is taken


@contextmanager
def run_directory(run: Run, ranks: Ranks) -> Iterator[Path]:
    """Make the directory of a new run, or open that of the run to resume, and lock it. Yields its path.

    If the run has not begun when it is left, because of a mistake, a signal or --plan, what it wrote is removed. Raises
    ValueError if the directory is taken, or in use by another trainer.
    """
    with ExitStack() as stack:  # entered in the first process, which holds the lock
        yield ranks.first(lambda: stack.enter_context(opened(run)))


@contextmanager
def opened(run: Run) -> Iterator[Path]:
    """``run_directory`` in one process."""
    existed = [path for path in (run.directory, run.directory.parent) if path.exists()]
    directory = run.directory if run.resume or run.train.out_dir else make_first_free(run.directory)
    directory.mkdir(parents=True, exist_ok=True)
    before = set(directory.iterdir())
    with ExitStack() as lock:
        lock.enter_context(locked(directory))
        try:
            if not run.resume:
                check_free(directory)
            yield directory
        finally:
            if not (directory / CONFIG_FILE).exists():
                for path in set(directory.iterdir()) - before - {directory / LOCK}:
                    with suppress(OSError):  # Windows keeps files that are memory-mapped
                        path.unlink()
                lock.close()
                with suppress(OSError):  # a directory that is not empty stays
                    (directory / LOCK).unlink(missing_ok=True)
                    for path in (directory, directory.parent):
                        if path not in existed:
                            path.rmdir()


def make_first_free(base: Path) -> Path:
    """Make the first of ``base``, base-2, base-3 … that does not exist. Concurrent processes get different ones."""
    for number in count(1):
        directory = base if number == 1 else base.with_name(f"{base.name}-{number}")
        with suppress(FileExistsError):
            directory.mkdir(parents=True)
            return directory
    raise AssertionError


def begin(run: Run, directory: Path) -> None:
    """Write the settings, from which the run can be resumed from now on."""
    write_text(directory / CONFIG_FILE, toml_text(run.data, run.model, replace(run.train, out_dir=directory)))


def check_free(directory: Path) -> None:
    """Raise ValueError if the directory holds a run or a model, so that no run replaces another."""
    for name in RUN_FILES:
        if (directory / name).exists():
            raise ValueError(f"{directory} holds {name}: give another --out_dir, or --resume to continue that run")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against a second trainer, and delete the unfinished files of a killed one.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    try:
        lock = FileLock(directory / LOCK).acquire(blocking=False)
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


def truncate_metrics(path: Path, last_step: int) -> None:
    """Keep the lines of a metrics file up to ``last_step``, -1 for none."""
    lines = read_metrics(path) if path.exists() else []
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= last_step))


def append_metrics(path: Path, step: int, measured: Mapping[str, float], sync: bool) -> None:
    """Append the measured values of a step as one line. With ``sync``, not even a power cut loses it."""
    line = {"step": step} | {name: float(f"{value:.7g}") for name, value in measured.items()}
    with path.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")
        if sync:
            file.flush()
            os.fsync(file.fileno())
