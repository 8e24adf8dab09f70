"""How the next token is drawn, checked before anything is loaded, and before torch is imported."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Sampling:
    """Sampling: how the next token is drawn.

    Raises ValueError that lists every problem at once, each with its value and the fix.
    """

    temperature: Annotated[float, "0 always takes the likeliest token, 1 draws from the model's own odds"] = 0.8
    top_k: Annotated[int | None, "draw among the K likeliest tokens; 0 is off"] = None
    top_p: Annotated[float | None, "draw among the likeliest tokens that together have this probability"] = None
    min_p: Annotated[float | None, "leave out tokens with less than this share of the likeliest one's odds"] = None
    repetition_penalty: Annotated[float, "above 1 holds back tokens the text already has; 1 is off"] = 1.0
    seed: Annotated[int | None, "the same seed gives the same text (default: a new one each time)"] = None

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.temperature < float("inf"):
            yield f"temperature is {self.temperature}: give 0 (always the likeliest token) or more"
        if self.top_k is not None and self.top_k < 0:
            yield f"top_k is {self.top_k}: give a number of tokens, or 0 for all"
        if self.top_p is not None and not 0 < self.top_p <= 1:
            yield f"top_p is {self.top_p}: give a probability above 0, up to 1"
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            yield f"min_p is {self.min_p}: give a share from 0 to 1"
        if not 0 < self.repetition_penalty < float("inf"):
            yield f"repetition_penalty is {self.repetition_penalty}: give a number above 0, 1 for none"
        if self.seed is not None and not 0 <= self.seed < 2**63:
            yield f"seed is {self.seed}: give a whole number from 0 to 2**63 - 1"
