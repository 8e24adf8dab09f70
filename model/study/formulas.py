"""The formulas of the notes that do not hold, each with the number that shows it."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..positions.form import halves, rotate_half
from ..rope import apply_rotary_emb, precompute_freqs_cis

Row = tuple[str, str, str]  # what the notes write, what is so, measured


def turn(x: Tensor, table: Tensor) -> Tensor:
    """x (T, D) turned by table (T, D/2): (T, D)."""
    rows = x[None, :, None]  # (1, T, 1, D)
    return apply_rotary_emb(rows, rows, table)[0][0, :, 0]  # (T, D)


def angles() -> Iterator[Row]:
    """What angle a pair turns by, and what turning it is."""
    angle = precompute_freqs_cis(4, 2)[1, 1].angle()
    yield (
        "angle n (1/10000)^(-2i/d)",
        "n 10000^(-2i/d)",
        f"n=1 i=1 d=4: {angle:.2f}, theirs {(1 / 10000) ** (-2 / 4):.0f}",
    )
    last = precompute_freqs_cis(64, 2)[1, -1].angle()
    yield (
        "theta_i = 10000^(2(i-1)/d)",
        "the exponent is negative",
        f"i=32 d=64: {last:.1e}, theirs {10000 ** (62 / 64):.0f}",
    )

    one = torch.tensor([[0.0, 1.0]])  # (1, 2)
    turned, theirs = turn(one, precompute_freqs_cis(2, 2)[1:])[0], _matrix(1).T @ one[0]
    yield (
        "rotation [cos sin; -sin cos]",
        "that is R transposed",
        f"(0, 1) turns to {_pair(turned)}, theirs to {_pair(theirs)}",
    )

    euler = torch.polar(torch.ones(()), torch.ones(()))
    yield (
        "e^ix + e^-ix = cos x + i sin x",
        "e^ix alone; the sum is 2 cos x",
        f"x=1: {_complex(euler)}, their sum {euler.real * 2:.4f}",
    )

    x = torch.tensor([[3.0, 4.0]])  # (1, 2)
    kept, lost = turn(x, precompute_freqs_cis(2, 2)[1:]).norm(), (_matrix(1) @ x[0, [0, 0]]).norm()
    yield "R turns (x_(2i-1), x_(2i-1))", "(x_(2i-1), x_2i)", f"norm of (3, 4): {kept:.4f}, theirs {lost:.4f}"


def scores() -> Iterator[Row]:
    """What turned vectors know of each other."""
    q, k = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])  # (1, 2) each
    table = precompute_freqs_cis(2, 8)  # (8, 1)
    score = turn(q, table[7:]) @ turn(k, table[4:5]).T
    theirs = q[0] @ _matrix(3) @ k[0]
    yield "score q^T R_(m-n) k", "q^T R_(n-m) k", f"m-n=3: {score.item():.4f}, theirs {theirs:.4f}"

    real = turn(torch.tensor([[1.0, 0.0]] * 8), table)  # (8, 2)
    spread = real[:, 0].max() - real[:, 0].min()
    yield (
        "equal real parts: R_f does not depend on m",
        "R_f is the modulus",
        f"real part moves by {spread:.2f}, modulus by {real.norm(dim=-1).std():.0f}",
    )

    pairs = torch.randn(2, 1000, 2, generator=torch.Generator().manual_seed(0))  # (q or k, 1000, 2)
    turned_q, turned_k = (torch.view_as_complex(turn(v, table[p].expand(1000, 1))) for v, p in zip(pairs, (7, 4)))
    between = (turned_q * turned_k.conj()).angle().abs()
    yield (
        "the angle between q and k is the distance",
        "distance plus their own angle",
        f"distance 3: {between.min():.2f} to {between.max():.2f}",
    )

    vector = torch.arange(1.0, 9.0)
    interleaved = torch.stack((-vector[1::2], vector[::2]), -1).flatten()  # (8,)
    order = halves(8).flatten()
    gap = (rotate_half(vector) - interleaved).abs().max()
    mapped = (rotate_half(vector[order.argsort()])[order] - interleaved).abs().max()
    yield (
        "rotate_half makes [-q1, q0, -q3, q2 ...]",
        "only after a permutation",
        f"off by {gap:.0f}, permuted {mapped:.0f}",
    )


def _matrix(m: float) -> Tensor:
    """R_m of one pair that turns by one radian a token: (2, 2)."""
    return torch.tensor([[math.cos(m), -math.sin(m)], [math.sin(m), math.cos(m)]])


def _pair(x: Tensor) -> str:
    return "(" + ", ".join(f"{value:.4f}" for value in x.tolist()) + ")"


def _complex(x: Tensor) -> str:
    return f"{x.real:.4f}{x.imag:+.4f}i"
