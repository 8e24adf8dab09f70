"""Show a run in the terminal: announcement, progress bar and summary on stderr, and samples.

``announcement`` and ``summary`` are tables of names and texts, which ``print_rows`` prints.
"""

import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from shutil import get_terminal_size
from types import FrameType

import torch
from tqdm import tqdm

from ..cli import explain_out_of_memory, print_note, print_rows, quantity
from ..cli.machine import readable_size
from ..cli.script import discard_stdout, on_stop
from ..decoding.batches import generate
from ..fast.step import for_decoding
from ..text.dataset import Dataset
from .choice import TRAINING_SHARE
from .config import TrainArgs
from .distributed import Machine
from .estimate import count_parameters, training_memory
from .metrics import METRICS, LastScore, Smoothed, read_metrics
from .optimizer import lr_fraction
from .run import Run
from .run_text import Text
from .trainer import Trainer

SAMPLE_TOKENS = 120
SMOOTHED_STEPS = 20  # over which the loss that is shown is averaged, because that of one batch is noisy


class LogFile:
    """stderr that is not a terminal: each state of the progress bar is a line, because no line can be overwritten."""

    encoding = "ascii"  # so the bar consists of #

    def write(self, text: str) -> None:
        if text.strip():
            print_note(text.strip())

    def flush(self) -> None:
        pass


class Console:
    """Prints in the first process only."""

    def __init__(self, trainer: Trainer, text: Text) -> None:
        self.trainer = trainer
        self.text = text
        tokens = trainer.dataset.val_count(trainer.model.args.max_seq_len, trainer.args.eval_tokens)
        self.part = trainer.dataset.part(tokens)  # on which it is validated
        self.loss = Smoothed(SMOOTHED_STEPS)
        self.was_done = trainer.fraction_done >= 1  # a run that is resumed without more steps or minutes
        if trainer.ranks.is_first and not self.was_done:
            note_stretched_schedule(trainer)
        in_terminal = sys.stderr.isatty()
        # If the bar is short, all but the tokens per second fits into 80 columns.
        width = 4 if in_terminal and get_terminal_size().columns < 100 else 16
        self.bar = tqdm(
            file=None if in_terminal else LogFile(),
            total=1.0,  # the whole run, in steps or in minutes
            initial=trainer.fraction_done,
            bar_format=f"{{percentage:3.0f}}%|{{bar:{width}}}| {{postfix[0]}}{{remaining}} left{{postfix[1]}}",
            postfix=["", ""],
            mininterval=0.1 if in_terminal else 10,
            disable=not trainer.ranks.is_first,
            dynamic_ncols=in_terminal,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the progress bar. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 end the run after a step and its validation.

        In a single process, a second Ctrl-C interrupts even the step. If there are several processes, it has no effect,
        because all must stop after the same step.
        """
        trainer = self.trainer

        def stop_after_step(number: int, frame: FrameType | None) -> None:
            trainer.stop_signal = number
            if number == signal.SIGINT and trainer.ranks.world_size == 1:
                signal.signal(number, signal.default_int_handler)

        # The handler refers to DDP, which must be freed before its process group: so it is removed again.
        with (
            on_stop(stop_after_step),
            self.bar,
            explain_out_of_memory("lower --micro_batch_size, or train a smaller model", trainer.device),
        ):
            yield

    def show(self, measured: dict[str, float]) -> None:
        """Show the measured values of a step."""
        trainer, progress = self.trainer, self.trainer.progress
        if not trainer.ranks.is_first:
            return
        parts = [f"step {progress.step:,}"]
        if "train_loss" in measured:  # not in a validation before the first step
            parts.append(f"loss {self.loss.add(measured['train_loss']):.3f}")
        if progress.best_val_loss < math.inf:
            parts.append(f"best {progress.best_val_loss:.3f} at {progress.best_step:,}")
        parts.append(f"epoch {trained_tokens(trainer) / len(trainer.dataset.train):.1f}")
        if "train_loss" in measured:
            parts.append(f"{measured['tokens_per_second']:,.0f} tokens/s")
        self.bar.postfix = [f"{tqdm.format_interval(progress.wall_seconds)}, ", ", ".join(["", *parts])]
        self.bar.update(trainer.fraction_done - self.bar.n)
        if "val_loss" in measured:
            where = f"step {progress.step}" if progress.step else "before the first step"
            best = ", the best so far" if progress.best_step == progress.step else ""
            loss = f"validation {measured['val_loss']:.3f} nats per token{self.part}"
            tqdm.write(f"{where}: {loss}{best}", file=sys.stderr)
        every = 0 if trainer.sharded else trainer.args.sample_every  # no process has room for the whole model
        if every and progress.step and progress.step % every == 0:
            self._show_sample()

    def _show_sample(self) -> None:
        trainer, tokenizer = self.trainer, self.text.tokenizer
        model, prompt = trainer.model, self.text.prompt
        step = trainer.progress.step
        length = min(SAMPLE_TOKENS, model.args.max_seq_len - len(prompt))
        eos_ids = self.text.chat.eos_ids if self.text.chat else tokenizer.eos_ids
        # A recording would need memory that training may not leave, and PyTorch would free what the next step needs.
        network = for_decoding(model, record=False)
        rows = generate(network, [prompt], length, temperature=0.7, top_p=0.9, seed=step, eos_ids=eos_ids)
        new_tokens = [token for (token,) in rows if token is not None]
        # Decoded together with the prompt, because some tokenizers drop the space at the beginning of a text.
        text = tokenizer.decode([*prompt, *new_tokens]).removeprefix(tokenizer.decode(prompt))
        if self.text.chat:
            text = f"\n\n{text}"
        self.bar.clear()
        # Beside the bar on a terminal; if stderr goes elsewhere, to stdout.
        file = sys.stderr if sys.stderr.isatty() else sys.stdout
        try:
            print(f"\n--- sample at step {step} ---\n{trainer.args.sample_prompt}{text}\n", file=file, flush=True)
        except OSError:  # training goes on if the reader has closed the pipe, or the terminal
            discard_stdout()

    def finish(self) -> int:
        """Print the summary, or the command that resumes an interrupted run; returns the exit code."""
        trainer = self.trainer
        if trainer.stopped_by:
            rows = {
                "stopped by": f"{signal.Signals(trainer.stopped_by).name}; step {trainer.progress.step:,} is saved",
                "to resume": f"python train.py --resume {quote(str(trainer.directory))}",
            }
        else:
            rows = summary(trainer, self.text, self._last_score())
        if self.was_done:
            rows["no step left"] = "max_steps and minutes count the whole run: to go on, give --resume and more of them"
        if trainer.ranks.is_first:
            print_rows(rows, sys.stderr)
        return 128 + trainer.stopped_by if trainer.stopped_by else 0

    def _last_score(self) -> LastScore | None:
        """The score of the best model. A sharded one may not fit into one process, so its last validation has to do."""
        trainer = self.trainer
        if trainer.sharded:
            return None
        hidden = not trainer.ranks.is_first or None  # None hides the bar unless stderr is a terminal
        with tqdm(desc="scoring", unit="tok", unit_scale=True, delay=1, disable=hidden) as bar:
            return trainer.ranks.on_first_process(lambda: trainer.score_best(bar.update))


def note_stretched_schedule(trainer: Trainer) -> None:
    """Say so if a run is resumed with more steps or minutes, so that its learning rate, which had fallen, rises."""
    path = trainer.directory / METRICS if trainer.directory else None
    lines = read_metrics(path) if path and path.exists() else []
    last = lines[-1] if lines else {}
    before, args = last.get("lr"), trainer.args
    now = args.lr * lr_fraction(args, trainer.fraction_done)
    if before and trainer.fraction_done > args.warmup and now > 1.5 * before:
        print_note(
            f"note: the schedule is stretched to the longer run: the learning rate rises from {before:.2g} to "
            f"{now:.2g}, and the loss with it, until both fall again"
        )


def announcement(run: Run, text: Text, machine: Machine, speed: float | None) -> dict[str, str]:
    """The size and the settings of the run, and what to expect at ``speed`` tokens per second."""
    args, model, data = run.train, run.model, text.dataset
    peak = training_memory(model, args, machine).peak
    step_tokens = args.batch_size * data.window_tokens(model.max_seq_len)
    length = f"{args.batch_size} x {model.max_seq_len} tokens per step"
    if args.context_warmup:
        length += f" ({2 * args.batch_size} x {model.max_seq_len // 2} in the first {args.context_warmup:.0%})"
    if args.step_limit < math.inf:
        length += f", {quantity(int(args.step_limit), 'step')}, {epochs(args.step_limit * step_tokens, data)}"
    if args.minutes:
        length += f", at most {tqdm.format_interval(60 * args.minutes)}"
    documents = quantity(data.documents, "document")
    if data.documents > 1 and data.longest:  # which shows an unclosed quote in a table
        documents += f", the longest of {quantity(data.longest, 'token')}"
    if run.data.doc_separator:
        documents += f", separated by {run.data.doc_separator!r}"
    if text.chat:
        documents = f"{quantity(data.documents, 'conversation')}; only the assistant's turns are learnt"
    scored = data.val_count(model.max_seq_len, args.eval_tokens)
    validated = "" if scored == data.val_tokens else f"; {scored:,} of its tokens in a validation during the run"
    size = f"{quantity(model.n_layers, 'layer')} of width {model.dim}, {quantity(model.n_heads, 'head')}"
    if not (run.has_size or run.needs_choice):
        size += " (the default, because --max_steps is given: with --minutes the size is chosen for the text)"
    chosen = ", which is faster on it" if args.dtype == "auto" and machine.dtype != torch.float32 else ""
    rows = {
        "model": f"{count_parameters(model).total:,} parameters: {size}, on {machine.device} in "
        f"{str(machine.dtype).removeprefix('torch.')}{chosen}",
        "memory": f"about {readable_size(peak)} at the peak",
        "text": f"{quantity(len(data.train), 'token')} to train on, {len(data.val):,} for validation; "
        f"{data.val_bytes / data.val_tokens:.2f} bytes each, vocabulary of {model.vocab_size:,}",
        "documents": documents,
        "held out": f"{data.validation} of {data.val_name}{validated}",
        "baselines": f"{math.log(model.vocab_size):.3f} nats per token for uniform guesses, {text.unigram_loss:.3f} "
        "for token frequencies",
        "training": f"{length}, lr {args.lr:g}, dropout {args.dropout:g}",
    }
    if speed:
        rows["expected"] = expectation(args, step_tokens, speed, data)
    return rows


def expectation(args: TrainArgs, step_tokens: int, speed: float, dataset: Dataset) -> str:
    """The steps, the passes over the text and the time to expect."""
    seconds = args.step_limit * step_tokens / speed
    if args.minutes is not None:
        seconds = min(seconds, 60 * args.minutes * TRAINING_SHARE)
    steps = max(1, int(seconds * speed / step_tokens))
    passes = epochs(steps * step_tokens, dataset)
    time = tqdm.format_interval(seconds / TRAINING_SHARE)
    return f"about {quantity(steps, 'step')}, {passes}, in {time} at {speed:,.0f} tokens/s"


def summary(trainer: Trainer, text: Text, score: LastScore | None) -> dict[str, str]:
    """The result of the run with the score of its best model, its directory, and the next command."""
    progress, dataset = trainer.progress, trainer.dataset
    last, best = progress.val_loss, progress.best_val_loss
    tokens = trained_tokens(trainer)
    nats, bits = best, dataset.bits_per_byte(best)
    validated = dataset.val_count(trainer.model.args.max_seq_len, trainer.args.eval_tokens)
    if score:
        nats, bits, validated = score.nats_per_token, score.bits_per_byte, score.tokens
    seconds = f"{progress.wall_seconds:.0f}" if progress.wall_seconds >= 10 else f"{progress.wall_seconds:.1f}"
    rows = {
        "parameters": f"{sum(p.numel() for p in trainer.model.parameters()):,}",
        "trained": f"{quantity(progress.step, 'step')}, {quantity(tokens, 'token')}, {epochs(tokens, dataset)}, "
        f"{seconds} seconds",
        "speed": f"{tokens / max(progress.train_seconds, 1e-9):,.0f} tokens/s",
        "validation": f"{nats:.4f} nats per token, {bits:.3f} bits per byte{dataset.part(validated)}; best at step "
        f"{progress.best_step:,}; unigram model {text.unigram_loss:.4f}",
    }
    if last > 1.03 * best:
        rows["note"] = (
            f"overfitted, validations rose from {best:.4f} to {last:.4f}: try more text, fewer steps or --dropout 0.2"
        )
    rows["run directory"] = str(trainer.directory)
    network = f" --network {quote(trainer.args.network)}" if trainer.args.network else ""
    program = "chat.py" if text.chat else "generate.py"
    rows["next"] = f"python {program} {quote(str(trainer.directory))}{network}"
    return rows


def trained_tokens(trainer: Trainer) -> int:
    """The tokens that the run has seen, without padding."""
    context = trainer.model.args.max_seq_len
    return trainer.progress.tokens * trainer.dataset.window_tokens(context) // context


def epochs(tokens: float, dataset: Dataset) -> str:
    passes = tokens / len(dataset.train)
    return f"{passes:,.1f} epochs" if passes >= 0.1 else f"{passes:.2g} epochs"
