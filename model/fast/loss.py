"""The loss of a network on a batch, without holding all of its logits at once.

With a vocabulary of 150,000 tokens the logits are larger than everything else that a training step keeps: in bfloat16,
in float32, and once more as gradients they take 16 bytes each. So the last product and the loss are computed for a few
hundred tokens at a time, and their gradients with them, after which the logits are not needed any more.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..attention import RMSNorm
from ..transformer import Transformer
from .kernels import FastRMSNorm, accelerate, replace_modules
from .merged import merge_products

# The forward pass computes gradients in float16 before the trainer can scale the loss, so it scales them itself:
LOGITS_SCALE = 64.0  # gradients of logits, many of which are smaller than the smallest float16, 6e-8
STATES_SCALE = 8.0  # / the number of tokens: states, whose products are summed and stay below the largest, 65,504


def chunk_rows(vocab_size: int, device: str) -> int:
    """The number of tokens whose logits are computed at once: on a CPU, logits of 16 MB in float32, or more.

    A GPU takes 256 MB, because each chunk costs it another dozen kernel launches. With fewer than 512 tokens, adding up
    the gradient of the output matrix would take longer than its product.
    """
    return max(512, (2**22 if device == "cpu" else 2**26) // vocab_size)


class NextTokenLoss(nn.Module):
    """Tokens (B, T) and targets (B, T) -> the sum of nats of the targets, in float32. A target of -100 does not count.

    ``dtype`` is that of the products: of autocast, or of the network. With ``merge``, for GPUs, it has fewer and wider
    products (``merge_products``). A network that overrides ``forward``, or whose output is not a plain matrix, computes
    all logits at once.
    """

    def __init__(self, network: Any, dtype: torch.dtype = torch.float32, merge: bool = False) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype
        self.body: nn.Module | None = None
        if isinstance(network, Transformer):
            self.network = replace_modules(accelerate(network), self.cast_once)
            if merge:
                self.network = merge_products(self.network)
            if has_plain_output(network):
                # The same modules except for the output, so that the result is its input, (B, T, dim)
                self.body = copy.copy(self.network)
                self.body._modules = dict(self.network._modules)
                self.body.output = nn.Identity()

    def cast_once(self, module: nn.Module) -> nn.Module:
        """Let a norm return the dtype of the products, because autocast makes and keeps a copy for each of them."""
        if type(module) is FastRMSNorm and self.dtype != torch.float32:
            return CastRMSNorm(module, self.dtype)
        return module

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if self.body is None:
            logits = self.network(tokens).float().flatten(0, 1)  # (B * T, V)
            return F.cross_entropy(logits, targets.flatten(), reduction="sum")
        network = self.network
        output = network.tok_embeddings if network.args.tie_embeddings else network.output
        h = self.body(tokens).flatten(0, 1)  # (B * T, dim)
        # Under no_grad a parameter still requires gradients, so its gradient would be computed, and thrown away
        weight = output.weight if torch.is_grad_enabled() else output.weight.detach()
        return _ChunkedLoss.apply(h, weight, targets.flatten(), self.dtype)  # type: ignore


class CastRMSNorm(FastRMSNorm):
    """An RMSNorm whose result has another dtype."""

    def __init__(self, norm: RMSNorm, dtype: torch.dtype) -> None:
        super().__init__(norm)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(self.dtype)


def has_plain_output(network: Transformer) -> bool:
    """Whether the logits are the result of the norm times a matrix, and nothing else."""
    output = network.output
    is_matrix = output is None or (type(output) is nn.Linear and output.bias is None and not output._forward_hooks)
    return is_matrix and type(network).forward is Transformer.forward


class _ChunkedLoss(torch.autograd.Function):
    """F.cross_entropy(F.linear(h, weight), targets, reduction="sum"): h (N, dim), weight (V, dim), targets (N,).

    F.linear_cross_entropy does the same. But in bfloat16 it rounds the loss to bfloat16, too (8.25 for 8.478), and on a
    CPU it takes two to three times as long (torch 2.13).
    """

    @staticmethod
    def forward(ctx, h: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        states, matrix = h.to(dtype), weight.to(dtype)
        trains = any(ctx.needs_input_grad)
        h_grad = torch.empty_like(states)
        weight_grad: Any = torch.zeros_like(weight, dtype=torch.float32) if trains else None
        losses = []
        rows = chunk_rows(len(weight), h.device.type)
        ctx.h_scale = LOGITS_SCALE if dtype == torch.float16 else 1.0
        ctx.weight_scale = LOGITS_SCALE * STATES_SCALE / rows if dtype == torch.float16 else 1.0
        for start in range(0, len(h), rows):
            chunk, target = states[start : start + rows], targets[start : start + rows]
            log_probs = F.linear(chunk, matrix).log_softmax(-1, dtype=torch.float32)  # (rows, V)
            losses.append(F.nll_loss(log_probs, target, reduction="sum"))
            if not trains:
                continue
            # The gradient of the logits: the probabilities, less 1 at the target
            counts = (target >= 0)[:, None]  # (rows, 1)
            probs = log_probs.exp_()
            probs.scatter_add_(1, target[:, None].clamp(min=0), -torch.ones_like(counts, dtype=probs.dtype))
            if dtype == torch.float16:
                probs.mul_(LOGITS_SCALE)
                chunk = chunk * (STATES_SCALE / rows)
            logits_grad = probs.to(dtype)  # (rows, V), of the targets that count
            h_grad[start : start + rows] = logits_grad @ matrix * counts  # (rows, dim)
            weight_grad += logits_grad.mT @ (chunk * counts)  # (V, dim)
        ctx.save_for_backward(h_grad, weight_grad)
        ctx.dtypes = h.dtype, weight.dtype
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, loss_grad: Tensor):  # type: ignore[override]
        h_grad, weight_grad = ctx.saved_tensors
        h_dtype, weight_dtype = ctx.dtypes
        h_grad = h_grad.to(h_dtype) * (loss_grad / ctx.h_scale)
        return h_grad, weight_grad.mul_(loss_grad / ctx.weight_scale).to(weight_dtype), None, None
