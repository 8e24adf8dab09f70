"""Common mistakes about RoPE from published tutorials and code: as written, corrected, and measured."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from model.rope import apply_rotary_emb, precompute_freqs_cis, reshape_for_broadcast

from .positions.rope_forms import half_pairs, inverse_frequencies, rotate_half
from .topic import BLUE, ORANGE, Report, Table

COLUMNS = ("as written", "correct", "measured", "kind", "in", "correct in the same source")
Row = tuple[str, str, str, str, str, str]  # a cell for each column; the notes are the five that docs/rope.md lists
POSITIONS = 2048  # the context of ChatGLM-6B, for which half-precision angles are measured


def mistakes() -> Report:
    """Common mistakes about RoPE from published tutorials and code, each with a measurement."""
    return Report(
        [
            Table("Shapes", COLUMNS, list(shape_mistakes())),
            Table("Formulas", COLUMNS, [*angle_mistakes(), *score_mistakes()]),
            Table("Precision", COLUMNS, list(precision_mistakes())),
        ],
        draw,
    )


def shape_mistakes() -> Iterator[Row]:
    table = precompute_freqs_cis(64, 1024)  # (1024, 32)
    measured = f"{tuple(table.shape)}"
    yield "torch.polar(...) is (1024, 64)", "one complex number a pair", measured, "mistake", "note 0", "in its angles"

    folded = table.reshape(512, 32, 2)  # (512, 32, 2): the (512, 64) as written, cut into neighbours
    equal = (folded[..., 0] == folded[..., 1]).float().mean()
    joined = "that joins rows 2p and 2p + 1"
    measured = f"{equal:.1%} are equal"
    yield "(1024, 32) reshaped to (512, 64) repeats angles", joined, measured, "mistake", "note 0", "nowhere"

    part = table[:512]  # (512, 32)
    measured = f"{tuple(part.shape)}"
    yield (
        "freqs_cis[0 : 512] is (512, 64)",
        "(512, 32), the table's width",
        measured,
        "mistake",
        "note 0",
        "in its next shape",
    )

    view = reshape_for_broadcast(part, torch.zeros(2, 512, 12, 32))
    written, measured = "reshape_for_broadcast gives the input's shape", f"{tuple(view.shape)}"
    yield written, "size 1 for batch and heads", measured, "mistake", "note 0", "in its example"

    theta = torch.rand(2, 8, 4)
    again = torch.cat((theta[..., None], theta[..., None]), 3)[:, :, :, 0]
    measured = f"{theta.shape[-1]} angles stay {again.shape[-1]}"
    written, correct = "cat([a[..., None], a[..., None]], 3)[..., 0] doubles", "the index undoes it"
    yield written, correct, measured, "mistake", "note 4", "nowhere"


def angle_mistakes() -> Iterator[Row]:
    """Mistakes about the angle of a pair, and about the rotation by it."""
    angle, written = precompute_freqs_cis(4, 2)[1, 1].angle(), (1 / 10000) ** (-2 / 4)
    measured = f"n=1 i=1 d=4: {angle:.2f}, as written {written:.0f}"
    yield "angle n (1/10000)^(-2i/d)", "n 10000^(-2i/d)", measured, "misprint", "note 2", "in its example"

    last = precompute_freqs_cis(64, 2)[1, -1].angle()
    measured = f"i=32 d=64: {last:.1e}, as written {10000 ** (62 / 64):.0f}"
    yield (
        "theta_i = 10000^(2(i-1)/d)",
        "the exponent is negative",
        measured,
        "misprint",
        "note 1, ChatGLM2",
        "in the code",
    )

    one = torch.tensor([[0.0, 1.0]])  # (1, 2)
    right, wrong = rotated(one, precompute_freqs_cis(2, 2)[1:])[0], pair_rotation(1).T @ one[0]
    measured = f"column (0, 1) to {_pair(right)}, as written {_pair(wrong)}"
    yield "rotation matrix [cos sin; -sin cos]", "for row vectors only", measured, "misprint", "note 2", "in its code"

    euler = torch.polar(torch.ones(()), torch.ones(()))
    measured = f"x=1: {euler.real:.4f}{euler.imag:+.4f}i, the sum {euler.real * 2:.4f}"
    written, correct = "e^ix + e^-ix = cos x + i sin x", "e^ix alone; the sum is 2 cos x"
    yield written, correct, measured, "mistake", "note 4", "in its next line"

    x = torch.tensor([[3.0, 4.0]])  # (1, 2)
    kept, lost = rotated(x, precompute_freqs_cis(2, 2)[1:]).norm(), (pair_rotation(1) @ x[0, [0, 0]]).norm()
    measured = f"norm of (3, 4): {kept:.4f}, as written {lost:.4f}"
    yield "R rotates (x_(2i-1), x_(2i-1))", "(x_(2i-1), x_2i)", measured, "misprint", "note 3", "in its text"


def score_mistakes() -> Iterator[Row]:
    """Mistakes about scores of rotated vectors, and about ``rotate_half``."""
    q, k = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])  # (1, 2) each
    table = precompute_freqs_cis(2, 8)  # (8, 1)
    score = rotated(q, table[7:]) @ rotated(k, table[4:5]).T
    measured = f"m-n=3: {score.item():.4f}, as written {q[0] @ pair_rotation(3) @ k[0]:.4f}"
    yield "score q^T R_(m-n) k", "q^T R_(n-m) k", measured, "mistake", "note 4", "nowhere"

    line = rotated(torch.tensor([[1.0, 0.0]] * 8), table)  # (8, 2)
    spread = line[:, 0].max() - line[:, 0].min()
    measured = f"real part moves by {spread:.2f}, modulus by {line.norm(dim=-1).std():.0f}"
    yield (
        "the real part of f(q, m) does not depend on m",
        "the modulus does not",
        measured,
        "misprint",
        "note 1",
        "in its formulas",
    )

    between = angles_between(7, 4)
    measured = f"distance 3: {between.min():.2f} to {between.max():.2f}"
    written, correct = "the angle between q and k shows the distance", "the angle of unrotated q and k adds to it"
    yield written, correct, measured, "mistake", "note 1", "nowhere"

    vector, order = torch.arange(1.0, 9.0), half_pairs(8).flatten()
    interleaved = torch.stack((-vector[1::2], vector[::2]), -1).flatten()  # (8,)
    gap = (rotate_half(vector) - interleaved).abs().max()
    mapped = (rotate_half(vector[order.argsort()])[order] - interleaved).abs().max()
    measured = f"off by {gap:.0f}, permuted {mapped:.0f}"
    written, correct = "rotate_half makes [-q1, q0, -q3, q2 ...]", "only after a permutation"
    yield written, correct, measured, "mistake", "note 1", "in its code"


def angles_between(m: int, n: int) -> Tensor:
    """The angles between 1000 random q at m and k at n, of one pair with one radian per token, in 0 .. pi: (1000,)."""
    pairs = torch.randn(2, 1000, 2, generator=torch.Generator().manual_seed(0))  # (q or k, 1000, 2)
    table = precompute_freqs_cis(2, max(m, n) + 1)  # (end, 1)
    q, k = (torch.view_as_complex(rotated(v, table[p].expand(1000, 1))) for v, p in zip(pairs, (m, n)))
    return (q * k.conj()).angle().abs()


def precision_mistakes() -> Iterator[Row]:
    measured = f"cosine off by {half_precision_error().max():.2f} within {POSITIONS} positions"
    yield "inv_freq.half()", "angles need more than 11 bits", measured, "mistake", "ChatGLM-6B", "nowhere"

    distinct = len(torch.arange(32768, dtype=torch.float16).unique())
    measured = f"{distinct} distinct values for 32768 positions"
    yield (
        "arange(32768, dtype=float16)",
        "float16 counts to 2048",
        measured,
        "mistake",
        "ChatGLM2 in float16",
        "nowhere",
    )

    measured = f"the last is {32767 / 16:.2f}"
    yield (
        "ChatGLM2-32k maps positions to [0, 8192]",
        "[0, 2048): rope_ratio is 16",
        measured,
        "mistake",
        "note 1",
        "nowhere",
    )

    x = torch.randn(4, 2)
    error = (torch.view_as_real(torch.view_as_complex(x)) - x).abs().max()
    written, correct = "view_as_real(view_as_complex(x)) prints other digits", "the exact inverse"
    measured = f"off by {error:.0f}"
    yield written, correct, measured, "misprint", "note 0", "in its text"


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """x (T, D) rotated by table (T, D/2): (T, D)."""
    rows = x[None, :, None]  # (1, T, 1, D)
    return apply_rotary_emb(rows, rows, table)[0][0, :, 0]  # (T, D)


def pair_rotation(m: float) -> Tensor:
    """R_m of one pair with a frequency of one radian per token: (2, 2)."""
    return torch.tensor([[math.cos(m), -math.sin(m)], [math.sin(m), math.cos(m)]])


def half_precision_cosines() -> Tensor:
    """Cosines of the angles, computed in float16 as in ChatGLM-6B, for a head of 64: (POSITIONS, 32)."""
    inv_freq = inverse_frequencies(64, 10000.0)  # (32,)
    return torch.outer(torch.arange(POSITIONS, dtype=torch.float16), inv_freq.half()).cos().float()  # (POSITIONS, 32)


def half_precision_error() -> Tensor:
    """Absolute difference between these cosines and the library's: (POSITIONS, 32)."""
    return (half_precision_cosines() - precompute_freqs_cis(64, POSITIONS).real).abs()


def _pair(x: Tensor) -> str:
    return "(" + ", ".join(f"{value:.4f}" for value in x.tolist()) + ")"


def draw(figure: Any) -> None:
    """Half-precision angles, the sign of the exponent, the sign of the distance, and the angle between q and k."""
    figure.set_size_inches(9.5, 7)
    (half, exponent), (sign, between) = figure.subplots(2, 2)
    draw_half_precision(half)
    pairs = torch.arange(32)
    exponent.plot(
        pairs, precompute_freqs_cis(64, 2)[1].angle(), "o-", color=BLUE, markersize=3, label="negative exponent"
    )
    exponent.plot(
        pairs, 10000 ** (pairs / 32), "s--", color=ORANGE, markersize=3, label="positive exponent, as written"
    )
    exponent.set(title="the exponent's sign", xlabel="pair i", ylabel="radians per position", yscale="log")
    table = precompute_freqs_cis(8, 41)  # (41, 4)
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))  # (8,) each
    keys = rotated(k.expand(41, 8), table)  # (41, 8)
    queries = rotated(q.expand(41, 8), table)  # (41, 8)
    sign.plot(queries @ k, color=BLUE, label="q^T R_(n-m) k: the score of q and k")
    sign.plot(keys @ q, color=ORANGE, linestyle="--", label="q^T R_(m-n) k, as written")
    sign.set(title="the sign of the distance: random q and k, 4 pairs", xlabel="m - n, in tokens", ylabel="score")
    sign.margins(y=0.35)
    between.hist(angles_between(7, 4).numpy(), bins=30, color=ORANGE, label="1000 random q and k")
    between.axvline(3, color=BLUE, linewidth=2, label="the distance alone")
    between.set(title="the angle between q and k, 3 apart, at 1 rad per token", xlabel="radians", ylabel="how many")
    for axes in (half, exponent, sign, between):
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def draw_half_precision(axes: Any) -> None:
    """The cosines around the largest error of half-precision angles."""
    error = half_precision_error()  # (POSITIONS, 32)
    worst, pair = divmod(int(error.argmax()), error.shape[1])
    span = slice(max(worst - 30, 0), min(worst + 10, POSITIONS))
    positions = torch.arange(POSITIONS)[span]
    exact, half = precompute_freqs_cis(64, POSITIONS).real[span, pair], half_precision_cosines()[span, pair]
    axes.plot(positions, exact, "o-", color=BLUE, markersize=3, label="float64 angles")
    axes.plot(positions, half, "s--", color=ORANGE, markersize=3, label="float16 angles")
    axes.set(xlabel="position", ylabel="cosine of the angle", ylim=(-1.1, 1.6))
    axes.set_title(f"angles in half precision: pair {pair}, off by up to {error.max():.2f}")
