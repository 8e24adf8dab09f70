"""RoPE scaling: lower the rotation frequencies, so that positions beyond the trained context get familiar angles.

Each scaling is a function from frequencies to frequencies, both (D/2,) in radians per token, fastest pair first.
"""

import math

from torch import Tensor

from .config import RopeScaling


def scale(freqs: Tensor, scaling: RopeScaling) -> Tensor:
    """The frequencies that ``scaling`` describes."""
    if scaling.type == "linear":
        return linear(freqs, scaling.factor)
    if scaling.type == "ntk":
        return ntk(freqs, scaling.factor)
    function = llama3 if scaling.type == "llama3" else yarn
    return function(freqs, scaling.factor, scaling.original_max_seq_len, scaling.low, scaling.high)


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

    Like the authors' code, this gets two extreme cases wrong, in which ``width`` is negative. If even the first pair
    makes far fewer than ``low`` turns, no pair is scaled, although all should be. If even the last pair makes far more
    than ``high`` turns, all pairs are scaled, although none should be.
    """
    pairs = len(freqs)
    log_ratio = math.log(freqs[1] / freqs[0])  # negative, and the same for any two neighbouring pairs

    def index_of(turns: float) -> float:
        """The index, which may be a fraction, of the pair that makes so many turns in the trained context."""
        return math.log(2 * math.pi * turns / original) / log_ratio

    begin = max(math.floor(index_of(high)), 0)
    end = min(math.ceil(index_of(low)), 2 * pairs - 1)  # as in the authors' code; the largest index is pairs - 1
    width = end - begin
    if width == 0:
        width = 1  # the transition is one step between two pairs
    return _blend(freqs, factor, 1 - (freqs.new_tensor(range(pairs)) - begin) / width)


def _blend(freqs: Tensor, factor: float, keep: Tensor) -> Tensor:
    """Frequencies as they are where ``keep`` (D/2,) is 1, divided by ``factor`` where it is 0."""
    keep = keep.clamp(0, 1)
    return freqs * keep + freqs / factor * (1 - keep)
