"""The decoding network: another Transformer over the same weights, built for one token of each text at a time."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention
from ..cache import KVCache
from ..rope import apply_rotary_emb
from ..transformer import Transformer, TransformerBlock
from .compiled import CompiledNetwork

SLICES = 8  # of a weight matrix, for as many cores; a few more slices than cores cost nothing


def for_decoding(model: Transformer, compile: bool = False) -> Transformer | CompiledNetwork:
    """Build the decoding network of ``model``: a copy of its modules that shares its weights, in eval mode.

    On a CPU its linear layers are ``FewRowsLinear``; of a prompt its last block gives the last token only. With
    ``compile`` its forward for one token a row goes through torch.compile; networks of equal architecture share what
    was compiled. The model itself is not touched, and a change of its weights in place shows in the next token.
    Raises ValueError where nothing can be compiled.
    """
    network = copy_modules(model)
    last = network.layers[-1]
    known = type(model).hidden is Transformer.hidden and not any(map(has_hooks, last.modules()))
    if known and type(last) is TransformerBlock and type(last.attention) is Attention:
        network.layers[-1] = LastBlock(last)
    network.eval()
    return CompiledNetwork(copy_modules(model).eval(), network) if compile else network


def copy_modules(model: Transformer) -> Transformer:
    """A copy of the modules over the same weights, with linear layers that suit a few rows."""
    shared = [*model.parameters(), *model.buffers(), model.freqs_cis]
    network = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    if model.tok_embeddings.weight.device.type == "cpu":
        use_few_rows_linear(network)
    return network


class LastBlock(TransformerBlock):
    """The last block of a prompt: its output is needed for the last token alone, of the others only keys and values.

    For a prompt this saves nearly one block of the network's work.
    """

    def __init__(self, block: TransformerBlock) -> None:
        nn.Module.__init__(self)
        self.attention, self.attention_norm = block.attention, block.attention_norm
        self.feed_forward, self.ffn_norm = block.feed_forward, block.ffn_norm

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """x (B, T, dim) -> (B, 1, dim) with a cache, else (B, T, dim)."""
        before = x.shape[1] - 1
        if cache is not None and before:
            self.fill(x[:, :before], start_pos, freqs_cis[:before], cache)
            x, start_pos, freqs_cis = x[:, before:], start_pos + before, freqs_cis[before:]
            mask = None if mask is None else mask[..., -1:, :]
        x = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, mask, cache)
        return x + self.feed_forward(self.ffn_norm(x))

    def fill(self, x: Tensor, start_pos: int, freqs_cis: Tensor, cache: KVCache) -> None:
        """What ``Attention`` does for keys and values."""
        attention, x = self.attention, self.attention_norm(x)
        xk, xv = (w(x).unflatten(-1, (-1, attention.head_dim)) for w in (attention.wk, attention.wv))  # (B, T, K, D)
        xk, _ = apply_rotary_emb(xk, xk[:, :, :1], freqs_cis)  # there are no queries
        cache.update(attention.layer_id, start_pos, xk.transpose(1, 2), xv.transpose(1, 2))


def use_few_rows_linear(network: Transformer) -> None:
    """Replace the network's plain linear layers; one with a hook, or of another class, is left as it is."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear and module.bias is None and not has_hooks(module):
                setattr(parent, name, FewRowsLinear(module.weight))
    if network.output is None:  # tied: the embedding is the output matrix, too
        network.output = FewRowsLinear(network.tok_embeddings.weight)


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class FewRowsLinear(nn.Module):
    """A linear layer that is fast for one token of each text, (B, 1, in) -> (B, 1, out), and equal for any shape.

    Matrix libraries are built for many rows. With a few, the time goes into reading the weights, and this reads each
    once, in order, with every core.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # (out, in), shared with the layer it replaces

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[1] != 1:
            return F.linear(x, self.weight)  # (..., out)
        rows = x.shape[0]
        if rows == 1 and torch.compiler.is_compiling():
            # Compilers make one loop over the weights of this, and it widens 16-bit ones on the way, which processors
            # without 16-bit arithmetic need.
            return (self.weight.float() * x.float()).sum(-1).type_as(x)[None]  # (1, 1, out)
        if x.dtype != torch.float32:
            return one_row(x, self.weight) if rows == 1 else F.linear(x, self.weight)  # (B, 1, out)
        # One product for each slice of the weights. Measured on two cores, for 32000 x 288 weights: 1.6 ms instead of
        # the 3.5 of a single product for one row, 5.1 instead of 7.7 for sixteen, and the same from 256 rows on.
        slices = math.gcd(self.weight.shape[0], SLICES)
        weights = self.weight.unflatten(0, (slices, -1))  # (slices, out / slices, in)
        products = torch.bmm(x[:, 0].expand(slices, -1, -1), weights.mT)  # (slices, B, out / slices)
        return products.transpose(0, 1).contiguous().view(rows, 1, -1)  # (B, 1, out)


def one_row(x: Tensor, weight: Tensor) -> Tensor:
    """``F.linear`` for a single row of 16-bit numbers, by PyTorch's own code instead of oneDNN's, which reads slower.

    Measured on two cores with native bfloat16, in GB/s of 5632 x 2048 weights out of memory: oneDNN 18, PyTorch 36, and
    the memory gives 31 to a sum. There is no other way to choose than this switch, which is the process's: only who
    finds it on puts it off and on again, so that it is on in the end whichever thread comes last.
    """
    if not torch.backends.mkldnn.enabled:
        return F.linear(x, weight)  # (1, 1, out)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        return F.linear(x, weight)  # (1, 1, out)
    finally:
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
