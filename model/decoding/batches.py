"""Prompts of unequal length in one batch: padded on the left, with a cache that hides the padding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import EndlessCache, KVCache
from ..config import ModelArgs
from ..transformer import Transformer
from .compiled import CompiledNetwork

Prompts = Sequence[Sequence[int]]


def left_padded(prompts: Prompts) -> Tensor:
    """The prompts as one (B, T), T the longest one's length, all ending in the last column."""
    longest = max(map(len, prompts))
    return torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])  # (B, T)


class PaddedCache(KVCache):
    """A cache whose rows begin late: ``padding`` (B,) counts the slots before each row's first token."""

    def __init__(self, args: ModelArgs, padding: Tensor, *rest: Any) -> None:
        super().__init__(args, len(padding), *rest)
        self.padding = padding.to(self.keys.device)

    def restrict(self, mask: Tensor | None, start_pos: int, T: int) -> Tensor:
        """The mask, (T, S) or None, without the padding of each row: (B, 1, T, S).

        A slot that is itself padding sees itself: a softmax over nothing would be NaN.
        """
        slots = torch.arange(start_pos + T, device=self.padding.device)
        own = slots[start_pos:, None]  # (T, 1)
        filled = slots >= self.padding[:, None, None, None]  # (B, 1, 1, S)
        visible = (slots <= own) & filled | (slots == own)  # (B, 1, T, S)
        if mask is None or mask.dtype == torch.bool:
            return visible if mask is None else visible & mask  # (B, 1, T, S)
        return mask.masked_fill(~visible, float("-inf"))  # (B, 1 or H, T, S)


def new_cache(
    network: Transformer | CompiledNetwork, prompts: Prompts, max_new_tokens: int, endless: bool = False
) -> KVCache:
    """Room for exactly these prompts and their continuations, in the dtype and on the device of the weights.

    ``endless``: of no more than the context, and what it lacks then is made by forgetting.
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    weight, args = network.norm.weight, network.args
    room = int(lengths.max()) + max_new_tokens
    if endless:
        check_endless(network, prompts)
        room = min(room, args.max_seq_len)
        return EndlessCache(args, network.freqs_cis, len(prompts), room, weight.dtype, weight.device)
    if lengths.min() == lengths.max():
        return KVCache(args, len(prompts), room, weight.dtype, weight.device)
    if not network.shift_invariant:
        raise ValueError(
            "prompts of unequal length cannot share a batch where scores depend on absolute positions: "
            "give them one by one, or use_cache=False"
        )
    return PaddedCache(args, lengths.max() - lengths, room, weight.dtype, weight.device)


def check_endless(network: Transformer | CompiledNetwork | type[Transformer], prompts: Prompts) -> None:
    """Raises ValueError where a cache that drops tokens would give other scores, or rows would drop unlike ones."""
    if not network.shift_invariant:
        raise ValueError(
            "an endless text moves tokens to other positions, on which this network's scores depend: leave endless out"
        )
    lengths = [*map(len, prompts)]
    if len({*lengths}) > 1:
        raise ValueError(
            f"endless is for prompts of equal length, and these have {min(lengths)} to {max(lengths)} tokens: "
            "give them one by one (batch_size 1)"
        )


def check_prompts(args: ModelArgs, prompts: Prompts, max_new_tokens: int, endless: bool = False) -> None:
    """Raises ValueError for an empty prompt, a token outside the vocabulary, and a text longer than the context."""
    if not prompts or not all(prompts):
        raise ValueError("a prompt is empty: give each row at least one token, such as the tokenizer's bos_id")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: give at least 1")
    longest, limit, V = max(map(len, prompts)), args.max_seq_len, args.vocab_size
    if endless and longest > limit:
        raise ValueError(f"a prompt of {longest} tokens is longer than the context of {limit}: shorten it")
    if not endless and longest + max_new_tokens > limit:
        raise ValueError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones pass the {limit} positions of the "
            "network (max_seq_len): shorten the prompt, lower max_new_tokens, or let it be endless"
        )
    for token in {min(map(min, prompts)), max(map(max, prompts))}:
        if not 0 <= token < V:
            raise ValueError(
                f"a prompt holds token {token}: the network's vocabulary is 0 to {V - 1}; check the tokenizer"
            )


def memory_needed(args: ModelArgs, rows: int, length: int, dtype: torch.dtype) -> int:
    """Bytes that decoding ``rows`` texts of ``length`` tokens takes beside the weights: cache and logits."""
    cache = 2 * args.n_layers * args.n_kv_heads * args.head_dim * length * dtype.itemsize
    return rows * (cache + args.vocab_size * torch.float32.itemsize)
