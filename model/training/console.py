"""What a run looks like in the terminal: a bar and notes on stderr, samples on stdout."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tqdm import tqdm

from ..generation import generate
from ..text.tokenizer import Tokenizer
from .config import TrainArgs
from .loop import Progress, Trainer, Watcher
from .metrics import bits_per_byte


def note(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


class Console(Watcher):
    """The bar counts steps, or seconds where the run is given minutes. Ctrl-C and SIGTERM end the run after a step."""

    def __init__(self, args: TrainArgs, tokenizer: Tokenizer, progress: Progress) -> None:
        self.args, self.tokenizer = args, tokenizer
        self.by_clock = args.minutes is not None and args.max_steps is None
        self.signal = 0
        self.bar = tqdm(
            total=round(60 * args.minutes) if args.minutes and self.by_clock else args.max_steps or 2000,
            initial=self._done(progress),
            unit="s" if self.by_clock else "step",
            bar_format="{percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} {unit}, {remaining} left{postfix}",
            dynamic_ncols=True,
        )

    def _done(self, progress: Progress) -> int:
        return int(progress.wall_seconds) if self.by_clock else progress.step

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take over the signals; the second Ctrl-C is not caught, for those who cannot wait for the step."""

        def remember(number: int, frame: FrameType | None) -> None:
            self.signal = number
            signal.signal(number, before[number])

        before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.bar.close()

    def wants_stop(self) -> bool:
        return self.signal != 0

    def after_step(self, trainer: Trainer, figures: dict[str, float]) -> None:
        progress = trainer.progress
        text = {"loss": f"{figures['train_loss']:.3f}", "tok/s": f"{figures['tokens_per_second']:,.0f}"}
        if progress.best_step:
            text |= {"val": f"{progress.val_loss:.3f}"}
        self.bar.set_postfix(text, refresh=False)
        self.bar.update(min(self._done(progress), self.bar.total) - self.bar.n)
        if "val_loss" in figures:
            note(
                f"step {progress.step}: train {figures['train_loss']:.3f}, validation {figures['val_loss']:.3f} nats per "
                f"token ({figures['val_bits_per_byte']:.3f} bits per byte){', the best' * (progress.best_step == progress.step)}"
            )
        every = self.args.sample_every
        if every and progress.step % every == 0 and not self.args.fsdp:
            self.show_sample(trainer)

    def show_sample(self, trainer: Trainer) -> None:
        prompt = self.tokenizer.encode(self.args.sample_prompt)
        room = trainer.context - len(prompt)
        tokens = generate(trainer.model, [prompt], max_new_tokens=min(120, room), temperature=0.8, top_p=0.95, seed=1)
        text = self.tokenizer.decode([token for (token,) in tokens if token is not None])
        tqdm.write(f"--- sample at step {trainer.progress.step}\n{self.args.sample_prompt}{text}\n---", file=sys.stdout)


def summary(trainer: Trainer, data: Any) -> str:
    """The last words of a run: what came out, where it is, what to type next."""
    progress, model = trainer.progress, trainer.model
    best = progress.best_val_loss
    parameters = sum(p.numel() for p in model.parameters())
    rate = progress.tokens / progress.train_seconds if progress.train_seconds else 0.0
    rows = {
        "parameters": f"{parameters:,}",
        "trained on": f"{progress.tokens:,} tokens in {progress.step:,} steps, {progress.wall_seconds:.0f} s",
        "speed": f"{rate:,.0f} tokens/s",
        "best validation loss": f"{best:.4f} nats per token, "
        f"{bits_per_byte(best, trainer.dataset.val_tokens_per_byte):.3f} bits per byte, at step {progress.best_step}",
        "run directory": str(trainer.directory),
        "next": f"python generate.py {trainer.directory} --prompt {self_prompt(trainer)}",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:>{width}}  {value}" for name, value in rows.items())
