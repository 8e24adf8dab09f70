"""Matrices that multiply the same vectors, as one product: wq, wk and wv of an attention, w1 and w3 of a feed-forward.

For GPUs of NVIDIA and AMD, where each product takes time to start, and a wide one is faster than several narrow ones.
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

    The matrices are concatenated in each forward pass, so that each gets its own gradient. With ``move``, for decoding,
    they are concatenated once, and the parameters become views of the result. This takes no more memory, and changes in
    place take effect, but not parameters that are replaced by others. Layers with hooks, and modules that are not this
    library's, stay as they are.
    """
    return replace_modules(network, partial(with_one_product, move=move))


def with_one_product(module: nn.Module, move: bool) -> nn.Module:
    """For ``replace_modules``."""
    if type(module) is Attention and can_merge(module.wq, module.wk, module.wv):
        return MergedAttention(module, moved_together(module.wq, module.wk, module.wv) if move else None)
    if type(module) is FeedForward and can_merge(module.w1, module.w3):
        return MergedFeedForward(module, moved_together(module.w1, module.w3) if move else None)
    return module


def can_merge(*layers: nn.Module) -> bool:
    """Whether one product can stand for these layers: all are plain, of one dtype, and with biases or without."""
    return all(map(is_plain, layers)) and len({(each.bias is None, each.weight.dtype) for each in layers}) == 1


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer computes a product and nothing else: no hook, no other forward, no other kind of parameter."""
    if type(layer) not in (nn.Linear, FastLinear) or type(layer.weight) is not nn.Parameter or "forward" in vars(layer):
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return not any(hooks)


def one_product(x: Tensor, matrix: Matrix | None, *layers: nn.Linear) -> Sequence[Tensor]:
    """x (..., in) -> the result of each layer, (..., out). ``matrix`` is None or what ``moved_together`` returned."""
    weight, bias = concatenated(*layers) if matrix is None else matrix
    return F.linear(x, weight, bias).split([each.out_features for each in layers], -1)


def concatenated(*layers: nn.Linear) -> Matrix:
    weight = torch.cat([each.weight for each in layers])
    return weight, None if layers[0].bias is None else torch.cat([each.bias for each in layers])


@torch.no_grad()
def moved_together(*layers: nn.Linear) -> Matrix:
    """``concatenated``, but the parameters of the layers become views of the result, so it takes no more memory."""
    weights, biases = [each.weight for each in layers], [each.bias for each in layers]
    return as_one_tensor(weights), None if biases[0] is None else as_one_tensor(biases)


def as_one_tensor(parameters: Sequence[Tensor]) -> Tensor:
    """Parameters of (rows, ...) as one tensor. They are moved next to each other in memory, if they are not already."""
    if not all(is_next(*pair) for pair in pairwise(parameters)):
        with torch.inference_mode(False):  # they may be changed in place outside of it
            parts = torch.cat(list(parameters)).split([len(each) for each in parameters])
        for parameter, part in zip(parameters, parts):
            parameter.data = part
    first = parameters[0].detach()
    return first.as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())


def is_next(first: Tensor, second: Tensor) -> bool:
    """Whether the second tensor begins in memory where the first one ends."""
    same_storage = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    return (
        same_storage
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
        parts = one_product(x, self.matrix, self.wq, self.wk, self.wv)
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
        gate, up = one_product(x, self.matrix, self.w1, self.w3)  # (B, T, hidden_dim) each
        return self.w2(F.silu(gate) * up)
