"""A turned q meets a turned k: what the score knows of their places, and what if the embedding were turned instead."""

from typing import Any

import torch
from torch import Tensor

from ..rope import apply_rotary_emb, precompute_freqs_cis
from .options import Relative
from .report import Report, Table, short

SHIFTS = (0, 1, 10, 100, 1000, 4000)


def at(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """One vector (D,) turned to each of the positions: (positions, D)."""
    rows = x.expand(1, len(positions), 1, -1)  # (1, positions, 1, D)
    return apply_rotary_emb(rows, rows, table[positions])[0][0, :, 0]  # (positions, D)


def scores(options: Relative, shifts: Tensor) -> dict[str, Tensor]:
    """The score of one pair of tokens, ``distance`` apart, wherever they are: where the turn is put -> (shifts,)."""
    D = options.head_dim
    x, y, wq, wk = torch.randn(2 * D + 2, D, generator=torch.Generator().manual_seed(options.seed)).split((1, 1, D, D))
    wq, wk = wq / D**0.5, wk / D**0.5
    table = precompute_freqs_cis(D, int(shifts.max()) + options.distance + 1, options.theta)  # (end, D/2)
    m, n = shifts + options.distance, shifts  # (shifts,) each
    x, y = x[0], y[0]  # (D,) each
    return {
        "q and k": (at(wq @ x, m, table) * at(wk @ y, n, table)).sum(-1),
        "the embedding": ((at(x, m, table) @ wq.T) * (at(y, n, table) @ wk.T)).sum(-1),
        "norm": at(x, m, table).norm(dim=-1) / x.norm(),
    }


def run(options: Relative) -> Report:
    if options.head_dim < 2 or options.head_dim % 2:
        raise ValueError(f"head_dim is {options.head_dim}: make it even, because RoPE turns pairs")
    if options.distance < 0:
        raise ValueError(f"distance is {options.distance}: give 0 or more")
    shifts = torch.tensor(SHIFTS)
    found = scores(options, shifts)
    table = Table(
        f"One q and one k, {options.distance} apart, at places further and further on",
        ("n", "m", "q and k turned", "embedding turned", "norm of q, turned / plain"),
    )
    for i, shift in enumerate(SHIFTS):
        numbers = (f"{found[name][i]:.4f}" for name in ("q and k", "the embedding", "norm"))
        table.rows.append((shift, shift + options.distance, *numbers))
    spread = {name: float(values.max() - values.min()) for name, values in found.items()}
    table.rows.append(("spread", "", *(short(spread[name]) for name in ("q and k", "the embedding", "norm"))))
    return Report([table, identities(options)], lambda figure: draw(figure, options))


def identities(options: Relative) -> Table:
    """R_m^T R_n = R_(n-m), as matrices; and that orthogonality alone would not give it."""
    D, m, n = options.head_dim, options.distance + 5, 5
    table = precompute_freqs_cis(D, m + 1, options.theta)  # (m + 1, D/2)
    R = {p: at_rows(torch.eye(D), table[p]) for p in (m, n, m - n)}
    product = R[m].T @ R[n]
    generator = torch.Generator().manual_seed(options.seed)
    Q = [torch.linalg.qr(torch.randn(D, D, generator=generator))[0] for _ in range(4)]  # orthogonal, one a position
    rows = [
        ("R_m^T R_n = R_(n-m)", product - R[m - n].T),
        ("R_m^T R_n = R_(m-n), the sign the other way", product - R[m - n]),
        ("R_m^T R_m = 1, orthogonal", R[m].T @ R[m] - torch.eye(D)),
        ("Q_0^T Q_1 = Q_2^T Q_3, for any orthogonal Q", Q[0].T @ Q[1] - Q[2].T @ Q[3]),
    ]
    return Table(
        f"As matrices, m = {m} and n = {n}",
        ("claim", "largest difference", "holds"),
        [(claim, f"{gap.abs().max():.1e}", "yes" if gap.abs().max() < 1e-4 else "NO") for claim, gap in rows],
    )


def at_rows(x: Tensor, turn: Tensor) -> Tensor:
    """R, from turning the unit vectors: x (D, D) the identity, turn (D/2,) -> (D, D), whose columns are R's."""
    return apply_rotary_emb(x[:, None, None], x[:, None, None], turn[None])[0][:, 0, 0].T  # (D, D)


def draw(figure: Any, options: Relative) -> None:
    shifts = torch.arange(200)
    found = scores(options, shifts)
    axes = figure.subplots()
    axes.plot(shifts, found["the embedding"], label="the embedding is turned")
    axes.plot(shifts, found["q and k"], label="q and k are turned")
    axes.set(xlabel="n, the place of the earlier token", ylabel="score")
    axes.set_title(f"the same two tokens, {options.distance} apart, moved along the text")
    axes.grid(alpha=0.3)
    axes.legend()
