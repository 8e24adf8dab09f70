"""The one training loop."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from ..text.dataset import Dataset
from ..transformer import Transformer
from ..weights import save_model
from .config import TrainArgs
from .device import pick_dtype
from .distributed import Ranks, gather, spread, sync_gradients, whole
from .dropout import add_dropout
from .evaluation import evaluate, loss_of
from .metrics import Metrics, bits_per_byte
from .optimizer import build_optimizers, set_rate
from .run_directory import full_state, load_state, save_state
from .schedule import rate


@dataclass
class Progress:
    """The state of a run that is neither weights nor optimizer. Batches and dropout follow from seed and step."""

    step: int = 0
    tokens: int = 0
    train_seconds: float = 0.0  # in training steps alone
    wall_seconds: float = 0.0  # with validation, samples and checkpoints
    val_loss: float = math.inf
    best_val_loss: float = math.inf
    best_step: int = 0


class Watcher:
    """Who is told how a run goes, and may end it. This one is silent; the terminal's is in console.py."""

    def after_step(self, trainer: "Trainer", figures: dict[str, float]) -> None: ...

    def wants_stop(self) -> bool:
        return False


class Trainer:
    """Trains ``model`` in place and keeps ``directory`` such that a kill at any moment loses little.

    The directory gets metrics.jsonl, the best model on validation text, and the latest state with ``identity`` in
    it: what a resume must agree with. Call ``run`` once.
    """

    def __init__(
        self,
        model: Transformer,
        dataset: Dataset,
        args: TrainArgs,
        directory: Path,
        *,
        identity: dict[str, Any] | None = None,
        progress: Progress | None = None,
        watcher: Watcher | None = None,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """With ``progress``, as ``read_progress`` gives it, the state in ``directory`` is loaded and continued."""
        self.model, self.dataset, self.args, self.directory = model, dataset, args, directory
        self.identity, self.clock = identity or {}, clock
        self.watcher, self.ranks = watcher or Watcher(), ranks or Ranks()
        self.progress = progress or Progress()
        self.context = model.args.max_seq_len
        self.device = model.tok_embeddings.weight.device
        self.dtype = pick_dtype(args.dtype, self.device)
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

        add_dropout(model, args.dropout)
        self.spread = spread(model, self.ranks, args.fsdp)
        self.optimizers = build_optimizers(model, args)
        if progress:
            load_state(directory, model, self.optimizers)
        self.network = torch.compile(self.spread) if args.compile else self.spread
        self.metrics = Metrics(directory / "metrics.jsonl", self.progress.step) if self.ranks.is_first else None

    def run(self) -> Progress:
        """Step until the steps or the minutes are used up, or the watcher wants to stop; then the state is saved."""
        begin = self.clock() - self.progress.wall_seconds
        self.model.train()
        share, stopping = self._agree(begin)
        while share < 1 and not stopping:
            figures = self._timed_step(share)
            share, stopping = self._agree(begin)
            validating = self.progress.step % self.args.eval_every == 0 or share >= 1
            if validating:
                figures |= self._validate()
            if self.metrics:
                self.metrics.write(self.progress.step, **figures)
            if validating or stopping:
                self.progress.wall_seconds = self.clock() - begin
                self._save()
            self.watcher.after_step(self, figures)
        return self.progress

    def _agree(self, begin: float) -> tuple[float, bool]:
        """How much of the run is done, and whether to stop: the same answer in every process."""
        self.progress.wall_seconds = self.clock() - begin
        share = self.args.progress(self.progress.step, self.progress.wall_seconds)
        share, stop = self.ranks.highest([share, float(self.watcher.wants_stop())], self.device)
        return share, stop > 0

    def _timed_step(self, share: float) -> dict[str, float]:
        started = self.clock()
        figures = self._step(rate(self.args, share))
        seconds = self.clock() - started
        tokens = self.args.batch_size * self.context
        self.progress.step += 1
        self.progress.tokens += tokens
        self.progress.train_seconds += seconds
        return figures | {"tokens_per_second": tokens / seconds}

    def _step(self, lr_share: float) -> dict[str, float]:
        """One optimizer step on the batch that belongs to this step; it may come in several micro-batches."""
        step, args = self.progress.step, self.args
        if args.dropout:
            torch.manual_seed((args.seed * 1_000_003 + step) * 1_003 + self.ranks.rank)
        batch = self.dataset.batch(
            step,
            batch_size=args.batch_size,
            context=self.context,
            seed=args.seed,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        inputs, targets = (torch.from_numpy(part).to(self.device, non_blocking=True) for part in batch)  # (B, T)
        size = args.micro_batch_size or len(inputs)
        parts = list(zip(inputs.split(size), targets.split(size), strict=True))
        loss = torch.zeros((), device=self.device)
        for number, (x, y) in enumerate(parts, 1):
            sync_gradients(self.spread, number == len(parts))
            with self.autocast:
                part_loss = loss_of(self.network, x, y) / len(parts)
            part_loss.backward()
            loss += part_loss.detach()
        norm = gather(clip_grad_norm_(self.model.parameters(), args.grad_clip or math.inf)).item()
        (mean_loss,) = self.ranks.sum([loss.item() / self.ranks.world_size], self.device)
        if not math.isfinite(mean_loss + norm):
            raise ValueError(self._diverged(mean_loss, norm))
        set_rate(self.optimizers, lr_share)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"train_loss": mean_loss, "lr": args.lr * lr_share, "grad_norm": norm}

    def _diverged(self, loss: float, norm: float) -> str:
        return (
            f"at step {self.progress.step + 1} the loss is {loss} and the gradient {norm} long: the last good state "
            f"stays in {self.directory}; resume it with half of --lr and --muon_lr, or a smaller --grad_clip"
        )

    def _validate(self) -> dict[str, float]:
        progress = self.progress
        with self.autocast:
            loss = evaluate(self.network, self.dataset, self.context, self.args, self.device, self.ranks)
        progress.val_loss = loss
        if loss < progress.best_val_loss:
            progress.best_val_loss, progress.best_step = loss, progress.step
            best = whole(self.model)
            if self.ranks.is_first:
                save_model(best, self.directory)
        tokens_per_byte = self.dataset.val_tokens_per_byte
        return {"val_loss": loss, "val_bits_per_byte": bits_per_byte(loss, tokens_per_byte)}

    def _save(self) -> None:
        state = full_state(self.model, self.optimizers)
        if self.ranks.is_first:
            save_state(self.directory, state, {"progress": asdict(self.progress), "identity": self.identity})
