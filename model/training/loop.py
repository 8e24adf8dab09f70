"""The one training loop."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from ..cli.machine import keep_freed_memory, pick_dtype
from ..text.dataset import Dataset
from ..transformer import Transformer
from ..weights import save_model
from .attention import choose_attention
from .config import TrainArgs
from .distributed import Ranks, gather, spread, sync_gradients, whole
from .dropout import add_dropout
from .evaluation import evaluate, loss_of
from .metrics import Metrics, bits_per_byte
from .optimizer import build_optimizers, set_rate
from .progress import Progress, Watcher
from .run_directory import full_state, load_state, save_state
from .schedule import rate


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
        """With ``progress``, that of the state in ``directory``, the state is loaded and continued."""
        self.model, self.dataset, self.args, self.directory = model, dataset, args, directory
        self.identity, self.clock = identity or {}, clock
        self.watcher, self.ranks = watcher or Watcher(), ranks or Ranks()
        self.progress = progress or Progress()
        self.saved_step = self.progress.step
        self.signal = 0  # what ended the run early, if anything did
        self.context = model.args.max_seq_len
        self.device = model.tok_embeddings.weight.device
        if self.device.type == "cpu":
            keep_freed_memory()
        self.dtype = pick_dtype(args.dtype, self.device)
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

        choose_attention(model, self.dtype)
        add_dropout(model, args.dropout)
        self.spread = spread(model, self.ranks, args.fsdp)
        self.optimizers = build_optimizers(model, args)
        if progress:
            load_state(directory, model, self.optimizers)
        self.network = torch.compile(self.spread) if args.compile else self.spread
        self.metrics = Metrics(directory / "metrics.jsonl", self.progress.step) if self.ranks.is_first else None

    def run(self) -> Progress:
        """Step until the steps or the minutes are used up, or a signal comes; then the state is saved.

        Raises ValueError when the loss is not finite; what is saved is then the last good state.
        """
        begin = self.clock() - self.progress.wall_seconds
        self.model.train()
        share = self._agree(begin)
        while share < 1 and not self.signal:
            figures = self._timed_step(share)
            share = self._agree(begin)
            validating = self.progress.step % self.args.eval_every == 0 or share >= 1
            if validating:
                figures |= self._validate()
            if self.metrics:
                self.metrics.write(self.progress.step, figures)
            if validating or self.signal:
                self.progress.wall_seconds = self.clock() - begin
                self._save()
            self.watcher.after_step(self, figures)
        return self.progress

    def _agree(self, begin: float) -> float:
        """How much of the run is done, and whether a signal ends it: the same answer in every process."""
        self.progress.wall_seconds = self.clock() - begin
        share = self.args.share_done(self.progress.step, self.progress.wall_seconds)
        share, signal = self.ranks.highest([share, self.watcher.signal()], self.device)
        self.signal = int(signal)
        return share

    def _timed_step(self, share: float) -> dict[str, float]:
        started = self.clock()
        figures = self._step(rate(self.args, share))
        seconds = self.clock() - started
        tokens = self.args.batch_size * self.context
        self.progress.step += 1
        self.progress.tokens += tokens
        self.progress.train_seconds += seconds
        return figures | {"tokens_per_second": tokens / max(seconds, 1e-9)}

    def _step(self, lr_share: float) -> dict[str, float]:
        """One optimizer step on the batch that belongs to this step."""
        loss = self._backpropagate()
        norm = gather(clip_grad_norm_(self.model.parameters(), self.args.grad_clip or math.inf)).item()
        self._check(
            math.isfinite(loss + norm), self.progress.step + 1, f"the loss is {loss} and the gradient {norm} long"
        )
        set_rate(self.optimizers, lr_share)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"train_loss": loss, "lr": self.args.lr * lr_share, "grad_norm": norm}

    def _backpropagate(self) -> float:
        """The gradient of the mean loss over the batch, in micro-batches and over all processes; returns that loss."""
        args, ranks, step = self.args, self.ranks, self.progress.step
        if args.dropout:
            mixed = np.random.SeedSequence([args.seed, step, ranks.rank])
            torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0]))
        batch = self.dataset.batch(
            step, batch_size=args.batch_size, context=self.context, seed=args.seed,
            rank=ranks.rank, world_size=ranks.world_size,
        )  # fmt: skip
        inputs, targets = (torch.from_numpy(part).to(self.device, non_blocking=True) for part in batch)  # (B, T)
        parts = [both.split(args.micro_batch_size or len(inputs)) for both in (inputs, targets)]
        loss = torch.zeros((), device=self.device)
        for number, (x, y) in enumerate(zip(*parts, strict=True), 1):
            sync_gradients(self.spread, number == len(parts[0]))
            with self.autocast:
                part = loss_of(self.network, x, y) * (len(x) / len(inputs))
            part.backward()
            loss += part.detach()
        return ranks.sum([loss.item() / ranks.world_size], self.device)[0]

    def _validate(self) -> dict[str, float]:
        progress, dataset = self.progress, self.dataset
        with self.autocast:
            loss = evaluate(self.network, self.model, dataset, self.args, self.ranks)
        self._check(math.isfinite(loss), progress.step, f"the validation loss is {loss}")
        progress.val_loss = loss
        if progress.best_val_loss is None or loss < progress.best_val_loss:
            progress.best_val_loss, progress.best_step = loss, progress.step
            best = whole(self.model)
            if self.ranks.is_first:
                save_model(best, self.directory)
        return {"val_loss": loss, "val_bits_per_byte": bits_per_byte(loss, dataset)}

    def _check(self, fine: bool, step: int, what: str) -> None:
        if not fine:
            raise ValueError(
                f"step {step}: {what}; the good state of step {self.saved_step} stays in "
                f"{self.directory}: resume it with half of --lr and --muon_lr, or a smaller --grad_clip"
            )

    def _save(self) -> None:
        state = full_state(self.model, self.optimizers, keep=self.ranks.is_first)
        if self.metrics:
            self.metrics.sync()
            save_state(self.directory, state, {"progress": asdict(self.progress), "identity": self.identity})
        self.saved_step = self.progress.step
