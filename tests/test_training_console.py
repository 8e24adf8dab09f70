"""What is said of a run: every number, in the right place, and how to go on."""

import math
import os
import signal
from shlex import quote

import pytest
from training_helpers import trainer

from model.training import console
from model.training.console import Console
from model.training.distributed import Ranks
from model.training.summary import duration, summary


class Letters:
    """A tokenizer for 11 ids: 0 begins a text, 10 ends one."""

    eos_ids = (10,)

    def encode(self, text: str) -> list[int]:
        return [0, *(ord(letter) - 96 for letter in text)]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(96 + i) for i in ids if i not in (0, 10))


@pytest.fixture(autouse=True)
def pictures(monkeypatch) -> list:
    """Pictures take a while to draw; here they are only counted."""
    drawn = []
    monkeypatch.setattr(console, "draw_losses", drawn.append)
    return drawn


def shown(run, changes=()) -> None:
    """The run, with all that the terminal shows of it."""
    screen = Console(run, Letters())
    screen.announce(changes)
    with screen:
        for measured in run.steps():
            screen.show(measured)
    screen.finish()


def watched(tmp_path, changes=(), **settings):
    run = trainer(tmp_path, **settings)
    shown(run, changes)
    return run


def test_samples_are_text_and_the_rest_is_not(tmp_path, capfd, pictures):
    run = watched(tmp_path, max_steps=20, sample_every=10, sample_prompt="ab")
    out, err = capfd.readouterr()
    assert out.count("--- sample at step") == 2
    sample = out.split("--- sample at step 20 ---\n")[1].strip()
    assert sample.startswith("ab")
    assert set(sample) <= set("abcdefghij")
    parameters = sum(p.numel() for p in run.model.parameters())
    assert f"{parameters:,} parameters: 2 layers of width 16, 2 heads, on cpu in float32" in err
    assert "500 tokens to train on, 100 for validation, 0.99 bytes each, vocabulary of 11; cached in " in err
    assert "20 steps: 1,280 tokens, 2.6 passes over the text" in err
    assert f"costs {math.log(11):.3f} nats per token uniformly, " in err
    assert "step 10: validation " in err
    assert "20/20 steps, 0:00 left, loss " in err
    assert "tokens/s" in err
    assert pictures == [tmp_path]


def test_the_summary_says_what_came_out_and_what_to_type(tmp_path):
    run = trainer(tmp_path, max_steps=4)
    run.run()
    run.progress.best_val_loss, run.progress.best_step = 0.6931472, 3
    run.progress.train_seconds, run.progress.wall_seconds = 2.0, 7.4
    said = summary(run, unigram=2.5)
    parameters = sum(p.numel() for p in run.model.parameters())
    assert f"{parameters:,}" in said
    assert "4 steps, 256 tokens, 0.51 passes over the text, 7 seconds" in said
    assert "128 tokens/s" in said
    assert "0.6931 nats per token, 1.000 bits per byte (best, at step 3); guessing by frequency 2.5000" in said
    assert f"python generate.py {quote(str(tmp_path))}" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_end_saves_and_says_how_to_go_on(tmp_path, capfd, number):
    run = trainer(tmp_path, max_steps=1000, eval_every=1000)
    before = signal.getsignal(number)
    clock = run.clock
    looks = iter(range(10_000))

    def interrupting() -> float:
        if next(looks) == 8:  # in the midst of the third step
            os.kill(os.getpid(), number)
        return clock()

    run.clock = interrupting
    shown(run)
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
    with Console(run, Letters()):
        signal.raise_signal(signal.SIGINT)
        assert run.stop_signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_changed_is_said(tmp_path, capfd):
    trainer(tmp_path, max_steps=2).run()
    run = trainer(tmp_path, resume=True, max_steps=3)
    shown(run, ("lr 0.1 -> 0.2",))
    assert "resuming       after step 2; lr 0.1 -> 0.2" in capfd.readouterr().err


def test_the_bar_of_a_budget_counts_seconds(tmp_path, capfd):
    ticks = iter(range(10_000))
    watched(tmp_path, max_steps=None, minutes=0.5, eval_every=1000, clock=lambda: next(ticks))
    assert "30/30 s" in capfd.readouterr().err


def timed(tmp_path, first: float, others: float, **settings):
    """A run whose first step takes so many seconds, as one that compiles does, and whose others take so many."""
    now = 0.0
    run = trainer(tmp_path, clock=lambda: now, **settings)
    step = run.step

    def slow(lr_fraction: float) -> dict[str, float]:
        nonlocal now
        now += others if run.progress.step else first
        return step(lr_fraction)

    run.step = slow
    return run


def test_the_time_left_is_foretold_after_some_steps_and_does_not_jump(tmp_path):
    run, left = timed(tmp_path, first=30.0, others=2.0, max_steps=60, eval_every=1000), []
    screen = Console(run, Letters())
    screen.note = left.append
    with screen:
        screen.bar.set_postfix_str = lambda text, refresh: left.append(text)
        for measured in run.steps():
            screen.show(measured)
    foretold = [text.split(" left")[0] for text in left if " left, loss" in text]
    assert foretold == [duration(2 * (60 - step)) for step in range(4, 61)]
    (pace,) = [text for text in left if text.startswith("pace")]
    assert pace == "pace           about 60 steps, 7.7 passes over the text, 1:38 left"


def test_a_limit_in_minutes_is_no_time_left_where_the_steps_end_first(tmp_path):
    run, shown_left = timed(tmp_path, first=2.0, others=2.0, max_steps=6, minutes=9.0), []
    screen = Console(run, Letters())
    with screen:
        screen.bar.set_postfix_str = lambda text, refresh: shown_left.append(text.split(",")[0])
        for measured in run.steps():
            screen.show(measured)
    assert [text for text in shown_left if text.endswith("left")] == ["0:04 left", "0:02 left", "0:00 left"]


def test_minutes_are_foretold_in_steps_and_passes(tmp_path):
    run, notes = timed(tmp_path, first=5.0, others=5.0, max_steps=None, minutes=10, eval_every=1000), []
    screen = Console(run, Letters())
    screen.note = notes.append
    with screen:
        for measured in run.steps():
            screen.show(measured)
    assert run.progress.step == 120
    (pace,) = [text for text in notes if text.startswith("pace")]
    assert pace == "pace           about 120 steps, 15 passes over the text, 9:35 left"


def test_a_terminal_that_nobody_reads_ends_no_run(tmp_path, monkeypatch):
    class Gone:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        flush = isatty = lambda self: False

    monkeypatch.setattr("sys.stdout", Gone())
    monkeypatch.setattr("sys.stderr", Gone())
    assert watched(tmp_path, max_steps=20, sample_every=5).progress.step == 20


def test_a_picture_that_cannot_be_written_costs_no_summary(tmp_path, capfd, monkeypatch):
    def full(directory):
        raise OSError(28, "No space left on device", str(directory / "loss.png"))

    monkeypatch.setattr(console, "draw_losses", full)
    watched(tmp_path, max_steps=5)
    err = capfd.readouterr().err
    assert "loss.png is not drawn: [Errno 28] No space left on device" in err
    assert "validation  " in err.split("loss.png is not drawn")[1]


def test_only_the_first_process_speaks(tmp_path, capfd, pictures, monkeypatch):
    monkeypatch.setattr("model.training.trainer.evaluate", lambda *_: 1.0)
    watched(tmp_path, ranks=Ranks(rank=1), max_steps=10, sample_every=5)
    assert capfd.readouterr() == ("", "")
    assert pictures == []
