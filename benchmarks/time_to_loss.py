#!/usr/bin/env python3
"""Seconds of training until a validation loss, beside a GPT-2 with nanoGPT's published CPU setting, in one process.

    python benchmarks/time_to_loss.py --data tinyshakespeare.txt [--target 1.8857] [--config CONFIG.toml]

The other is transformers' GPT-2 in nanoGPT's setting for a CPU: 4 layers, 4 heads, 128 wide, context 64, batch 12,
2000 steps, AdamW at 1e-3 down to 1e-4 over a cosine. Both take steps in turn, so that a noisy machine is noisy for
both; evaluation, on the whole validation text, is not counted. Losses are nats per character.
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
from model.cli import from_settings, read_toml
from model.text.dataset import Dataset
from model.text.prepare import prepare
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer
from model.training.config import DataArgs, TrainArgs
from model.training.evaluation import cross_entropy, validation_loss
from model.training.trainer import Trainer

STEPS, WARMUP, PEAK, FLOOR = 2000, 100, 1e-3, 1e-4
TARGET = 1.8857  # nats per character at the end of nanoGPT's CPU setting
FAST = Path(__file__).parents[1] / "configs" / "shakespeare_fast.toml"


class GPT2(nn.Module):
    """nanoGPT's CPU setting, and the clock of its steps."""

    def __init__(self, vocab_size: int, dataset: Dataset) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": vocab_size}
        dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, bos_token_id=None, eos_token_id=None))
        self.args = ModelArgs(max_seq_len=64)  # this and tok_embeddings are what validation_loss asks for
        self.tok_embeddings = self.gpt2.transformer.wte
        matrices = [p for p in self.parameters() if p.ndim >= 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99), fused=True)
        self.dataset, self.step_number, self.seconds = dataset, 0, 0.0
        self.train()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.gpt2(tokens, use_cache=False).logits

    def step(self) -> None:
        started = time.perf_counter()
        batch = self.dataset.batch(self.step_number, batch_size=12, context=64, seed=1337)
        rate = PEAK * (self.step_number + 1) / WARMUP
        if self.step_number >= WARMUP:
            done = (self.step_number - WARMUP) / (STEPS - WARMUP)
            rate = FLOOR + 0.5 * (1 + math.cos(math.pi * done)) * (PEAK - FLOOR)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = (torch.from_numpy(part) for part in batch)
        cross_entropy(self(inputs), targets).backward()
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step_number += 1
        self.seconds += time.perf_counter() - started


class Race:
    """After each of our steps GPT-2 takes one; what each reached, and when, is noted."""

    def __init__(self, trainer: Trainer, gpt2: GPT2, target: float) -> None:
        self.trainer, self.gpt2, self.target = trainer, gpt2, target
        self.ours = self.theirs = math.inf
        self.curve: list[tuple[float, float]] = []

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
        gpt2 = self.gpt2
        if gpt2.step_number >= STEPS:
            return False
        gpt2.step()
        if gpt2.step_number % every == 0:
            loss = validation_loss(gpt2, gpt2, self.trainer.dataset, TrainArgs(batch_size=64), self.trainer.ranks)
            print(f"GPT-2     step {gpt2.step_number:5} {gpt2.seconds:7.1f} s  {loss:.4f}", flush=True)
            if loss <= self.target:
                self.theirs = min(self.theirs, gpt2.seconds)
        return True


def finished_race(data: str, config: Path, target: float) -> Race:
    """The race on this text, run to its end."""
    settings = read_toml(config, DataArgs, ModelArgs, TrainArgs)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "tokenizer.model"
        train_tokenizer((text for text, _ in open_documents([data])), file, "char", 1024)
        tokenizer = SentencePieceTokenizer(file)
        args = from_settings(ModelArgs, settings | {"vocab_size": tokenizer.vocab_size})
        dataset = prepare(open_documents([data]), tokenizer, context=args.max_seq_len, cache_dir=scratch)
        torch.manual_seed(1337)
        gpt2 = GPT2(tokenizer.vocab_size, dataset)
        trainer = Trainer(Transformer(args), dataset, from_settings(TrainArgs, settings), Path(scratch))
        race = Race(trainer, gpt2, target)
        race.run()
    return race


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--target", type=float, default=TARGET, help="what nanoGPT's setting ends with")
    parser.add_argument("--config", type=Path, default=FAST)
    given = parser.parse_args()
    race = finished_race(given.data, given.config, given.target)
    ours, theirs = race.ours, race.theirs
    print(f"to {given.target}: GPT-2 {theirs:.1f} s, ropewalk {ours:.1f} s, {theirs / ours:.1f} times faster")
    within = min((loss for seconds, loss in race.curve if seconds <= race.theirs), default=math.inf)
    print(f"ropewalk's best within those {race.theirs:.1f} s: {within:.4f}")


if __name__ == "__main__":
    main()
