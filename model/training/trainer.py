"""The training loop and one step: forward, loss, backward, clip, optimizer.

A resumed run reads weights, optimizer state and progress from the state that was saved last, and continues after its
step. It needs nothing else, because batches and dropout follow from the seed and the number of the step. Steps after
that state are taken again, and their lines in metrics.jsonl are replaced.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_

from ..attention import Attention
from ..cli.machine import pick_dtype
from ..text.dataset import Dataset
from ..transformer import FeedForward, Transformer
from ..weights import open_checkpoint
from ..weights.checkpoint import check_savable, write_model
from ..weights.variants import make_network
from .config import Run, TrainArgs
from .distributed import Ranks, gather, parallelize, sync_gradients, unsharded
from .evaluation import bits_per_byte, cross_entropy, validation_loss
from .optimizer import build_optimizers, lr_fraction, set_learning_rate
from .run_directory import METRICS, append_metrics, begin_metrics
from .state import STATE, Progress, full_state, load_state, read_progress, save_state


class Trainer:
    """Trains ``model`` in place, with checkpoints in ``directory``.

    A kill loses only the steps since the last checkpoint. The directory holds metrics.jsonl, the model with the best
    validation loss, and the latest state. Without a directory nothing is validated or written.
    """

    def __init__(
        self,
        model: Transformer,
        dataset: Dataset,
        args: TrainArgs,
        directory: Path | None = None,
        ranks: Ranks | None = None,
        *,
        resume: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``resume`` continues from the state in ``directory``, if there is one."""
        saved = read_progress(directory) if resume and directory else None
        self.model = model
        self.dataset = dataset
        self.args = args
        self.directory = directory
        self.progress = saved or Progress(dataset.fingerprint)
        self.ranks = ranks or Ranks()
        self.clock = clock
        self.saved_step = self.progress.step
        self.stop_signal = 0  # set this in any process to a signal number to end the run after the current step
        self.stopped_by = 0  # the signal that ended the run, the same in all processes
        self.fraction_done = 0.0  # of the steps or the minutes, the same in all processes
        self.begin = 0.0  # the clock when the run began, if it had never been interrupted
        self.context = model.args.max_seq_len
        self.device = model.tok_embeddings.weight.device
        self.dtype = pick_dtype(args.dtype, self.device)
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

        if directory:
            check_savable(model)  # before the first step, so that no training is lost
        self.network_class = type(model)  # FSDP changes the class of the model
        add_dropout(model, args.dropout)
        # The same network three times: bare (``model``), as several processes train it with DDP or FSDP (``parallel``),
        # and compiled if asked for (``network``). For one process without compilation all are ``model``.
        self.parallel = parallelize(model, self.ranks, args.fsdp)
        self.optimizers = build_optimizers(model, args, self.dtype)
        if saved and directory:
            load_state(directory, model, self.optimizers)
        self.network = torch.compile(self.parallel) if args.compile else self.parallel
        if directory and self.ranks.is_first:
            begin_metrics(directory / METRICS, saved.step if saved else -1)

    def run(self) -> Progress:
        """Take all steps."""
        for _ in self.steps():
            pass
        return self.progress

    def steps(self) -> Iterator[dict[str, float]]:
        """Step until the steps or the minutes are used up, or ``stop_signal`` is set; yield the metrics of each step.

        After each validation, and at the end, the state is saved before the metrics are yielded. Raises ValueError if
        the loss or the gradient norm is not finite; the state that was saved last is kept.
        """
        self.begin = self.clock() - self.progress.wall_seconds
        self.model.train()
        self._update_clock()
        never_validated = self.directory is not None and self.progress.best_val_loss is None
        # Validate before the first step of fine-tuning, to show the starting point. Validate also if a resumed run has
        # no minutes left and was never validated, because its model would otherwise never be saved.
        if never_validated and (self.args.init_from or self.fraction_done >= 1):
            yield self._record(self.validate())
        while self.fraction_done < 1 and not self.stopped_by:
            started = self.clock()
            measured = self.step(lr_fraction(self.args, self.fraction_done))
            seconds = self.clock() - started
            tokens = self.args.batch_size * self.context
            measured["tokens_per_second"] = tokens / max(seconds, 1e-9)
            self.progress.step += 1
            self.progress.tokens += tokens
            self.progress.train_seconds += seconds
            self._update_clock()
            validating = self.fraction_done >= 1 or self.progress.step % self.args.eval_every == 0
            if validating:
                measured |= self.validate()
            yield self._record(measured, save=bool(validating or self.stopped_by))

    def step(self, lr_scale: float) -> dict[str, float]:
        """Take one optimizer step on the batch of the current step, at ``lr_scale`` times the peak learning rate."""
        args, ranks = self.args, self.ranks
        step = self.progress.step
        # Batches are a pure function of (seed, step), dropout also of the rank: resuming needs no generator state.
        batch = self.dataset.batch(
            step,
            batch_size=args.batch_size,
            context=self.context,
            seed=args.seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        # (B, T) each, the rows of this process
        inputs, targets = (torch.from_numpy(part).to(self.device, non_blocking=True) for part in batch)
        if args.dropout:
            mixed = np.random.SeedSequence([args.seed, step, ranks.rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))
        rows = args.rows_at_once(ranks.world_size)
        micro_batches = list(zip(inputs.split(rows), targets.split(rows)))
        total = torch.zeros((), device=self.device)
        for number, (x, y) in enumerate(micro_batches, 1):
            sync_gradients(self.parallel, number == len(micro_batches))
            with self.autocast:
                logits = self.network(x)  # (B, T, V)
                loss = cross_entropy(logits, y) * (len(x) / len(inputs))
            loss.backward()
            total += loss.detach()
        norm = gather(clip_grad_norm_(self.model.parameters(), args.grad_clip or math.inf)).item()
        train_loss = ranks.sum([total.item() / ranks.world_size], self.device)[0]
        # The sum is finite only if the loss and the norm are.
        self._check_finite(train_loss + norm, step + 1, f"the loss is {train_loss} and the gradient norm {norm}")

        set_learning_rate(self.optimizers, lr_scale)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"train_loss": train_loss, "lr": args.lr * lr_scale, "grad_norm": norm}

    def validate(self) -> dict[str, float]:
        """Compute the validation loss, and save the model if it is the best so far. Without a directory, do nothing."""
        progress = self.progress
        if self.directory is None:
            return {}
        with self.autocast:
            loss = validation_loss(self.network, self.model, self.dataset, self.args, self.ranks)
        self._check_finite(loss, progress.step, f"the validation loss is {loss}")
        progress.val_loss = loss
        if progress.best_val_loss is None or loss < progress.best_val_loss:
            progress.best_val_loss, progress.best_step = loss, progress.step
            best = unsharded(self.model, self.network_class)
            if self.ranks.is_first:
                write_model(best, self.directory)
        return {"val_loss": loss, "val_bits_per_byte": bits_per_byte(loss, self.dataset)}

    def _update_clock(self) -> None:
        """Update ``wall_seconds``, and in agreement with the other processes ``fraction_done`` and ``stopped_by``."""
        self.progress.wall_seconds = self.clock() - self.begin
        done = self.args.fraction_done(self.progress.step, self.progress.wall_seconds)
        self.fraction_done, signal = self.ranks.max([done, self.stop_signal], self.device)
        self.stopped_by = int(signal)

    def _check_finite(self, value: float, step: int, message: str) -> None:
        if math.isfinite(value):
            return
        remedy = "start again"
        if self.directory and self.saved_step > 0:
            remedy = f"the good state of step {self.saved_step} is kept in {self.directory}: resume it"
        raise ValueError(f"step {step}: {message}; {remedy} with half of --lr and --muon_lr, or a smaller --grad_clip")

    def _record(self, measured: dict[str, float], save: bool = True) -> dict[str, float]:
        """Write the metrics of a step and, if ``save``, the state. Every process must call it to gather the weights."""
        if self.directory is None:
            return measured
        if self.ranks.is_first:
            append_metrics(self.directory / METRICS, self.progress.step, measured, sync=save)
        if save and self.progress.step:  # optimizers have no state before their first step
            self.progress.wall_seconds = self.clock() - self.begin
            state = full_state(self.model, self.optimizers)
            if self.ranks.is_first:
                save_state(self.directory, state, self.progress)
            self.saved_step = self.progress.step
        return measured


def add_dropout(model: Transformer, probability: float) -> None:
    """Add dropout after the embedding, attention and feed-forward modules, in training mode only.

    Forward hooks keep dropout out of the code of the network, because only training uses it.
    """
    if probability:
        for module in model.modules():
            if isinstance(module, nn.Embedding | Attention | FeedForward):
                module.register_forward_hook(lambda module, _, out: F.dropout(out, probability, module.training))


def initial_model(run: Run, directory: Path) -> Transformer:
    """A model with random weights, or with those of ``init_from`` and a context that may be shorter.

    If ``directory`` has a state, it will replace the weights, so that they do not matter.
    """
    source = run.train.init_from
    if source is None or (run.resumed and (directory / STATE).exists()):
        return run.network(run.model)
    model = make_network(run.network, run.model)
    model.load_state_dict(open_checkpoint(source).model(network=run.network).state_dict(), assign=True)
    return model.requires_grad_(True)
