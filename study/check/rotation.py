"""What a rotation of the reader does to one pair, as algebra, and which properties of RoPE it has."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .probes import plain, random, side


class Finding(NamedTuple):
    """What was measured, the reader's value and the expected one."""

    measured: str
    yours: str
    expected: str


TERMS = ("1", "cos a", "sin a", "cos^2 a", "cos a sin a")
T, PAIRS = 3, 4  # the sizes of the probes
TABLES = 8  # more than there are terms


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def rotation_findings(apply: Callable[..., Any], layout: str) -> list[Finding]:
    """The formula of the first pair that is not right, and the properties; nothing if the function raises."""
    try:
        return [*formula_findings(apply, layout), *property_findings(apply)]
    except Exception:  # raised by the function, or here by a result that is not two tensors of the right shape
        return []


def formula_findings(apply: Callable[..., Any], layout: str) -> list[Finding]:
    """The matrix that each pair of token 1, head 0 undergoes, from vectors that are 1 in one channel."""
    angles = 0.3 + 2.5 * torch.rand(TABLES, T, PAIRS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    D = 2 * PAIRS
    channels = torch.arange(D).view(PAIRS, 2) if layout == "neighbours" else torch.arange(D).view(2, PAIRS).T
    for number, name in enumerate("qk"):
        rotate = side(apply, number)
        columns = [
            torch.stack([plain(rotate(torch.eye(D)[c].repeat(1, T, 2, 1), unit(angle)))[0, 1, 0] for c in range(D)], -1)
            for angle in angles
        ]
        matrix = torch.stack(columns)  # (TABLES, D of the result, D)
        for pair in range(PAIRS):
            own = channels[pair]
            sources = matrix[:, own].abs().amax((0, 1)) > 1e-4
            sources[own] = False
            if sources.any():
                found = " and ".join(map(str, (matrix[:, own].abs().amax((0, 1)) > 1e-4).nonzero()[:, 0].tolist()))
                sentence = f"Channels {own[0]} and {own[1]} of {name} are computed from the channels"
                return [Finding(sentence, found, f"{own[0]} and {own[1]}")]
            text = formula(matrix[:, own][:, :, own], angles[:, 1, pair])
            if text != RIGHT:
                return [Finding(f"Pair {pair} of {name}, (x, y), becomes, by the angle a", text, RIGHT)]
    return []


RIGHT = "(x cos a - y sin a, x sin a + y cos a)"


def formula(matrices: Tensor, angle: Tensor) -> str:
    """``(x cos a - y sin a, ...)`` from the matrices (TABLES, 2, 2) for angles (TABLES,)."""
    c, s = angle.cos(), angle.sin()
    basis = torch.stack((torch.ones_like(c), c, s, c * c, c * s), -1)  # (TABLES, 5)
    terms = torch.linalg.lstsq(basis, matrices.flatten(1)).solution  # (5, 4)
    if (basis @ terms - matrices.flatten(1)).abs().max() > 1e-3:
        return "no sum of x and y times cos a and sin a"
    x_to_x, y_to_x, x_to_y, y_to_y = terms.T.tolist()
    return f"({sum_text(x_to_x, y_to_x)}, {sum_text(x_to_y, y_to_y)})"


def sum_text(of_x: list[float], of_y: list[float]) -> str:
    parts = []
    for letter, terms in (("x", of_x), ("y", of_y)):
        for term, value in zip(TERMS, terms):
            if abs(value) > 1e-3:
                factor = "" if abs(abs(value) - 1) < 1e-3 else f"{abs(value):.3g} "
                product = letter if term == "1" else f"{letter} {term}"
                parts.append(f"{'-' if value < 0 else '+'} {factor}{product}")
    text = " ".join(parts) or "0"
    return f"-{text[2:]}" if text.startswith("- ") else text.removeprefix("+ ")


def property_findings(apply: Callable[..., Any]) -> list[Finding]:
    """Whether lengths are kept, position 0 is unchanged, and scores depend on the distance only, for RoPE's angles."""
    T, D = 6, 8
    angles = torch.arange(T)[:, None] * 100.0 ** -(torch.arange(D // 2, dtype=torch.float64) / 4)
    xq, xk = (random(1, 1, 2, D, seed=seed).expand(1, T, 2, D).clone() for seed in (1, 2))
    q, k = plain(apply(xq.clone(), xk.clone(), unit(angles)))
    scores = q[0, :, 0] @ k[0, :, 0].mT
    properties = {
        "lengths are kept": close(q.norm(dim=-1), xq.norm(dim=-1)) and close(k.norm(dim=-1), xk.norm(dim=-1)),
        "position 0 is unchanged": close(q[:, 0], xq[:, 0]) and close(k[:, 0], xk[:, 0]),
        "scores depend on the distance only": close(scores[1:, 1:], scores[:-1, :-1]),
    }
    missing = [name for name, holds in properties.items() if not holds]
    return [Finding(f"Whether {name}", "no", "yes") for name in missing]


def close(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x.double(), y.double(), 1e-4, 1e-4)
