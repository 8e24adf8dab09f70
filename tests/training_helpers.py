"""A run small enough to take hundreds of steps in a test: a few thousand parameters on a text of 600 tokens."""

import faulthandler
import gc
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from model import ModelArgs, Transformer
from model.cli import instances
from model.cli.machine import pick_device
from model.text.dataset import Dataset
from model.training.config import SETTINGS_CLASSES, TrainArgs
from model.training.distributed import Ranks, processes
from model.training.run import Run
from model.training.trainer import Trainer

ARGS = ModelArgs(dim=16, n_layers=2, n_heads=2, hidden_dim=24, vocab_size=11, max_seq_len=8)


def dataset(tokens: int = 600) -> Dataset:
    """Tokens that nearly always increase by 3 modulo the vocabulary, which a model learns in a few steps."""
    steps = np.where(np.arange(tokens) % 7, 3, 4)
    ids = (np.cumsum(steps) % ARGS.vocab_size).astype(np.uint16)
    return Dataset(ids[:-100], ids[-100:], val_bytes=99, val_tokens=99)


def trainer(
    directory: Path | None,
    *,
    resume: bool = False,
    model_args: ModelArgs = ARGS,
    network: type[Transformer] = Transformer,
    text: Dataset | None = None,
    ranks: Ranks | None = None,
    **settings: Any,
) -> Trainer:
    """A trainer as ``train.py`` makes it; with ``resume`` it continues from the state in ``directory``."""
    clock = {"clock": settings.pop("clock")} if "clock" in settings else {}
    defaults = {"batch_size": 8, "eval_every": 10, "max_steps": 20, "sample_every": 0}
    args = TrainArgs(out_dir=directory, **defaults | {"dtype": "float32"} | settings)
    torch.manual_seed(args.seed)
    model = network(model_args)
    if not args.fsdp:  # the trainer shards it
        model = model.to(pick_device(args.device))
    return Trainer(model, text or dataset(), args, directory, ranks, resume=resume, **clock)


def make_run(directory: Path = Path("run"), **settings: Any) -> Run:
    """A new run with these settings, which are all given."""
    data, model, train = instances(settings, *SETTINGS_CLASSES)
    return Run(data, model, train, frozenset(settings), directory)


def metrics(directory: Path | str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, as another program reads them."""
    return [json.loads(line) for line in Path(directory, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether the tensors are equal, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stop_at(trainer: Trainer, step: int, number: int = 15) -> Trainer:
    """Run until a signal arrives during ``step``."""
    if step == 1:
        trainer.stop_signal = number
    for _ in trainer.steps():
        if trainer.progress.step == step - 1:
            trainer.stop_signal = number
    return trainer


def forked(work: Callable[[], object]) -> multiprocessing.Process:
    """Run ``work`` in a forked process, which starts within milliseconds because everything is imported already.

    With ``--device cuda`` the test is skipped, because a process that has used CUDA cannot be forked.
    """
    if torch.cuda.is_available():
        pytest.skip("a process that has used CUDA cannot be forked")
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


def run_in_processes(world_size: int, work: Callable[[Ranks], object]) -> list[int | None]:
    """Run ``work`` in ``world_size`` processes of one gloo group; returns their exit codes."""

    def join_and_work() -> None:
        with processes() as ranks:
            work(ranks)

    return torchrun(world_size, join_and_work)


def destroy_after_ddp(destroy: Callable[[], None] = dist.destroy_process_group) -> None:
    """Destroy the process group, but raise RuntimeError if DDP still refers to it, because that deadlocks at times."""
    if any(type(thing) is nn.parallel.DistributedDataParallel for thing in gc.get_objects()):
        raise RuntimeError("DDP outlives its process group")
    destroy()


def torchrun(world_size: int, work: Callable[[], object]) -> list[int | None]:
    """Run ``work`` in ``world_size`` processes with the environment that torchrun gives; returns their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world_size)}

    def member(rank: int) -> None:
        os.environ |= address | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        dist.destroy_process_group = destroy_after_ddp  # in this process only
        faulthandler.dump_traceback_later(240, exit=True, file=sys.__stderr__)  # of a process that hangs
        work()

    children = [forked(partial(member, rank)) for rank in range(world_size)]
    for child in children:
        child.join(300)
    return [child.exitcode for child in children]
