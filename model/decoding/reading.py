"""How the network is fed: with the cache, each token once; without it, everything again for each new token."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..cache import KVCache
from ..transformer import Transformer
from .padding import PaddedCache
from .twins import for_few_rows, sharing

CHUNK = 512  # prompt tokens read at once: what bounds the memory a long prompt needs
Prompts = Sequence[Sequence[int]]
Read = Callable[[Tensor], Tensor]  # the next tokens of every row, (B, T) -> the logits after them, (B, V)
Step = Callable[[Tensor, int], Tensor]  # one token of every row, (B, 1), and its position -> the logits, (B, V)


def cached(model: Transformer, cache: KVCache, start_pos: int, compile: bool) -> Read:
    """Reads each token once. A long prompt goes in chunks, and the output matrix is applied to its last token only."""
    if compile:
        from .compiled import FIRST_POS, compiled_step

        step, first = compiled_step(model)(cache), FIRST_POS
    else:
        step, first = token_step(model, cache), 0
    pos = start_pos

    def read(tokens: Tensor) -> Tensor:
        nonlocal pos
        if tokens.shape[1] == 1 and pos >= first:
            pos += 1
            return step(tokens, pos - 1)  # (B, V)
        for chunk in tokens.split(CHUNK, dim=1):  # (B, up to CHUNK)
            h = model.hidden(chunk, pos, cache)  # (B, T, dim)
            pos += chunk.shape[1]
        return model.logits(h[:, -1])  # (B, V)

    return read


def token_step(model: Transformer, cache: KVCache) -> Step:
    """One token of each row through the network, on a CPU through its faster twin."""
    if model.tok_embeddings.weight.device.type == "cpu":
        model = for_few_rows(sharing(model))
    return lambda tokens, start_pos: model(tokens, start_pos, cache)[:, -1]  # (B, V)


def uncached(model: Transformer, prompts: Prompts) -> Read:
    """Reads everything again for each new token, each row by itself: what the cache saves, and what it must equal."""
    device = model.tok_embeddings.weight.device
    texts = [torch.tensor(prompt, device=device) for prompt in prompts]
    started = False

    def read(tokens: Tensor) -> Tensor:
        nonlocal started, texts
        if started:
            texts = [torch.cat((text, new)) for text, new in zip(texts, tokens)]
        started = True
        return torch.cat([model.logits(model.hidden(text[None])[:, -1]) for text in texts])  # (B, V)

    return read


def left_padded(prompts: Prompts) -> Tensor:
    """The prompts as one (B, T), T the longest one's length, all ending in the last column."""
    longest = max(map(len, prompts))
    return torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])


def new_cache(model: Transformer, prompts: Prompts, max_new_tokens: int) -> KVCache:
    """Room for exactly these prompts and their continuations."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    weight = model.tok_embeddings.weight
    room = (int(lengths.max()) + max_new_tokens, weight.dtype, weight.device)
    if lengths.min() < lengths.max():
        return PaddedCache(model.args, lengths.max() - lengths, *room)
    return KVCache(model.args, len(prompts), *room)


def check(
    model: Transformer, prompts: Prompts, max_new_tokens: int, start_pos: int, compile: bool, use_cache: bool
) -> None:
    if not prompts or not all(prompts):
        raise ValueError("a prompt is empty: give each row at least one token, such as the tokenizer's bos_id")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: give at least 1")
    longest, limit, V = max(map(len, prompts)), model.args.max_seq_len, model.args.vocab_size
    if start_pos + longest + max_new_tokens > limit:
        earlier = f"start_pos {start_pos}, " if start_pos else ""
        raise ValueError(
            f"{earlier}a prompt of {longest} tokens and {max_new_tokens} new ones pass the {limit} positions of the "
            "network (max_seq_len): shorten the prompt or lower max_new_tokens"
        )
    for token in {min(map(min, prompts)), max(map(max, prompts))}:
        if not 0 <= token < V:
            raise ValueError(
                f"a prompt holds token {token}: the network's vocabulary is 0 to {V - 1}; check the tokenizer"
            )
    if compile and not use_cache:
        raise ValueError("compile is for reading with the cache: leave one of compile and use_cache=False out")
    if use_cache and not model.shift_invariant and len(set(map(len, prompts))) > 1:
        raise ValueError(
            "prompts of unequal length cannot share a batch where scores depend on absolute positions: "
            "give them one by one, or use_cache=False"
        )
