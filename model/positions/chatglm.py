"""RoPE as the ChatGLM models write it: two position ids, half of the head, divided positions."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .form import Form, exact_angles, half_split, halves, neighbours


def repeated(angles: Tensor) -> tuple[Tensor, Tensor]:
    """(T, D/2) -> cosine and sine, (T, D) each, in the angles' own precision."""
    wide = torch.cat((angles, angles), -1)  # (T, D)
    return wide.cos(), wide.sin()


def chatglm(x: Tensor, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """ChatGLM-6B: ids (2, T) hold a position and a position within the block, one for each half of the head."""
    parts = zip(x.chunk(2, -1), ids)
    return torch.cat([half_split(part, F.embedding(row, cos), F.embedding(row, sin)) for part, row in parts], -1)


def chatglm_learnable(x: Tensor, ids: Tensor, inv_freq: Tensor) -> Tensor:
    """The same with frequencies that train: nothing can be kept, the tables are made in every call."""
    steps = torch.arange(int(ids.max()) + 1, dtype=inv_freq.dtype)  # (T,)
    return chatglm(x, ids, *repeated(torch.outer(steps, inv_freq)))


def chatglm2(x: Tensor, table: Tensor) -> Tensor:
    """ChatGLM2: the first half of the head turns, in neighbouring pairs, the rest passes. table: (T, D/4, 2)."""
    turning, passing = x.chunk(2, -1)  # (B, T, H, D/2) each
    a, b = turning.unflatten(-1, (-1, 2)).unbind(-1)  # (B, T, H, D/4) each
    cos, sin = table[None, :, None].unbind(-1)  # (1, T, 1, D/4) each
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)  # (B, T, H, D/2)
    return torch.cat((turned, passing), -1)  # (B, T, H, D)


def chatglm_forms(dim: int, positions: Tensor, theta: float, blocks: int) -> Iterator[Form]:
    ids = torch.stack((positions, positions % -(-len(positions) // blocks)))  # (2, T)
    inv_freq = 1 / theta ** (torch.arange(0, dim // 2, 2).float() / (dim // 2))  # (D/4,)
    pairs = torch.cat((halves(dim // 2), halves(dim // 2) + dim // 2))  # (D/2, 2)
    angles = torch.cat([exact_angles(dim // 2, row, theta) for row in ids], -1)  # (T, D/2)
    for name, dtype in (("ChatGLM-6B", torch.float32), ("ChatGLM-6B, half", torch.float16)):
        tables = repeated(torch.outer(positions.to(dtype), inv_freq.to(dtype)))  # (T, D/2) each
        yield Form(name, partial(chatglm, ids=ids, cos=tables[0], sin=tables[1]), tables, pairs, angles)
    learned = torch.nn.Parameter(inv_freq)
    yield Form(
        "ChatGLM-6B, learnable", partial(chatglm_learnable, ids=ids, inv_freq=learned), (learned,), pairs, angles
    )


def chatglm2_forms(dim: int, positions: Tensor, theta: float, ratio: float) -> Iterator[Form]:
    freqs = 1 / theta ** (torch.arange(0, dim // 2, 2).float() / (dim // 2))  # (D/4,)
    for name, divisor in (("ChatGLM2", 1.0), ("ChatGLM2-32k", ratio)):
        turns = torch.outer(positions.float() / divisor, freqs)  # (T, D/4)
        table = torch.stack((turns.cos(), turns.sin()), -1)  # (T, D/4, 2)
        exact = exact_angles(dim // 2, positions / divisor, theta)  # (T, D/4)
        angles = torch.cat((exact, torch.zeros_like(exact)), -1)  # (T, D/2)
        yield Form(name, partial(chatglm2, table=table), (table,), neighbours(dim), angles)
