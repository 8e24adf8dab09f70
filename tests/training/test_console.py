"""The terminal output of a run: every number in the right place, and how to resume."""

import os
import re
import signal
import threading
from shlex import quote

import pytest
from training_helpers import trainer

from model.training import console
from model.training.console import Console, draw_losses, running_mean, stopping_on_signals
from model.training.distributed import Ranks
from model.training.run_directory import Metrics


class Letters:
    """A tokenizer for 11 ids: 0 is BOS, 10 is EOS, and the others are the letters a to i."""

    eos_ids = (10,)

    def encode(self, text: str) -> list[int]:
        return [0, *(ord(letter) - 96 for letter in text)]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(96 + i) for i in ids if i not in (0, 10))


class SpacedLetters(Letters):
    """Like Llama 2's tokenizer: the space before each token is dropped at the beginning of a text."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(super().decode(ids))


@pytest.fixture(autouse=True)
def _quick_plots(monkeypatch):
    """Replace draw_losses, which takes a second."""
    monkeypatch.setattr(console, "draw_losses", lambda directory: (directory / "loss.png").touch())


def train_in_console(run, changes=(), tokenizer=None) -> None:
    """Train with the complete terminal output."""
    terminal = Console(run, tokenizer or Letters())
    terminal.announce(changes)
    with terminal.running():
        for measured in run.steps():
            terminal.show(measured)
    terminal.finish()


def train_new_run(tmp_path, **settings):
    run = trainer(tmp_path, **settings)
    train_in_console(run)
    return run


def test_a_sample_keeps_the_space_after_its_prompt(tmp_path, capfd):
    train_in_console(trainer(tmp_path, max_steps=2, sample_every=2, sample_prompt="a"), tokenizer=SpacedLetters())
    sample = capfd.readouterr().out.split("--- sample at step 2 ---\n")[1]
    assert sample.startswith("a ")


def test_samples_go_to_stdout_and_everything_else_to_stderr(tmp_path, capfd):
    train_new_run(tmp_path, max_steps=20, sample_every=10, sample_prompt="ab")
    out, err = capfd.readouterr()
    assert out.count("--- sample at step") == 2
    sample = out.split("--- sample at step 20 ---\n")[1].strip()
    assert sample.startswith("ab")
    assert set(sample) <= set("abcdefghij")
    assert "4,784 parameters" in err
    assert "2.6 epochs" in err
    assert "step 10: validation " in err
    assert re.search(r"100%\|█+\| 00:0\d left, step 20, loss [\d.]+, validation [\d.]+, [\d,]+ tokens/s", err)
    assert "tokens/s" in err
    assert (tmp_path / "loss.png").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_the_step_ends_the_state_is_saved_and_the_resume_command_is_printed(tmp_path, capfd, number):
    run = trainer(tmp_path, max_steps=1000, eval_every=1000)
    before = signal.getsignal(number)
    clock = run.clock
    calls = iter(range(10_000))

    def interrupting_clock() -> float:
        if next(calls) == 8:  # during the third step
            os.kill(os.getpid(), number)
        return clock()

    run.clock = interrupting_clock
    train_in_console(run)
    err = capfd.readouterr().err
    assert run.stopped_by == number
    assert signal.getsignal(number) == before
    steps = run.progress.step
    assert steps in (2, 3)
    assert f"stopped by {number.name}; step {steps} is saved" in err
    assert f"python train.py --resume --out_dir {quote(str(tmp_path))}" in err
    assert trainer(tmp_path, resume=True).progress.step == steps


def test_a_second_ctrl_c_is_not_caught(tmp_path):
    run = trainer(tmp_path)
    with stopping_on_signals(run):
        signal.raise_signal(signal.SIGINT)
        assert run.stop_signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_resumed_run_prints_its_changed_settings(tmp_path, capfd):
    trainer(tmp_path, max_steps=2).run()
    run = trainer(tmp_path, resume=True, max_steps=3)
    train_in_console(run, ("lr 0.1 -> 0.2",))
    assert "after step 2; lr 0.1 -> 0.2" in capfd.readouterr().err


def test_the_bar_shows_the_part_of_the_minutes_or_steps_and_the_remaining_time(tmp_path, capfd, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    run = trainer(tmp_path, clock=lambda: now, max_steps=None, minutes=1, eval_every=1000)
    step = run.step

    def timed(lr_fraction: float) -> dict[str, float]:
        nonlocal now
        now += 15
        return step(lr_fraction)

    run.step = timed
    train_in_console(run)
    assert re.search(r" 50%\|█+ +\| 00:30 left, step 2, ", capfd.readouterr().err)


def test_a_closed_pipe_does_not_end_the_run(tmp_path, monkeypatch):
    class ClosedPipe:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        flush = isatty = lambda self: False

    # tqdm does not release its lock after the error, and forked processes of later tests would wait for it forever.
    monkeypatch.setattr("tqdm.tqdm._lock", threading.RLock(), raising=False)
    monkeypatch.setattr("sys.stdout", ClosedPipe())
    monkeypatch.setattr("sys.stderr", ClosedPipe())
    assert train_new_run(tmp_path, max_steps=20, sample_every=5).progress.step == 20


def test_the_summary_is_printed_even_if_the_plot_cannot_be_written(tmp_path, capfd, monkeypatch):
    def full(directory):
        raise OSError(28, "No space left on device", str(directory / "loss.png"))

    monkeypatch.setattr(console, "draw_losses", full)
    train_new_run(tmp_path, max_steps=5)
    err = capfd.readouterr().err
    assert "loss.png could not be written: [Errno 28] No space left on device" in err
    assert "validation  " in err.split("loss.png could not be written")[1]


def test_only_the_first_process_prints(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("model.training.trainer.validation_loss", lambda *_: 1.0)
    train_new_run(tmp_path, ranks=Ranks(rank=1), max_steps=10, sample_every=5)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "loss.png").exists()


def test_the_smoothed_loss_is_a_centered_mean_without_lag():
    assert running_mean([3.0]) == [3.0]
    line = [1000.0 - n for n in range(500)]
    values = running_mean(line)
    assert values[5:-5] == pytest.approx(line[5:-5])
    assert values[0] == pytest.approx(sum(line[:6]) / 6)
    assert running_mean([0.0] * 100 + [1.0] * 100)[99:101] == pytest.approx([0.4, 0.6])


def test_the_plot_is_written_beside_the_metrics_if_there_is_matplotlib(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    metrics = Metrics(tmp_path / "metrics.jsonl")
    draw_losses(tmp_path)
    for step in range(1, 30):
        metrics.write(step, {"train_loss": 3 / step} | ({"val_loss": 3.5 / step} if step % 10 == 0 else {}))
    with monkeypatch.context() as without:
        without.setattr(console, "find_spec", lambda name: None)
        draw_losses(tmp_path)
    assert not (tmp_path / "loss.png").exists()
    draw_losses(tmp_path)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "loss.png").read_bytes()) > 5000
