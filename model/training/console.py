"""What a run looks like in the terminal: a bar and notes on stderr, samples on stdout."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tqdm import tqdm

from ..generation import generate
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .config import DEFAULT_STEPS, TrainArgs
from .loop import Progress, Trainer, Watcher
from .metrics import bits_per_byte

SAMPLE_TOKENS = 120


def note(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


class Console(Watcher):
    """The bar counts steps, or seconds where the run is given minutes. Ctrl-C and SIGTERM end the run after a step."""

    def __init__(self, args: TrainArgs, tokenizer: Tokenizer, progress: Progress, speaks: bool = True) -> None:
        self.args, self.tokenizer, self.speaks = args, tokenizer, speaks
        self.by_clock = args.minutes is not None and args.max_steps is None
        self.signal = 0
        self.bar = tqdm(
            total=round(60 * (args.minutes or 0)) if self.by_clock else args.max_steps or DEFAULT_STEPS,
            initial=self._done(progress),
            bar_format="{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt}{unit} {remaining} left{postfix}",
            unit=" s" if self.by_clock else " steps",
            disable=not speaks,
            dynamic_ncols=True,
        )

    def _done(self, progress: Progress) -> int:
        return int(progress.wall_seconds) if self.by_clock else progress.step

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take over the signals; a second Ctrl-C is not caught, for those who cannot wait for the step."""

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

    def greet(self, trainer: Trainer, changes: tuple[str, ...]) -> None:
        if not self.speaks:
            return
        data, progress = trainer.dataset, trainer.progress
        note(
            f"{count_parameters(trainer.model):,} parameters on {trainer.device} in {trainer.dtype}".replace(
                "torch.", ""
            )
        )
        note(f"{len(data.train):,} tokens to train on, {len(data.val):,} to validate with; writing {trainer.directory}")
        if progress.step:
            note(f"going on after step {progress.step}" + "".join(f"; {change}" for change in changes))

    def after_step(self, trainer: Trainer, figures: dict[str, float]) -> None:
        if not self.speaks:
            return
        progress = trainer.progress
        postfix = f", loss {figures['train_loss']:.3f}"
        if progress.best_step:
            postfix += f", validation {progress.val_loss:.3f}"
        self.bar.set_postfix_str(f"{postfix[2:]}, {figures['tokens_per_second']:,.0f} tokens/s", refresh=False)
        self.bar.update(min(self._done(progress), self.bar.total) - self.bar.n)
        every = self.args.sample_every
        if "val_loss" in figures:
            best = ", the best so far" if progress.best_step == progress.step else ""
            note(f"step {progress.step}: validation {progress.val_loss:.3f} nats per token{best}")
        if every and progress.step % every == 0 and not self.args.fsdp:
            self.show_sample(trainer)

    def show_sample(self, trainer: Trainer) -> None:
        prompt = self.tokenizer.encode(self.args.sample_prompt)
        length = min(SAMPLE_TOKENS, trainer.context - len(prompt))
        steps = generate(trainer.model, [prompt], max_new_tokens=length, temperature=0.8, top_p=0.95, seed=1)
        text = self.tokenizer.decode([token for (token,) in steps if token is not None])
        tqdm.write(
            f"\n--- sample at step {trainer.progress.step} ---\n{self.args.sample_prompt}{text}\n", file=sys.stdout
        )

    def farewell(self, trainer: Trainer) -> None:
        if not self.speaks:
            return
        if self.signal:
            name = signal.Signals(self.signal).name
            note(f"stopped by {name} after step {trainer.progress.step}, which is saved; to go on:")
            note(f"python train.py --resume --out_dir {trainer.directory}")
        else:
            print(summary(trainer))


def count_parameters(model: Transformer) -> int:
    return sum(p.numel() for p in model.parameters())


def summary(trainer: Trainer) -> str:
    """The last words of a run: what came out, where it is, what to type next."""
    progress, best = trainer.progress, trainer.progress.best_val_loss
    bits = bits_per_byte(best, trainer.dataset.val_tokens_per_byte)
    rows = {
        "parameters": f"{count_parameters(trainer.model):,}",
        "trained": f"{progress.step:,} steps, {progress.tokens:,} tokens, {progress.wall_seconds:.0f} seconds",
        "speed": f"{progress.tokens / max(progress.train_seconds, 1e-9):,.0f} tokens/s",
        "validation": f"{best:.4f} nats per token, {bits:.3f} bits per byte (best, at step {progress.best_step:,})",
        "run directory": f"{trainer.directory}",
        "next": f'python generate.py {trainer.directory} --prompt "Once"',
    }
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
