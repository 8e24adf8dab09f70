"""The decode loop: prefill, then sample, yield, forward.

To share a batch, prompts of unequal length are padded on the left. Then the next token of every row goes into the same
slot of the cache, and ``start_pos`` stays one number. Padding shifts all positions of a row by the same amount. This
changes nothing if the scores depend only on differences of positions, as with RoPE.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .cache import KVCache
from .transformer import Transformer

CHUNK = 512  # prompt tokens in one forward pass, to bound the memory of a long prompt


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

    ``sample`` maps logits (B, V) to tokens (B, 1). ``padding`` (B,) counts the slots before each row's first token.
    ``max_new_tokens`` is at least 1, and the caller may stop earlier. The last token is not written to the cache, so
    the cache needs start_pos + T + max_new_tokens - 1 slots.
    """
    for chunk in tokens.split(CHUNK, dim=1):
        T = chunk.shape[1]
        mask = padding_mask(padding, start_pos, T)
        h = network.hidden(chunk, start_pos, cache, mask)  # (B, T, dim)
        start_pos += T
    token = sample(network.logits(h[:, -1]))  # (B, 1), from logits (B, V) after the last token only
    yield token

    for position in range(start_pos, start_pos + max_new_tokens - 1):
        logits = network(token, position, cache, padding_mask(padding, position, 1))  # (B, 1, V)
        token = sample(logits[:, -1])  # (B, 1)
        yield token


def padding_mask(padding: Tensor | None, start_pos: int, T: int) -> Tensor | None:
    """The causal mask of T new tokens at start_pos that also hides the first ``padding`` (B,) slots of each row.

    (B, 1, T, S), or None without padding. A padding slot sees itself, because a softmax over no keys is NaN.
    """
    if padding is None:
        return None
    keys = torch.arange(start_pos + T, device=padding.device)  # (S,)
    queries = keys[start_pos:, None]  # (T, 1)
    is_token = keys >= padding[:, None, None, None]  # (B, 1, 1, S)
    return ((keys <= queries) & is_token) | (keys == queries)  # (B, 1, T, S)
