"""The training loop and one step: forward, loss, backward, clip, optimizer.

A step depends on the weights, the optimizer state, the seed and the number of steps before it; with ``minutes`` its
learning rate depends on the elapsed time, too. So the state that ``--resume`` reads has the weights, the optimizer
state, the number of steps and the elapsed time. It needs no state of random generators, because batches and dropout are
computed from the seed and the number of steps. Steps after the saved one are taken again, and their lines in
metrics.jsonl are replaced.

In float16 the loss is multiplied by a scale before the backward pass, because small gradients would underflow to zero,
and the gradients are divided by it afterwards (``torch.amp.GradScaler``). If they overflow, the step is computed again
with half the scale.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ..attention import Attention
from ..cli.files import write_json
from ..decoding.scoring import SCORED_TOKENS, score_texts, validation_text
from ..fast.loss import NextTokenLoss
from ..text.dataset import UNCOUNTED, Dataset
from ..transformer import FeedForward, Transformer
from ..weights import load_model, open_checkpoint
from ..weights.checkpoint import check_savable, save_model
from ..weights.variants import make_network
from .config import TrainArgs
from .distributed import (
    Machine,
    Ranks,
    local_device,
    parallelize,
    product_dtype,
    scatter_tensors,
    set_gradient_sync,
    unsharded,
    whole_model,
)
from .metrics import METRICS, SCORE, LastScore, append_metrics, truncate_metrics
from .optimizer import build_optimizers, lr_fraction, set_learning_rate
from .run import Run
from .run_directory import Progress, load_state, read_progress, save_state

# The tokens of a validation, for each token trained since the one before. To validate a token takes a third of the time
# of training on it, so validations take a twentieth of the run. The last score is computed in float32: if training
# multiplies in bfloat16, to score a token takes three quarters of the time of training on it, and the score at most a
# tenth of the run.
VALIDATION_SHARE = 0.13
CARDS = ("cuda",)  # the GPUs of NVIDIA and AMD


class Trainer:
    """Trains ``model`` in place.

    ``directory`` gets metrics.jsonl, the model with the best validation loss so far, and the state to resume from. The
    state is saved after each validation and when a signal ends the run; a kill loses only the steps since the last
    save. Without a directory nothing is validated or written.
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
        """``resume`` continues from the state in ``directory``; if the run has none yet, it begins again at step 0."""
        self.ranks = ranks or Ranks()
        saved = read_progress(directory) if resume and directory else None
        self.model = model
        self.dataset = dataset
        self.args = args
        self.directory = directory
        self.progress = saved or Progress()
        if len(set(zip(*self.ranks.gather(self.progress.step, len(dataset.train), len(dataset.val))))) > 1:
            raise ValueError(f"{directory} differs between machines: put out_dir where all of them see it")
        self.clock = clock
        self.start = 0.0  # the time on the clock at which a run without interruptions would have begun
        # Set this in any process to a signal number to end the run after the current step and its validation
        self.stop_signal = 0
        self.stopped_by = 0  # the signal that ended the run, the same in all processes
        # The share of the steps or the minutes that is used up, the same in all processes
        self.fraction_done = args.fraction_done(self.progress.step, self.progress.wall_seconds)
        self.sharded = args.fsdp and self.ranks.world_size > 1
        self.device = local_device(args.device, self.ranks) if self.sharded else model.tok_embeddings.weight.device
        self.dtype = product_dtype(args, self.device)
        autocasts = self.dtype != torch.float32 and not self.sharded  # FSDP converts the weights itself
        self.autocast = torch.autocast(self.device.type, self.dtype, enabled=autocasts)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

        if directory:
            check_savable(model)  # before the first step, so that no training is lost
        add_dropout(model, args.dropout)
        # Before the loss copies the modules: moved in the first step, it would make compiled code compile once more
        if model.freqs_cis.device != self.device:
            model.freqs_cis = model.freqs_cis.to(self.device)
        whole = model.state_dict()  # before the model is sharded
        # The same weights under three names: ``model`` is what the optimizer, clipping and the state see;
        # ``parallel_loss`` computes its loss and averages gradients over the processes, with DDP or FSDP;
        # ``compiled_loss``, which the steps call, is the same, compiled if asked for.
        # Not merged with FSDP, which would have to keep whole matrices of all layers until the backward pass.
        loss = NextTokenLoss(model, self.dtype, merge=self.device.type in CARDS and not self.sharded)
        self.parallel_loss = parallelize(loss, self.ranks, self.device, self.dtype, fsdp=args.fsdp)
        if self.sharded and saved is None:
            scatter_tensors(model.state_dict(), whole)
        self.compiled_loss: nn.Module = self.parallel_loss
        if args.compile:
            self.compiled_loss = torch.compile(self.parallel_loss)  # type: ignore[assignment]
        self.optimizers = build_optimizers(model, args, self.dtype)
        if saved and directory:
            load_state(directory, model, self.optimizers)
            if saved.loss_scale:
                scale = {"scale": saved.loss_scale, "_growth_tracker": saved.steps_at_scale}
                self.scaler.load_state_dict(self.scaler.state_dict() | scale)
            self._save_if_best()  # the run may have been killed between its state and its model
        if directory and self.ranks.is_first:
            (directory / SCORE).unlink(missing_ok=True)
            truncate_metrics(directory / METRICS, saved.step if saved else -1)

    def run(self) -> Progress:
        """Take all steps."""
        for _ in self.steps():
            pass
        return self.progress

    def steps(self) -> Iterator[dict[str, float]]:
        """Step until the steps or the minutes are used up, or ``stop_signal`` is set; yield the metrics of each step.

        All files of a step are written before its metrics are yielded. Raises ValueError if the loss or the gradient
        norm is not finite; the state that was saved last is kept.
        """
        self.parallel_loss.train()
        if self.args.compile and self.fraction_done < 1:
            self._compile()  # before the clock of the schedule starts, because it may take a minute
        self.start = self.clock() - self.progress.wall_seconds
        # Fine-tuning begins with a validation, to show the starting point. And a run that is resumed with no step left
        # needs one if it never had any, because only a validation writes the model.
        never_validated = self.directory is not None and self.progress.best_val_loss == math.inf
        if never_validated and (self.args.init_from or self.fraction_done >= 1):
            yield self._record(self.validate(), save=True)
        while self.fraction_done < 1 and not self.stopped_by:
            started = self.clock()
            measured = self.step(lr_fraction(self.args, self.fraction_done))
            seconds = self.clock() - started
            rows, context = self.batch_shape
            tokens = rows * self.dataset.window_tokens(context)  # without padding
            measured["tokens_per_second"] = tokens / max(seconds, 1e-9)
            self.progress.step += 1
            self.progress.tokens += rows * context
            self.progress.train_seconds += seconds
            self.progress.wall_seconds = self.clock() - self.start
            done = self.args.fraction_done(self.progress.step, self.progress.wall_seconds)
            # All processes must validate or none, and all must end after the same step.
            losses, fractions, signals = self.ranks.gather(measured["train_loss"], done, self.stop_signal)
            self.fraction_done, self.stopped_by = max(fractions), int(max(signals))
            loss, norm = sum(losses) / len(losses), measured["grad_norm"]  # both are now the same in all processes
            self._check_finite(loss + norm, f"the loss is {loss} and the gradient norm {norm}")
            measured["train_loss"] = loss
            validating = self.fraction_done >= 1 or self.progress.step % self.args.eval_every == 0
            if validating:
                measured |= self.validate()
            yield self._record(measured, save=bool(validating or self.stopped_by))

    @property
    def batch_shape(self) -> tuple[int, int]:
        """The sequences of a step and their tokens: twice as many of half the context during ``context_warmup``."""
        rows, context = self.args.batch_size, self.model.args.max_seq_len
        is_short = self.fraction_done < self.args.context_warmup and context > 1
        return (2 * rows, context // 2) if is_short else (rows, context)

    def _compile(self) -> None:
        """Compute the gradients of a batch and discard them, because the first call compiles."""
        inputs, targets, _ = self.batch()
        rows = self._micro_batch_rows()
        with self.autocast:
            loss = self.compiled_loss(inputs[:rows], targets[:rows])
        loss.backward()
        self.model.zero_grad(set_to_none=True)

    def batch(self) -> tuple[Tensor, Tensor, float]:
        """This process's part of the batch of the current step: tokens and targets (B, T), and the loss's divisor."""
        args, ranks = self.args, self.ranks
        rows, context = self.batch_shape
        # The batch is a pure function of the seed and the windows seen before. Each process takes its rows of it.
        seen = self.progress.tokens // context
        sizes = {"batch_size": rows, "context": context, "seed": args.seed}
        batch = self.dataset.batch(seen, **sizes, rank=ranks.rank, world_size=ranks.world_size)
        # A process divides its sum of losses by the average number of targets, because gradients are averaged. (Targets
        # that the loss leaves out, as the questions of a chat, are not counted.)
        count = max(1, self.dataset.target_count(seen, **sizes)) / ranks.world_size
        return *on_device(batch, self.device), count

    def step(self, lr_scale: float) -> dict[str, float]:
        """Take one optimizer step on the batch of the current step, at ``lr_scale`` times the peak learning rate.

        The returned loss is that of this process's part of the batch.
        """
        args, ranks = self.args, self.ranks
        inputs, targets, count = self.batch()
        if args.dropout:  # its masks are a pure function of (seed, step, rank)
            mixed = np.random.SeedSequence([args.seed, self.progress.step, ranks.rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))
        train_loss, grad_norm = self.compute_gradients(inputs, targets, count)
        # The norm is the same in all processes, so that all compute again, or none.
        while self.scaler.is_enabled() and not math.isfinite(grad_norm) and self.scaler.get_scale() > 1:
            self.scaler.update()  # halves the scale
            self.model.zero_grad()
            train_loss, grad_norm = self.compute_gradients(inputs, targets, count)
        set_learning_rate(self.optimizers, lr_scale)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.scaler.update()
        return {"train_loss": train_loss, "lr": args.lr * lr_scale, "grad_norm": grad_norm}

    def compute_gradients(self, inputs: Tensor, targets: Tensor, count: float) -> tuple[float, float]:
        """Compute the gradients of a batch (B, T), clipped; returns the loss and the norm before clipping.

        The loss is the sum over the batch, divided by ``count``.
        """
        args, rows = self.args, self._micro_batch_rows()
        micro_batches = list(zip(inputs.split(rows), targets.split(rows)))
        total = torch.zeros((), device=self.device)
        for number, (x, y) in enumerate(micro_batches, 1):
            is_last = number == len(micro_batches)
            set_gradient_sync(self.parallel_loss, is_last)  # only the last backward pass averages them
            with self.autocast:
                loss = self.compiled_loss(x, y) / count  # a sum; those of all parts add up to the mean over the batch
            self.scaler.scale(loss).backward()
            total += loss.detach()
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        max_norm = args.grad_clip or math.inf  # 0 is no clipping
        norm = unsharded(clip_grad_norm_(self.model.parameters(), max_norm))  # FSDP shards the norm
        train_loss, grad_norm = torch.stack([total, norm]).tolist()  # only here does a step wait for the device
        return train_loss, grad_norm

    def _micro_batch_rows(self) -> int:
        """The sequences that are computed at once: more of them if they are shorter, with as many tokens."""
        args = self.args
        rows = args.micro_batch_rows(self.model.args.max_seq_len, self.device.type, self.ranks.world_size)
        return rows * (self.batch_shape[0] // args.batch_size)

    def validate(self) -> dict[str, float]:
        """Compute the validation loss, and note whether it is the best so far. Does nothing without a directory."""
        progress = self.progress
        if self.directory is None:
            return {}
        loss = self.validation_loss()
        self._check_finite(loss, f"the validation loss is {loss}")
        progress.val_loss = loss
        if loss < progress.best_val_loss:
            progress.best_val_loss, progress.best_step = loss, progress.step
        return {"val_loss": loss, "val_bits_per_byte": self.dataset.bits_per_byte(loss)}

    def validation_loss(self) -> float:
        context = self.model.args.max_seq_len  # that of the model that is saved, even while batches have half of it
        with self.autocast:  # not self.compiled_loss, which would be compiled once more, without gradients
            return validation_loss(self.parallel_loss, self.dataset, self.args, context, self.ranks)

    def score_best(self, on_scored: Callable[[int], object] = lambda count: None) -> LastScore:
        """Score the saved model, which is the best one, as evaluate.py does, and write the result into its directory.

        It is scored on all of the validation text, or on SCORED_TOKENS of it, or on ``eval_tokens`` if more could take
        longer than a tenth of the run. Only one process calls it, which must have room for the whole model.
        """
        assert self.directory
        part = SCORED_TOKENS
        if min(part, self.dataset.val_tokens) > VALIDATION_SHARE * self.progress.tokens:
            part = min(part, self.args.eval_tokens)
        model = open_checkpoint(self.directory).model(self.device, network=type(self.model))
        text = validation_text(self.dataset, model.args.max_seq_len, part)
        (score,) = score_texts(model, [text], on_scored)
        nats, bits = score.nats_per_token, score.bits_per_byte
        last = LastScore(self.progress.best_step, nats, bits, score.tokens, part)
        write_json(self.directory / SCORE, asdict(last))
        return last

    def _check_finite(self, value: float, message: str) -> None:
        """Raise ValueError for NaN or infinity. All processes must give the same ``value``, so that all of them end."""
        if not math.isfinite(value):
            again = f"resume {self.directory}" if self.directory else "train again"
            advice = "half of --lr, or a smaller --grad_clip"
            if self.dtype == torch.float16:
                advice = f"--dtype float32, {advice}"
            raise ValueError(f"step {self.progress.step}: {message}: {again} with {advice}")

    def _record(self, measured: dict[str, float], save: bool) -> dict[str, float]:
        """Write the metrics of a step and, if ``save``, the state, then the model. Every process must call it.

        The model is written last, because a model without a state is taken for one whose state was removed.
        """
        if self.directory is None:
            return measured
        if self.ranks.is_first:
            # Synced before a state is saved, so that the lines up to it are never lost
            append_metrics(self.directory / METRICS, self.progress.step, measured, sync=save)
        if save:
            scale = self.scaler.state_dict()  # empty in other dtypes than float16
            self.progress.loss_scale = scale.get("scale", 0.0)
            self.progress.steps_at_scale = scale.get("_growth_tracker", 0)
            self.progress.wall_seconds = self.clock() - self.start  # with the validation
            save_state(self.directory, self.model, self.optimizers, self.progress, self.ranks)
            self._save_if_best()
        return measured

    def _save_if_best(self) -> None:
        """Save the model if its validation at this step was the best so far. Every process must call it."""
        progress = self.progress
        if progress.best_val_loss < math.inf and progress.best_step == progress.step and self.directory:
            best = whole_model(self.model, self.ranks)
            if best is not None:
                save_model(best, self.directory)


@torch.no_grad()
def validation_loss(loss: nn.Module, dataset: Dataset, args: TrainArgs, context: int, ranks: Ranks) -> float:
    """Mean nats per token over about ``eval_tokens`` tokens of the validation text, in windows of ``context`` tokens.

    It draws no random numbers, so it does not change the run. Separators between documents do not count, and of
    conversations only what the assistant has to write. ``loss`` maps tokens and targets to the sum of nats, as
    ``NextTokenLoss`` does. The windows do not overlap, and the processes take batches of them in turn. A process that
    has no batch left repeats one without counting it, because a sharded network runs only if all processes run it.
    """
    device = next(loss.parameters()).device
    training = loss.training
    loss.eval()
    rows = args.micro_batch_rows(context, device.type, ranks.world_size)
    batches = dataset.val_batches(rows, context, args.eval_tokens)
    total = count = 0.0
    while group := list(islice(batches, ranks.world_size)):
        batch = group[min(ranks.rank, len(group) - 1)]
        nats = loss(*on_device(batch, device))
        if ranks.rank < len(group):
            total += nats.item()
            count += int((batch[1] != UNCOUNTED).sum())
    loss.train(training)
    totals, counts = ranks.gather(total, count)
    return sum(totals) / sum(counts)


def on_device(batch: tuple[np.ndarray, np.ndarray], device: torch.device) -> Tensor:
    """The tokens and targets of a batch, (B, T) each, in one copy: (2, B, T).

    A copy to a card from memory that is not pinned would wait until the card has done all earlier work. PyTorch keeps
    pinned memory until it has been copied.
    """
    both, pinned = torch.from_numpy(np.stack(batch)), device.type in CARDS
    return (both.pin_memory() if pinned else both).to(device, non_blocking=pinned)


def add_dropout(model: Transformer, probability: float) -> None:
    """Add dropout after the embedding of tokens, attention and feed-forward modules, in training mode only.

    Forward hooks keep dropout out of the code of the network, because only training uses it.
    """
    if probability:
        for module in model.modules():
            if module is model.tok_embeddings or isinstance(module, Attention | FeedForward):
                module.register_forward_hook(lambda module, _, out: F.dropout(out, probability, module.training))


def initial_model(run: Run, machine: Machine, ranks: Ranks) -> Transformer:
    """A model with random weights, or those of ``init_from``. If the run has a state, the trainer loads it later.

    The trainer shards the model with ``fsdp``. Until then only the first process has weights, on the CPU, because the
    processes of a machine may not have room for one copy each. But a subclass is built in each process, because it may
    compute its buffers as it likes.
    """
    is_sharded = run.train.fsdp and ranks.world_size > 1
    has_state = run.resume and read_progress(run.directory) is not None
    source = None if has_state else run.train.init_from
    if not (is_sharded and run.network is Transformer):
        model = model_with_weights(run, source)
        return model if is_sharded else model.to(machine.device)
    model = make_network(Transformer, run.model)  # on the meta device
    if not has_state:
        ranks.on_first_process(lambda: model.load_state_dict(model_with_weights(run, source).state_dict(), assign=True))
    return model


def model_with_weights(run: Run, source: Path | str | None) -> Transformer:
    """A model with random weights, or those of ``source``, whose context may be longer."""
    if source is None:
        return run.network(run.model)
    model = make_network(run.network, run.model)
    model.load_state_dict(load_model(source, network=run.network).state_dict(), assign=True)
    return model
