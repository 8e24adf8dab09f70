"""transformers, measured in a process of its own, because its users have neither ``startup.py`` nor our allocator.

``in_own_process`` starts ``python -m benchmarks.peers``, which measures once for each line that it reads.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import Measurement, seconds
from model import ModelArgs
from model.fast.loss import NextTokenLoss
from model.text.dataset import load_dataset
from model.training.config import TrainArgs
from model.training.distributed import Ranks
from model.training.trainer import validation_loss

ROOT = Path(__file__).resolve().parent.parent
EVAL_TOKENS = 200_000  # more than the validation text has, so all of it
STEPS, WARMUP_STEPS, PEAK_LR, MIN_LR = 2000, 100, 1e-3, 1e-4  # of GPT-2


def users_environment() -> dict[str, str]:
    """The environment without what ``startup.py`` has set."""
    return {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}


def in_own_process(contender: str, **arguments: Any) -> Callable[[], Any]:
    """A contender of ``CONTENDERS`` with these arguments: each call measures once, and returns what it returns."""
    arguments["threads"] = torch.get_num_threads()
    command = [sys.executable, "-m", "benchmarks.peers", contender, json.dumps(arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=users_environment(), **pipes)
    assert process.stdin
    assert process.stdout

    def measure() -> Any:
        print(file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    return measure


def generation(directory: str, dtype: str, tokens: int) -> Measurement:
    """Tokens/s, greedily after BOS."""
    from transformers import LlamaForCausalLM, logging

    logging.set_verbosity_error()
    model = LlamaForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    options = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return lambda: tokens / seconds(lambda: model.generate(torch.tensor([[1]]), **options))


def training(args: dict[str, Any], rows: int, dtype: str) -> Measurement:
    """Seconds of a step with AdamW, on ``rows`` sequences of random tokens."""
    model = llama(ModelArgs(**args))
    tokens = torch.randint(args["vocab_size"], (rows, args["max_seq_len"] + 1))
    return partial(seconds, partial(step, model, partial(llama_loss, model), [fused_adamw(model)], dtype, tokens))


def step(
    model: nn.Module,
    summed_loss: Callable[[Tensor, Tensor], Tensor],
    optimizers: list[torch.optim.Optimizer],
    dtype: str,
    tokens: Tensor,
) -> None:
    """Train on tokens (B, T + 1)."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = summed_loss(inputs, targets) / targets.numel()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def llama(args: ModelArgs) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.dim,
        intermediate_size=args.hidden_dim,
        num_hidden_layers=args.n_layers,
        num_attention_heads=args.n_heads,
        num_key_value_heads=args.n_kv_heads,
        max_position_embeddings=args.max_seq_len,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).train()


def llama_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(
        model(tokens, use_cache=False).logits.float().flatten(0, 1), targets.flatten(), reduction="sum"
    )


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


class GPT2(nn.Module):
    """GPT-2 in nanoGPT's CPU setting, trained on the text in a run directory.

    Each call is a step; it returns the seconds that it took, and every 100 steps the validation loss, else None.
    """

    def __init__(self, directory: str, vocab_size: int, dtype: str) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(1337)
        sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": vocab_size}
        dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, bos_token_id=None, eos_token_id=None))
        matrices = [p for p in self.parameters() if p.ndim >= 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.99), fused=True)
        self.dataset = load_dataset(Path(directory))
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
        self.steps_taken = 0
        self.train()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.gpt2(tokens, use_cache=False).logits

    def measure(self) -> tuple[float, float | None]:
        taken = seconds(self.step)
        loss = None
        if self.steps_taken % 100 == 0:
            with self.autocast:
                settings = TrainArgs(batch_size=64, eval_tokens=EVAL_TOKENS)
                loss = validation_loss(NextTokenLoss(self), self.dataset, settings, 64, Ranks())
        return taken, loss

    def step(self) -> None:
        inputs, targets = (
            torch.from_numpy(part)
            for part in self.dataset.batch(12 * self.steps_taken, batch_size=12, context=64, seed=1337)
        )
        rate = PEAK_LR * (self.steps_taken + 1) / WARMUP_STEPS
        if self.steps_taken >= WARMUP_STEPS:
            decayed = (self.steps_taken - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
            rate = MIN_LR + 0.5 * (1 + math.cos(math.pi * decayed)) * (PEAK_LR - MIN_LR)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.autocast:
            loss = F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps_taken += 1


CONTENDERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "generation": generation,
    "training": training,
    "GPT-2": lambda **arguments: GPT2(**arguments).measure,
}


def main() -> None:
    contender, arguments = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(arguments.pop("threads"))
    measure = CONTENDERS[contender](**arguments)
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main()
