"""Muon for the hidden matrices, AdamW for the rest, and the learning rate schedule."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from ..transformer import Transformer
from .config import TrainArgs


def orthogonalize(stack: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Push all singular values of each matrix of (N, rows, columns) towards 1, keeping its singular vectors.

    Newton-Schulz iteration, as in torch.optim.Muon: X <- a X + (b A + c A^2) X with A = X X^T. Unlike torch, it works
    in the dtype of ``stack`` and on N matrices at once.
    """
    a, b, c = coefficients
    tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if tall else stack
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT  # (N, rows, rows)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # (N, rows, columns)
    return x.mT if tall else x


class Muon(torch.optim.Muon):
    """torch.optim.Muon, with matrix products in ``dtype``, and with matrices of the same shape stacked.

    The parent always multiplies in bfloat16. A float32 run should use float32 throughout, and without native bfloat16
    these products are slow: 0.3 GFLOP/s, where float32 reached 160 (AVX2, two cores). State and hyperparameters are
    those of the parent, except that ``adjust_lr_fn`` is always "original" and ``nesterov`` True. It needs whole
    matrices, because a part of a matrix has different singular vectors.
    """

    def __init__(self, params: list[nn.Parameter], dtype: torch.dtype = torch.float32, **hyperparameters: Any) -> None:
        super().__init__(params, **hyperparameters)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for weights in by_shape.values():
                self._step_stack(group, weights)

    def _step_stack(self, group: dict[str, Any], weights: list[Any]) -> None:
        for p in weights:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        grads, momenta = [p.grad for p in weights], [self.state[p]["momentum_buffer"] for p in weights]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        directions = torch._foreach_lerp(grads, momenta, group["momentum"])  # Nesterov's momentum

        stack = torch.stack(directions)  # (N, rows, columns)
        if self.dtype == torch.float16:  # most gradients are too small for it
            stack /= stack.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
        stack = stack.to(self.dtype)
        orthogonal = orthogonalize(stack, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = weights[0].shape
        lr = group["lr"] * max(1, rows / columns) ** 0.5
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, orthogonal.to(weights[0].dtype).unbind(), alpha=-lr)


def build_optimizers(
    model: Transformer, args: TrainArgs, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters, or Muon for the hidden matrices and AdamW for the rest. Vectors have no weight decay.

    ``dtype`` is that of Muon's products.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = {p for p in model.layers.parameters() if p.ndim == 2} if args.optimizer == "muon" else set()
    hidden = [p for p in trained if p in matrices]
    rest = [p for p in trained if p not in matrices]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": args.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (0.9, 0.95)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=args.lr, betas=betas, fused=True)]
    if hidden:
        optimizers.append(Muon(hidden, dtype, lr=args.lr, weight_decay=args.weight_decay))
    return optimizers


def lr_fraction(args: TrainArgs, fraction_done: float) -> float:
    """The learning rate as a fraction of its peak: linear warmup, constant until ``decay_start``, then decay.

    It is never 0 in the first step, and it reaches ``min_lr`` at the end of the run.
    """
    if fraction_done < args.warmup:
        return max(fraction_done / args.warmup, 0.05)
    start = max(args.decay_start, args.warmup)
    remaining = 1 - min(max(fraction_done - start, 0) / (1 - start), 1)
    return args.min_lr + (1 - args.min_lr) * remaining


def set_learning_rate(optimizers: list[torch.optim.Optimizer], fraction: float) -> None:
    """Set the learning rate of every optimizer, as a fraction of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = optimizer.defaults["lr"] * fraction


def create_state(optimizers: list[torch.optim.Optimizer], parameters: list[nn.Parameter]) -> None:
    """Let the optimizers create the state of these parameters, as their first step would, to load values into it."""
    set_learning_rate(optimizers, 0.0)  # the weights stay as they are
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
