"""``generate``: continue prompts, given as lists of token ids, all in one batch."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import KVCache
from ..cli import quantity
from ..config import ModelArgs
from ..generation import decode
from ..transformer import Transformer
from .endless import EndlessCache, decode_endless, is_shift_invariant
from .network import for_decoding, in_eval_mode
from .sampling import Sampler, Sampling

Prompts = Sequence[Sequence[int]]


def generate(
    model: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    eos_ids: Collection[int] = (),
    compile: bool = False,
    use_cache: bool = True,
    endless: bool = False,
    **sampling: Any,
) -> Iterator[list[int | None]]:
    """Continue every prompt. Each step yields one id per row, and None after a row has ended with one of ``eos_ids``.

    ``prompts`` are lists of token ids. With ``endless``, all must have the same length. The same holds for a network
    with absolute positions, unless ``use_cache`` is False. Except for rounding, a row's logits do not depend on the
    rest of the batch. At temperature 0, the default, a row's text is the same as if its prompt were given alone;
    otherwise row i draws from random stream i. ``sampling`` are the fields of ``Sampling``: temperature, top_k, top_p,
    min_p, repetition_penalty, seed. With ``endless`` a text may be longer than ``max_seq_len``, and its oldest part is
    evicted from the cache. Raises ValueError for invalid prompts or settings; the types of numbers are the caller's.
    """
    sampling_settings = Sampling(**{"temperature": 0.0, **sampling})
    check_prompts(model.args, prompts, max_new_tokens, endless)
    if use_cache:
        check_batch(model, prompts, endless)
    else:
        check_uncached(compile, endless)
    network = for_decoding(model, compile)
    sampler = Sampler(sampling_settings, prompts, model.args.vocab_size, device=model.tok_embeddings.weight.device)
    return decode_batch(network, prompts, max_new_tokens, sampler, eos_ids, use_cache, endless)


def check_uncached(compile: bool, endless: bool) -> None:
    """Raise ValueError if decoding without a cache is combined with ``compile`` or ``endless``."""
    for name, enabled in (("compile", compile), ("endless", endless)):
        if enabled:
            raise ValueError(f"{name} needs the cache: leave out either {name} or use_cache=False (--no_cache)")


def decode_batch(
    network: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    sampler: Sampler,
    eos_ids: Collection[int] = (),
    use_cache: bool = True,
    endless: bool = False,
) -> Iterator[list[int | None]]:
    """Run the decode loop on lists of ids that pass ``check_batch``, with a network from ``for_decoding``.

    Each step yields every row's token, and None after the row has ended. It stops when all rows have ended. Without a
    cache the whole text is computed again for every token. The network is in eval mode during each step.

    The last new token is never written to the cache, so one slot stays unused. This is intended: compiled code never
    has to treat a slice ``[:end]`` that is the whole buffer, which on a GPU would recompile.
    """
    weight, args = network.norm.weight, network.args
    room = max(map(len, prompts)) + max_new_tokens
    tokens, padding = left_padded(prompts, weight.device)  # (B, T), (B,)
    if not use_cache:
        steps = decode_uncached(network, prompts, max_new_tokens, sampler)
    elif endless:
        endless_cache = EndlessCache(network, len(prompts), min(room, args.max_seq_len))
        steps = decode_endless(network, tokens, max_new_tokens, sampler, endless_cache)
    else:
        cache = KVCache(args, len(prompts), room, weight.dtype, weight.device)
        steps = decode(network, tokens, max_new_tokens, sampler, cache, padding=padding)
    ended = [False] * len(prompts)
    for tokens in in_eval_mode(network, steps):
        ids = tokens[:, 0].tolist()
        yield [None if row_ended else token for row_ended, token in zip(ended, ids)]
        ended = [row_ended or token in eos_ids for row_ended, token in zip(ended, ids)]
        if all(ended):
            return


@torch.no_grad()
def decode_uncached(network: Transformer, prompts: Prompts, max_new_tokens: int, sampler: Sampler) -> Iterator[Tensor]:
    """Decode without a cache: for every token, run the network on the whole of each text. Yields tokens (B, 1)."""
    texts = [torch.tensor(prompt, device=sampler.device) for prompt in prompts]  # (T,) each
    for _ in range(max_new_tokens):
        tokens = sampler(next_token_logits(network, texts))  # (B, 1)
        yield tokens
        texts = [torch.cat(text_and_token) for text_and_token in zip(texts, tokens)]


def next_token_logits(network: Transformer, texts: list[Tensor]) -> Tensor:
    """The logits after each text (T,), computed without a cache: (B, V)."""
    return torch.cat([network.logits(network.hidden(text[None])[:, -1]) for text in texts])  # (B, V)


def left_padded(prompts: Prompts, device: torch.device | str | None = None) -> tuple[Tensor, Tensor | None]:
    """Pad prompts on the left to the length T of the longest: tokens (B, T), and the padding of each row, (B,).

    The padding is None if all prompts have the same length.
    """
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts)]
    return torch.tensor(rows, device=device), torch.tensor(padding, device=device) if any(padding) else None


def check_batch(network: Transformer, prompts: Prompts, endless: bool = False) -> None:
    """Raise ValueError if the prompts cannot share a batch with a cache, or not be continued endlessly."""
    if endless:
        check_shift_invariant(network)
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    if shortest < longest and (endless or not is_shift_invariant(network)):
        reason = "their texts are endless" if endless else "this network's scores depend on absolute positions"
        raise ValueError(
            f"prompts of unequal length, {shortest} to {longest} tokens, cannot share a batch, because {reason}: give "
            "them one by one (--batch_size 1)"
        )


def check_shift_invariant(network: Transformer) -> None:
    """Raise ValueError if evicting tokens would change scores."""
    if not is_shift_invariant(network):
        raise ValueError(
            "endless decoding changes the positions of tokens, but this network's scores depend on them: "
            "leave endless out"
        )


def check_prompts(args: ModelArgs, prompts: Prompts, max_new_tokens: int, endless: bool = False) -> None:
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
        length = len(prompt)
        if length + (0 if endless else max_new_tokens) > limit:
            advice = "shorten it" if endless else "shorten it, lower max_new_tokens, or let it be endless (--endless)"
            raise ValueError(
                f"prompt {number} has {quantity(length, 'token')}, and with {quantity(max_new_tokens, 'new one')} it "
                f"exceeds the context of {limit} (max_seq_len): {advice}"
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
