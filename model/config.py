"""ModelArgs: every number that shapes the network, checked before any tensor is allocated.

The annotation of a field holds its help, which the programs show in ``--help``, and the range of its values. All
settings of the programs are declared and checked in this way; ``check_settings`` at the end does it.
"""

import math
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

# The default of fields that may be left out; most are then computed from the other fields. It is Any, so that a field
# is declared as the number that it becomes; an ``int | None`` would have to be checked wherever it is read.
UNSET: Any = None
LARGEST = 2**63 - 1  # the largest integer that a tensor can hold
ScalingType = Literal["linear", "ntk", "llama3", "yarn"]


class Range(NamedTuple):
    """A closed interval: ``dim: Annotated[int, "width of the network", Range(1)] = 256``."""

    low: float = -math.inf
    high: float = LARGEST

    def __str__(self) -> str:
        return f"at least {self.low:,}" if self.high == LARGEST else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class RopeScaling:
    """How the frequencies of RoPE were lowered for a longer context; rope_scaling.py computes it."""

    type: Annotated[ScalingType, "which function"] = "linear"
    factor: Annotated[
        float, "divides the frequencies; about how many times longer the context", Range(1, 1_000_000)
    ] = 1.0
    original_max_seq_len: Annotated[
        int, "llama3 and yarn: the trained context, which must be given", Range(1, 2**40)
    ] = UNSET
    low: Annotated[float, "llama3 and yarn: pairs that turn less often in that context are fully scaled"] = 1.0
    high: Annotated[float, "pairs that turn more often in it are unchanged (default: llama3 4, yarn 32)"] = UNSET
    attention_factor: Annotated[
        float, "multiplies q and k (default: yarn 0.1 ln factor + 1, else 1)", Range(0.01, 100)
    ] = UNSET

    def __post_init__(self) -> None:
        check_settings(self)
        if self.high is None:
            object.__setattr__(self, "high", 4.0 if self.type == "llama3" else 32.0)  # because the class is frozen
        if self.attention_factor is None:
            factor = 0.1 * math.log(self.factor) + 1 if self.type == "yarn" else 1.0
            object.__setattr__(self, "attention_factor", factor)
        raise_problems(self._conflicts())

    def _conflicts(self) -> Iterator[str]:
        if not 0 < self.low < self.high < math.inf:
            yield f"low is {self.low} and high {self.high}: give 0 < low < high"
        if self.type in ("llama3", "yarn") and self.original_max_seq_len is None:
            yield "original_max_seq_len is missing: give the context that the model was trained on"


@dataclass(frozen=True)
class ModelArgs:
    """The architecture.

    Raises ValueError that lists all values that are wrong, or else all that do not fit together, each with the fix. A
    RopeScaling has been checked in the same way before.
    """

    dim: Annotated[int, "width of the residual stream", Range(1)] = 256
    n_layers: Annotated[int, "transformer blocks", Range(1)] = 6
    n_heads: Annotated[int, "query heads", Range(1)] = 8
    n_kv_heads: Annotated[int, "key/value heads, each serving a group of query heads (default: n_heads)", Range(1)] = (
        UNSET
    )
    head_dim: Annotated[int, "width of one head (default: dim / n_heads)", Range(2)] = UNSET
    hidden_dim: Annotated[
        int, "width of the feed-forward layer (default: 8/3 dim, made a multiple of 32)", Range(1)
    ] = UNSET
    vocab_size: Annotated[int, "tokens in the vocabulary", Range(1)] = 2048
    max_seq_len: Annotated[int, "context: the most positions the network can see", Range(1)] = 256
    # With a far larger norm_eps RMSNorm's output vanishes. With a far smaller rope_theta the angles overflow, with a
    # far larger one they vanish.
    norm_eps: Annotated[float, "added to the mean square in RMSNorm", Range(1e-12, 1)] = 1e-5
    rope_theta: Annotated[float, "base of the rotation frequencies", Range(1e-6, 10**15)] = 10000.0
    rope_scaling: Annotated[RopeScaling | None, "how the frequencies were changed for a longer context"] = None
    tie_embeddings: Annotated[bool, "use the token embedding as the output matrix too"] = False
    qkv_bias: Annotated[bool, "add a bias to queries, keys and values, as Qwen2 does"] = False
    qk_norm: Annotated[bool, "normalize each head of queries and keys before the rotation, as Qwen3 does"] = False

    def __post_init__(self) -> None:
        check_settings(self)
        divides = self.dim % self.n_heads == 0
        derived = {
            "n_kv_heads": self.n_heads,
            "head_dim": self.dim // self.n_heads if divides else None,
            # SwiGLU has three matrices; with 8/3 dim they have as many parameters as two of a classic 4 * dim layer.
            "hidden_dim": (8 * self.dim + 95) // 96 * 32,  # rounded up to a multiple of 32
        }
        for name, value in derived.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # because the class is frozen
        raise_problems(self._conflicts())

    def _conflicts(self) -> Iterator[str]:
        if self.head_dim is None:
            yield f"dim is {self.dim}, not a multiple of n_heads {self.n_heads}: change one of them, or give head_dim"
        elif self.head_dim % 2:
            yield f"head_dim is {self.head_dim}: make it even, because RoPE rotates pairs"
        if self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads is {self.n_kv_heads}, not a divisor of n_heads {self.n_heads}: change one of them"
        if self.rope_scaling and (self.rope_theta <= 1 or self.head_dim == 2):
            # The formulas divide by log(theta) and by the number of pairs - 1.
            yield (
                f"rope_theta is {self.rope_theta} and head_dim {self.head_dim}: rope_scaling needs a theta above 1 and "
                "a head_dim above 2"
            )


# --- How settings are declared and checked. Skip it on first reading.

TEXTS = tuple[str, ...]
TYPE_NAMES = {bool: "true or false", str: "a text", Path: "a path", TEXTS: "a list of texts"}


class Field(NamedTuple):
    """A setting: its type, without ``| None``, its help, its range, and all other items of its annotation.

    The type is int, float, bool, str, Path, Literal, ``tuple[str, ...]`` or a frozen dataclass.
    """

    kind: Any
    help: str
    range: Range
    marks: tuple[Any, ...]


def setting_fields(*classes: type) -> dict[str, Field]:
    """The fields of the dataclasses by name."""
    fields = {}
    for cls in classes:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            if get_origin(kind) in (Union, UnionType):
                kind = next(arm for arm in get_args(kind) if arm is not type(None))
            text = next((extra for extra in extras if isinstance(extra, str)), "")
            bounds = next((extra for extra in extras if isinstance(extra, Range)), Range())
            fields[name] = Field(kind, text, bounds, tuple(extras))
    return fields


def check_settings(settings: object, conflicts: Iterable[str] = ()) -> None:
    """Raise ValueError that lists each wrong value of a dataclass instance, and the ``conflicts`` between its fields.

    None is accepted where it is the default.
    """
    problems: list[str] = []
    for name, field in setting_fields(type(settings)).items():
        value = getattr(settings, name)
        if not (value is None and getattr(type(settings), name, 0) is None):
            problems += value_problems(name, value, field)
    raise_problems([*problems, *conflicts])


def value_problems(name: str, value: Any, field: Field) -> Iterator[str]:
    """Yield a message if the value of a setting has the wrong type or is out of its range."""
    kind, (low, high) = field.kind, field.range
    if kind in (int, float):
        if is_number(value, kind) and low <= value <= high:
            return
        expected = "a whole number" if kind is int else "a number"
        if high != LARGEST:
            expected += f" from {low:,} to {high:,}"
        elif low > -math.inf:
            expected += f" of at least {low}"
    elif has_type(value, kind):
        return
    elif get_origin(kind) is Literal:
        expected = f"one of {', '.join(get_args(kind))}"
    else:
        expected = TYPE_NAMES.get(kind, "a table like { name = value }")
    yield f"{name} is {reprlib.repr(value)}: give {expected}"


def is_number(value: Any, kind: type = float) -> bool:
    """Whether a value is an int, or for float also a float. True and False are not numbers here."""
    kinds = int if kind is int else int | float
    return isinstance(value, kinds) and not isinstance(value, bool)


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value has the type of a setting that is not a number."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind == TEXTS:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return isinstance(value, kind)


def raise_problems(problems: Iterable[str]) -> None:
    """Raise ValueError that lists the problems, if there are any."""
    message = "; ".join(problems)
    if message:
        raise ValueError(message)
