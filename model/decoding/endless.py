"""Texts longer than the context: a cache that grows with the text, and evicts old tokens when the context is full."""

import math

import torch
import torch.nn.functional as F

from ..cache import KVCache
from ..config import ModelArgs
from ..fast.step import compiles_each_size
from ..transformer import Transformer

SINKS = 4  # tokens at the start of a text that are never evicted
FIRST_SLOTS = 256  # that are allocated at first
COMPILED_SLOTS = 4096  # the same, if the step is compiled for each size of the cache, which takes a minute or more


def quarter_of(context: int) -> int:
    """The number of tokens that are evicted at a time."""
    return max(1, context // 4)


def checked_context(args: ModelArgs, context: int | None) -> int:
    """``context``, by default the network's. Raises ValueError if the network does not allow it."""
    limit = args.max_seq_len
    context = limit if context is None else context
    if not 1 <= context <= limit:
        raise ValueError(f"context is {context}: the network allows 1 to {limit}")
    return context


def least_slots(length: int, context: int, compile: bool, device: torch.device) -> int:
    """The fewest slots that an ``EndlessCache`` of this context has for a text of ``length`` tokens."""
    first = COMPILED_SLOTS if compile and device.type != "cpu" else FIRST_SLOTS
    return min(max(length, first), context)


def aligned_slots(slots: int, device: torch.device) -> int:
    """At least ``slots``: on a GPU a multiple of 8, or else tensor cores could not read rows of 16-bit scores."""
    return slots if device.type == "cpu" else 8 * math.ceil(slots / 8)


class EndlessCache(KVCache):
    """A cache that doubles while the text grows, up to the context. Then it evicts the oldest quarter of its tokens.

    Keys are cached rotated, and rotations add: rotating a key by -n moves it to a position n lower, so nothing is
    recomputed. The first ``keep`` tokens, at most half of the context, are never evicted, because heads park surplus
    attention on them (attention sinks, StreamingLLM, arXiv:2309.17453). The rotations are those of the network's table.
    Raises ValueError if the scores depend on absolute positions (``is_shift_invariant``), or for a context that the
    network does not allow.
    """

    def __init__(
        self, network: Transformer, batch_size: int = 1, context: int | None = None, keep: int = SINKS
    ) -> None:
        """``context`` defaults to the network's; ``max_seq_len`` is the number of slots allocated so far."""
        if not is_shift_invariant(network):
            raise ValueError(
                "evicting the oldest tokens changes the positions of the others, but this network's scores depend on "
                "them: it cannot be endless, nor chat; use generate.py without --endless"
            )
        self.context = checked_context(network.args, context)
        first = COMPILED_SLOTS if compiles_each_size(network) else FIRST_SLOTS
        super().__init__(network.args, batch_size, min(self.context, first))
        self.device = network.norm.weight.device
        self._set_slots()
        # Rotations back by 0, 1, 2, ... positions. They have length 1, because the cached keys are multiplied by
        # YaRN's factor already. They are computed on the CPU, because CUDA compiles a kernel for the first abs of
        # complex numbers.
        table = network.freqs_cis.detach().cpu()
        self.rotations_back = (table.conj() / table.abs()).to(self.device)  # (max_seq_len, D/2)
        self.quarter = quarter_of(self.context)
        self.chunk = min(self.chunk, self.quarter)  # a longer prompt would not fit after an eviction
        self.keep = min(keep, self.context // 2)
        self.evicted = 0  # number of tokens evicted so far

    def make_room(self, start_pos: int, T: int = 1) -> int:
        """Grow, and evict a quarter of the context at a time, until T more tokens fit; return the new ``start_pos``.

        Raises ValueError if T tokens never fit.
        """
        room = self.context - min(self.keep, start_pos)
        if room < T:
            raise ValueError(f"{T} tokens do not fit into a context of {self.context}: give at most {room}")
        while start_pos + T > self.context:
            count = min(self.quarter, start_pos - self.keep)
            self.evict(count, start_pos)
            start_pos -= count
        while start_pos + T > self.max_seq_len:
            self.max_seq_len = min(2 * self.max_seq_len, self.context)
            self._set_slots()
        return start_pos

    def _set_slots(self) -> None:
        """Give each layer room for ``max_seq_len`` tokens.

        One slot more is never used: if the slice `[:end]` of the cache were ever as long as the buffer, torch.compile
        would treat that as a special case and recompile.
        """
        for layer in self.layers:
            before, layer.slots = layer.slots, aligned_slots(self.max_seq_len + 1, self.device)
            if layer.keys is not None:
                more = (0, 0, 0, layer.slots - before)
                layer.keys, layer.values = F.pad(layer.keys, more), F.pad(layer.values, more)

    def evict(self, count: int, length: int) -> None:
        """Evict ``count`` of the ``length`` cached tokens: the oldest ones after the first ``keep``."""
        back = self.rotations_back[count]  # (D/2,)
        old, new = slice(self.keep + count, length), slice(self.keep, length - count)
        for layer in self.layers:
            if layer.keys is None:  # nothing is cached yet
                continue
            keys, values = layer.keys, layer.values  # (B, K, slots, D)
            pairs = torch.view_as_complex(keys[:, :, old].float().unflatten(-1, (-1, 2)))  # (B, K, N, D/2)
            keys[:, :, new] = torch.view_as_real(pairs * back).flatten(3).type_as(keys)  # (B, K, N, D)
            values[:, :, new] = values[:, :, old].clone()  # values are not rotated
        self.evicted += count


def is_shift_invariant(network: Transformer | type[Transformer]) -> bool:
    """Whether the logits depend on relative positions only, as with RoPE.

    A subclass whose logits depend on absolute positions must set ``shift_invariant = False``; nothing detects it.
    """
    return getattr(network, "shift_invariant", True)
