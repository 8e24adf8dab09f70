#!/usr/bin/env python3
"""Measure the seconds of training until a validation loss, compared with GPT-2 in nanoGPT's published CPU setting.

    python benchmarks/time_to_loss.py --data tinyshakespeare.txt [--target 1.8857] [--config CONFIG.toml]

GPT-2 is that of transformers, with 4 layers, 4 heads, width 128, context 64, batch size 12, 2000 steps, and AdamW at
1e-3 with a cosine decay to 1e-4. Both take steps in turn in one process, so that other load slows both down. The time
for evaluation, on the complete validation text, is not counted. Losses are nats per character.
"""

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from model import ModelArgs, Transformer
from model.cli import instances, read_toml
from model.text.dataset import Dataset
from model.text.prepare import load_dataset, tokenize
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer
from model.training.config import DataArgs, TrainArgs
from model.training.evaluation import validation_loss
from model.training.loss import NextTokenLoss
from model.training.trainer import Trainer

STEPS = 2000
WARMUP_STEPS = 100
PEAK_LR = 1e-3
MIN_LR = 1e-4
TARGET = 1.8857  # nats per character that nanoGPT's CPU setting ends with
FAST = Path(__file__).parents[1] / "configs" / "shakespeare_fast.toml"


class GPT2(nn.Module):
    """GPT-2 in nanoGPT's CPU setting, and the seconds its steps have taken."""

    def __init__(self, vocab_size: int, dataset: Dataset) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": vocab_size}
        dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, bos_token_id=None, eos_token_id=None))
        matrices = [p for p in self.parameters() if p.ndim >= 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.99), fused=True)
        self.dataset = dataset
        self.step_number = 0
        self.seconds = 0.0
        self.train()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.gpt2(tokens, use_cache=False).logits

    def step(self) -> None:
        started = time.perf_counter()
        batch = self.dataset.batch(12 * self.step_number, batch_size=12, context=64, seed=1337)
        rate = PEAK_LR * (self.step_number + 1) / WARMUP_STEPS
        if self.step_number >= WARMUP_STEPS:
            decayed = (self.step_number - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
            rate = MIN_LR + 0.5 * (1 + math.cos(math.pi * decayed)) * (PEAK_LR - MIN_LR)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = (torch.from_numpy(part) for part in batch)
        (NextTokenLoss(self)(inputs, targets) / targets.numel()).backward()
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step_number += 1
        self.seconds += time.perf_counter() - started


class Race:
    """Trains both in turn. ``ours`` and ``theirs`` are the seconds of training until the target loss."""

    def __init__(self, trainer: Trainer, gpt2: GPT2, target: float) -> None:
        self.trainer = trainer
        self.gpt2 = gpt2
        self.target = target
        self.ours = math.inf
        self.theirs = math.inf
        self.curve: list[tuple[float, float]] = []  # seconds and loss of our validations

    def run(self) -> None:
        progress = self.trainer.progress
        for measured in self.trainer.steps():
            if "val_loss" in measured:
                seconds, loss = progress.train_seconds, measured["val_loss"]
                self.curve.append((seconds, loss))
                print(f"ropewalk  step {progress.step:5} {seconds:7.1f} s  {loss:.4f}", flush=True)
                if loss <= self.target:
                    self.ours = min(self.ours, seconds)
            self.gpt2_step()
        while self.theirs == math.inf and self.gpt2_step():
            pass

    def gpt2_step(self, every: int = 100) -> bool:
        """Take a step of GPT-2, and validate every ``every`` steps. Returns False after the last step."""
        gpt2 = self.gpt2
        if gpt2.step_number >= STEPS:
            return False
        gpt2.step()
        if gpt2.step_number % every == 0:
            loss = validation_loss(
                NextTokenLoss(gpt2), self.trainer.dataset, TrainArgs(batch_size=64), 64, self.trainer.ranks
            )
            print(f"GPT-2     step {gpt2.step_number:5} {gpt2.seconds:7.1f} s  {loss:.4f}", flush=True)
            if loss <= self.target:
                self.theirs = min(self.theirs, gpt2.seconds)
        return True


def finished_race(data: str, config: Path, target: float) -> Race:
    """Train both on this text to the end."""
    settings = read_toml(config, DataArgs, ModelArgs, TrainArgs)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "tokenizer.model"
        train_tokenizer((text for text, _ in open_documents([data])), file, "char", 1024)
        tokenizer = SentencePieceTokenizer(file)
        settings |= {"vocab_size": tokenizer.vocab_size}
        _, args, train = instances(settings, DataArgs, ModelArgs, TrainArgs)
        tokenize(Path(scratch), open_documents([data]), tokenizer)
        dataset = load_dataset(Path(scratch))
        torch.manual_seed(1337)
        gpt2 = GPT2(tokenizer.vocab_size, dataset)
        trainer = Trainer(Transformer(args), dataset, train, Path(scratch))
        race = Race(trainer, gpt2, target)
        race.run()
    return race


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--target", type=float, default=TARGET, help="validation loss to reach")
    parser.add_argument("--config", type=Path, default=FAST)
    flags = parser.parse_args()
    race = finished_race(flags.data, flags.config, flags.target)
    ours, theirs = race.ours, race.theirs
    print(f"to {flags.target}: GPT-2 {theirs:.1f} s, ropewalk {ours:.1f} s, {theirs / ours:.1f} times faster")
    best = min((loss for seconds, loss in race.curve if seconds <= theirs), default=math.inf)
    print(f"ropewalk's best loss within those {theirs:.1f} s: {best:.4f}")


if __name__ == "__main__":
    main()
