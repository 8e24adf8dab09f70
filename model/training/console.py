"""Show a run in the terminal: announcement, progress bar and summary on stderr, samples on stdout; draw loss.png."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np
from tqdm import tqdm

from ..cli import explain_out_of_memory, quantity
from ..cli.files import displayable_name, write_atomically
from ..decoding.batches import generate
from ..text.tokenizer import Tokenizer
from .distributed import unsharded
from .run_directory import METRICS, read_metrics
from .sizing import Forecast
from .summary import announcement, overfitting_warning, resume_command, run_facts, summary
from .trainer import Trainer

SAMPLE_TOKENS = 120
PROMPT_TOKENS = 60  # the first tokens of the text, from which the summary makes the prompt of its example command


class Console:
    """Prints in the first process only."""

    def __init__(self, trainer: Trainer, tokenizer: Tokenizer, start_text: str = "") -> None:
        """``start_text`` comes before each sample if there is no ``sample_prompt``; it is not shown."""
        self.trainer = trainer
        self.tokenizer = tokenizer
        self.start_text = start_text
        self.args = trainer.args
        self.prints = trainer.ranks.is_first
        self.facts = run_facts(trainer.model, trainer.args, trainer.dataset, trainer.device, trainer.ranks)
        self.bar = tqdm(disable=True)
        self.overfitting_shown = False
        self.train_loss: float | None = None  # moving average over about 20 steps

    def write_line(self, text: str, file: TextIO | None = None) -> None:
        """Write a line above the bar. Training goes on if the stream is closed."""
        if self.prints:
            with suppress(OSError, ValueError):
                tqdm.write(text, file=file or sys.stderr)
                (file or sys.stderr).flush()

    def announce(self, changes: Sequence[str] = (), forecast: Forecast | None = None) -> None:
        """Print the ``announcement``."""
        if self.prints:
            directory = self.trainer.directory
            self.write_line(announcement(self.facts, directory, self.trainer.progress.step, changes, forecast))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the progress bar. Ctrl-C and SIGTERM end the run after a step; other failures end it with advice."""
        trainer = self.trainer
        rows = quantity(self.args.rows_at_once(trainer.ranks.world_size), "sequence")
        advice = f"lower --micro_batch_size (now {rows} at once), or train a smaller model"
        with suppress(OSError, ValueError):  # if stderr is closed, train without a bar
            self.bar = tqdm(
                total=1.0,  # the whole run, in steps or in minutes
                initial=trainer.fraction_done,
                bar_format="{percentage:3.0f}%|{bar:16}| {remaining} left{postfix}",
                mininterval=0.1 if sys.stderr.isatty() else 10,  # fewer lines in a log file
                disable=not self.prints,
                dynamic_ncols=True,
            )
        try:
            with explain_out_of_memory(advice, trainer.device), stopping_on_signals(trainer):
                yield
        except OSError as error:
            kept = f"the state of step {trainer.saved_step} is kept" if trainer.saved_step else "no step is saved yet"
            raise ValueError(
                f"{error.filename or trainer.directory}: {error.strerror or error}; {kept}; to resume: "
                f"{resume_command(trainer.directory)}"
            ) from None
        finally:
            with suppress(OSError, ValueError):
                self.bar.close()

    def show(self, measured: dict[str, float]) -> None:
        """Show the measured values of a step. Every process must call it after each step."""
        step = self.trainer.progress.step
        if self.prints:
            if "train_loss" in measured:
                loss = measured["train_loss"]
                self.train_loss = loss if self.train_loss is None else 0.95 * self.train_loss + 0.05 * loss
            self._update_bar(measured)
            if "val_loss" in measured:
                self._show_validation(measured["val_loss"])
        if self.args.sample_every and step % self.args.sample_every == 0 and step:
            self._show_sample()

    def _update_bar(self, measured: dict[str, float]) -> None:
        trainer = self.trainer
        parts = [f"step {trainer.progress.step:,}"]
        if "train_loss" in measured:
            parts.append(f"loss {measured['train_loss']:.3f}")
        if trainer.progress.val_loss is not None:
            parts.append(f"validation {trainer.progress.val_loss:.3f}")
        if "tokens_per_second" in measured:
            parts.append(f"{measured['tokens_per_second']:,.0f} tokens/s")
        with suppress(OSError, ValueError):
            self.bar.postfix = ", ".join(parts)
            self.bar.update(min(trainer.fraction_done, 1.0) - self.bar.n)

    def _show_validation(self, loss: float) -> None:
        progress = self.trainer.progress
        comment = ", the best so far" if progress.best_step == progress.step else ""
        if loss >= self.facts.unigram_loss:
            comment = f", no better than a unigram model ({self.facts.unigram_loss:.3f})"
        where = f"step {progress.step}" if progress.step else "before the first step"
        self.write_line(f"{where}: validation {loss:.3f} nats per token{comment}")
        warning = overfitting_warning(progress, self.train_loss)
        if warning and not self.overfitting_shown:
            self.overfitting_shown = True
            self.write_line(warning)

    def _show_sample(self) -> None:
        trainer = self.trainer
        model = unsharded(trainer.model, trainer.network_class)  # every process must call it
        if not self.prints:
            return
        prompt = self.tokenizer.encode(self.args.sample_prompt or self.start_text)
        length = min(SAMPLE_TOKENS, model.args.max_seq_len - len(prompt))
        eos_ids, step = self.tokenizer.eos_ids, trainer.progress.step
        rows = generate(model, [prompt], length, temperature=0.7, top_p=0.9, seed=step, eos_ids=eos_ids)
        new_tokens = [token for (token,) in rows if token is not None]
        # Decoded together with the prompt, because some tokenizers drop the space at the beginning of a text.
        text = self.tokenizer.decode([*prompt, *new_tokens]).removeprefix(self.tokenizer.decode(prompt))
        self.write_line(f"\n--- sample at step {step} ---\n{self.args.sample_prompt}{text}\n", file=sys.stdout)

    def finish(self) -> int:
        """Draw the losses, then print the summary, or the command that resumes an interrupted run; the exit code."""
        trainer = self.trainer
        if self.prints and trainer.directory:
            try:
                draw_losses(trainer.directory)
            except OSError as error:  # the trained model is saved all the same
                self.write_line(f"loss.png could not be written: {error}")
        if trainer.stopped_by:
            name = signal.Signals(trainer.stopped_by).name
            self.write_line(f"stopped by {name}; step {trainer.progress.step} is saved; to resume:")
            self.write_line(resume_command(trainer.directory))
            return 128 + trainer.stopped_by
        beginning = self.tokenizer.decode(trainer.dataset.train[:PROMPT_TOKENS].tolist())
        self.write_line(summary(self.facts, trainer.directory, trainer.progress, self.train_loss, beginning))
        return 0


@contextmanager
def stopping_on_signals(trainer: Trainer) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the run after the current step, with its state saved.

    In a single process, the same signal a second time interrupts even the step. If there are several processes, it has
    no effect, because all must stop after the same step.
    """
    handlers: dict[int, Any] = {}  # the previous handlers

    def stop_after_step(number: int, frame: FrameType | None) -> None:
        trainer.stop_signal = number
        if trainer.ranks.world_size == 1:
            signal.signal(number, handlers[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, stop_after_step)
    try:
        yield
    finally:
        for caught, handler in handlers.items():
            signal.signal(caught, handler)


def draw_losses(directory: Path) -> None:
    """Draw ``loss.png`` from ``metrics.jsonl`` in the same directory; does nothing without matplotlib."""
    metrics = read_metrics(directory / METRICS) if find_spec("matplotlib") else []
    if not metrics:
        return
    from matplotlib.figure import Figure

    train = [(line["step"], line["train_loss"]) for line in metrics if "train_loss" in line]
    validation = [(line["step"], line["val_loss"]) for line in metrics if "val_loss" in line]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*train), color="tab:blue", alpha=0.2, linewidth=0.7)
    mean = running_mean([loss for _, loss in train])
    axes.plot([step for step, _ in train], mean, color="tab:blue", label="training")
    if validation:
        best = min(loss for _, loss in validation)
        axes.plot(*zip(*validation), "o-", color="tab:orange", markersize=3, label=f"validation, best {best:.3f}")
    axes.set(xlabel="step", ylabel="loss in nats per token", title=displayable_name(directory.absolute().name))
    axes.grid(alpha=0.3)
    axes.legend()
    write_atomically(directory / "loss.png", lambda temporary: figure.savefig(temporary, format="png"))


def running_mean(values: list[float]) -> list[float]:
    """Mean over a centered window of a fiftieth of the values, cut off at both ends."""
    count = len(values)
    radius = count // 100
    sums = np.concatenate([[0.0], np.cumsum(values)])
    starts = np.maximum(np.arange(count) - radius, 0)
    ends = np.minimum(np.arange(count) + radius + 1, count)
    return ((sums[ends] - sums[starts]) / (ends - starts)).tolist()
