"""What is said of a run: before it, what it will take; after it, what came out. console.py shows it."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
import torch

from ..cli import quantity, script_command
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..text.token_cache import cache_home
from .config import TrainArgs
from .estimate import PROCESS, disk_needed, free_memory, peak_memory, readable_size
from .evaluation import bits_per_byte
from .sizing import Forecast
from .trainer import Progress

FEW_STEPS = 100
LONG_PROMPT = 30  # characters
CJK = r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"  # kana and Chinese characters


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before its first step, and does not change while it trains."""

    args: TrainArgs
    model: ModelArgs
    parameters: int
    dataset: Dataset
    device: torch.device
    dtype: torch.dtype  # of the products
    processes: int
    unigram: float  # nats per token of guessing each token by its frequency alone

    def tokens_after(self, steps: float) -> float:
        """The tokens that so many steps train on."""
        return steps * self.args.batch_size * self.model.max_seq_len

    def passes_after(self, steps: float) -> str:
        """How often the training text is seen in so many steps."""
        count = self.tokens_after(steps) / len(self.dataset.train)
        number = f"{count:,.0f}" if count >= 10 else f"{max(count, 0.001):.2g}"
        return f"{number} {'pass' if number == '1' else 'passes'} over the text"


def announcement(
    run: RunFacts, first_step: int = 0, changes: tuple[str, ...] = (), forecast: Forecast | None = None
) -> str:
    """What the run will take, as far as it is known before its first step.

    A run that is resumed has taken ``first_step`` steps already, and ``changes`` are what is set differently now.
    """
    args, model = run.args, run.model
    rows = {
        "model": f"{quantity(run.parameters, 'parameter')}: {quantity(model.n_layers, 'layer')} of width {model.dim}, "
        f"{quantity(model.n_heads, 'head')}, on {run.device} in {str(run.dtype).removeprefix('torch.')}"
        f"{_threads(run.device)}",
        "memory": memory_and_disk(run),
        "text": described(run.dataset, model.vocab_size),
        "guessing": f"costs {math.log(model.vocab_size):.3f} nats per token uniformly, {run.unigram:.3f} by frequency",
        "training": f"{_length(run)}, dropout {args.dropout:g}",
        "directory": f"{args.out_dir}",
    }
    if forecast:
        rows["expected"] = expectation(run, forecast)
    if args.init_from:
        rows["fine-tuning"] = f"{args.init_from}, lr {args.lr:g}, muon_lr {args.muon_lr:g}"
    if first_step or changes:
        rows["resuming"] = "; ".join((f"after step {first_step}", *changes))
    return format_rows(rows)


def _threads(device: torch.device) -> str:
    if device.type != "cpu":
        return ""
    return f", {quantity(torch.get_num_threads(), 'thread')}"


def _length(run: RunFacts) -> str:
    """The size of a step and how far the run goes, in steps, minutes or both."""
    args = run.args
    parts = [f"{args.batch_size} x {run.model.max_seq_len} tokens a step"]
    if args.step_limit < math.inf:
        steps = int(args.step_limit)
        tokens = int(run.tokens_after(steps))
        parts.append(f"{quantity(steps, 'step')}: {quantity(tokens, 'token')}, {run.passes_after(steps)}")
    if args.minutes:
        parts.append(f"{duration(60 * args.minutes)} {'at most' if args.max_steps else 'in all'}")
    return ", ".join(parts)


def described(data: Dataset, vocab_size: int) -> str:
    """The text as tokens, and where they are kept."""
    place, size = cache_home(), data.train.nbytes + data.val.nbytes
    if isinstance(data.train, np.memmap) and data.train.filename:
        place = Path(data.train.filename).parent
    return (
        f"{quantity(len(data.train), 'token')} to train on, {len(data.val):,} for validation, "
        f"{data.val_bytes / max(len(data.val), 1):.2f} bytes each, vocabulary of {vocab_size:,}; cached in {place} "
        f"({readable_size(size)})"
    )


def memory_and_disk(run: RunFacts) -> str:
    """The most memory that the process will take on a CPU, or on the device; and the run directory's size."""
    most = peak_memory(run.model, run.args, run.dtype, run.processes)
    if run.device.type == "cpu":
        most += PROCESS
    text = f"about {readable_size(most)} at most"
    if available := free_memory(run.device):
        text += f", {readable_size(available)} free"
    return f"{text}; {readable_size(disk_needed(run.model, run.args))} on disk"


def expectation(run: RunFacts, forecast: Forecast) -> str:
    """The predicted loss if there is one, and after how many steps."""
    loss = forecast.loss
    steps = quantity(forecast.steps, "step")
    text = f"{steps}, {run.passes_after(forecast.steps)}, at {forecast.tokens_per_second:,.0f} tokens/s"
    if loss is not None and loss < run.unigram:
        text = f"about {loss:.2f} nats per token, {bits_per_byte(loss, run.dataset):.2f} bits per byte, after {text}"
    if forecast.ends_early:
        seconds = run.tokens_after(forecast.steps) / forecast.tokens_per_second
        text += f", ending after about {duration(seconds)}: more passes would not make it better"
    if loss is not None and loss > 0.9 * run.unigram:
        text += "; too little to learn much from: give more text or more minutes"
    elif forecast.steps < FEW_STEPS:
        text += f"; fewer than {FEW_STEPS} steps teach little: give more minutes, or a smaller --batch_size"
    return text


def overfitting(progress: Progress, train_loss: float | None) -> str | None:
    """The warning for a run that is memorising the training text; ``train_loss`` is a mean over the last steps.

    A validation loss 3% above its best has left it by more than the noise between two validations. While a model still
    learns something general, its training loss stays above 0.7 of its validation loss.
    """
    loss, best = progress.val_loss, progress.best_val_loss
    advice = "more text, fewer minutes or steps, --dropout 0.1, or a smaller --dim or --n_layers help"
    if loss is None or best is None:
        return None
    if loss > 1.03 * best:
        return f"the run overfits: validation rose to {loss:.3f} from {best:.3f} at step {progress.best_step}; {advice}"
    if train_loss is not None and train_loss < 0.7 * loss:
        return f"the run overfits: the training loss is {train_loss:.3f}, validation {loss:.3f}; {advice}"
    return None


def summary(run: RunFacts, progress: Progress, train_loss: float | None = None, text: str = "") -> str:
    """What came out, where it is, what to type next.

    ``train_loss`` is a mean over the last steps, ``text`` the beginning of what was trained on.
    """
    best = progress.best_val_loss
    seconds = quantity(round(progress.wall_seconds), "second")
    trained = f"{quantity(progress.tokens, 'token')}, {run.passes_after(progress.step)}, {seconds}"
    rows = {
        "parameters": f"{run.parameters:,}",
        "trained": f"{quantity(progress.step, 'step')}, {trained}",
        "speed": f"{progress.tokens / max(progress.train_seconds, 1e-9):,.0f} tokens/s",
    }
    if best is not None:
        rows["validation"] = (
            f"{best:.4f} nats per token, {bits_per_byte(best, run.dataset):.3f} bits per byte "
            f"(best, at step {progress.best_step:,}); guessing by frequency {run.unigram:.4f}"
        )
        if best >= run.unigram:
            rows["note"] = "no better than guessing: train longer, on more text, or with other --lr and --muon_lr"
    if warning := overfitting(progress, train_loss):
        rows["overfitting"] = warning
    directory = str(run.args.out_dir)
    network = f" --network {quote(run.args.network)}" if run.args.network else ""
    rows["run directory"] = directory
    prompt = first_words(text)
    asked = f" --prompt {quote(prompt)}" if prompt else ""
    rows["next"] = f"{script_command('generate')} {quote(directory)}{network}{asked}"
    return format_rows(rows)


def first_words(text: str) -> str:
    """A prompt such as the text begins: its first three words, or the first signs of a word that is too long for one.

    Chinese and Japanese have no spaces between words.
    """
    found = re.search(r"[^\W_]\S*(?:[^\S\r\n]+\S+){0,2}", text)  # begins with a letter or digit, not like a flag
    if not found:
        return ""
    words = found[0]
    if len(words) > LONG_PROMPT:
        words = words.split()[0]
    if len(words) > LONG_PROMPT or re.match(CJK, words):
        run_of_letters = re.match(r"\w{1,8}", words)
        words = run_of_letters[0] if run_of_letters else words[:8]
    return words


def how_to_resume(directory: Path) -> str:
    return f"{script_command('train')} --resume --out_dir {quote(str(directory))}"


def format_rows(rows: dict[str, str]) -> str:
    """One line a row, its name padded."""
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())


def duration(seconds: float) -> str:
    """90 seconds are "1:30"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
