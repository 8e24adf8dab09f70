"""From logits to text: the one decode loop of the project, for a stream, a batch and a conversation alike.

Prompts of unequal length share a batch by ending together: the shorter ones are padded on the left, so the next token
of every row goes into the same slot of the cache, and ``start_pos`` stays one number. A row's slots are then not its
positions, but all off by the same amount, and RoPE's scores depend on the difference of two positions only.
"""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from .cache import KVCache
from .decoding.network import CompiledNetwork, for_decoding
from .decoding.prompts import Prompts, check_prompts, left_padded, new_cache
from .decoding.sampling import Sampler, Sampling
from .transformer import Transformer

CHUNK = 512  # prompt tokens in one forward: what bounds the memory a long prompt needs


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
    endless: bool = False,
) -> Iterator[list[int | None]]:
    """Continue every prompt; each step yields one id a row, None once a row has ended with one of ``eos_ids``.

    A row gives what it would give alone. With ``endless`` a text may pass ``max_seq_len``: its oldest part is then
    forgotten (``EndlessCache``). Raises ValueError for prompts and settings that cannot work.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    check_prompts(model.args, prompts, max_new_tokens, endless)
    for name, asked in (("compile", compile), ("endless", endless)):
        if asked and not use_cache:
            raise ValueError(f"{name} is for decoding with the cache: leave one of {name} and use_cache=False out")
    cache = new_cache(model, prompts, max_new_tokens, endless) if use_cache else None
    device = model.tok_embeddings.weight.device
    sampler = Sampler(sampling, prompts, max_new_tokens, model.args.vocab_size, device=device)
    network = for_decoding(model, compile)
    return (tokens for tokens, _ in decode(network, prompts, max_new_tokens, sampler, cache, eos_ids=eos_ids))


@torch.no_grad()
def decode(
    network: Transformer | CompiledNetwork,  # what for_decoding built
    prompts: Prompts,
    max_new_tokens: int,
    sampler: Sampler,
    cache: KVCache | None,
    start_pos: int = 0,
    eos_ids: Collection[int] = (),
    logprobs: bool = False,
) -> Iterator[tuple[list[int | None], list[float | None]]]:
    """Prefill, then sample, yield, forward. Each step yields every row's token and its log-probability.

    The prompts continue the ``start_pos`` tokens in ``cache``; the last token yielded is not in it yet. A row that has
    ended yields None. Without a cache every step forwards whole texts. Raises ValueError for NaN after the prompts.
    """
    if cache is None:
        texts = [torch.tensor(prompt, device=sampler.device) for prompt in prompts]  # (T,) each
        logits = forward_whole(network, texts)  # (B, V)
    else:
        for chunk in left_padded(prompts).to(sampler.device).split(CHUNK, dim=1):  # (B, up to CHUNK)
            h = network.hidden(chunk, start_pos, cache)  # (B, T, dim)
            start_pos += chunk.shape[1]
        logits = network.logits(h[:, -1])  # (B, V)
    check_numbers(logits)
    ended = [False] * len(prompts)
    for step in range(1, max_new_tokens + 1):
        tokens = sampler(logits.float())  # (B, 1)
        ids = tokens[:, 0].tolist()
        scores = log_probabilities(logits, tokens) if logprobs else [None] * len(ids)
        yield [None if e else i for e, i in zip(ended, ids)], [None if e else s for e, s in zip(ended, scores)]
        ended = [end or token in eos_ids for end, token in zip(ended, ids)]
        if all(ended) or step == max_new_tokens:
            return
        if cache is None:
            texts = [torch.cat(text_and_token) for text_and_token in zip(texts, tokens)]  # (T,) each
            logits = forward_whole(network, texts)  # (B, V)
        else:
            start_pos = cache.make_room(start_pos)  # an EndlessCache that is full forgets its oldest part
            logits = network(tokens, start_pos, cache)[:, -1]  # (B, V)
            start_pos += 1


def check_numbers(logits: Tensor) -> None:
    if logits.isnan().any():
        raise ValueError("the logits are NaN: the weights hold NaN or infinity, or overflow; try --dtype float32")


def forward_whole(network: Transformer | CompiledNetwork, texts: list[Tensor]) -> Tensor:
    """The logits after each text, (B, V), without a cache and each text by itself: what the cached ones must equal."""
    return torch.cat([network.logits(network.hidden(text[None])[:, -1]) for text in texts])  # (B, V)


def log_probabilities(logits: Tensor, tokens: Tensor) -> list[float]:
    """The model's own for the tokens (B, 1), before temperature and filters."""
    return logits.log_softmax(-1, dtype=torch.float32).gather(-1, tokens)[:, 0].tolist()
