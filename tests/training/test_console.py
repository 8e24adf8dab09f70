"""The terminal output of a run: every number in the right place, and how to resume."""

import re
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from training_helpers import ARGS, dataset, make_run, stop_at, trainer

from model.training.config import TrainArgs
from model.training.console import Console, announcement, expectation, summary
from model.training.distributed import Ranks
from model.training.metrics import LastScore
from model.training.run_directory import Progress
from model.training.run_text import Text


class SpacedLetters:
    """A tokenizer for 11 ids: 0 is BOS, 10 is EOS, and the others are the letters a to i.

    Like Llama 2's, it drops the space before each token at the beginning of a text.
    """

    eos_ids = (10,)

    def encode(self, text: str) -> list[int]:
        return [0, *(ord(letter) - 96 for letter in text)]

    def decode(self, ids: list[int]) -> str:
        return " ".join(chr(96 + i) for i in ids if i not in (0, 10))


TEXT = Text(
    SpacedLetters(),
    replace(dataset(), documents=3, longest=1234, val_name="a.txt", validation="the last 10.0% of each document"),
    [0, 1, 2],
    unigram_loss=2.345,
)


def train_in_console(run) -> int:
    terminal = Console(run, TEXT)
    with terminal.running():
        for measured in run.steps():
            terminal.show(measured)
    return terminal.finish()


def test_the_announcement():
    settings = vars(ARGS) | {"batch_size": 8, "max_steps": 50, "minutes": 1.5, "device": "cpu", "dtype": "float32"}
    run = make_run(**settings, init_from=Path("base"), doc_separator="<eos>", context_warmup=0.25)
    assert announcement(run, TEXT, run.machine(Ranks()), 2400.0) == {
        "model": "4,784 parameters: 2 layers of width 16, 2 heads, on cpu in float32",
        "memory": "about 401 MB at the peak",
        "text": "500 tokens to train on, 100 for validation; 1.00 bytes each, vocabulary of 11",
        "documents": "3 documents, the longest of 1,234 tokens, separated by '<eos>'",
        "held out": "the last 10.0% of each document of a.txt",
        "baselines": "2.398 nats per token for uniform guesses, 2.345 for token frequencies",
        "training": "8 x 8 tokens per step (16 x 4 in the first 25%), 50 steps, 6.4 epochs, at most 01:30, lr 0.0003, "
        "dropout 0",
        "expected": "about 50 steps, 6.4 epochs, in 00:01 at 2,400 tokens/s",
    }


def test_without_max_steps_the_minutes_tell_the_steps_to_expect():
    """A part of the minutes is for validations, checkpoints and samples."""
    expected = "about 4,185 steps, 535.7 epochs, in 02:00 at 2,400 tokens/s"
    assert expectation(TrainArgs(minutes=2.0), 64, 2400.0, TEXT.dataset) == expected


def test_the_summary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my run").mkdir()
    run = trainer(Path("my run"))
    times = {"train_seconds": 2.0, "wall_seconds": 7.4}
    run.progress = Progress(step=400, tokens=25_600, **times, val_loss=2.1, best_val_loss=2.0, best_step=300)
    assert summary(run, TEXT, LastScore(300, 1.98771, 2.8675, 99, 1 << 17)) == {
        "parameters": "4,784",
        "trained": "400 steps, 25,600 tokens, 51.2 epochs, 7.4 seconds",
        "speed": "12,800 tokens/s",
        "validation": "1.9877 nats per token, 2.868 bits per byte; best at step 300; unigram model 2.3450",
        "note": "overfitted, validations rose from 2.0000 to 2.1000: try more text, fewer steps or --dropout 0.2",
        "run directory": "my run",
        "next": "python generate.py 'my run'",
    }
    run.progress.val_loss = 2.05
    rows = summary(run, TEXT, LastScore(300, 1.98771, 2.8675, 50, 50))
    assert "note" not in rows
    assert "2.868 bits per byte (on 50 of 99 tokens); best at step 300" in rows["validation"]
    assert "2.0000 nats per token, 2.885 bits per byte; best" in summary(run, TEXT, None)["validation"], "sharded"


@pytest.mark.parametrize("limits", [{"max_steps": 3, "minutes": 60.0}, {"max_steps": 9, "minutes": 1e-7}])
def test_a_finished_run_that_is_resumed_without_more_says_how_to_go_on(tmp_path, capfd, limits):
    """More of the other limit takes no step either."""
    train_in_console(trainer(tmp_path, max_steps=3))
    assert "no step left" not in capfd.readouterr().err
    assert train_in_console(trainer(tmp_path, resume=True, **limits)) == 0
    err = capfd.readouterr().err
    assert "no step left   max_steps and minutes count the whole run: to go on, give --resume and more of them\n" in err
    assert "100%|" in err


def test_samples_go_to_stdout_and_everything_else_to_stderr(tmp_path, capfd):
    assert train_in_console(trainer(tmp_path, max_steps=20, sample_every=10, sample_prompt="ab")) == 0
    out, err = capfd.readouterr()
    assert out.count("--- sample at step") == 2
    sample = out.split("--- sample at step 20 ---\n")[1].strip("\n")
    assert sample.startswith("ab ")  # with the space that follows the prompt
    assert set(sample) <= set("abcdefghij ")
    assert "step 10: validation " in err
    assert re.search(
        r"^100%\|#+\| 00:0\d, 00:00 left, step 20, loss [\d.]+, best [\d.]+ at 20, epoch 2.6, [\d,]+ tokens/s$",
        err,
        re.MULTILINE,
    )
    assert "\r" not in err, "lines of a log file"
    assert "parameters     4,784\n" in err


def test_samples_during_a_run_are_not_recorded_because_training_may_leave_no_memory(tmp_path, monkeypatch, capfd):
    def record(step, device):
        raise torch.OutOfMemoryError("no memory for the recording")

    monkeypatch.setattr("model.fast.step.RECORDING_DEVICES", ("cpu",))
    monkeypatch.setattr("model.fast.recorded.capture", record)
    assert train_in_console(trainer(tmp_path, max_steps=2, sample_every=2)) == 0
    assert "--- sample at step 2 ---" in capfd.readouterr().out


def test_a_second_ctrl_c_is_not_caught(tmp_path):
    run = trainer(tmp_path)
    with Console(run, TEXT).running():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert run.stop_signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_is_ignored_does_not_stop_a_run(tmp_path):
    run = trainer(tmp_path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a background job
    with Console(run, TEXT).running():
        signal.raise_signal(signal.SIGINT)
    assert run.stop_signal == 0


def test_the_bar_shows_the_part_of_the_minutes_and_the_remaining_time(tmp_path, capfd, monkeypatch):
    ticks = count(0.0, 7.5)  # a step reads the clock at its beginning and its end, and once more
    now = [0.0]

    def clock() -> float:
        now[0] = next(ticks)
        return now[0]

    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    train_in_console(trainer(tmp_path, clock=clock, max_steps=None, minutes=1, eval_every=1000))
    assert re.search(r"75%\|#+ +\| 00:45, 00:15 left, step 2, ", capfd.readouterr().err)


def test_a_longer_run_says_once_that_its_loss_rises_first(tmp_path, capfd):
    train_in_console(trainer(tmp_path, max_steps=20))
    assert "stretched" not in capfd.readouterr().err
    train_in_console(trainer(tmp_path, resume=True, max_steps=60))
    assert capfd.readouterr().err.count("note: the schedule is stretched to the longer run") == 1


def test_an_interrupted_run_that_goes_on_is_not_stretched(tmp_path, capfd):
    stop_at(trainer(tmp_path, max_steps=20), 8)
    train_in_console(trainer(tmp_path, resume=True, max_steps=20))
    assert "stretched" not in capfd.readouterr().err


def test_the_announcement_says_that_a_size_is_the_default():
    words = "the default, because --max_steps is given"
    size = {"dim": ARGS.dim, "n_layers": ARGS.n_layers, "n_heads": ARGS.n_heads, "hidden_dim": ARGS.hidden_dim}
    common = {"max_steps": 5, "device": "cpu", "dtype": "float32", "max_seq_len": 8, "vocab_size": 11}
    for settings, is_default in (({}, True), (size, False), ({"init_from": Path("base")}, False)):
        run = make_run(**common, **settings)
        assert (words in announcement(run, TEXT, run.machine(Ranks()), None)["model"]) == is_default


def test_a_sample_is_shown_beside_the_bar_on_a_terminal(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    train_in_console(trainer(tmp_path, max_steps=10, sample_every=10))
    out, err = capfd.readouterr()
    assert out == ""
    assert "--- sample at step 10 ---" in err
