"""A run in the terminal: what it will take, a progress bar and notes on stderr, samples on stdout, signals."""

import math
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, Self, TextIO

from tqdm import tqdm

from ..decoding.batches import generate
from ..text.tokenizer import Tokenizer
from .distributed import whole
from .evaluation import guessing_losses
from .sizing import Forecast
from .summary import announcement, draw_losses, duration, how_to_resume, overfitting, passes, summary, table
from .trainer import Trainer

SAMPLE_TOKENS = 120
PACE_STEPS = 20  # after so many steps, or as many seconds, the run's length is foretold


class Console:
    """Speaks for the first process; the others say nothing. As a context it shows the bar and takes the signals.

    Ctrl-C and SIGTERM end the run after a step. A second Ctrl-C is not caught, for those who cannot wait for the step;
    but torchrun sends each one twice.
    """

    def __init__(self, trainer: Trainer, tokenizer: Tokenizer) -> None:
        self.trainer, self.tokenizer, self.args = trainer, tokenizer, trainer.args
        self.speaks = trainer.ranks.is_first
        limit = self.args.step_limit
        self.by_clock = limit == math.inf  # the bar counts seconds
        self.handlers: dict[int, Any] = {}
        self.total = int(limit) if limit < math.inf else math.ceil(60 * (self.args.minutes or 0))
        self.bar = tqdm(disable=True)
        self.first: tuple[int, float] | None = None  # step and wall seconds after the first step of this session
        self.pace_shown = self.overfits = False
        self.train_loss: float | None = None  # mean over some 20 steps
        self.unigram = guessing_losses(trainer.dataset, trainer.model.args.vocab_size)[0] if self.speaks else 0.0

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._remember)
        with suppress(OSError, ValueError):  # nobody reads: train without a bar
            self.bar = tqdm(
                total=self.total,
                initial=self._done(),
                bar_format="{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt}{unit}{postfix}",
                unit=" s" if self.by_clock else " steps",
                mininterval=0.1 if sys.stderr.isatty() else 10,  # a log file wants fewer lines
                disable=not self.speaks,
                dynamic_ncols=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, ValueError):
            self.bar.close()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.trainer.stop_signal = number
        if self.trainer.ranks.world_size == 1:
            signal.signal(number, self.handlers[number])

    def note(self, text: str, file: TextIO | None = None) -> None:
        """A line above the bar. Who reads may have gone: that ends no training."""
        if self.speaks:
            with suppress(OSError, ValueError):  # a closed pipe, a closed file
                tqdm.write(text, file=file or sys.stderr)
                (file or sys.stderr).flush()

    def announce(self, changes: tuple[str, ...] = (), forecast: Forecast | None = None) -> None:
        """What the run will take, as far as it is known before the first step."""
        if self.speaks:
            self.note(announcement(self.trainer, self.unigram, changes, forecast))

    def show(self, measured: dict[str, float]) -> None:
        """After each step, in every process."""
        progress = self.trainer.progress
        if self.speaks:
            if "train_loss" in measured:
                last = measured["train_loss"]
                self.train_loss = last if self.train_loss is None else 0.95 * self.train_loss + 0.05 * last
            self._update_bar(measured)
            if "val_loss" in measured:
                self._show_validation(measured["val_loss"])
        if self.args.sample_every and progress.step % self.args.sample_every == 0 and progress.step:
            self._show_sample()

    def _update_bar(self, measured: dict[str, float]) -> None:
        trainer, progress = self.trainer, self.trainer.progress
        self.first = self.first or (progress.step, progress.wall_seconds)
        steps, seconds = progress.step - self.first[0], progress.wall_seconds - self.first[1]
        left = self._steps_left() * seconds / steps if steps >= 3 else math.inf
        if self.args.minutes and (self.by_clock or left < math.inf):  # else the steps may end it long before
            left = min(left, max(60 * self.args.minutes - progress.wall_seconds, 0))
        if not self.pace_shown and steps >= 3 and (steps >= PACE_STEPS or seconds >= PACE_STEPS):
            self.pace_shown = True
            total = min(self.args.step_limit, progress.step + left * steps / max(seconds, 1e-9))
            self.note(table({"pace": f"about {total:,.0f} steps, {passes(total, trainer)}, {duration(left)} left"}))
        parts = [f"{duration(left)} left"] if left < math.inf else []
        parts += [f"loss {measured['train_loss']:.3f}"] if "train_loss" in measured else []
        parts += [f"validation {progress.val_loss:.3f}"] if progress.val_loss is not None else []
        parts += [f"{measured['tokens_per_second']:,.0f} tokens/s"] if "tokens_per_second" in measured else []
        with suppress(OSError, ValueError):
            self.bar.set_postfix_str(", ".join(parts), refresh=False)
            self.bar.update(min(self._done(), self.total) - self.bar.n)

    def _show_validation(self, loss: float) -> None:
        progress = self.trainer.progress
        best = ", the best so far" if progress.best_step == progress.step else ""
        if loss >= self.unigram:
            best = f", worse than guessing by frequency ({self.unigram:.3f})"
        where = f"step {progress.step}" if progress.step else "before the first step"
        self.note(f"{where}: validation {loss:.3f} nats per token{best}")
        warning = overfitting(progress, self.train_loss)
        if warning and not self.overfits:
            self.note(warning)
            self.overfits = True

    def _show_sample(self) -> None:
        trainer = self.trainer
        model = whole(trainer.model, trainer.network_class)  # which every process must call
        if not self.speaks:
            return
        prompt = self.tokenizer.encode(self.args.sample_prompt)
        length = min(SAMPLE_TOKENS, model.args.max_seq_len - len(prompt))
        ends, step = self.tokenizer.eos_ids, trainer.progress.step
        rows = generate(model, [prompt], length, temperature=0.7, top_p=0.9, seed=step, eos_ids=ends)
        text = self.tokenizer.decode([token for (token,) in rows if token is not None])
        self.note(f"\n--- sample at step {step} ---\n{self.args.sample_prompt}{text}\n", file=sys.stdout)

    def finish(self) -> None:
        trainer = self.trainer
        if self.speaks and trainer.directory:
            try:
                draw_losses(trainer.directory)
            except OSError as error:  # the run is done all the same
                self.note(f"loss.png is not drawn: {error}")
        if trainer.stopped_by and trainer.directory:
            name = signal.Signals(trainer.stopped_by).name
            self.note(f"stopped by {name}; step {trainer.progress.step} is saved; to go on:")
            self.note(how_to_resume(trainer.directory))
        elif self.speaks:
            self.note(summary(trainer, self.unigram, self.train_loss))

    def _done(self) -> int:
        progress = self.trainer.progress
        return int(progress.wall_seconds) if self.by_clock else progress.step

    def _steps_left(self) -> float:
        return max(self.args.step_limit - self.trainer.progress.step, 0)
