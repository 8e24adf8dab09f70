"""What is said of a run: before it, what it will take; after it, what came out. console.py shows it."""

import math
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from shlex import quote

import numpy as np
import torch

from ..cli import typed_command
from ..cli.files import printable, write_atomically
from ..text.dataset import Dataset
from ..text.token_cache import cache_home
from .estimate import PROCESS, disk_needed, free_memory, peak_memory, readable_size
from .evaluation import bits_per_byte
from .run_directory import METRICS, read_metrics
from .sizing import Forecast
from .trainer import Progress, Trainer


def announcement(
    trainer: Trainer, unigram: float, changes: tuple[str, ...] = (), forecast: Forecast | None = None
) -> str:
    """What the run will take, as far as it is known before the first step; ``unigram`` is the loss of a guess."""
    args, model, data = trainer.args, trainer.model.args, trainer.dataset
    dtype = str(trainer.dtype).removeprefix("torch.")
    count = torch.get_num_threads()
    threads = f", {count} thread{'s' * (count > 1)}" if trainer.device.type == "cpu" else ""
    length = f"{args.batch_size} x {model.max_seq_len} tokens a step"
    if args.step_limit < math.inf:
        tokens = tokens_of(args.step_limit, trainer)
        length += f", {args.step_limit:,} steps: {tokens:,.0f} tokens, {passes(args.step_limit, trainer)}"
    if args.minutes:
        length += f", {duration(60 * args.minutes)} {'at most' if args.max_steps else 'in all'}"
    rows = {
        "model": f"{parameters(trainer):,} parameters: {model.n_layers} layers of width {model.dim}, {model.n_heads} "
        f"heads, on {trainer.device} in {dtype}{threads}",
        "memory": memory_and_disk(trainer),
        "text": described(data, model.vocab_size),
        "guessing": f"costs {math.log(model.vocab_size):.3f} nats per token uniformly, {unigram:.3f} by frequency",
        "training": f"{length}, dropout {args.dropout:g}",
        "directory": f"{args.out_dir}",
    }
    if forecast:
        rows["expected"] = expectation(forecast, trainer, unigram)
    if args.init_from:
        rows["fine-tuning"] = f"{args.init_from}, lr {args.lr:g}, muon_lr {args.muon_lr:g}"
    if trainer.progress.step or changes:
        rows["resuming"] = "; ".join((f"after step {trainer.progress.step}", *changes))
    return table(rows)


def described(data: Dataset, vocab_size: int) -> str:
    """The text as tokens, and where they are kept."""
    place, size = cache_home(), data.train.nbytes + data.val.nbytes
    if isinstance(data.train, np.memmap) and data.train.filename:
        place = Path(data.train.filename).parent
    return (
        f"{len(data.train):,} tokens to train on, {len(data.val):,} for validation, "
        f"{data.val_bytes / max(len(data.val), 1):.2f} bytes each, vocabulary of {vocab_size:,}; cached in {place} "
        f"({readable_size(size)})"
    )


def memory_and_disk(trainer: Trainer) -> str:
    """The most memory that the process will take on a CPU, or on the device; and the run directory's size."""
    needed = peak_memory(trainer.model.args, trainer.args, trainer.dtype, trainer.ranks.world_size)
    there, disk = free_memory(trainer.device), disk_needed(trainer.model.args, trainer.args)
    most = readable_size(needed + PROCESS * (trainer.device.type == "cpu"))
    return f"about {most} at most{f', {readable_size(there)} free' if there else ''}; {readable_size(disk)} on disk"


def expectation(forecast: Forecast, trainer: Trainer, unigram: float) -> str:
    """What comes out, as far as the law of sizing.py foretells it."""
    early = ""
    loss = min(forecast.loss, unigram)  # far from the runs that it was fitted to, the law may say anything
    if forecast.ends_early:
        seconds = tokens_of(forecast.steps, trainer) / forecast.tokens_per_second
        early = f", ending after about {duration(seconds)}: more passes would not make it better"
    if loss > 0.9 * unigram:
        early += "; too little to learn much from: give more text or more minutes"
    return (
        f"about {loss:.2f} nats per token, {bits_per_byte(loss, trainer.dataset):.2f} bits per byte, after "
        f"{forecast.steps:,} steps, {passes(forecast.steps, trainer)}, at {forecast.tokens_per_second:,.0f} "
        f"tokens/s{early}"
    )


def table(rows: dict[str, str]) -> str:
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())


def duration(seconds: float) -> str:
    """90 seconds are "1:30"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def parameters(trainer: Trainer) -> int:
    return sum(p.numel() for p in trainer.model.parameters())


def tokens_of(steps: float, trainer: Trainer) -> float:
    return steps * trainer.args.batch_size * trainer.context


def passes(steps: float, trainer: Trainer) -> str:
    """How often the training text is seen in so many steps."""
    count = tokens_of(steps, trainer) / len(trainer.dataset.train)
    return f"{count:,.0f} passes over the text" if count >= 10 else f"{count:.2g} passes over the text"


def overfitting(progress: Progress, train_loss: float | None) -> str | None:
    """What to say of a run that learns its text by heart; ``train_loss`` is a mean over the last steps.

    A validation loss 3% above its best has left it by more than the noise between two validations. A training loss
    below 0.7 of the validation loss is no gap that a run has which is still learning something general.
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


def how_to_resume(directory: Path) -> str:
    return f"{typed_command('train')} --resume --out_dir {quote(str(directory))}"


def summary(trainer: Trainer, unigram: float, train_loss: float | None = None) -> str:
    """What came out, where it is, what to type next."""
    progress, best, seconds = trainer.progress, trainer.progress.best_val_loss, trainer.progress.wall_seconds
    seen = f"{progress.tokens:,} tokens, {passes(progress.step, trainer)}"
    rows = {
        "parameters": f"{parameters(trainer):,}",
        "trained": f"{progress.step:,} steps, {seen}, {seconds:.0f} seconds",
        "speed": f"{progress.tokens / max(progress.train_seconds, 1e-9):,.0f} tokens/s",
    }
    if best is not None:
        rows["validation"] = (
            f"{best:.4f} nats per token, {bits_per_byte(best, trainer.dataset):.3f} bits per byte "
            f"(best, at step {progress.best_step:,}); guessing by frequency {unigram:.4f}"
        )
        if best >= unigram:
            rows["note"] = "no better than guessing: train longer, on more text, or with other --lr and --muon_lr"
    if warning := overfitting(progress, train_loss):
        rows["overfitting"] = warning
    network = f" --network {quote(trainer.args.network)}" if trainer.args.network else ""
    rows["run directory"] = f"{trainer.directory}"
    rows["next"] = f'{typed_command("generate")} {quote(str(trainer.directory))}{network} --prompt "Once"'
    return table(rows)


def draw_losses(directory: Path) -> None:
    """``loss.png`` beside ``metrics.jsonl``; nothing without matplotlib."""
    metrics = read_metrics(directory / METRICS) if find_spec("matplotlib") else []
    if not metrics:
        return
    from matplotlib.figure import Figure

    train = [(line["step"], line["train_loss"]) for line in metrics if "train_loss" in line]
    validation = [(line["step"], line["val_loss"]) for line in metrics if "val_loss" in line]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*train), color="tab:blue", alpha=0.2, linewidth=0.7)
    axes.plot([step for step, _ in train], smoothed([loss for _, loss in train]), color="tab:blue", label="training")
    if validation:
        best = min(loss for _, loss in validation)
        axes.plot(*zip(*validation), "o-", color="tab:orange", markersize=3, label=f"validation, best {best:.3f}")
    axes.set(xlabel="step", ylabel="loss in nats per token", title=printable(directory.absolute().name))
    axes.grid(alpha=0.3)
    axes.legend()
    write_atomically(directory / "loss.png", lambda temporary: figure.savefig(temporary, format="png"))


def smoothed(values: list[float]) -> list[float]:
    """Each value's mean with its neighbours, a fiftieth of the run in all; at both ends there are fewer of them."""
    reach = len(values) // 100
    sums = [0.0, *accumulate(values)]
    windows = [(max(n - reach, 0), min(n + reach + 1, len(values))) for n in range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in windows]
