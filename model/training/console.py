"""A run in the terminal: what it will take, a progress bar and notes on stderr, samples on stdout."""

import math
import signal
import sys
from contextlib import suppress
from typing import Self, TextIO

from tqdm import tqdm

from ..cli import quantity
from ..decoding.batches import generate
from ..text.tokenizer import Tokenizer
from .distributed import whole
from .evaluation import guessing_losses
from .pace import Pace
from .plot import draw_losses
from .sizing import Forecast
from .summary import RunFacts, announcement, duration, format_rows, how_to_resume, overfitting, summary
from .trainer import Trainer

SAMPLE_TOKENS = 120
PROMPT_TOKENS = 60  # from the beginning of the text, for the command that the summary ends with


class Console:
    """Speaks for the first process; the others say nothing. As a context it shows the progress bar."""

    def __init__(self, trainer: Trainer, tokenizer: Tokenizer, start_text: str = "") -> None:
        """``start_text`` is what samples continue if there is no ``sample_prompt``; it is not shown."""
        self.trainer = trainer
        self.tokenizer = tokenizer
        self.start_text = start_text
        self.args = trainer.args
        self.speaks = trainer.ranks.is_first
        self.facts = facts_of(trainer)
        self.pace = Pace(trainer.args)
        self.by_clock = self.args.step_limit == math.inf  # the bar counts seconds
        self.total = math.ceil(60 * (self.args.minutes or 0)) if self.by_clock else int(self.args.step_limit)
        self.bar = tqdm(disable=True)
        self.said_pace = False
        self.said_overfitting = False
        self.train_loss: float | None = None  # mean over some 20 steps

    def __enter__(self) -> Self:
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

    def write_line(self, text: str, file: TextIO | None = None) -> None:
        """A line above the bar. The reader may have closed the pipe: that ends no training."""
        if self.speaks:
            with suppress(OSError, ValueError):  # a closed pipe, a closed file
                tqdm.write(text, file=file or sys.stderr)
                (file or sys.stderr).flush()

    def announce(self, changes: tuple[str, ...] = (), forecast: Forecast | None = None) -> None:
        """What the run will take, as far as it is known before the first step."""
        if self.speaks:
            self.write_line(announcement(self.facts, self.trainer.progress.step, changes, forecast))

    def show(self, measured: dict[str, float]) -> None:
        """After each step, in every process."""
        progress = self.trainer.progress
        if self.speaks:
            self.pace.update(progress.step, progress.wall_seconds)
            if "train_loss" in measured:
                self._average(measured["train_loss"])
            self._show_pace()
            self._update_bar(measured)
            if "val_loss" in measured:
                self._show_validation(measured["val_loss"])
        if self.args.sample_every and progress.step % self.args.sample_every == 0 and progress.step:
            self._show_sample()

    def _average(self, loss: float) -> None:
        self.train_loss = loss if self.train_loss is None else 0.95 * self.train_loss + 0.05 * loss

    def _show_pace(self) -> None:
        """Once, as soon as it is known how far the run will get."""
        if self.pace.is_reliable and not self.said_pace:
            self.said_pace = True
            steps = self.pace.total_steps
            left = duration(self.pace.seconds_left)
            text = f"about {quantity(round(steps), 'step')}, {self.facts.passes_after(steps)}, {left} left"
            self.write_line(format_rows({"pace": text}))

    def _update_bar(self, measured: dict[str, float]) -> None:
        left = self.pace.seconds_left
        validation = self.trainer.progress.val_loss
        parts = []
        if left < math.inf:
            parts.append(f"{duration(left)} left")
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
        """In the bar's unit."""
        progress = self.trainer.progress
        return int(progress.wall_seconds) if self.by_clock else progress.step

    def _show_validation(self, loss: float) -> None:
        progress = self.trainer.progress
        comment = ", the best so far" if progress.best_step == progress.step else ""
        if loss >= self.facts.unigram:
            comment = f", worse than guessing by frequency ({self.facts.unigram:.3f})"
        where = f"step {progress.step}" if progress.step else "before the first step"
        self.write_line(f"{where}: validation {loss:.3f} nats per token{comment}")
        warning = overfitting(progress, self.train_loss)
        if warning and not self.said_overfitting:
            self.said_overfitting = True
            self.write_line(warning)

    def _show_sample(self) -> None:
        trainer = self.trainer
        model = whole(trainer.model, trainer.network_class)  # which every process must call
        if not self.speaks:
            return
        prompt = self.tokenizer.encode(self.args.sample_prompt or self.start_text)
        length = min(SAMPLE_TOKENS, model.args.max_seq_len - len(prompt))
        ends, step = self.tokenizer.eos_ids, trainer.progress.step
        rows = generate(model, [prompt], length, temperature=0.7, top_p=0.9, seed=step, eos_ids=ends)
        text = self.tokenizer.decode([token for (token,) in rows if token is not None])
        self.write_line(f"\n--- sample at step {step} ---\n{self.args.sample_prompt}{text}\n", file=sys.stdout)

    def finish(self) -> None:
        """After the last step: the picture, and the summary or how to resume."""
        trainer = self.trainer
        if self.speaks and trainer.directory:
            try:
                draw_losses(trainer.directory)
            except OSError as error:  # the run is done all the same
                self.write_line(f"loss.png is not drawn: {error}")
        if trainer.stopped_by and trainer.directory:
            name = signal.Signals(trainer.stopped_by).name
            self.write_line(f"stopped by {name}; step {trainer.progress.step} is saved; to go on:")
            self.write_line(how_to_resume(trainer.directory))
        elif self.speaks:
            start = self.tokenizer.decode(trainer.dataset.train[:PROMPT_TOKENS].tolist())
            self.write_line(summary(self.facts, trainer.progress, self.train_loss, start))


def facts_of(trainer: Trainer) -> RunFacts:
    vocab_size = trainer.model.args.vocab_size
    return RunFacts(
        args=trainer.args,
        model=trainer.model.args,
        parameters=sum(p.numel() for p in trainer.model.parameters()),
        dataset=trainer.dataset,
        device=trainer.device,
        dtype=trainer.dtype,
        processes=trainer.ranks.world_size,
        unigram=guessing_losses(trainer.dataset, vocab_size)[0] if trainer.ranks.is_first else 0.0,  # who speaks
    )
