"""Matrices that multiply the same vectors, as one product: wq, wk and wv of an attention, w1 and w3 of a feed-forward.

For GPUs of NVIDIA and AMD, which take time to start a product, and compute a wide one faster than several narrow ones.
Not for CPUs: there a kernel may add up a row in another order if the matrix has more rows, and so change the text.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention
from ..cache import LayerCache
from ..rope import apply_rotary_emb
from ..transformer import FeedForward, Transformer
from .kernels import FastLinear, replace_modules

Matrix = tuple[Tensor, Tensor | None]  # weight (out, in) and bias (out,)


def merge_products(network: Transformer, move: bool = False) -> Transformer:
    """The same network, sharing its parameters and hooks, with one product for matrices that multiply the same vectors.

    The matrices are concatenated in each forward pass, so that each has its own gradient. With ``move``, for decoding,
    this is done once: they become parts of one tensor, which takes no more memory and follows changes in place, but not
    parameters that are replaced. Layers with hooks, and modules that are not this library's, stay as they are.
    """
    return replace_modules(network, partial(with_one_product, move=move))


def with_one_product(module: nn.Module, move: bool) -> nn.Module:
    """For ``replace_modules``."""
    if type(module) is Attention and can_merge(module.wq, module.wk, module.wv):
        return MergedAttention(module, together(module.wq, module.wk, module.wv) if move else None)
    if type(module) is FeedForward and can_merge(module.w1, module.w3):
        return MergedFeedForward(module, together(module.w1, module.w3) if move else None)
    return module


def can_merge(*layers: nn.Module) -> bool:
    """Whether these are plain linear layers of one kind, so that nobody notices which of them computes."""
    return all(map(is_plain, layers)) and len({(each.bias is None, each.weight.dtype) for each in layers}) == 1


def is_plain(layer: nn.Module) -> bool:
    if type(layer) not in (nn.Linear, FastLinear) or type(layer.weight) is not nn.Parameter or "forward" in vars(layer):
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return not any(hooks)


def product(x: Tensor, matrix: Matrix | None, *layers: nn.Linear) -> Sequence[Tensor]:
    """x (..., in) -> the result of each layer, (..., out), from ``matrix``, or else from their own ones."""
    weight, bias = concatenated(*layers) if matrix is None else matrix
    return F.linear(x, weight, bias).split([each.out_features for each in layers], -1)


def concatenated(*layers: nn.Linear) -> Matrix:
    weight = torch.cat([each.weight for each in layers])
    return weight, None if layers[0].bias is None else torch.cat([each.bias for each in layers])


@torch.no_grad()
def together(*layers: nn.Linear) -> Matrix:
    """``concatenated``, and the parameters of the layers become views of it, if they are not already."""
    weights, biases = [each.weight for each in layers], [each.bias for each in layers]
    return joined(weights), None if biases[0] is None else joined(biases)


def joined(parameters: Sequence[Tensor]) -> Tensor:
    """Parameters of (rows, ...) as one tensor, of which they become views, unless they are views of one."""
    if not all(is_next(*pair) for pair in pairwise(parameters)):
        with torch.inference_mode(False):  # they may be changed in place outside of it
            parts = torch.cat(list(parameters)).split([len(each) for each in parameters])
        for parameter, part in zip(parameters, parts):
            parameter.data = part
    first = parameters[0].detach()
    return first.as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())


def is_next(first: Tensor, second: Tensor) -> bool:
    """Whether the second tensor continues the first in its memory."""
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    return (
        same
        and first.is_contiguous()
        and second.is_contiguous()
        and first.data_ptr() + first.nbytes == second.data_ptr()
    )


class MergedAttention(Attention):
    """``Attention`` with one product for wq, wk and wv."""

    def __init__(self, attention: Attention, matrix: Matrix | None) -> None:
        vars(self).update(vars(attention))  # instead of super().__init__(), which would allocate new parameters
        self.matrix = matrix

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: LayerCache | None
    ) -> Tensor:
        B, T, _ = x.shape
        parts = product(x, self.matrix, self.wq, self.wk, self.wv)
        xq, xk, xv = (part.view(B, T, -1, self.head_dim) for part in parts)  # (B, T, H or K, D)
        xq, xk = apply_rotary_emb(self.q_norm(xq), self.k_norm(xk), freqs_cis)
        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
        if cache is not None:
            xk, xv = cache.update(start_pos, xk, xv)  # (B, K, S, D)
        out = self.attend(xq, xk, xv, mask)  # (B, H, T, D)
        return self.wo(out.transpose(1, 2).flatten(2))  # (B, T, dim)


class MergedFeedForward(FeedForward):
    """``FeedForward`` with one product for w1 and w3."""

    def __init__(self, feed_forward: FeedForward, matrix: Matrix | None) -> None:
        vars(self).update(vars(feed_forward))
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        gate, up = product(x, self.matrix, self.w1, self.w3)  # (B, T, hidden_dim) each
        return self.w2(F.silu(gate) * up)
