"""``generate``: prompts as lists of token ids in, their continuations out, all rows at the same time."""

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
    use_cache: bool = True,
    endless: bool = False,
    **sampling: Any,
) -> Iterator[list[int | None]]:
    """Continue every prompt; each step yields one id a row, None once a row has ended with one of ``eos_ids``.

    ``prompts`` are lists of token ids, whose lengths may differ; each row gives the text it would give alone, but for
    rounding. ``sampling`` are the fields of ``Sampling``: temperature (0.0, the likeliest token, by default), top_k,
    top_p, min_p, repetition_penalty, seed. With ``endless`` a text may pass ``max_seq_len``: its oldest part is then
    evicted from the cache. Raises ValueError for prompts and settings that cannot work.
    """
    sampling_settings = Sampling(**{"temperature": 0.0, **sampling})
    check_prompts(model.args, prompts, max_new_tokens, endless)
    for name, asked in (("compile", compile), ("endless", endless)):
        if asked and not use_cache:
            raise ValueError(f"{name} is for decoding with the cache: leave one of {name} and use_cache=False out")
    network = for_decoding(model, compile)
    cache = new_cache(network, prompts, max_new_tokens, endless) if use_cache else None
    device = model.tok_embeddings.weight.device
    sampler = Sampler(sampling_settings, prompts, model.args.vocab_size, device=device)
    return decode_batch(network, prompts, max_new_tokens, sampler, cache, eos_ids)


def decode_batch(
    network: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    sampler: Sampler,
    cache: KVCache | None,
    eos_ids: Collection[int] = (),
) -> Iterator[list[int | None]]:
    """The decode loop for lists of ids; ``network`` is what ``for_decoding`` built, ``cache`` that of ``new_cache``.

    Each step yields every row's token, None once the row has ended; it stops when all have. Without a cache the whole
    text is computed again for every token.
    """
    if cache is None:
        steps = decode_uncached(network, prompts, max_new_tokens, sampler)
    else:
        tokens, padding = left_padded(prompts, sampler.device)  # (B, T), (B,)
        if isinstance(cache, EndlessCache):
            steps = decode_endless(network, tokens, max_new_tokens, sampler, cache)
        else:
            steps = decode(network, tokens, max_new_tokens, sampler, cache, padding=padding)
    ended = [False] * len(prompts)
    for tokens in steps:
        ids = tokens[:, 0].tolist()
        yield [None if end else token for end, token in zip(ended, ids)]
        ended = [end or token in eos_ids for end, token in zip(ended, ids)]
        if all(ended):
            return


@torch.no_grad()
def decode_uncached(network: Transformer, prompts: Prompts, max_new_tokens: int, sampler: Sampler) -> Iterator[Tensor]:
    """What decoding with a cache must equal: each text by itself, whole, for every token. Yields tokens (B, 1)."""
    texts = [torch.tensor(prompt, device=sampler.device) for prompt in prompts]  # (T,) each
    for _ in range(max_new_tokens):
        tokens = sampler(forward_whole(network, texts))  # (B, 1)
        yield tokens
        texts = [torch.cat(text_and_token) for text_and_token in zip(texts, tokens)]


def forward_whole(network: Transformer, texts: list[Tensor]) -> Tensor:
    """The logits after each text (T,), without a cache: (B, V)."""
    return torch.cat([network.logits(network.hidden(text[None])[:, -1]) for text in texts])  # (B, V)


def left_padded(prompts: Prompts, device: torch.device | str | None = None) -> tuple[Tensor, Tensor | None]:
    """The prompts as one (B, T), T the longest one's length, all ending in the last column; and each row's padding.

    The padding, (B,), is None if there is none.
    """
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts)]
    return torch.tensor(rows, device=device), torch.tensor(padding, device=device) if any(padding) else None


def new_cache(network: Transformer, prompts: Prompts, max_new_tokens: int, endless: bool = False) -> KVCache:
    """Room for these prompts and their continuations, in the dtype and on the device of the weights.

    The last slot is never written: see ``EndlessCache``.

    ``endless``: no more than the context; when it is full, the oldest tokens are evicted.
    """
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    weight, args = network.norm.weight, network.args
    room = longest + max_new_tokens
    if endless:
        check_endless(network, prompts)
        room = min(room, args.max_seq_len)
        return EndlessCache(args, network.freqs_cis, len(prompts), room, weight.dtype, weight.device)
    if shortest < longest and not is_shift_invariant(network):
        raise ValueError(
            "prompts of unequal length cannot share a batch where scores depend on absolute positions: "
            "give them one by one, or use_cache=False"
        )
    return KVCache(args, len(prompts), room, weight.dtype, weight.device)


def check_endless(network: Transformer | type[Transformer], prompts: Prompts) -> None:
    """Raises ValueError if evicting tokens would change scores, or rows would evict different numbers of tokens."""
    if not is_shift_invariant(network):
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
    """Raises ValueError unless these are lists of ids of the vocabulary, none empty, that fit into the context."""
    check_are_ids(prompts)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: give at least 1")
    longest, limit, V = max(map(len, prompts)), args.max_seq_len, args.vocab_size
    if endless and longest > limit:
        raise ValueError(f"a prompt of {longest} tokens is longer than the context of {limit}: shorten it")
    if not endless and longest + max_new_tokens > limit:
        raise ValueError(
            f"a prompt of {quantity(longest, 'token')} and {quantity(max_new_tokens, 'new one')} pass the {limit} "
            "positions of the network (max_seq_len): shorten the prompt, lower max_new_tokens, or let it be endless"
        )
    for token in (min(map(min, prompts)), max(map(max, prompts))):
        if not 0 <= token < V:
            raise ValueError(
                f"a prompt holds token {token}: the network's vocabulary is 0 to {V - 1}; check the tokenizer"
            )


def check_are_ids(prompts: Prompts) -> None:
    """Raises ValueError that says what to give instead of a tensor, of one flat prompt, or of text."""
    if isinstance(prompts, Tensor):
        raise ValueError(f"prompts are a tensor of shape {tuple(prompts.shape)}: give lists of ids, prompts.tolist()")
    if not isinstance(prompts, Sequence) or isinstance(prompts, str):
        raise ValueError(f"prompts are {prompts!r:.60}: give a list of prompts, each a list of token ids")
    if not prompts:
        raise ValueError("prompts are empty: give at least one list of token ids")
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            raise ValueError(f"prompt {row} is text, {prompt!r:.60}: give its token ids, tokenizer.encode(text)")
        if isinstance(prompt, int):
            raise ValueError(f"prompts are one flat list that begins with {prompt}: give a list of lists, [prompt]")
        if isinstance(prompt, Tensor) or not isinstance(prompt, Sequence):
            raise ValueError(f"prompt {row} is a {type(prompt).__name__}: give a list of token ids")
        if not prompt:
            raise ValueError(f"prompt {row} is empty: give each row at least one token, such as the tokenizer's bos_id")
        for token in prompt:
            if not isinstance(token, int):
                raise ValueError(f"prompt {row} holds {token!r:.60}: give token ids, whole numbers")


def memory_needed(args: ModelArgs, rows: int, length: int, dtype: torch.dtype) -> int:
    """Bytes that decoding ``rows`` texts of ``length`` tokens takes beside the weights: cache and logits."""
    cache = 2 * args.n_layers * args.n_kv_heads * args.head_dim * length * dtype.itemsize
    return rows * (cache + args.vocab_size * torch.float32.itemsize)
