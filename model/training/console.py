"""Show a run in the terminal: announcement, progress bar and summary on stderr, samples on stdout."""

import math
import signal
import sys
from contextlib import suppress
from typing import Self, TextIO

from tqdm import tqdm

from ..cli import quantity
from ..decoding.batches import generate
from ..text.tokenizer import Tokenizer
from .distributed import unsharded
from .pace import Pace
from .plot import draw_losses
from .sizing import Forecast
from .summary import (
    announcement,
    duration,
    format_rows,
    overfitting_warning,
    resume_command,
    run_facts,
    summary,
)
from .trainer import Trainer

SAMPLE_TOKENS = 120
PROMPT_TOKENS = 60  # the first tokens of the text, from which the summary makes the prompt of its example command


class Console:
    """Prints in the first process only. As a context manager, it shows the progress bar."""

    def __init__(self, trainer: Trainer, tokenizer: Tokenizer, start_text: str = "") -> None:
        """``start_text`` comes before each sample if there is no ``sample_prompt``; it is not shown."""
        self.trainer = trainer
        self.tokenizer = tokenizer
        self.start_text = start_text
        self.args = trainer.args
        self.prints = trainer.ranks.is_first
        self.facts = run_facts(trainer.model, trainer.args, trainer.dataset, trainer.device, trainer.ranks)
        self.pace = Pace(trainer.args)
        self.by_clock = self.args.step_limit == math.inf  # the bar counts seconds instead of steps
        self.total = math.ceil(60 * (self.args.minutes or 0)) if self.by_clock else int(self.args.step_limit)
        self.bar = tqdm(disable=True)
        self.length_shown = False
        self.overfitting_shown = False
        self.train_loss: float | None = None  # moving average over about 20 steps

    def __enter__(self) -> Self:
        with suppress(OSError, ValueError):  # if stderr is closed, train without a bar
            self.bar = tqdm(
                total=self.total,
                initial=self._done(),
                bar_format="{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt}{unit}{postfix}",
                unit=" s" if self.by_clock else " steps",
                mininterval=0.1 if sys.stderr.isatty() else 10,  # fewer lines in a log file
                disable=not self.prints,
                dynamic_ncols=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, ValueError):
            self.bar.close()

    def write_line(self, text: str, file: TextIO | None = None) -> None:
        """Write a line above the bar. Training goes on if the stream is closed."""
        if self.prints:
            with suppress(OSError, ValueError):
                tqdm.write(text, file=file or sys.stderr)
                (file or sys.stderr).flush()

    def announce(self, changes: tuple[str, ...] = (), forecast: Forecast | None = None) -> None:
        """Print the ``announcement``."""
        if self.prints:
            self.write_line(announcement(self.facts, self.trainer.progress.step, changes, forecast))

    def show(self, measured: dict[str, float]) -> None:
        """Show the measured values of a step. Every process must call it after each step."""
        progress = self.trainer.progress
        if self.prints:
            self.pace.update(progress.step, progress.wall_seconds)
            if "train_loss" in measured:
                self._average(measured["train_loss"])
            self._show_length()
            self._update_bar(measured)
            if "val_loss" in measured:
                self._show_validation(measured["val_loss"])
        if self.args.sample_every and progress.step % self.args.sample_every == 0 and progress.step:
            self._show_sample()

    def _average(self, loss: float) -> None:
        self.train_loss = loss if self.train_loss is None else 0.95 * self.train_loss + 0.05 * loss

    def _show_length(self) -> None:
        """Print the estimated length of the run once, as soon as the estimate is reliable."""
        if self.pace.is_reliable and not self.length_shown:
            self.length_shown = True
            steps = self.pace.total_steps
            time_left = duration(self.pace.seconds_left)
            text = f"about {quantity(round(steps), 'step')}, {self.facts.epochs_after(steps)}, {time_left} left"
            self.write_line(format_rows({"length": text}))

    def _update_bar(self, measured: dict[str, float]) -> None:
        seconds_left = self.pace.seconds_left
        validation = self.trainer.progress.val_loss
        parts = []
        if seconds_left < math.inf:
            parts.append(f"{duration(seconds_left)} left")
        if "train_loss" in measured:
            parts.append(f"loss {measured['train_loss']:.3f}")
        if validation is not None:
            parts.append(f"validation {validation:.3f}")
        if "tokens_per_second" in measured:
            parts.append(f"{measured['tokens_per_second']:,.0f} tokens/s")
        with suppress(OSError, ValueError):
            self.bar.set_postfix_str(", ".join(parts), refresh=False)
            self.bar.update(min(self._done(), self.total) - self.bar.n)

    def _done(self) -> int:
        """The position of the bar, in seconds or steps."""
        progress = self.trainer.progress
        return int(progress.wall_seconds) if self.by_clock else progress.step

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

    def finish(self) -> None:
        """Draw the losses, then print the summary, or the command that resumes an interrupted run."""
        trainer = self.trainer
        if self.prints and trainer.directory:
            try:
                draw_losses(trainer.directory)
            except OSError as error:  # the trained model is saved all the same
                self.write_line(f"loss.png could not be written: {error}")
        if trainer.stopped_by and trainer.directory:
            name = signal.Signals(trainer.stopped_by).name
            self.write_line(f"stopped by {name}; step {trainer.progress.step} is saved; to resume:")
            self.write_line(resume_command(trainer.directory))
        elif self.prints:
            beginning = self.tokenizer.decode(trainer.dataset.train[:PROMPT_TOKENS].tolist())
            self.write_line(summary(self.facts, trainer.progress, self.train_loss, beginning))
