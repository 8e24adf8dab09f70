"""From logits to text: the one decode loop of the project, for a stream, a batch and a conversation alike.

Prompts of unequal length share a batch by ending together: the shorter ones are padded on the left, so the next token
of every row goes into the same slot of the cache, and ``start_pos`` stays one number. A row's slots are then not its
positions, but all off by the same amount, and RoPE's scores depend on the difference of two positions only.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .cache import KVCache
from .decoding.sampling import Chooser
from .decoding.settings import Sampling
from .transformer import Transformer

CHUNK = 512  # prompt tokens read at once: what bounds the memory a long prompt needs
Prompts = Sequence[Sequence[int]]
Read = Callable[[Tensor], Tensor]  # the next tokens of every row, (B, T) -> the logits after them, (B, V)


class Step(NamedTuple):
    """What one turn of the loop gave each row; None where the row had ended."""

    tokens: list[int | None]
    logprobs: list[float | None]  # by the model itself, before temperature and the rest; None unless asked for


def generate(
    model: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    compile: bool = False,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    eos_ids: Collection[int] = (),
    use_cache: bool = True,
) -> Iterator[list[int | None]]:
    """Continue every prompt; each step yields one id a row, None once a row has ended with one of ``eos_ids``.

    A row gives what it would give alone. Raises ValueError for prompts and settings that cannot work.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    steps = decode(model, prompts, max_new_tokens, sampling, eos_ids, compile=compile, use_cache=use_cache)
    return (step.tokens for step in steps)


def decode(
    model: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    sampling: Sampling,
    eos_ids: Collection[int] = (),
    *,
    ended: set[int] | None = None,
    first_row: int = 0,
    logprobs: bool = False,
    cache: KVCache | None = None,
    start_pos: int = 0,
    compile: bool = False,
    use_cache: bool = True,
) -> Iterator[Step]:
    """The loop behind ``generate``. A caller who puts a row's number into ``ended`` ends that row.

    Each row draws from a random stream of its own; they are numbered from ``first_row``. With a ``cache``, the prompt
    goes on after the ``start_pos`` tokens it holds; a step's own token is not in it yet, so it starts the next prompt.
    """
    check(model, prompts, max_new_tokens, start_pos, compile, use_cache)
    device = model.tok_embeddings.weight.device
    if not use_cache:
        read = uncached(model, prompts)
    else:
        read = cached(model, cache or new_cache(model, prompts, max_new_tokens), start_pos, compile)
    choose = Chooser(sampling, prompts, max_new_tokens, model.args.vocab_size, first_row, device)
    ended = set() if ended is None else ended
    return loop(model, left_padded(prompts).to(device), max_new_tokens, read, choose, set(eos_ids), ended, logprobs)


def loop(
    model: Transformer,
    tokens: Tensor,
    max_new_tokens: int,
    read: Read,
    choose: Chooser,
    eos_ids: set[int],
    ended: set[int],
    logprobs: bool,
) -> Iterator[Step]:
    for _ in range(max_new_tokens):
        logits = evaluate(model, read, tokens)  # (B, V)
        tokens = choose(logits)  # (B, 1)
        running = [row not in ended for row in range(len(tokens))]
        ids = [token if runs else None for token, runs in zip(tokens[:, 0].tolist(), running)]
        scores: list[float | None] = [None] * len(ids)
        if logprobs:
            likely = logits.log_softmax(-1).gather(-1, tokens)[:, 0]  # (B,)
            scores = [score if runs else None for score, runs in zip(likely.tolist(), running)]
        ended.update(row for row, token in enumerate(ids) if token in eos_ids)
        yield Step(ids, scores)
        if len(ended) == len(ids):
            return


@torch.no_grad()
def evaluate(model: Transformer, read: Read, tokens: Tensor) -> Tensor:
    """The next logits, float32 (B, V). Between two steps the model's training flag is as the caller has it."""
    training = model.training
    if training:
        model.eval()
    try:
        return read(tokens).float()
    finally:
        if training:
            model.train()


def cached(model: Transformer, cache: KVCache, start_pos: int, compile: bool) -> Read:
    """Reads each token once. A long prompt goes in chunks, and the output matrix is applied to its last token only."""
    pos = start_pos
    if compile:
        from .decoding.compiled import FIRST_POS, compiled_step

        step = compiled_step(model)

    def read(tokens: Tensor) -> Tensor:
        nonlocal pos
        if compile and tokens.shape[1] == 1 and pos >= FIRST_POS:
            logits = step(tokens, pos, cache)  # (B, V)
            pos += 1
            return logits
        for chunk in tokens.split(CHUNK, dim=1):  # (B, up to CHUNK)
            h = model.hidden(chunk, pos, cache)  # (B, T, dim)
            pos += chunk.shape[1]
        return model.logits(h[:, -1])  # (B, V)

    return read


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
    cache = KVCache(model.args, len(prompts), int(lengths.max()) + max_new_tokens, weight.dtype, weight.device)
    if int(lengths.min()) < int(lengths.max()):
        cache.padding = (lengths.max() - lengths).to(weight.device)  # (B,)
    return cache


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
