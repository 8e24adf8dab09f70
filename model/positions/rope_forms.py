"""Every form in which RoPE is written, and ChatGLM's rotations, which have other angles.

Each is LLaMA's rotation on reordered channels with a table of its own, up to rounding, which is what the tests hold it
to. The plain forms share one table of angles; they differ in the pairs, the arithmetic and the precision of the angles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rope import apply_rotary_emb, apply_rotary_emb_real, precompute_freqs_cis


@dataclass(frozen=True)
class RopeForm:
    """One way of writing RoPE, for T positions and a head of D channels."""

    name: str
    rotate: Callable[[Tensor], Tensor]  # (B, T, H, D) -> (B, T, H, D)
    kept: tuple[Tensor, ...]  # what it keeps between calls
    pairs: Tensor  # (D/2, 2): the channels of each pair, in LLaMA's order
    angles: Tensor  # float64 (T, D/2): by how much each pair is rotated

    def exact(self, x: Tensor) -> Tensor:
        """What ``rotate`` would give without rounding: 2 x 2 rotations in float64."""
        a = x.double()[..., self.pairs[:, 0]]  # (B, T, H, D/2)
        b = x.double()[..., self.pairs[:, 1]]  # (B, T, H, D/2)
        cos = self.angles.cos()[None, :, None]  # (1, T, 1, D/2)
        sin = self.angles.sin()[None, :, None]  # (1, T, 1, D/2)
        rotated = torch.empty_like(x, dtype=torch.float64)
        rotated[..., self.pairs[:, 0]] = a * cos - b * sin
        rotated[..., self.pairs[:, 1]] = a * sin + b * cos
        return rotated


def exact_angles(dim: int, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """float64 (T, dim/2): position times theta^(-2i/dim), written apart from the library's table to check it."""
    rows = [[p * theta ** (-2 * i / dim) for i in range(dim // 2)] for p in positions.tolist()]
    return torch.tensor(rows, dtype=torch.float64)  # (T, dim/2)


def neighbours(dim: int) -> Tensor:
    """(dim/2, 2): channels (0, 1), (2, 3) ..., as in RoFormer and LLaMA."""
    return torch.arange(dim).view(-1, 2)  # (dim/2, 2)


def halves(dim: int) -> Tensor:
    """(dim/2, 2): channels (0, dim/2), (1, dim/2 + 1) ..., as in GPT-NeoX and Hugging Face."""
    return torch.arange(dim).view(2, -1).T  # (dim/2, 2)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)  # (..., D/2) each
    return torch.cat((-b, a), -1)  # (..., D)


def half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Channel i pairs with channel i + D/2. cos and sin: (T, D), the angles written one after the other, twice."""
    return x * cos[:, None] + rotate_half(x) * sin[:, None]


def block_diagonal(freqs_cis: Tensor) -> Tensor:
    """R_m of every position, zeros included: complex (T, D/2) -> (T, D, D) (RoFormer, equation 15)."""
    cos, sin = freqs_cis.real, freqs_cis.imag  # (T, D/2) each
    blocks = torch.stack((cos, -sin, sin, cos), -1).unflatten(-1, (2, 2))  # (T, D/2, 2, 2)
    return torch.stack([torch.block_diag(*row) for row in blocks])  # (T, D, D)


def matrix(x: Tensor, R: Tensor) -> Tensor:
    return torch.einsum("tij,bthj->bthi", R, x)


def elementwise(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + [-x1, x0, -x3, x2 ...] * sin, with (T, D/2) tables doubled on the way (RoFormer, equation 34)."""
    cos = cos.repeat_interleave(2, -1)[None, :, None]  # (1, T, 1, D)
    sin = sin.repeat_interleave(2, -1)[None, :, None]  # (1, T, 1, D)
    return doubled(x, cos, sin)


def doubled(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same with tables of (1, T, 1, D), which already have every angle twice."""
    swapped = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)  # (B, T, H, D)
    return x * cos + swapped * sin


def repeated(angles: Tensor) -> tuple[Tensor, Tensor]:
    """(T, D/2) -> cosine and sine, (T, D) each, in the angles' own precision."""
    wide = torch.cat((angles, angles), -1)  # (T, D)
    return wide.cos(), wide.sin()


def chatglm_ids(length: int, context: int) -> Tensor:
    """ChatGLM-6B's two ids of each token, int64 (2, length), as its authors' ``get_position_ids`` has them.

    The first ``context`` tokens are the prompt, of which the last is the mask that is to be filled. What is generated
    keeps the mask's position as first id; the second is 0 in the prompt, then 1, 2, 3 ...
    """
    positions = torch.arange(length)
    return torch.stack((positions.clamp(max=context - 1), (positions - context + 1).clamp(min=0)))


def block_ids(length: int, blocks: int) -> Tensor:
    """The position, and the position within one of ``blocks`` equal blocks: int64 (2, length)."""
    positions = torch.arange(length)
    return torch.stack((positions, positions % -(-length // blocks)))


def chatglm(x: Tensor, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Two ids of each token, ids (2, T): each rotates one half of the head."""
    parts = zip(x.chunk(2, -1), ids)
    return torch.cat([half_split(part, F.embedding(row, cos), F.embedding(row, sin)) for part, row in parts], -1)


def chatglm_learnable(x: Tensor, ids: Tensor, inv_freq: Tensor) -> Tensor:
    """The same with frequencies that train: nothing can be kept, the tables are made in every call."""
    steps = torch.arange(int(ids.max()) + 1, dtype=inv_freq.dtype)  # (T,)
    return chatglm(x, ids, *repeated(torch.outer(steps, inv_freq)))


def chatglm2(x: Tensor, table: Tensor) -> Tensor:
    """ChatGLM2: the first half of the head is rotated, in neighbouring pairs, the rest passes. table: (T, D/4, 2)."""
    rotated_half, passed = x.chunk(2, -1)  # (B, T, H, D/2) each
    a, b = rotated_half.unflatten(-1, (-1, 2)).unbind(-1)  # (B, T, H, D/4) each
    cos, sin = table[None, :, None].unbind(-1)  # (1, T, 1, D/4) each
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)  # (B, T, H, D/2)
    return torch.cat((rotated, passed), -1)  # (B, T, H, D)


def two_id_forms(dim: int, theta: float, context_ids: Tensor, equal_blocks: Tensor) -> Iterator[RopeForm]:
    """ChatGLM-6B: learnable, in float32, and in half precision as its code has it; then with two other ids."""
    inv_freq = 1 / theta ** (torch.arange(0, dim // 2, 2).float() / (dim // 2))  # (D/4,)
    pairs = torch.cat((halves(dim // 2), halves(dim // 2) + dim // 2))  # (D/2, 2)
    learned = torch.nn.Parameter(inv_freq)
    rotate = partial(chatglm_learnable, ids=context_ids, inv_freq=learned)
    yield RopeForm("ChatGLM-6B, learnable", rotate, (learned,), pairs, two_id_angles(dim, context_ids, theta))
    for name, dtype, ids in (
        ("ChatGLM-6B", torch.float32, context_ids),
        ("ChatGLM-6B, half", torch.float16, context_ids),
        ("position and block", torch.float32, equal_blocks),
    ):
        steps = torch.arange(int(ids.max()) + 1, dtype=dtype)
        tables = repeated(torch.outer(steps, inv_freq.to(dtype)))  # (largest id + 1, D/2) each
        rotate = partial(chatglm, ids=ids, cos=tables[0], sin=tables[1])
        yield RopeForm(name, rotate, tables, pairs, two_id_angles(dim, ids, theta))


def two_id_angles(dim: int, ids: Tensor, theta: float) -> Tensor:
    return torch.cat([exact_angles(dim // 2, row, theta) for row in ids], -1)  # (T, D/2)


def chatglm2_forms(dim: int, positions: Tensor, theta: float, ratio: float) -> Iterator[RopeForm]:
    freqs = 1 / theta ** (torch.arange(0, dim // 2, 2).float() / (dim // 2))  # (D/4,)
    for name, divisor in (("ChatGLM2", 1.0), ("ChatGLM2-32k", ratio)):
        rounded = torch.outer(positions.float() / divisor, freqs)  # (T, D/4)
        table = torch.stack((rounded.cos(), rounded.sin()), -1)  # (T, D/4, 2)
        exact = exact_angles(dim // 2, positions / divisor, theta)  # (T, D/4)
        angles = torch.cat((exact, torch.zeros_like(exact)), -1)  # (T, D/2)
        yield RopeForm(name, partial(chatglm2, table=table), (table,), neighbours(dim), angles)


def every_rope_form(
    dim: int, length: int, theta: float = 10000.0, ratio: float = 16.0, blocks: int = 4
) -> Iterator[RopeForm]:
    """All of them for positions 0 .. length - 1 and a head of ``dim`` channels: the plain ones, then ChatGLM's.

    ``ratio`` is ChatGLM2-32k's rope_ratio. The first 1 / ``blocks`` of the tokens are ChatGLM-6B's prompt.
    Raises ValueError for a ``dim`` that is no multiple of 4.
    """
    yield from plain_forms(dim, length, theta)
    yield from chatglm_family(dim, length, theta, ratio, blocks)


def chatglm_family(dim: int, length: int, theta: float, ratio: float, blocks: int) -> Iterator[RopeForm]:
    """ChatGLM's rotations. Raises ValueError for a ``dim`` that is no multiple of 4."""
    check_halves(dim)
    ids = chatglm_ids(length, -(-length // blocks))
    yield from two_id_forms(dim, theta, ids, block_ids(length, blocks))
    yield from chatglm2_forms(dim, torch.arange(length), theta, ratio)


def check_halves(dim: int) -> None:
    if dim % 4 or dim < 4:
        raise ValueError(f"head_dim is {dim}: half of the head must hold whole pairs, give a multiple of 4")


def plain_forms(dim: int, length: int, theta: float = 10000.0) -> Iterator[RopeForm]:
    """The same rotation in every form. Raises ValueError for a ``dim`` that is no multiple of 4."""
    check_halves(dim)
    positions = torch.arange(length)  # (T,)
    freqs_cis = precompute_freqs_cis(dim, length, theta)  # (T, D/2)
    cos, sin = freqs_cis.real.contiguous(), freqs_cis.imag.contiguous()  # (T, D/2) each
    angles = exact_angles(dim, positions, theta)  # (T, D/2)
    side = neighbours(dim)  # (D/2, 2)

    R = block_diagonal(freqs_cis)  # (T, D, D)
    yield RopeForm("matrix R_m", partial(matrix, R=R), (R,), side, angles)
    yield RopeForm("elementwise", partial(elementwise, cos=cos, sin=sin), (cos, sin), side, angles)
    cos_twice = cos.repeat_interleave(2, -1)[None, :, None]  # (1, T, 1, D)
    sin_twice = sin.repeat_interleave(2, -1)[None, :, None]  # (1, T, 1, D)
    rotate = partial(doubled, cos=cos_twice, sin=sin_twice)
    yield RopeForm("doubled angles", rotate, (cos_twice, sin_twice), side, angles)

    # The library rotates q and k in one call; x is q here, and k as small as possible.
    def complex_form(x: Tensor, table: Tensor = freqs_cis) -> Tensor:
        return apply_rotary_emb(x, x[:, :, :1], table)[0]

    def real_form(x: Tensor) -> Tensor:
        return apply_rotary_emb_real(x, x[:, :, :1], freqs_cis)[0]

    yield RopeForm("complex", complex_form, (freqs_cis,), side, angles)
    yield RopeForm("real arithmetic", real_form, (freqs_cis,), side, angles)
    cos_wide, sin_wide = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)  # (T, D) each
    rotate = partial(half_split, cos=cos_wide, sin=sin_wide)
    yield RopeForm("half-split", rotate, (cos_wide, sin_wide), halves(dim), angles)
    inv_freq = 1 / theta ** (torch.arange(0, dim, 2).float() / dim)  # (D/2,)
    for name, dtype in (("complex, float32 angles", torch.float32), ("complex, float16 angles", torch.float16)):
        rounded = torch.outer(positions.to(dtype), inv_freq.to(dtype)).float()  # (T, D/2)
        table = torch.polar(torch.ones_like(rounded), rounded)  # (T, D/2)
        yield RopeForm(name, partial(complex_form, table=table), (table,), side, angles)
