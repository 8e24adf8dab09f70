"""Wrong versions of each function, from solutions/recipes.txt: a right function, and what replaces a part of it.

``planted()`` yields them as functions that a reader could have written; tests/study/test_check.py checks that each is
answered with its own name.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TEXT = (Path(__file__).parent / "solutions/recipes.txt").read_text(encoding="utf-8")


# What the recipes call.


def unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def linspace(end: float, count: int) -> Tensor:
    return torch.linspace(0, end, count, dtype=torch.float64)


def visible(start_pos: int, T: int, diagonal: int = 0) -> Tensor:
    """The right mask, (T, S); with ``diagonal``, its diagonal is moved to the right."""
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos + diagonal)


def interleaved(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((a, b), -1).flatten(-2)


def concatenated(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b), -1)


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """x (B, T, H, D), rotated by angle (T, D/2) in neighbouring pairs."""
    a, b, c, s = x[..., ::2], x[..., 1::2], angle.cos()[None, :, None], angle.sin()[None, :, None]
    return interleaved(a * c - b * s, a * s + b * c)


NEIGHBOURS = {"split": lambda x: (x[..., ::2], x[..., 1::2]), "join": interleaved, "other_join": concatenated}
HALVES = {"split": lambda x: x.chunk(2, -1), "join": concatenated, "other_join": interleaved}


def planted() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """(function, fault, the wrong function), for each mistake."""
    for block in TEXT.split("@@ ")[1:]:
        function, source = block.split("\n", 1)
        source, *parts = source.split("\n- ")
        for part in parts:
            old, *wrong = part.strip().splitlines()
            assert old in source, old
            for faults, new in (line.split(" | ", 1) for line in wrong):
                for layout in range(2 if function == "apply_rotary_emb" else 1):
                    namespace = globals() | {"math": math} | (NEIGHBOURS, HALVES)[layout]
                    exec(source.replace(old, new), namespace)
                    yield function, faults.split("/")[layout * faults.count("/")], namespace[function]
