"""RoPE scaling: lower the rotation frequencies, so that positions beyond the trained context get familiar angles.

Each scaling is a function from frequencies to frequencies, both (D/2,) in radians per token, fastest pair first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from torch import Tensor

from .ranges import Range, is_number, range_problems

Type = Literal["linear", "ntk", "llama3", "yarn"]
UNSET = cast(int, None)  # None, typed as int: the field was left out


def linear(freqs: Tensor, factor: float) -> Tensor:
    """Position interpolation: squeeze all positions into the trained range (arXiv:2306.15595)."""
    return freqs / factor


def ntk(freqs: Tensor, factor: float) -> Tensor:
    """NTK-aware scaling: the first pair keeps its frequency, the last is divided by ``factor``, the others lie between.

    This is the same as multiplying the base theta by factor^(D/(D-2)) (arXiv:2309.00071, section 3.1).
    """
    exponents = freqs.new_tensor(range(len(freqs))) / (len(freqs) - 1)  # (D/2,), from 0 for the first pair to 1
    return freqs * factor**-exponents


def llama3(freqs: Tensor, factor: float, original: int, low: float, high: float) -> Tensor:
    """Llama 3.1: divide by ``factor`` the frequency of pairs that make fewer than ``low`` turns in the trained context.

    Pairs with more than ``high`` turns keep theirs; in between, the transition is linear in the number of turns.
    """
    turns = original * freqs / (2 * math.pi)
    return _blend(freqs, factor, (turns - low) / (high - low))


def yarn(freqs: Tensor, factor: float, original: int, low: float, high: float) -> Tensor:
    """YaRN as in its authors' code: like ``llama3``, but the transition is linear in the index of the pair.

    Both ends of the transition are rounded to whole indices. The paper (arXiv:2309.00071, section 3.2) differs: there
    the transition is linear in the number of turns, as in ``llama3``.

    Like the authors' code, this gets two extreme cases wrong. If even the first pair makes far fewer than ``low``
    turns, no pair is scaled, although all should be. If even the last pair makes far more than ``high`` turns, all
    pairs are scaled, although none should be.
    """
    pairs = len(freqs)
    log_ratio = math.log(freqs[1] / freqs[0])  # negative, and the same for any two neighbouring pairs
    # The transition runs from the pair with ``high`` turns to the one with ``low``. A pair with n turns has the
    # frequency 2 pi n / original, and a pair with the frequency f has the index log(f) / log_ratio. ``end`` is at most
    # D - 1, as in the authors' code, although the largest index is D/2 - 1.
    begin = max(math.floor(math.log(2 * math.pi * high / original) / log_ratio), 0)
    end = min(math.ceil(math.log(2 * math.pi * low / original) / log_ratio), 2 * pairs - 1)
    width = end - begin
    if width == 0:
        width = 1  # the transition is one step between two pairs
    return _blend(freqs, factor, 1 - (freqs.new_tensor(range(pairs)) - begin) / width)


def _blend(freqs: Tensor, factor: float, keep: Tensor) -> Tensor:
    """Frequencies as they are where ``keep`` (D/2,) is 1, divided by ``factor`` where it is 0."""
    keep = keep.clamp(0, 1)
    return freqs * keep + freqs / factor * (1 - keep)


@dataclass(frozen=True)
class RopeScaling:
    """A scaling and its parameters: the field ``rope_scaling`` of ModelArgs."""

    type: Annotated[Type, "which function"] = "linear"
    factor: Annotated[float, "divides the frequencies; about how many times longer the context", Range(1, 1e6)] = 1.0
    original_max_seq_len: Annotated[int, "llama3 and yarn: the trained context", Range(1, 2**40)] = UNSET
    low: Annotated[float, "llama3 and yarn: pairs with fewer turns in that context are fully scaled"] = 1.0
    high: Annotated[float, "pairs with more turns are unchanged (default: llama3 4, yarn 32)"] = UNSET
    attention_factor: Annotated[
        float, "multiplies queries and keys (default: yarn 0.1 ln factor + 1, else 1)", Range(0.01, 100)
    ] = UNSET

    def __post_init__(self) -> None:
        if self.high is UNSET:
            object.__setattr__(self, "high", 4.0 if self.type == "llama3" else 32.0)
        if self.attention_factor is UNSET:
            is_yarn = self.type == "yarn" and is_number(self.factor) and self.factor >= 1
            object.__setattr__(self, "attention_factor", 0.1 * math.log(self.factor) + 1 if is_yarn else 1.0)

    def __call__(self, freqs: Tensor) -> Tensor:
        if self.type == "linear":
            return linear(freqs, self.factor)
        if self.type == "ntk":
            return ntk(freqs, self.factor)
        scale = llama3 if self.type == "llama3" else yarn
        return scale(freqs, self.factor, self.original_max_seq_len, self.low, self.high)

    def problems(self) -> Iterator[str]:
        """Yield a message for each wrong value. ModelArgs reports them together with its own problems."""
        yield from range_problems(self)
        if not (is_number(self.low) and is_number(self.high) and 0 < self.low < self.high < math.inf):
            yield f"low is {self.low!r} and high {self.high!r}: give 0 < low < high"
        if self.type in ("llama3", "yarn") and self.original_max_seq_len is UNSET:
            yield "original_max_seq_len is missing: give the context that the model was trained on"
