"""Format the announcement before a run, its warnings, and the summary after it, for console.py to print."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import torch

from ..cli import format_flags, format_path, quantity
from ..cli.machine import pick_dtype
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..text.token_cache import cache_home
from ..transformer import Transformer
from .config import TrainArgs
from .distributed import Ranks
from .estimate import PROCESS, disk_needed, free_memory, peak_memory, readable_size
from .evaluation import bits_per_byte, ngram_losses
from .sizing import Forecast
from .state import Progress

WARN_BELOW_STEPS = 100  # fewer steps teach little
MAX_PROMPT = 30  # characters of the prompt in the row ``next``, which is a command for generate.py
CJK = r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"  # kana and Chinese characters


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that are known before its first step and do not change. ``run_facts`` collects them."""

    args: TrainArgs
    model: ModelArgs
    parameters: int
    dataset: Dataset
    device: torch.device
    dtype: torch.dtype  # of matrix products
    processes: int
    unigram_loss: float  # nats per token when guessing each token by its frequency alone; 0 if not computed

    def tokens_after(self, steps: float) -> float:
        """The number of tokens trained on in this many steps."""
        return steps * self.args.batch_size * self.model.max_seq_len

    def epochs_after(self, steps: float) -> str:
        """The number of epochs in this many steps, for example "2.6 epochs"."""
        epochs = self.tokens_after(steps) / len(self.dataset.train)
        number = f"{epochs:,.0f}" if epochs >= 10 else f"{max(epochs, 0.001):.2g}"
        return f"{number} {'epoch' if number == '1' else 'epochs'}"


def run_facts(model: Transformer, args: TrainArgs, dataset: Dataset, device: torch.device, ranks: Ranks) -> RunFacts:
    return RunFacts(
        args=args,
        model=model.args,
        parameters=sum(p.numel() for p in model.parameters()),
        dataset=dataset,
        device=device,
        dtype=pick_dtype(args.dtype, device),
        processes=ranks.world_size,
        # only the first process prints it
        unigram_loss=ngram_losses(dataset, model.args.vocab_size)[0] if ranks.is_first else 0.0,
    )


def announcement(
    run: RunFacts,
    directory: Path | None,
    steps_done: int = 0,
    changes: Sequence[str] = (),
    forecast: Forecast | None = None,
) -> str:
    """The settings, size and forecast of the run, before its first step.

    A resumed run has already taken ``steps_done`` steps, and ``changes`` lists the settings that are different now.
    """
    args, model = run.args, run.model
    rows = {
        "model": f"{quantity(run.parameters, 'parameter')}: {quantity(model.n_layers, 'layer')} of width {model.dim}, "
        f"{quantity(model.n_heads, 'head')}, on {run.device} in {str(run.dtype).removeprefix('torch.')}"
        f"{_threads(run.device)}",
        "memory": describe_memory(run),
        "text": describe_text(run.dataset, model.vocab_size),
        "baselines": f"{math.log(model.vocab_size):.3f} nats per token for uniform guesses, {run.unigram_loss:.3f} for "
        "token frequencies",
        "training": f"{_describe_length(run)}, dropout {args.dropout:g}",
        "directory": f"{directory}",
    }
    if forecast:
        rows["expected"] = describe_forecast(run, forecast)
    if args.init_from:
        rows["fine-tuning"] = f"{args.init_from}, lr {args.lr:g}, muon_lr {args.muon_lr:g}"
    if steps_done or changes:
        rows["resuming"] = "; ".join((f"after step {steps_done}", *changes))
    return format_rows(rows)


def _threads(device: torch.device) -> str:
    if device.type != "cpu":
        return ""
    return f", {quantity(torch.get_num_threads(), 'thread')}"


def _describe_length(run: RunFacts) -> str:
    """The size of a step, and the length of the run in steps, minutes or both."""
    args = run.args
    parts = [f"{args.batch_size} x {run.model.max_seq_len} tokens per step"]
    if args.step_limit < math.inf:
        steps = int(args.step_limit)
        tokens = int(run.tokens_after(steps))
        parts.append(f"{quantity(steps, 'step')}: {quantity(tokens, 'token')}, {run.epochs_after(steps)}")
    if args.minutes:
        parts.append(f"{duration(60 * args.minutes)} {'at most' if args.max_steps else 'in all'}")
    return ", ".join(parts)


def describe_text(data: Dataset, vocab_size: int) -> str:
    """The size of the text in tokens, and the directory in which they are cached."""
    place, size = data.entry or cache_home(), data.train.nbytes + data.val.nbytes
    return (
        f"{quantity(len(data.train), 'token')} to train on, {len(data.val):,} for validation, "
        f"{data.val_bytes / max(len(data.val), 1):.2f} bytes each, vocabulary of {vocab_size:,}; cached in {place} "
        f"({readable_size(size)})"
    )


def describe_memory(run: RunFacts) -> str:
    """The estimated peak memory, which on a CPU includes Python and PyTorch, and the size of the run directory."""
    peak = peak_memory(run.model, run.args, run.dtype, run.processes)
    if run.device.type == "cpu":
        peak += PROCESS
    text = f"about {readable_size(peak)} at the peak"
    available = free_memory(run.device)
    if available:
        text += f", {readable_size(available)} free"
    return f"{text}; {readable_size(disk_needed(run.model, run.args))} on disk"


def describe_forecast(run: RunFacts, forecast: Forecast) -> str:
    """The predicted steps, the loss if it is below the unigram loss, and a warning if the run teaches little."""
    loss = forecast.loss
    steps = quantity(forecast.steps, "step")
    text = f"{steps}, {run.epochs_after(forecast.steps)}, at {forecast.tokens_per_second:,.0f} tokens/s"
    if loss is not None and loss < run.unigram_loss:
        text = f"about {loss:.2f} nats per token, {bits_per_byte(loss, run.dataset):.2f} bits per byte, after {text}"
    if forecast.ends_early:
        seconds = run.tokens_after(forecast.steps) / forecast.tokens_per_second
        text += f", ending after about {duration(seconds)}: more steps are hardly worth their time"
    if loss is not None and loss > 0.9 * run.unigram_loss:
        text += "; too little to learn much from: give more text or more minutes"
    elif forecast.steps < WARN_BELOW_STEPS and not forecast.ends_early:
        text += f"; fewer than {WARN_BELOW_STEPS} steps teach little: give more minutes, or a smaller --batch_size"
    return text


def overfitting_warning(progress: Progress, train_loss: float | None) -> str | None:
    """The warning that the model is memorising the training text; ``train_loss`` is a mean over the last steps.

    The limits are rules of thumb: a validation loss 3% above the best, and a training loss below 0.7 of the validation
    loss.
    """
    loss, best = progress.val_loss, progress.best_val_loss
    advice = "more text, fewer minutes or steps, --dropout 0.2, or a smaller --dim or --n_layers help"
    if loss is None or best is None:
        return None
    if loss > 1.03 * best:
        return f"the run overfits: validation is {loss:.3f}, and was {best:.3f} at step {progress.best_step}; {advice}"
    if train_loss is not None and train_loss < 0.7 * loss:
        return f"the run overfits: the training loss is {train_loss:.3f}, validation {loss:.3f}; {advice}"
    return None


def summary(
    run: RunFacts, directory: Path | None, progress: Progress, train_loss: float | None = None, text: str = ""
) -> str:
    """The result of the run, its directory, and the next command.

    ``train_loss`` is a mean over the last steps, ``text`` the beginning of the training text.
    """
    best = progress.best_val_loss
    seconds = quantity(round(progress.wall_seconds), "second")
    trained = f"{quantity(progress.tokens, 'token')}, {run.epochs_after(progress.step)}, {seconds}"
    rows = {
        "parameters": f"{run.parameters:,}",
        "trained": f"{quantity(progress.step, 'step')}, {trained}",
        "speed": f"{progress.tokens / max(progress.train_seconds, 1e-9):,.0f} tokens/s",
    }
    if best is not None:
        rows["validation"] = (
            f"{best:.4f} nats per token, {bits_per_byte(best, run.dataset):.3f} bits per byte "
            f"(best, at step {progress.best_step:,}); unigram model {run.unigram_loss:.4f}"
        )
        if best >= run.unigram_loss:
            rows["note"] = (
                "no better than a unigram model: train longer, on more text, or with other --lr and --muon_lr"
            )
    warning = overfitting_warning(progress, train_loss)
    if warning:
        rows["overfitting"] = warning
    rows["run directory"] = str(directory)
    command = f"python generate.py {format_path(str(directory))}"
    if run.args.network:
        command += f" --network {quote(run.args.network)}"
    prompt = first_words(text)
    if prompt:
        command += f" --prompt {quote(prompt)}"
    rows["next"] = command
    return format_rows(rows)


def first_words(text: str) -> str:
    """A prompt from the beginning of the text: up to three words, or up to eight characters.

    Characters are used if the first word is too long, and for Chinese and Japanese, which have no spaces.
    """
    found = re.search(r"[^\W_]\S*(?:[^\S\r\n]+\S+){0,2}", text)  # starts with a letter or digit, unlike a flag
    if not found:
        return ""
    words = found[0]
    if len(words) > MAX_PROMPT:
        words = words.split()[0]
    if len(words) > MAX_PROMPT or re.match(CJK, words):
        letters = re.match(r"\w{1,8}", words)
        words = letters[0] if letters else words[:8]
    return words


def resume_command(directory: Path | None) -> str:
    return f"python train.py --resume {format_flags({'out_dir': directory}, TrainArgs)}"


def format_rows(rows: dict[str, str]) -> str:
    """One line per row, with the name padded."""
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())


def duration(seconds: float) -> str:
    """Format 90 seconds as "1:30"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
