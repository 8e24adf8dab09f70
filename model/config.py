"""ModelArgs: every number that shapes the network, checked before any tensor is allocated.

The string in ``Annotated`` describes a field; the programs show it in ``--help``.
"""

import math
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

# The default of fields that may be left out; most are then computed from the other fields. It is Any, so that a field
# is declared as the number that it becomes; an ``int | None`` would have to be checked wherever it is read.
UNSET: Any = None
LARGEST = 2**63 - 1  # the largest integer that a tensor can hold
ScalingType = Literal["linear", "ntk", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeScaling:
    """How the frequencies of RoPE were lowered for a longer context; rope_scaling.py computes it."""

    type: Annotated[ScalingType, "which function"] = "linear"
    factor: Annotated[float, "divides the frequencies; about how many times longer the context"] = 1.0
    original_max_seq_len: Annotated[int, "llama3 and yarn: the trained context, which must be given"] = UNSET
    low: Annotated[float, "llama3 and yarn: pairs that turn less often in that context are fully scaled"] = 1.0
    high: Annotated[float, "pairs that turn more often in it are unchanged (default: llama3 4, yarn 32)"] = UNSET
    attention_factor: Annotated[float, "multiplies q and k (default: yarn 0.1 ln factor + 1, else 1)"] = UNSET

    def __post_init__(self) -> None:
        if self.high is None:
            object.__setattr__(self, "high", 4.0 if self.type == "llama3" else 32.0)  # because the class is frozen
        if self.attention_factor is None:
            is_yarn = self.type == "yarn" and is_number(self.factor) and self.factor >= 1
            object.__setattr__(self, "attention_factor", 0.1 * math.log(self.factor) + 1 if is_yarn else 1.0)

    def problems(self) -> Iterator[str]:
        """Yield a message for each wrong value. ModelArgs reports them together with its own problems."""
        if self.type not in get_args(ScalingType):
            yield f"type is {self.type!r}: give one of {', '.join(get_args(ScalingType))}"
        yield from out_of_range("factor", self.factor, float, 1, 1_000_000)
        yield from out_of_range("attention_factor", self.attention_factor, float, 0.01, 100)
        if not (is_number(self.low) and is_number(self.high) and 0 < self.low < self.high < math.inf):
            yield f"low is {self.low!r} and high {self.high!r}: give 0 < low < high"
        if self.original_max_seq_len is not None:
            yield from out_of_range("original_max_seq_len", self.original_max_seq_len, int, 1, 2**40)
        elif self.type in ("llama3", "yarn"):
            yield "original_max_seq_len is missing: give the context that the model was trained on"


@dataclass(frozen=True)
class ModelArgs:
    """The architecture.

    Raises ValueError that lists every problem at once, each with its value and the fix.
    """

    dim: Annotated[int, "width of the residual stream"] = 256
    n_layers: Annotated[int, "transformer blocks"] = 6
    n_heads: Annotated[int, "query heads"] = 8
    n_kv_heads: Annotated[int, "key/value heads, each serving a group of query heads (default: n_heads)"] = UNSET
    head_dim: Annotated[int, "width of one head (default: dim / n_heads)"] = UNSET
    hidden_dim: Annotated[int, "width of the feed-forward layer (default: 8/3 dim, made a multiple of 32)"] = UNSET
    vocab_size: Annotated[int, "tokens in the vocabulary"] = 2048
    max_seq_len: Annotated[int, "context: the most positions the network can see"] = 256
    norm_eps: Annotated[float, "added to the mean square in RMSNorm"] = 1e-5
    rope_theta: Annotated[float, "base of the rotation frequencies"] = 10000.0
    rope_scaling: Annotated[RopeScaling | None, "how the frequencies were changed for a longer context"] = None
    tie_embeddings: Annotated[bool, "use the token embedding as the output matrix too"] = False
    qkv_bias: Annotated[bool, "add a bias to queries, keys and values, as Qwen2 does"] = False
    qk_norm: Annotated[bool, "normalize each head of queries and keys before the rotation, as Qwen3 does"] = False

    def __post_init__(self) -> None:
        derived = {"n_kv_heads": self.n_heads}
        if is_number(self.dim, int):
            # SwiGLU has three matrices; with 8/3 dim they have as many parameters as two of a classic 4 * dim layer.
            derived["hidden_dim"] = (8 * self.dim + 95) // 96 * 32  # rounded up to a multiple of 32
        if self._are_counts("dim", "n_heads") and self.dim % self.n_heads == 0:
            derived["head_dim"] = self.dim // self.n_heads
        for name, value in derived.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # because the class is frozen
        problems = "; ".join(self._problems())
        if problems:
            raise ValueError(problems)

    def _are_counts(self, *names: str) -> bool:
        return all(is_number(getattr(self, name), int) and getattr(self, name) >= 1 for name in names)

    def _problems(self) -> Iterator[str]:
        """Yield a message for each wrong value, then for values that do not fit together."""
        for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "vocab_size", "max_seq_len"):
            yield from out_of_range(name, getattr(self, name), int, 1)
        # With a far larger norm_eps RMSNorm's output vanishes. With a far smaller rope_theta the angles overflow, with
        # a far larger one they vanish.
        yield from out_of_range("norm_eps", self.norm_eps, float, 1e-12, 1)
        yield from out_of_range("rope_theta", self.rope_theta, float, 1e-6, 10**15)
        for name in ("tie_embeddings", "qkv_bias", "qk_norm"):
            if not isinstance(getattr(self, name), bool):
                yield f"{name} is {getattr(self, name)!r}: give true or false"

        if self.head_dim is not None:
            yield from out_of_range("head_dim", self.head_dim, int, 2)
        elif self._are_counts("dim", "n_heads"):
            yield f"dim is {self.dim}, not a multiple of n_heads {self.n_heads}: change one of them, or give head_dim"
        if self._are_counts("head_dim") and self.head_dim % 2:
            yield f"head_dim is {self.head_dim}: make it even, because RoPE rotates pairs"
        if self._are_counts("n_heads", "n_kv_heads") and self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads is {self.n_kv_heads}, not a divisor of n_heads {self.n_heads}: change one of them"
        if isinstance(self.rope_scaling, RopeScaling):
            for problem in self.rope_scaling.problems():
                yield f"rope_scaling {problem}"
            if (is_number(self.rope_theta) and self.rope_theta <= 1) or self.head_dim == 2:
                # The formulas divide by log(theta) and by the number of pairs - 1.
                yield (
                    f"rope_theta is {self.rope_theta} and head_dim {self.head_dim}: rope_scaling needs a theta "
                    "above 1 and a head_dim above 2"
                )
        elif self.rope_scaling is not None:
            in_toml = '{ type = "linear", factor = 2.0 }'
            yield f'rope_scaling is {self.rope_scaling!r}: give RopeScaling("linear", 2.0), or in a TOML file {in_toml}'


def out_of_range(name: str, value: Any, kind: type, low: float, high: float = LARGEST) -> Iterator[str]:
    """Yield a message unless ``value`` is a number of this kind, int or float, from ``low`` to ``high``."""
    if not (is_number(value, kind) and low <= value <= high):
        expected = "a whole number" if kind is int else "a number"
        if high != LARGEST:
            expected += f" from {low:,} to {high:,}"
        elif low > -math.inf:
            expected += f" of at least {low}"
        limit = ", below 2**63" if is_number(value, int) and value > LARGEST else ""
        yield f"{name} is {reprlib.repr(value)}: give {expected}{limit}"


def is_number(value: Any, kind: type = float) -> bool:
    """Whether a value is an int, or for float also a float. True and False are no numbers here."""
    kinds = int if kind is int else int | float
    return isinstance(value, kinds) and not isinstance(value, bool)
