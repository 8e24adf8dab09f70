"""Kill a training run while it writes, or stop it. The processes are forked, so that they start quickly."""

import os
import signal
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from script_helpers import run_in_process
from training_helpers import forked, metrics, trainer

import train as program
from model.cli import run_script
from model.training.run_directory import locked
from model.training.trainer import Trainer
from model.weights.tensors import load_tensors

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def train(directory: Path) -> None:
    with locked(directory):
        trainer(directory, resume=True, max_steps=60, eval_every=3, dropout=0.1).run()


def train_and_die(directory: Path, number: int) -> None:
    """Train, and be killed before the system call ``number`` of those that sync or rename a file."""
    calls = count(1)

    def dying(call):
        def call_or_die(*arguments):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return call_or_die

    os.fsync, os.replace = dying(os.fsync), dying(os.replace)
    train(directory)


def result(directory: Path) -> dict[str, object]:
    """Weights and optimizer state, byte for byte, and the metrics without times."""
    found: dict[str, object] = {"metrics": [line | {"tokens_per_second": None} for line in metrics(directory)]}
    for file in directory.glob("*.safetensors"):
        found |= {f"{file.name} {name}": tensor.numpy().tobytes() for name, tensor in load_tensors(file).items()}
    return found


@pytest.mark.parametrize("calls", [(5, 7, 5), pytest.param(range(1, 17), marks=pytest.mark.slow)])
def test_a_run_that_is_killed_repeatedly_ends_like_an_undisturbed_one(tmp_path, calls):
    """A checkpoint of the state and then the model makes ten calls; before the seventh there is no model yet."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for directory in (undisturbed, killed):
        directory.mkdir()
    train(undisturbed)
    half_written = 0
    for number in calls:
        process = forked(partial(train_and_die, killed, number))
        process.join()
        assert process.exitcode == -signal.SIGKILL
        half_written += any(killed.glob(".*.tmp"))
    assert half_written >= len(calls) // 3
    train(killed)
    assert result(killed) == result(undisturbed)
    assert not list(killed.glob(".*.tmp"))


SETTINGS = {"dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 16, "batch_size": 4, "tokenizer": "char"}
SETTINGS |= {"max_steps": 8, "eval_every": 3, "sample_every": 1, "eval_tokens": 100, "dtype": "float32"}


def arguments(directory: Path) -> list[str]:
    text = directory.parent / "text.txt"
    text.write_text("".join(f"{n} and {n} are {n + n}.\n" for n in range(200)), encoding="utf-8")
    settings = SETTINGS | {"data": text, "out_dir": directory}
    return [f"--{name}={value}" for name, value in settings.items()]


def train_in_terminal(directory: Path, keyboard: int, terminal: int, at_step: int, signalled: int) -> None:
    """``python train.py`` in a terminal. During the fifth step it waits until there is something to read."""
    import fcntl
    import termios

    os.close(keyboard)  # a copy of the parent's
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)  # SIGHUP comes from the terminal of the session
    for descriptor in range(3):
        os.dup2(terminal, descriptor)
    sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, range(3), "rww")
    sys.__stderr__ = sys.stderr
    step = Trainer.step

    def waiting_step(trainer: Trainer, lr_scale: float) -> dict[str, float]:
        if trainer.progress.step == 4:
            os.write(at_step, b".")
            os.read(signalled, 1)
        return step(trainer, lr_scale)

    Trainer.step = waiting_step
    sys.argv = ["train.py", *arguments(directory)]
    run_script(program.main, "train.py")


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGTERM"])
def test_a_run_that_is_stopped_and_resumed_ends_like_an_undisturbed_one(tmp_path, name):
    """SIGHUP because the terminal is closed: what the run prints after that is lost, and nothing else."""
    number = getattr(signal, name)
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    keyboard, terminal = os.openpty()
    (step_reached, at_step), (signalled, go_on) = os.pipe(), os.pipe()
    process = forked(partial(train_in_terminal, stopped, keyboard, terminal, at_step, signalled))
    for descriptor in (terminal, at_step):
        os.close(descriptor)
    assert os.read(step_reached, 1) == b"."
    if name == "SIGHUP":
        os.close(keyboard)
    else:
        for _ in range(2):  # a second one does not interrupt the step
            os.kill(process.pid, number)
    os.write(go_on, b".")
    process.join()
    assert process.exitcode == 128 + number
    assert [line["step"] for line in metrics(stopped)] == [1, 2, 3, 4, 5]
    assert run_in_process(program.main, "train.py", "--resume", stopped) == 0
    assert run_in_process(program.main, "train.py", *arguments(undisturbed)) == 0
    assert result(stopped) == result(undisturbed)
