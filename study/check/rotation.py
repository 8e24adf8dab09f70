"""What a rotation of the reader does to one pair, as algebra, and which properties of RoPE it has."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .probes import are_close, plain, random, random_table


class Finding(NamedTuple):
    """What was measured, the reader's value and the expected one."""

    measured: str
    yours: str
    expected: str


TOKENS, D = 9, 8  # more tokens, each with its own angle, than there are terms
TERMS = ("", " cos a", " sin a", " cos^2 a", " cos a sin a")
RIGHT = "(x cos a - y sin a, x sin a + y cos a)"


def rotation_findings(apply: Callable[..., Any], layout: str) -> list[Finding]:
    """The formula of the first pair that is not right, and the properties; nothing if the function raises."""
    try:
        return [*list(formula_findings(apply, layout))[:1], *property_findings(apply)]
    except Exception:  # raised by the function, or here by a result that is not two tensors of the right shape
        return []


def formula_findings(apply: Callable[..., Any], layout: str) -> Iterator[Finding]:
    """The matrix that each pair undergoes, from vectors that are 1 in one channel, each in a row of the batch."""
    table = random_table(TOKENS, D // 2)
    x = torch.eye(D)[:, None, None].expand(D, TOKENS, 2, D)
    channels = torch.arange(D).view(-1, 2) if layout == "neighbours" else torch.arange(D).view(2, -1).T
    for name, rotated in zip("qk", plain(apply(x, x, table))):
        matrices = rotated[:, :, 0].permute(1, 2, 0)  # (TOKENS, channels of the result, channels of x)
        for pair, own in enumerate(channels.tolist()):
            used = (matrices[:, own].abs().amax((0, 1)) > 1e-4).nonzero()[:, 0].tolist()
            text = formula(matrices[:, own][:, :, own], table[:, pair])
            if not set(used) <= set(own):
                sentence = f"Channels {own[0]} and {own[1]} of {name} are computed from the channels"
                yield Finding(sentence, " and ".join(map(str, used)), f"{own[0]} and {own[1]}")
            elif text != RIGHT:
                yield Finding(f"Pair {pair} of {name}, (x, y), becomes, by the angle a", text, RIGHT)


def formula(matrices: Tensor, rotation: Tensor) -> str:
    """``(x cos a - y sin a, ...)`` from the matrices (TOKENS, 2, 2) for the rotations (TOKENS,)."""
    c, s = rotation.real, rotation.imag
    basis = torch.stack((torch.ones_like(c), c, s, c * c, c * s), -1)  # (TOKENS, 5)
    factors = torch.linalg.lstsq(basis, matrices.flatten(1)).solution  # (5, 4)
    if (basis @ factors - matrices.flatten(1)).abs().max() > 1e-3:
        return "no sum of x and y times cos a and sin a"
    x, y = factors.T.reshape(2, 10)  # of the first and the second number: those of x, then those of y
    return f"({sum_text(x.tolist())}, {sum_text(y.tolist())})"


def sum_text(factors: list[float]) -> str:
    products = [f"{letter}{term}" for letter in "xy" for term in TERMS]
    text = ""
    for factor, product in zip(factors, products):
        if abs(factor) > 1e-3:
            number = "" if abs(abs(factor) - 1) < 1e-3 else f"{abs(factor):.3g} "
            text += f" {'-' if factor < 0 else '+'} {number}{product}"
    return text.removeprefix(" + ").replace(" - ", "-", int(text.startswith(" - "))) or "0"


def property_findings(apply: Callable[..., Any]) -> list[Finding]:
    """Whether lengths are kept, position 0 is unchanged, and scores depend on the distance only, for RoPE's angles."""
    angles = torch.arange(6)[:, None] * 100.0 ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    xq, xk = (random(1, 1, 2, D, seed=seed).expand(1, 6, 2, D) for seed in (1, 2))
    q, k = plain(apply(xq, xk, torch.polar(torch.ones_like(angles), angles)))
    scores = q[0, :, 0] @ k[0, :, 0].mT
    pairs = {
        "lengths are kept": (torch.stack((q, k)).norm(dim=-1), torch.stack((xq, xk)).norm(dim=-1)),
        "position 0 is unchanged": (torch.stack((q, k))[:, :, 0], torch.stack((xq, xk))[:, :, 0]),
        "scores depend on the distance only": (scores[1:, 1:], scores[:-1, :-1]),
    }
    missing = [name for name, (x, y) in pairs.items() if not are_close(x, y.double()).all()]
    return [Finding(f"Whether {name}", "no", "yes") for name in missing]
