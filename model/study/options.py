"""What each topic lets its reader choose: one frozen dataclass a topic, which is also its flags. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True)
class Rotate:
    """The worked example: five vectors of length 4, turned pair by pair."""

    theta: Annotated[float, "base of the frequencies"] = 10000.0


@dataclass(frozen=True)
class Forms:
    """Every way of writing RoPE, side by side: deviation, time, memory, permutation."""

    head_dim: Annotated[int, "width of one head"] = 64
    length: Annotated[int, "positions"] = 512
    heads: Annotated[int, "heads"] = 12
    ratio: Annotated[float, "rope_ratio of ChatGLM2-32k: positions are divided by it"] = 4.0
    repeats: Annotated[int, "calls of which the median time is taken"] = 20


@dataclass(frozen=True)
class Relative:
    """Scores see m - n only, norms stay, and why it is q and k that turn, not the embedding."""

    head_dim: Annotated[int, "width of the vectors"] = 64
    distance: Annotated[int, "m - n"] = 7
    theta: Annotated[float, "base of the frequencies"] = 10000.0
    seed: Annotated[int, "of the random vectors"] = 0


@dataclass(frozen=True)
class Decay:
    """Long-term decay: RoFormer's bound and the inner product itself, over distance."""

    head_dim: Annotated[int, "width of one head"] = 128
    length: Annotated[int, "largest distance"] = 4096
    thetas: Annotated[tuple[float, ...], "bases of the frequencies"] = (100.0, 10000.0, 500000.0)


@dataclass(frozen=True)
class Trace:
    """One attention call step by step: expression, shape, dtype and the values of one pair."""

    model: Annotated[Path | None, "a trained model (default: the notes' sizes with random weights)"] = None
    prompt: Annotated[str, "what the trained model reads"] = "Once upon a time"
    batch: Annotated[int, "rows"] = 2
    length: Annotated[int, "tokens"] = 512
    heads: Annotated[int, "heads"] = 12
    head_dim: Annotated[int, "width of one head"] = 64
    position: Annotated[int, "token that is watched (a negative one counts from the end)"] = 2
    head: Annotated[int, "head that is watched"] = 0
    pair: Annotated[int, "pair that is watched"] = 1


@dataclass(frozen=True)
class Notes:
    """What the notes this project grew from get wrong, each with its number."""


TOPICS = {
    "rotate": Rotate,
    "trace": Trace,
    "forms": Forms,
    "relative": Relative,
    "decay": Decay,
    "notes": Notes,
}
