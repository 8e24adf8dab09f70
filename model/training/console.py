"""What a run looks like in the terminal: a bar and notes on stderr, samples on stdout, a picture in the directory."""

import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any, TextIO

from tqdm import tqdm

from ..generation import generate
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .config import DEFAULT_STEPS, TrainArgs
from .distributed import Ranks, whole
from .loop import Trainer
from .metrics import bits_per_byte
from .plot import draw_losses
from .progress import Progress, Watcher

SAMPLE_TOKENS = 120


class Console(Watcher):
    """The bar counts steps, or seconds where the run is given minutes. Ctrl-C and SIGTERM end the run after a step."""

    def __init__(self, args: TrainArgs, tokenizer: Tokenizer, ranks: Ranks) -> None:
        self.args, self.tokenizer, self.ranks = args, tokenizer, ranks
        self.by_clock = args.minutes is not None and args.max_steps is None
        self.received = 0
        self.bar = tqdm(disable=True)

    def note(self, text: str, file: TextIO | None = None) -> None:
        """One process speaks for all of them."""
        if self.ranks.is_first:
            tqdm.write(text, file=file or sys.stderr)

    def _done(self, progress: Progress) -> int:
        return int(progress.wall_seconds) if self.by_clock else progress.step

    @contextmanager
    def watching(self, trainer: Trainer, changes: tuple[str, ...]) -> Iterator[None]:
        """Show the bar and take over the signals.

        A second Ctrl-C is not caught, for those who cannot wait for the step; but torchrun sends each one twice.
        """
        alone = self.ranks.world_size == 1

        def remember(number: int, frame: FrameType | None) -> None:
            self.received = number
            if alone:
                signal.signal(number, before[number])

        before: dict[int, Any] = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
        self.greet(trainer, changes)
        self.bar = tqdm(
            total=math.ceil(60 * (self.args.minutes or 0)) if self.by_clock else self.args.max_steps or DEFAULT_STEPS,
            initial=self._done(trainer.progress),
            bar_format="{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt}{unit} {remaining} left{postfix}",
            unit=" s" if self.by_clock else " steps",
            mininterval=0.1 if sys.stderr.isatty() else 10,  # a log file wants fewer lines
            disable=not self.ranks.is_first,
            dynamic_ncols=True,
        )
        try:
            yield
        finally:
            self.bar.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def signal(self) -> int:
        return self.received

    def greet(self, trainer: Trainer, changes: tuple[str, ...]) -> None:
        data, step = trainer.dataset, trainer.progress.step
        dtype = str(trainer.dtype).removeprefix("torch.")
        self.note(f"{count_parameters(trainer.model):,} parameters on {trainer.device} in {dtype}")
        self.note(f"{len(data.train):,} tokens to train on, {len(data.val):,} to validate with; {trainer.directory}")
        if step or changes:
            self.note("; ".join((f"going on after step {step}", *changes)))

    def after_step(self, trainer: Trainer, figures: dict[str, float]) -> None:
        progress = trainer.progress
        validation = f"validation {progress.val_loss:.3f}, " if progress.val_loss is not None else ""
        self.bar.set_postfix_str(
            f"loss {figures['train_loss']:.3f}, {validation}{figures['tokens_per_second']:,.0f} tokens/s", refresh=False
        )
        self.bar.update(min(self._done(progress), self.bar.total) - self.bar.n if self.ranks.is_first else 0)
        if "val_loss" in figures:
            best = ", the best so far" if progress.best_step == progress.step else ""
            self.note(f"step {progress.step}: validation {progress.val_loss:.3f} nats per token{best}")
        if self.args.sample_every and progress.step % self.args.sample_every == 0:
            model = whole(trainer.model)
            if self.ranks.is_first:
                self.show_sample(model, progress.step)

    def show_sample(self, model: Transformer, step: int) -> None:
        prompt = self.tokenizer.encode(self.args.sample_prompt)
        length = min(SAMPLE_TOKENS, model.args.max_seq_len - len(prompt))
        ends = self.tokenizer.eos_ids
        rows = generate(model, [prompt], length, temperature=0.7, top_p=0.9, seed=step, eos_ids=ends)
        text = self.tokenizer.decode([token for (token,) in rows if token is not None])
        self.note(f"\n--- sample at step {step} ---\n{self.args.sample_prompt}{text}\n", file=sys.stdout)

    def farewell(self, trainer: Trainer) -> None:
        if self.ranks.is_first:
            draw_losses(trainer.directory)
        if trainer.signal:
            name = signal.Signals(trainer.signal).name
            self.note(f"stopped by {name}; step {trainer.progress.step} is saved; to go on:")
            self.note(how_to_resume(trainer.directory))
        else:
            self.note(summary(trainer))


def how_to_resume(directory: Path) -> str:
    return f"python train.py --resume --out_dir {quote(str(directory))}"


def count_parameters(model: Transformer) -> int:
    return sum(p.numel() for p in model.parameters())


def summary(trainer: Trainer) -> str:
    """The last words of a run: what came out, where it is, what to type next."""
    progress, best = trainer.progress, trainer.progress.best_val_loss
    assert best is not None, "a run ends with a validation"
    rows = {
        "parameters": f"{count_parameters(trainer.model):,}",
        "trained": f"{progress.step:,} steps, {progress.tokens:,} tokens, {progress.wall_seconds:.0f} seconds",
        "speed": f"{progress.tokens / max(progress.train_seconds, 1e-9):,.0f} tokens/s",
        "validation": f"{best:.4f} nats per token, {bits_per_byte(best, trainer.dataset):.3f} bits per byte "
        f"(best, at step {progress.best_step:,})",
        "run directory": f"{trainer.directory}",
        "next": f'python generate.py {quote(str(trainer.directory))} --prompt "Once"',
    }
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
