"""Decoding by its definition, the oracle of the decode loop; and a forward pass in chunks, through a cache."""

import itertools

import torch


@torch.no_grad()
def greedy(model, prompt, n):
    """For each token, a forward over the whole text without a cache; then append the likeliest token."""
    text = list(prompt)
    for _ in range(n):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


def in_chunks(model, tokens, sizes, cache):
    """The logits (B, T, V) of tokens (B, T), in chunks of these sizes, over and over, through a new cache."""
    model(tokens[:, :1], start_pos=0, cache=cache)  # allocates the cache
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)  # slots that are not written must not be read
        layer.values.fill_(torch.nan)
    logits, start, sizes = [], 0, itertools.cycle(sizes)
    while start < tokens.shape[1]:
        chunk = tokens[:, start : start + next(sizes)]
        logits.append(model(chunk, start_pos=start, cache=cache))
        start += chunk.shape[1]
    return torch.cat(logits, 1)
