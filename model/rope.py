"""Rotary position embedding: queries and keys are rotated by their position (RoFormer, arXiv:2104.09864, section 3.2).

Each pair of neighbouring numbers in a head is read as one complex number, a point in a plane. At position p, pair i is
rotated by the angle p * theta^(-2i/D): the first pair by one radian per token, the last pair hardly at all. The dot
product of two rotated vectors depends on their positions only through the difference, so scores are relative.
"""

import torch
from torch import Tensor

from .config import RopeScaling
from .rope_scaling import scale


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0, scaling: RopeScaling | None = None) -> Tensor:
    """The rotations of positions 0 to ``end`` - 1: complex64 (end, dim // 2); ``dim`` is the width of one head.

    Row p, column i is cos(a) + j sin(a), "cis" for short, with the angle a = p theta^(-2i/dim). Angles are computed in
    float64 on the CPU, whatever the default dtype and device are: bfloat16 numbers near 2000 are 8 apart, so an angle
    could be wrong by 4 radians, and on the meta device, where large networks are constructed, tensors have no values.
    ``scaling`` changes the frequencies, and multiplies the rotations by its ``attention_factor``.
    """
    if dim % 2:
        raise ValueError(f"dim is {dim}: make it even, because RoPE rotates pairs")
    freqs = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)  # (D/2,) radians per token
    magnitude = 1.0
    if scaling is not None:
        freqs, magnitude = scale(freqs, scaling), scaling.attention_factor
    positions = torch.arange(end, dtype=torch.float64, device="cpu")
    angles = torch.outer(positions, freqs)  # (end, D/2)
    return torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)


def reshape_for_broadcast(freqs_cis: Tensor, x: Tensor) -> Tensor:
    """View the table (T, D/2) as (1, T, 1, D/2), to broadcast over the batch and the heads of x (B, T, H, D/2).

    Raises ValueError if the shapes do not match, because a table of one row would broadcast to all T positions.
    """
    if x.ndim != 4 or freqs_cis.shape != (x.shape[1], x.shape[3]):
        raise ValueError(
            f"freqs_cis has shape {tuple(freqs_cis.shape)} and x {tuple(x.shape)}: "
            "for x of (B, T, H, D/2) give a table of (T, D/2)"
        )
    return freqs_cis[None, :, None, :]  # (1, T, 1, D/2)


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries (B, T, H, D) and keys (B, T, K, D) by their positions; shapes and dtypes are unchanged.

    Pairs are (2i, 2i + 1). Each is multiplied by one complex number, in float32 whatever the dtype of the input.
    """
    if torch.compiler.is_compiling():  # torch.compile generates no code for complex arithmetic
        return apply_rotary_emb_real(xq, xk, freqs_cis)
    return _rotate(xq, freqs_cis), _rotate(xk, freqs_cis)


def _rotate(x: Tensor, freqs_cis: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))  # (B, T, H, D/2)
    rotated = pairs * reshape_for_broadcast(freqs_cis, pairs)
    return torch.view_as_real(rotated).flatten(3).type_as(x)  # (B, T, H, D)


def apply_rotary_emb_real(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_emb`` in real arithmetic, for torch.compile. In eager mode it allocates more tensors."""
    return _rotate_real(xq, freqs_cis), _rotate_real(xk, freqs_cis)


def _rotate_real(x: Tensor, freqs_cis: Tensor) -> Tensor:
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)  # (B, T, H, D/2) each
    cos, sin = (reshape_for_broadcast(part, a) for part in torch.view_as_real(freqs_cis).unbind(-1))  # (1, T, 1, D/2)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(3).type_as(x)  # (B, T, H, D)
