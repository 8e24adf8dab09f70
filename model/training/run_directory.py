"""The run directory: made, locked; its settings and the state to resume from.

The state is weights, optimizer state and progress in one safetensors file. A sharded model (--fsdp) is gathered by the
first process, so the file does not depend on the number of processes. torch.distributed.checkpoint would write a
pickle. Its safetensors writer holds the whole file in memory once more, and none of its writers replaces the previous
state atomically.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Annotated

import torch
from filelock import AcquireReturnProxy, FileLock, Timeout
from torch import Tensor

from ..cli import toml_text
from ..cli.files import remove_unfinished, write_text
from ..cli.settings import from_table
from ..config import Range
from ..transformer import Transformer
from ..weights.tensors import WEIGHTS, load_tensors, read_metadata, save_tensors
from .config import CONFIG_FILE
from .distributed import Ranks, gather_tensors, scatter_tensors
from .optimizer import create_state
from .run import Run, cannot_resume

STATE = "training_state.safetensors"
LOCK = ".lock"
RUN_FILES = (STATE, WEIGHTS, "config.json", CONFIG_FILE)  # a directory with any of these is taken
Optimizers = list[torch.optim.Optimizer]


@contextmanager
def run_directory(run: Run) -> Iterator[Run]:
    """Make the directory of a new run, or open that of the run to resume, and lock it. Yields the run with its path.

    If the ``with`` block ends before the run has begun, because of a mistake, a signal or --plan, what was written is
    removed. Raises ValueError if the directory is taken, in use by another trainer, or lacks a file to resume from.
    """
    existed = [path for path in (run.directory, run.directory.parent) if path.exists()]
    directory = run.directory if run.resume or run.train.out_dir else make_first_free(run.directory)
    directory.mkdir(parents=True, exist_ok=True)
    before = set(directory.iterdir())
    with locked(directory, run.resume) as lock:
        try:
            if run.resume:
                read_progress(directory)
            else:
                check_free(directory)
            yield replace(run, directory=directory)
        finally:
            if not (directory / CONFIG_FILE).exists():
                for path in set(directory.iterdir()) - before - {directory / LOCK}:
                    with suppress(OSError):  # Windows keeps files that are memory-mapped
                        path.unlink()
                lock.release()  # because Windows does not remove the file of a lock that is held
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


def begin(run: Run) -> None:
    """Write the settings, from which the run can be resumed from now on."""
    train = replace(run.train, out_dir=run.directory)
    write_text(run.directory / CONFIG_FILE, toml_text(run.data, run.model, train))


def check_free(directory: Path) -> None:
    """Raise ValueError if the directory holds a run or a model, so that no run replaces another."""
    for name in RUN_FILES:
        if (directory / name).exists():
            resumes = ", or --resume to continue that run" if (directory / CONFIG_FILE).exists() else ""
            raise ValueError(f"{directory} holds {name}: give another --out_dir{resumes}")


def locked(directory: Path, resume: bool = False) -> AcquireReturnProxy:
    """Lock the directory against a second trainer, and delete the unfinished files of a killed one.

    A ``with`` block of the result releases the lock at its end, and the operating system when the process ends, even if
    it is killed. The file of the lock stays, and holds the number of the process that had it last.
    """
    file, holder = directory / LOCK, ""
    with suppress(OSError, ValueError):  # before the lock is asked for, because filelock 3 empties the file
        holder = f" (process {int(file.read_text(encoding='ascii'))})"
    try:
        file.touch()  # by the user's umask, so that the group can lock it too where it may write
        lock = FileLock(file).acquire(blocking=False)
    except Timeout:
        advice = "or stop it" if resume else "stop it, or give another --out_dir"
        raise ValueError(f"{directory} is in use by another trainer{holder}: wait until it ends, {advice}") from None
    except PermissionError:
        if not (file.exists() and os.access(directory, os.W_OK)):
            raise
        raise ValueError(
            f"{file} belongs to another user: if nobody trains there any more, run `rm {quote(str(file))}`, then this "
            "command again"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise ValueError(f"{directory} is on a file system without locks: give another --out_dir") from None
    with suppress(OSError):  # Windows lets nobody write into a locked file
        file.write_text(str(os.getpid()), encoding="ascii")
    remove_unfinished(directory)
    return lock


@dataclass
class Progress:
    """The state of a run besides weights and optimizer.

    It needs no generator state, because batches depend only on seed and step, and dropout on these and the rank.
    """

    step: Annotated[int, Range(0)] = 0
    tokens: Annotated[int, Range(0)] = 0
    train_seconds: Annotated[float, Range(0)] = 0.0  # training steps only
    wall_seconds: Annotated[float, Range(0)] = 0.0  # including validation, samples and checkpoints
    val_loss: Annotated[float, Range(0, math.inf)] = math.inf  # before the first validation
    best_val_loss: Annotated[float, Range(0, math.inf)] = math.inf
    best_step: Annotated[int, Range(0)] = 0
    loss_scale: Annotated[float, Range(0)] = 0.0  # in float16; 0 in other dtypes
    steps_at_scale: Annotated[int, Range(0)] = 0  # after some thousands, the scale is doubled


def state_tensors(model: Transformer, optimizers: Optimizers) -> dict[str, Tensor]:
    """The tensors by their names in the file: ``model.norm.weight``, ``optimizer.exp_avg.norm.weight``."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            tensors |= {f"optimizer.{key}.{names[parameter]}": value for key, value in state.items()}
    return tensors


def save_state(directory: Path, model: Transformer, optimizers: Optimizers, progress: Progress, ranks: Ranks) -> None:
    """Save the state, so that weights, optimizer and step still match after a kill. Every process must call it."""
    tensors = gather_tensors(state_tensors(model, optimizers), ranks)
    if ranks.is_first:
        save_tensors(directory / STATE, tensors, {"progress": json.dumps(asdict(progress))})


def read_progress(directory: Path) -> Progress | None:
    """The saved progress, without reading a tensor; None before the first checkpoint.

    A checkpoint writes the state, and then the model if it is the best one so far. So if there is a model without a
    state, the state was lost; the run would begin again and replace the model. If the model was lost, the next
    validation writes one. Raises ValueError if the state is lost or damaged.
    """
    path = directory / STATE
    has_model = all((directory / name).exists() for name in ("config.json", WEIGHTS))
    if not path.exists():
        if has_model:
            raise cannot_resume(directory, STATE)
        return None
    try:
        saved = json.loads(read_metadata(path)["progress"])
        if not {"step", "tokens"} <= saved.keys():  # older versions lack others, which have defaults
            raise ValueError
        progress = Progress(**from_table(saved, Progress))
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise damaged(path) from None
    if has_model or progress.best_step == progress.step:  # whose weights are in the state
        return progress
    return replace(progress, best_val_loss=math.inf, best_step=0)


def load_state(directory: Path, model: Transformer, optimizers: Optimizers) -> None:
    """Restore what ``save_state`` saved, bit for bit. The model may be sharded differently now.

    Every process reads the file. The hyperparameters of the optimizers stay as they are. Raises ValueError if the file
    does not have exactly the tensors of this model and its optimizers.
    """
    saved = load_tensors(directory / STATE)
    with_state = {name.split(".", 2)[-1] for name in saved if name.startswith("optimizer.")}
    create_state(optimizers, [parameter for name, parameter in model.named_parameters() if name in with_state])
    tensors = state_tensors(model, optimizers)
    if shapes(saved) != shapes(tensors):
        raise damaged(directory / STATE)
    scatter_tensors(tensors, saved)


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged or belongs to another model: restore the file, or start a new run")
