"""The rotation itself: the worked example of five vectors, and why a score depends on the distance only."""

import cmath
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from model.ranges import Range
from model.rope import apply_rotary_emb, precompute_freqs_cis

from .arrows import arc, arrow, plane
from .topic import BLUE, COLORS, MAX_HEAD_DIM, ORANGE, THETAS, Report, Table, check_even, short

VECTORS = ((1, 0, 1, 0), (0, 1, 0, 1), (1, 1, 1, 1), (1, -1, 1, -1), (0.5, 0.5, 0.5, 0.5))

DEFAULT_THETA = 10000.0
SHIFTS = (0, 1, 10, 100, 1000, 4000)


def exact(m: int, vector: tuple[float, ...], theta: float) -> list[float]:
    """The four numbers of position m in float64, because float32 rounds cos 0.01 to just below 0.99995."""
    numbers = []
    for i in (0, 1):
        rotated = complex(*vector[2 * i : 2 * i + 2]) * cmath.rect(1, m * theta ** (-2 * i / 4))
        numbers += [rotated.real, rotated.imag]
    return numbers


def rotate(theta: Annotated[float, "base of the frequencies", THETAS] = DEFAULT_THETA) -> Report:
    """The worked example: five vectors of four numbers, rotated pair by pair."""
    angles = precompute_freqs_cis(4, 5, theta).angle() % (2 * torch.pi)  # (5, 2)
    table = Table(
        "The five vectors, rotated",
        ("position", "vector", "pair 0", "pair 1", "angles", "pair 0 rotated", "pair 1 rotated"),
    )
    for m, vector in enumerate(VECTORS):
        rotated = exact(m, vector, theta)
        cells = [f"{value:.4f}" for value in rotated]
        plain = [f"{value:g}" for value in vector]
        by = ", ".join(f"{angle:.4g}" for angle in angles[m].tolist())
        pairs = [f"[{a}, {b}]" for a, b in (plain[:2], plain[2:], cells[:2], cells[2:])]
        table.rows.append((m, f"[{', '.join(plain)}]", *pairs[:2], by, *pairs[2:]))
    return Report([table], lambda figure: draw_rotate(figure, theta))


def draw_rotate(figure: Any, theta: float) -> None:
    """The vector (1, 0, 1, 0) at positions 0 to 4; arcs show the angles."""
    figure.set_size_inches(9, 4.8)
    x = torch.tensor([[1.0, 0.0, 1.0, 0.0]])  # (1, 4)
    table = precompute_freqs_cis(4, 5, theta)  # (5, 2)
    rotated = torch.view_as_complex(rotate_to(x[0], torch.arange(5), table).unflatten(-1, (2, 2)))  # (5, 2)
    for i, axes in enumerate(figure.subplots(1, 2)):
        plane(axes, 1.35)
        rate = theta ** (-2 * i / 4)
        for m in range(5):
            tip = complex(rotated[m, i])
            arrow(axes, tip, COLORS[m], label=f"position {m}: {m * rate:g} rad")
            if m:
                arc(axes, 0, m * rate, 0.17 * m + 0.08, COLORS[m])
            if rate > 0.1:
                axes.text(1.15 * tip.real, 1.15 * tip.imag, str(m), color=COLORS[m], ha="center", va="center")
        axes.set(xlabel=f"channel {2 * i}", ylabel=f"channel {2 * i + 1}")
        axes.set_title(f"pair {i}: {rate:g} rad per position")
        axes.legend(loc="lower right", fontsize=8)
    figure.suptitle("the vector (1, 0, 1, 0) at positions 0 to 4", fontsize=11)


def rotate_to(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """One vector (D,) rotated to each of the positions: (positions, D)."""
    rows = x.expand(1, len(positions), 1, -1)  # (1, positions, 1, D)
    return apply_rotary_emb(rows, rows, table[positions])[0][0, :, 0]  # (positions, D)


class TwoTokens(NamedTuple):
    """Two random tokens ``distance`` apart, (D,) each, and the matrices of a head, (D, D) each."""

    x: Tensor
    y: Tensor
    wq: Tensor
    wk: Tensor
    distance: int
    theta: float

    def rotated(self, x: Tensor, y: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """x at positions ``shifts + distance``, and y at ``shifts``: (shifts, D) each."""
        table = precompute_freqs_cis(len(x), int(shifts.max()) + self.distance + 1, self.theta)  # (end, D/2)
        return rotate_to(x, shifts + self.distance, table), rotate_to(y, shifts, table)

    def rotated_query_and_key(self, shifts: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotated(self.wq @ self.x, self.wk @ self.y, shifts)

    def scores(self, shifts: Tensor) -> dict[str, Tensor]:
        """The score of the two tokens at each shift, with q and k or the embedding rotated: (shifts,) each.

        ``norm`` is the norm of the rotated query, divided by that of the query before.
        """
        q, k = self.rotated_query_and_key(shifts)
        x, y = self.rotated(self.x, self.y, shifts)
        return {
            "q and k": (q * k).sum(-1),
            "the embedding": ((x @ self.wq.T) * (y @ self.wk.T)).sum(-1),
            "norm": q.norm(dim=-1) / (self.wq @ self.x).norm(),
        }


def random_tokens(D: int, distance: int, theta: float, seed: int) -> TwoTokens:
    x, y, wq, wk = torch.randn(2 * D + 2, D, generator=torch.Generator().manual_seed(seed)).split((1, 1, D, D))
    return TwoTokens(x[0], y[0], wq / D**0.5, wk / D**0.5, distance, theta)


def relative(
    head_dim: Annotated[int, "width of the vectors", Range(2, MAX_HEAD_DIM)] = 64,
    distance: Annotated[int, "m - n", Range(0, 100_000)] = 7,
    theta: Annotated[float, "base of the frequencies", THETAS] = DEFAULT_THETA,
    seed: Annotated[int, "seed of the random vectors", Range(0)] = 0,
) -> Report:
    """Scores depend on m - n only, norms do not change, and q and k are rotated instead of the embedding."""
    check_even("head_dim", head_dim)
    tokens = random_tokens(head_dim, distance, theta, seed)
    scores = tokens.scores(torch.tensor(SHIFTS))
    table = Table(
        f"One q and one k, {distance} apart, at increasing positions",
        ("n", "m", "q and k rotated", "embedding rotated", "norm of q, rotated / plain"),
        notes=[f"smallest, largest and spread: over all n from 0 to {SHIFTS[-1]}."],
    )
    for i, shift in enumerate(SHIFTS):
        table.rows.append((shift, shift + distance, *(f"{values[i]:.4f}" for values in scores.values())))
    all_scores = tokens.scores(torch.arange(SHIFTS[-1] + 1)).values()
    table.rows.append(("smallest", "", *(f"{values.min():.4f}" for values in all_scores)))
    table.rows.append(("largest", "", *(f"{values.max():.4f}" for values in all_scores)))
    table.rows.append(("spread", "", *(short(float(values.max() - values.min())) for values in all_scores)))
    return Report([table, identities(head_dim, distance, theta, seed)], lambda figure: draw_relative(figure, tokens))


def identities(D: int, distance: int, theta: float, seed: int) -> Table:
    """R_m^T R_n = R_(n-m) as matrices, and a check that orthogonality alone does not imply it."""
    m, n = distance + 5, 5
    table = precompute_freqs_cis(D, m + 1, theta)  # (m + 1, D/2)
    R = {p: rotation_matrix(table[p]) for p in (m, n, m - n)}
    product = R[m].T @ R[n]
    generator = torch.Generator().manual_seed(seed)
    Q = [torch.linalg.qr(torch.randn(D, D, generator=generator))[0] for _ in range(4)]  # orthogonal, one a position
    claims = [
        ("R_m^T R_n = R_(n-m)", product - R[m - n].T),
        ("R_m^T R_n = R_(m-n), the opposite sign", product - R[m - n]),
        ("R_m^T R_m = 1, orthogonal", R[m].T @ R[m] - torch.eye(D)),
        ("Q_0^T Q_1 = Q_2^T Q_3, for any orthogonal Q", Q[0].T @ Q[1] - Q[2].T @ Q[3]),
    ]
    rows = [(claim, f"{gap.abs().max():.1e}", "yes" if gap.abs().max() < 1e-4 else "NO") for claim, gap in claims]
    note = "The second and the fourth are false, as the NO shows: orthogonality alone is not enough."
    if rows[1][2] == "yes":  # at distance 0, and almost at a multiple of pi with one pair
        note = "The fourth is false, as the NO shows: orthogonality alone is not enough."
    return Table(f"As matrices, m = {m} and n = {n}", ("claim", "largest difference", "holds"), rows, [note])


def rotation_matrix(freqs_cis: Tensor) -> Tensor:
    """The rotation matrix of one position, made by rotating the unit vectors: (D/2,) -> (D, D)."""
    unit = torch.eye(2 * len(freqs_cis))[:, None, None]  # (D, 1, 1, D): a batch of unit vectors
    return apply_rotary_emb(unit, unit, freqs_cis[None])[0][:, 0, 0].T  # (D, D)


def draw_relative(figure: Any, tokens: TwoTokens) -> None:
    """One pair of q and of k at five positions, with the angle between them; below, the score of the head."""
    figure.set_size_inches(9, 6.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    columns = 5
    rotated = tokens.rotated_query_and_key(torch.arange(columns))  # (columns, D) each
    q_pairs, k_pairs = (torch.view_as_complex(t.unflatten(-1, (-1, 2)))[:, :4] for t in rotated)  # the fastest pairs
    pair = int(torch.minimum(q_pairs[0].abs(), k_pairs[0].abs()).argmax())  # both of its arrows are visible
    q, k = q_pairs[:, pair].tolist(), k_pairs[:, pair].tolist()
    reach = 1.3 * max(abs(q[0]), abs(k[0]))
    for n, axes in enumerate(upper.subplots(1, columns)):
        plane(axes, reach)
        arrow(axes, q[n], BLUE, width=0.025)
        arrow(axes, k[n], ORANGE, width=0.025)
        k_to_q = cmath.phase(q[n] / k[n])
        arc(axes, cmath.phase(k[n]), cmath.phase(k[n]) + k_to_q, 0.3 * reach, "black")
        product = (q[n] * k[n].conjugate()).real
        axes.set_title(f"n = {n}, m = {n + tokens.distance}\nq . k of the pair {product:+.3f}", fontsize=8)
        axes.set(xticks=[], yticks=[])
    upper.suptitle(f"pair {pair} of q (blue, at m) and of k (orange, at n), {tokens.distance} apart", fontsize=10)
    shifts = torch.arange(200)
    scores = tokens.scores(shifts)
    axes = lower.subplots()
    axes.plot(shifts, scores["the embedding"], color=ORANGE, linestyle="--", label="the embedding is rotated")
    axes.plot(shifts, scores["q and k"], color=BLUE, linewidth=2, label="q and k are rotated")
    axes.set(xlabel=f"n, position of the key (the query is at n + {tokens.distance})", ylabel="score q . k")
    axes.set_title(f"all pairs: the same two tokens, {tokens.distance} apart, moved along the text", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
