"""Texts longer than the context: a cache that evicts old tokens, and its decode loop."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import KVCache
from ..generation import decode
from ..transformer import Transformer

SINKS = 4  # tokens at the start of a text that are never evicted


def quarter_of(context: int) -> int:
    """The number of tokens that are evicted at a time."""
    return max(1, context // 4)


def never_evicted(context: int, keep: int = SINKS) -> int:
    """The number of tokens at the start of a text that are never evicted: ``keep``, or fewer in a tiny context.

    A quarter of the context is evicted at a time, and after that at least one evictable token must be left.
    """
    return min(keep, context - quarter_of(context) - 1)


class EndlessCache(KVCache):
    """A cache that, when it is full, evicts the oldest quarter of its tokens, keeping the first ``keep``.

    Keys are cached rotated, and rotations add: rotating a key by -n moves it to a position n lower, so nothing is
    recomputed. The first tokens are kept because heads park surplus attention on them (attention sinks, StreamingLLM,
    arXiv:2309.17453). The rotations are those of ``freqs_cis``, the network's table, so this is correct only if the
    scores depend on relative positions (``is_shift_invariant``).
    """

    def __init__(
        self, network: Transformer, batch_size: int = 1, max_seq_len: int | None = None, keep: int = SINKS
    ) -> None:
        weight = network.norm.weight
        super().__init__(network.args, batch_size, max_seq_len, weight.dtype, weight.device)
        # One slot more than the context, which is never used: if the slice `[:end]` of the cache were ever as long as
        # the buffer, torch.compile would treat that as a special case and recompile.
        for layer in self.layers:
            layer.keys, layer.values = F.pad(layer.keys, (0, 0, 0, 1)), F.pad(layer.values, (0, 0, 0, 1))
        self.freqs_cis = network.freqs_cis.detach().to(weight.device)
        self.quarter = quarter_of(self.max_seq_len)
        self.keep = never_evicted(self.max_seq_len, keep)
        self.evicted = 0  # number of tokens evicted so far

    def room(self, start_pos: int) -> int:
        """How many tokens fit after ``start_pos`` cached ones, if all of these but the first ``keep`` are evicted."""
        return self.max_seq_len - min(self.keep, start_pos)

    def make_room(self, start_pos: int, T: int = 1) -> int:
        """Evict a quarter of the context at a time until T more tokens fit; return the new ``start_pos``.

        Raises ValueError if T tokens never fit.
        """
        room = self.room(start_pos)
        if room < T:
            raise ValueError(f"{T} tokens do not fit into a context of {self.max_seq_len}: give at most {room}")
        while start_pos + T > self.max_seq_len:
            count = min(self.quarter, start_pos - self.keep)
            self.evict(count, start_pos)
            start_pos -= count
        return start_pos

    def evict(self, count: int, length: int) -> None:
        """Evict ``count`` of the ``length`` cached tokens: the oldest ones after the first ``keep``."""
        back = self.freqs_cis[count].conj()  # (D/2,)
        back = back / back.abs()  # of length 1: the cached keys have YaRN's attention factor already
        old, new = slice(self.keep + count, length), slice(self.keep, length - count)
        for layer in self.layers:
            keys, values = layer.keys, layer.values  # (B, K, max_seq_len + 1, D)
            pairs = torch.view_as_complex(keys[:, :, old].float().unflatten(-1, (-1, 2)))  # (B, K, N, D/2)
            keys[:, :, new] = torch.view_as_real(pairs * back).flatten(3).type_as(keys)  # (B, K, N, D)
            values[:, :, new] = values[:, :, old].clone()  # values are not rotated
        self.evicted += count


def decode_endless(
    network: Transformer,
    tokens: Tensor,
    max_new_tokens: int,
    sample: Callable[[Tensor], Tensor],
    cache: EndlessCache,
    start_pos: int = 0,
) -> Iterator[Tensor]:
    """Like ``decode``, also past the end of the context: decode until the cache is full, evict, and continue.

    Yields the next token of each row, (B, 1).
    """
    while max_new_tokens > 0:
        T = tokens.shape[1]
        start_pos = cache.make_room(start_pos, T)
        # The last token of each call of ``decode`` is not in the cache: it is the first one of the next call.
        count = min(max_new_tokens, cache.max_seq_len - (start_pos + T) + 1)
        for token in decode(network, tokens, count, sample, cache, start_pos):
            yield token
        tokens = token
        start_pos += T + count - 1
        max_new_tokens -= count


def is_shift_invariant(network: Transformer | type[Transformer]) -> bool:
    """Whether the logits depend on relative positions only, as with RoPE.

    A subclass whose logits depend on absolute positions must set ``shift_invariant = False``; nothing detects it.
    """
    return getattr(network, "shift_invariant", True)
