"""``generate``: continue prompts, given as lists of token ids, all in one batch."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import KVCache
from ..cli import quantity
from ..config import ModelArgs
from ..generation import decode
from ..transformer import Transformer
from .endless import EndlessCache, is_shift_invariant
from .network import for_decoding
from .sampling import Sampler, Sampling

Prompts = Sequence[Sequence[int]]


def generate(
    model: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    eos_ids: Collection[int] = (),
    compile: bool = False,
    endless: bool = False,
    **sampling: Any,
) -> Iterator[list[int | None]]:
    """Continue every prompt. Each step yields one id per row, and None after a row has ended with one of ``eos_ids``.

    ``prompts`` are lists of token ids, of equal length if they are ``endless`` or the network has absolute positions.
    Except for rounding, a row's logits do not depend on the rest of the batch. At temperature 0, the default, a row's
    text is the same as if its prompt were given alone; otherwise row i draws from random stream i.
    ``sampling`` are the fields of ``Sampling``: temperature, top_k, top_p, repetition_penalty, seed. With
    ``endless`` a text may be longer than ``max_seq_len``, and its oldest part is evicted from the cache.

    The network is in eval mode, and ``model`` is left as it is. Raises ValueError for invalid prompts or settings; the
    types of numbers are the caller's.
    """
    settings = Sampling(**{"temperature": 0.0, **sampling})
    check_prompts(model.args, prompts, max_new_tokens, endless=endless)
    sampler = Sampler(settings, prompts)
    network = for_decoding(model, compile)
    return ids_of(start(network, prompts, max_new_tokens, sampler, endless=endless), eos_ids)


def ids_of(steps: Iterator[Tensor], eos_ids: Collection[int]) -> Iterator[list[int | None]]:
    """The token of each row, (B, 1), as a list, and None for a row that has ended. Stops when all rows have."""
    ended: set[int] = set()
    for tokens in steps:
        ids = tokens[:, 0].tolist()
        yield [None if row in ended else token for row, token in enumerate(ids)]
        ended |= {row for row, token in enumerate(ids) if token in eos_ids}
        if len(ended) == len(ids):
            return


def start(
    network: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    sample: Callable[[Tensor], Tensor],
    *,
    endless: bool = False,
) -> Iterator[Tensor]:
    """The decode loop on prompts that pass ``check_prompts``, with a new cache: yields tokens (B, 1).

    Raises ValueError for prompts of unequal length if they cannot be padded: padding shifts a text, and the first slots
    of an endless one are never evicted.

    The last new token is never written to the cache, so one slot stays unused. This is intended: compiled code never
    has to treat a slice ``[:end]`` that is the whole buffer, which on a GPU would recompile.
    """
    weight = network.norm.weight
    tokens, padding = left_padded(prompts, weight.device)  # (B, T), (B,)
    if padding is not None and (endless or not is_shift_invariant(network)):
        lengths = f"{min(map(len, prompts))} to {tokens.shape[1]} tokens"
        raise ValueError(
            f"prompts of unequal length, {lengths}, cannot share a batch if they are endless, or if the network's "
            "scores depend on absolute positions: give them one by one (--batch_size 1)"
        )
    cache: KVCache
    if endless:
        cache = EndlessCache(network, len(prompts))
    else:
        cache = KVCache(network.args, len(prompts), tokens.shape[1] + max_new_tokens, weight.dtype, weight.device)
    return decode(network, tokens, max_new_tokens, sample, cache, padding=padding)


def left_padded(prompts: Prompts, device: torch.device | str | None = None) -> tuple[Tensor, Tensor | None]:
    """Pad prompts on the left to the length T of the longest: tokens (B, T), and the padding of each row, (B,).

    The padding is None if all prompts have the same length.
    """
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts)]
    return torch.tensor(rows, device=device), torch.tensor(padding, device=device) if any(padding) else None


def check_prompts(args: ModelArgs, prompts: Prompts, max_new_tokens: int, *, endless: bool = False) -> None:
    """Raise ValueError unless the prompts are non-empty lists of ids in the vocabulary that fit into the context."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: give at least 1")
    if not all(isinstance(prompt, Sequence) and not isinstance(prompt, str) for prompt in prompts):
        raise ValueError(
            f"prompts are {prompts!r:.60}: give a list of token ids for each text, for example [tokenizer.encode(text)]"
        )
    if not prompts or not all(prompts):
        raise ValueError("prompts or one of them are empty: give at least one token, for example [[tokenizer.bos_id]]")
    limit = args.max_seq_len
    for number, prompt in enumerate(prompts, 1):
        if not endless and len(prompt) + max_new_tokens > limit:
            raise ValueError(
                f"prompt {number} has {quantity(len(prompt), 'token')}, and with {quantity(max_new_tokens, 'new one')} "
                f"it exceeds the context of {limit} (max_seq_len): shorten it, lower max_new_tokens, or let it be "
                "endless (--endless)"
            )
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < args.vocab_size:
                raise ValueError(
                    f"prompt {number} has token {token}: the network's vocabulary is 0 to {args.vocab_size - 1}; check "
                    "the tokenizer"
                )


def memory_needed(args: ModelArgs, rows: int, length: int, dtype: torch.dtype) -> int:
    """The bytes of cache and logits for decoding ``rows`` texts of ``length`` tokens."""
    cache = 2 * args.n_layers * args.n_kv_heads * args.head_dim * length * dtype.itemsize
    return rows * (cache + args.vocab_size * torch.float32.itemsize)
