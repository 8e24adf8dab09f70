"""Greedy decoding by its definition, the oracle of the decode loop."""

import torch


@torch.no_grad()
def greedy(model, prompt, n):
    """For each token, a forward over the whole text without a cache; then append the likeliest token."""
    text = list(prompt)
    for _ in range(n):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]
