"""The published forms of RoPE, and ChatGLM's rotations, which have different angles.

Up to rounding, each is LLaMA's rotation with the channels in another order, or with another table of angles, or both;
the tests check this. The plain forms have LLaMA's angles, m theta^(-2i/D) for position m and pair i. They differ
in which channels form a pair, in the arithmetic, and in the precision of the angles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from model.rope import apply_rotary_emb, precompute_freqs_cis


@dataclass(frozen=True)
class RopeForm:
    """One way of writing RoPE, for T positions and a head of D channels."""

    name: str
    rotate: Callable[[Tensor], Tensor]  # (B, T, H, D) -> (B, T, H, D)
    pairs: Tensor  # (D/2, 2): the channels of each pair, in LLaMA's order
    angles: Tensor  # float64 (T, D/2): the angle of each pair, in radians

    def in_float64(self, x: Tensor) -> Tensor:
        """The rotation pair by pair in float64, to measure the rounding of ``rotate``: (B, T, H, D) -> (B, T, H, D)."""
        a = x.double()[..., self.pairs[:, 0]]  # (B, T, H, D/2)
        b = x.double()[..., self.pairs[:, 1]]  # (B, T, H, D/2)
        cos = self.angles.cos()[None, :, None]  # (1, T, 1, D/2)
        sin = self.angles.sin()[None, :, None]  # (1, T, 1, D/2)
        rotated = torch.empty_like(x, dtype=torch.float64)
        rotated[..., self.pairs[:, 0]] = a * cos - b * sin
        rotated[..., self.pairs[:, 1]] = a * sin + b * cos
        return rotated


def exact_angles(dim: int, positions: Tensor) -> Tensor:
    """m 10000^(-2i/dim) for each position m: float64 (T, dim/2). Independent of the library's table, to check it."""
    rows = [[p * 10000.0 ** (-2 * i / dim) for i in range(dim // 2)] for p in positions.tolist()]
    return torch.tensor(rows, dtype=torch.float64)  # (T, dim/2)


def inverse_frequencies(dim: int) -> Tensor:
    """10000^(-2i/dim) of each pair in float32, as the published codes compute it: (dim/2,)."""
    return 1 / 10000.0 ** (torch.arange(0, dim, 2).float() / dim)  # (dim/2,)


def neighbour_pairs(dim: int) -> Tensor:
    """Pairs of neighbouring channels, (0, 1), (2, 3) ..., as in RoFormer and LLaMA: (dim/2, 2)."""
    return torch.arange(dim).view(-1, 2)  # (dim/2, 2)


def half_pairs(dim: int) -> Tensor:
    """Pairs (0, dim/2), (1, dim/2 + 1) ..., as in GPT-NeoX and Hugging Face: (dim/2, 2)."""
    return torch.arange(dim).view(2, -1).T  # (dim/2, 2)


def rotate_half(x: Tensor) -> Tensor:
    """[x_0 ... x_(D-1)] -> [-x_(D/2) ... -x_(D-1), x_0 ... x_(D/2-1)], the function of this name in Hugging Face."""
    a, b = x.chunk(2, -1)  # (..., D/2) each
    return torch.cat((-b, a), -1)  # (..., D)


def half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin: channel i pairs with channel i + D/2. cos, sin (T, D): all D/2 angles, twice over."""
    return x * cos[:, None] + rotate_half(x) * sin[:, None]


def block_diagonal(freqs_cis: Tensor) -> Tensor:
    """The matrix R_m of every position m, with its zeros: complex (T, D/2) -> (T, D, D) (RoFormer, equation 15)."""
    cos, sin = freqs_cis.real, freqs_cis.imag  # (T, D/2) each
    blocks = torch.stack((cos, -sin, sin, cos), -1).unflatten(-1, (2, 2))  # (T, D/2, 2, 2)
    return torch.stack([torch.block_diag(*row) for row in blocks])  # (T, D, D)


def matrix(x: Tensor, R: Tensor) -> Tensor:
    """R_m x_m: R (T, D, D), x (B, T, H, D) -> (B, T, H, D)."""
    return torch.einsum("tij,bthj->bthi", R, x)  # (B, T, H, D)


def elementwise(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + [-x_1, x_0, -x_3, x_2 ...] sin, with cos and sin (T, D) (RoFormer, equation 34)."""
    swapped = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)  # (B, T, H, D)
    return x * cos[:, None] + swapped * sin[:, None]


def chatglm_ids(length: int, context: int) -> Tensor:
    """ChatGLM-6B's two position ids of each token, int64 (2, length), as in its authors' ``get_position_ids``.

    The first ``context`` tokens are the prompt, and the last of them is the mask that the model fills. The first id of
    a generated token is the position of the mask. The second id is 0 in the prompt, then 1, 2, 3 ...
    """
    positions = torch.arange(length)
    return torch.stack((positions.clamp(max=context - 1), (positions - context + 1).clamp(min=0)))


def chatglm(x: Tensor, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """ChatGLM-6B: each half of the head is rotated by one of the token's two position ids.

    ids (2, T); cos and sin (T, D/2); x (B, T, H, D) -> (B, T, H, D).
    """
    first, second = x.chunk(2, -1)  # (B, T, H, D/2) each
    first, second = half_split(first, cos[ids[0]], sin[ids[0]]), half_split(second, cos[ids[1]], sin[ids[1]])
    return torch.cat((first, second), -1)  # (B, T, H, D)


def chatglm2(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """ChatGLM2: the first half of the head is rotated in neighbouring pairs, the rest stays. cos and sin (T, D/2)."""
    first, second = x.chunk(2, -1)  # (B, T, H, D/2) each
    return torch.cat((elementwise(first, cos, sin), second), -1)  # (B, T, H, D)


def chatglm_family(dim: int, length: int, context: int) -> Iterator[RopeForm]:
    """ChatGLM-6B's and ChatGLM2's rotations of positions 0 .. length - 1; the first ``context`` are the prompt.

    ``dim``, the width of the head, is a multiple of 4.
    """
    positions = torch.arange(length)  # (T,)
    rounded = torch.outer(positions.float(), inverse_frequencies(dim // 2))  # (T, D/4)
    cos, sin = rounded.cos(), rounded.sin()

    ids = chatglm_ids(length, context)  # (2, T)
    rotate = partial(chatglm, ids=ids, cos=torch.cat((cos, cos), -1), sin=torch.cat((sin, sin), -1))
    pairs = torch.cat((half_pairs(dim // 2), half_pairs(dim // 2) + dim // 2))  # (D/2, 2)
    angles = torch.cat([exact_angles(dim // 2, row) for row in ids], -1)  # (T, D/2)
    yield RopeForm("ChatGLM-6B", rotate, pairs, angles)

    rotate = partial(chatglm2, cos=cos.repeat_interleave(2, -1), sin=sin.repeat_interleave(2, -1))
    exact = exact_angles(dim // 2, positions)  # (T, D/4)
    yield RopeForm("ChatGLM2", rotate, neighbour_pairs(dim), torch.cat((exact, torch.zeros_like(exact)), -1))


def plain_forms(dim: int, length: int) -> Iterator[RopeForm]:
    """RoPE's rotation of positions 0 .. length - 1 in every form. Raises ValueError if ``dim`` is odd."""
    positions = torch.arange(length)  # (T,)
    freqs_cis = precompute_freqs_cis(dim, length)  # (T, D/2)
    cos, sin = freqs_cis.real.contiguous(), freqs_cis.imag.contiguous()  # (T, D/2) each
    angles = exact_angles(dim, positions)  # (T, D/2)
    pairs = neighbour_pairs(dim)  # (D/2, 2)

    R = block_diagonal(freqs_cis)  # (T, D, D)
    yield RopeForm("matrix R_m", partial(matrix, R=R), pairs, angles)
    rotate = partial(elementwise, cos=cos.repeat_interleave(2, -1), sin=sin.repeat_interleave(2, -1))
    yield RopeForm("elementwise", rotate, pairs, angles)

    def complex_form(x: Tensor, table: Tensor = freqs_cis) -> Tensor:
        return apply_rotary_emb(x, x, table)[0]

    yield RopeForm("complex", complex_form, pairs, angles)
    rotate = partial(half_split, cos=torch.cat((cos, cos), -1), sin=torch.cat((sin, sin), -1))
    yield RopeForm("half-split", rotate, half_pairs(dim), angles)
    inv_freq = inverse_frequencies(dim)  # (D/2,)
    for name, dtype in (("complex, float32 angles", torch.float32), ("complex, float16 angles", torch.float16)):
        rounded = torch.outer(positions.to(dtype), inv_freq.to(dtype)).float()  # (T, D/2)
        table = torch.polar(torch.ones_like(rounded), rounded)  # (T, D/2)
        yield RopeForm(name, partial(complex_form, table=table), pairs, angles)
