#!/usr/bin/env python3
"""Compare the training speed of this network and of transformers' LlamaForCausalLM, with the same sizes and data.

    python benchmarks/train.py [--rounds 7] [--compile]

Each round takes one optimizer step of every contender in turn, so that other load slows all of them down. Prints the
medians, their ratio to transformers, and the fraction of the matrix product rate measured on this machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from model import ModelArgs, Transformer
from model.cli.machine import keep_freed_memory, pick_device, pick_dtype
from model.training.config import TrainArgs
from model.training.loss import NextTokenLoss
from model.training.optimizer import build_optimizers

ROWS, CONTEXT = 16, 256
ARGS = ModelArgs(dim=256, n_layers=6, n_heads=8, vocab_size=2048, max_seq_len=CONTEXT)


def transformers_llama(device: torch.device) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=ARGS.vocab_size,
        hidden_size=ARGS.dim,
        intermediate_size=ARGS.hidden_dim,
        num_hidden_layers=ARGS.n_layers,
        num_attention_heads=ARGS.n_heads,
        max_position_embeddings=CONTEXT,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).to(device).train()


def stepper(
    summed_loss: Callable[[Tensor, Tensor], Tensor], model: nn.Module, optimizers: list, autocast: torch.autocast
) -> Callable[[Tensor, Tensor], None]:
    def step(x: Tensor, y: Tensor) -> None:
        with autocast:
            loss = summed_loss(x, y) / y.numel()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if x.is_cuda:
            torch.cuda.synchronize()

    return step


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the most frequent kind of product in a step: (tokens, dim) by (dim, hidden_dim)."""
    a = torch.randn(ROWS * CONTEXT, ARGS.dim, device=device, dtype=dtype)
    b = torch.randn(ARGS.dim, ARGS.hidden_dim, device=device, dtype=dtype)
    seconds = []
    for _ in range(15):
        started = time.perf_counter()
        a @ b
        if a.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return 2 * a.numel() * b.shape[1] / statistics.median(seconds)


def flops_per_token(model: Transformer) -> float:
    """Forward and backward: 6 per matrix weight, and 12 L H D T / 2 for causal attention."""
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2) - model.tok_embeddings.weight.numel()
    return 6 * weights + 6 * ARGS.n_layers * ARGS.n_heads * ARGS.head_dim * CONTEXT


def step_seconds(device: torch.device, dtype: torch.dtype, rounds: int, compile: bool = False) -> dict[str, float]:
    """Median seconds of a step of each contender."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)
    keep_freed_memory()  # as in train.py; it makes transformers faster, too

    torch.manual_seed(0)
    ours, with_muon, compiled = (Transformer(ARGS).to(device) for _ in range(3))
    theirs = transformers_llama(device)
    adamw = TrainArgs(optimizer="adamw")

    def fused_adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)]

    def their_loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(theirs(tokens).logits.float().flatten(0, 1), targets.flatten(), reduction="sum")

    contenders = {
        "transformers, AdamW": stepper(their_loss, theirs, fused_adamw(theirs), autocast),
        "ropewalk, AdamW": stepper(NextTokenLoss(ours, dtype), ours, build_optimizers(ours, adamw), autocast),
        "ropewalk, Muon": stepper(
            NextTokenLoss(with_muon, dtype), with_muon, build_optimizers(with_muon, TrainArgs(), dtype), autocast
        ),
    }
    if compile:
        contenders["ropewalk compiled, AdamW"] = stepper(
            torch.compile(NextTokenLoss(compiled, dtype)), compiled, build_optimizers(compiled, adamw), autocast
        )
    tokens = torch.randint(0, ARGS.vocab_size, (ROWS, CONTEXT + 1), device=device)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 2):
        for name, step in contenders.items():
            started = time.perf_counter()
            step(tokens[:, :-1], tokens[:, 1:])
            if round_number >= 2:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(measured) for name, measured in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="also time the compiled network (takes a minute more)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    flags = parser.parse_args()
    device = pick_device(flags.device)
    dtype = pick_dtype(flags.dtype, device)
    seconds = step_seconds(device, dtype, flags.rounds, flags.compile)
    rate = matmul_rate(device, dtype)
    operations = flops_per_token(Transformer(ARGS))
    base = seconds["transformers, AdamW"]
    print(f"{device}, {dtype}, {torch.get_num_threads()} threads, {ROWS} x {CONTEXT} tokens, {rate / 1e9:.0f} GFLOP/s")
    print(f"{'':26}{'ms/step':>9}{'tokens/s':>10}{'ratio':>7}{'of matmul rate':>16}")
    for name, median in seconds.items():
        speed = ROWS * CONTEXT / median
        fraction = speed * operations / rate
        print(f"{name:26}{median * 1e3:9.0f}{speed:10,.0f}{base / median:7.2f}{fraction:15.0%}")


if __name__ == "__main__":
    main()
