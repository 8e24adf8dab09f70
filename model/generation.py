"""The decode loop: forward, sample, yield. With the seven files alone, five tokens after a prompt are:

    network, prompt = Transformer(ModelArgs()), torch.tensor([[1, 2, 3]])  # (B, T)
    likeliest = lambda logits: logits.argmax(-1, keepdim=True)  # (B, V) -> (B, 1)
    tokens = [token.item() for token in decode(network, prompt, 5, likeliest, KVCache(network.args))]

To share a batch, prompts of unequal length are padded on the left. Then the next token of every row goes into the same
slot of the cache, and one ``start_pos`` serves all rows. Padding shifts all positions of a row by the same amount. This
changes nothing if the scores depend only on differences of positions, as with RoPE.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .cache import KVCache
from .transformer import Transformer


@torch.no_grad()
def decode(
    network: Transformer,
    tokens: Tensor,
    max_new_tokens: int,
    sample: Callable[[Tensor], Tensor],
    cache: KVCache,
    start_pos: int = 0,
    padding: Tensor | None = None,
) -> Iterator[Tensor]:
    """Continue ``tokens`` (B, T), the first of them at ``start_pos``; yields the next token of each row, (B, 1).

    ``sample`` maps logits (B, V) to tokens (B, 1), which may be on another device. ``padding`` (B,) counts the slots
    before each row's first token. The caller may stop earlier than at ``max_new_tokens``. The last token is not
    written to the cache, so without eviction the cache needs start_pos + T + max_new_tokens - 1 slots.
    """
    new = tokens  # the prompt, and then one token of each row at a time
    for _ in range(max_new_tokens):
        parts = new.split(cache.chunk, dim=1) if new.shape[1] > cache.chunk else [new]  # of a long prompt
        for chunk in parts:  # (B, T)
            T = chunk.shape[1]
            start_pos = cache.make_room(start_pos, T)
            mask = padding_mask(padding, start_pos, T)
            logits = network(chunk, start_pos, cache, mask)[:, -1]  # (B, V), after the last token
            start_pos += T
        token = sample(logits)  # (B, 1)
        yield token
        new = token.to(tokens.device)


def padding_mask(padding: Tensor | None, start_pos: int, T: int) -> Tensor | None:
    """The causal mask of T new tokens at start_pos that also hides the first ``padding`` (B,) slots of each row.

    (B, 1, T, S), or None without padding. A padding slot sees itself, because a softmax over no keys is NaN; no token
    sees it.
    """
    if padding is None:
        return None
    keys = torch.arange(start_pos + T, device=padding.device)  # (S,)
    queries = keys[start_pos:, None]  # (T, 1)
    is_token = keys >= padding[:, None, None, None]  # (B, 1, 1, S)
    return ((keys <= queries) & is_token) | (keys == queries)  # (B, 1, T, S)
