"""What is said of a run: before it, what it will take; after it, what came out. Text only; console.py shows it."""

import math
from pathlib import Path
from shlex import quote

from ..text.sources import cache_home
from .estimate import available_memory, count_parameters, gigabytes, memory_needed
from .evaluation import bits_per_byte
from .trainer import Trainer


def announcement(trainer: Trainer, unigram: float, changes: tuple[str, ...]) -> str:
    """What the run will take, as far as it is known before the first step; ``unigram`` is the loss of a guess."""
    args, model, data = trainer.args, trainer.model.args, trainer.dataset
    dtype = str(trainer.dtype).removeprefix("torch.")
    needed = sum(memory_needed(model, args, trainer.dtype, trainer.ranks.world_size))
    there = available_memory(trainer.device)
    memory = f"about {gigabytes(needed)} of memory{f', {gigabytes(there)} free' if there else ''}"
    length = f"{args.batch_size} x {model.max_seq_len} tokens a step"
    if args.step_limit < math.inf:
        length += f", {args.step_limit:,} steps: {passes(int(args.step_limit), trainer)}"
    if args.minutes:
        length += f", {duration(60 * args.minutes)} {'at most' if args.max_steps else 'in all'}"
    rows = {
        "model": f"{count_parameters(model)[0]:,} parameters on {trainer.device} in {dtype}, {memory}",
        "text": f"{len(data.train):,} tokens to train on, {len(data.val):,} for validation; cached in {cache_home()}",
        "guessing": f"costs {math.log(model.vocab_size):.3f} nats per token uniformly, {unigram:.3f} by frequency",
        "training": length,
        "directory": f"{trainer.directory}",
    }
    if args.init_from:
        rows["fine-tuning"] = f"{args.init_from}, lr {args.lr:g}, muon_lr {args.muon_lr:g}"
    if trainer.progress.step or changes:
        rows["resuming"] = "; ".join((f"after step {trainer.progress.step}", *changes))
    return table(rows)


def table(rows: dict[str, str]) -> str:
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())


def duration(seconds: float) -> str:
    """90 seconds are "1:30"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def passes(steps: int, trainer: Trainer) -> str:
    """Tokens of so many steps, and how often the training text has then been seen."""
    tokens = steps * trainer.args.batch_size * trainer.context
    return f"{tokens:,} tokens, {tokens / len(trainer.dataset.train):.3g} passes over the text"


def rising(loss: float | None, best: float | None) -> bool:
    """Whether the validation loss has left its best by more than the noise of two validations."""
    return loss is not None and best is not None and loss > 1.03 * best


def overfitting(loss: float, best: float | None, step: int) -> str:
    return (
        f"the run overfits: validation has risen to {loss:.3f} after {best:.3f} at step {step}, which is kept; "
        "more text, --dropout 0.1, a smaller --dim or --n_layers, or fewer steps help"
    )


def how_to_resume(directory: Path) -> str:
    return f"python train.py --resume --out_dir {quote(str(directory))}"


def summary(trainer: Trainer, unigram: float) -> str:
    """What came out, where it is, what to type next."""
    progress, best = trainer.progress, trainer.progress.best_val_loss
    directory = quote(str(trainer.directory))
    network = f" --network {quote(trainer.args.network)}" if trainer.args.network else ""
    rows = {
        "parameters": f"{sum(p.numel() for p in trainer.model.parameters()):,}",
        "trained": f"{progress.step:,} steps, {passes(progress.step, trainer)}, {progress.wall_seconds:.0f} seconds",
        "speed": f"{progress.tokens / max(progress.train_seconds, 1e-9):,.0f} tokens/s",
    }
    if best is not None:
        rows["validation"] = (
            f"{best:.4f} nats per token, {bits_per_byte(best, trainer.dataset):.3f} bits per byte "
            f"(best, at step {progress.best_step:,}); guessing by frequency {unigram:.3f}"
        )
    if progress.val_loss is not None and rising(progress.val_loss, best):
        rows["overfitting"] = overfitting(progress.val_loss, best, progress.best_step)
    if best is not None and best >= unigram:
        rows["worse"] = "than guessing by frequency: train longer, on more text, or with other --lr and --muon_lr"
    rows["run directory"] = f"{trainer.directory}"
    rows["next"] = f'python generate.py {directory}{network} --prompt "Once"'
    return table(rows)
