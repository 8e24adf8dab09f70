"""ModelArgs: every number that shapes the network, checked before any tensor is allocated."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from .rope_scaling import UNSET, RopeScaling

COUNTS = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "max_seq_len")


@dataclass(frozen=True)
class ModelArgs:
    """The architecture. Fields that are left out and have the default UNSET (None) are computed from the others.

    Raises ValueError that lists every problem at once, each with its value and the fix.
    """

    dim: Annotated[int, "width of the residual stream"] = 256
    n_layers: Annotated[int, "transformer blocks"] = 6
    n_heads: Annotated[int, "query heads"] = 8
    n_kv_heads: Annotated[int, "key/value heads, each serving a group of query heads (default: n_heads)"] = UNSET
    head_dim: Annotated[int, "width of one head (default: dim / n_heads)"] = UNSET
    hidden_dim: Annotated[int, "width of the feed-forward layer (default: 8/3 dim, rounded up to a multiple of 32)"] = (
        UNSET
    )
    vocab_size: Annotated[int, "tokens in the vocabulary"] = 2048
    max_seq_len: Annotated[int, "context: the most positions the network can see"] = 256
    norm_eps: Annotated[float, "added to the mean square in RMSNorm"] = 1e-5
    rope_theta: Annotated[float, "base of the rotation frequencies"] = 10000.0
    rope_scaling: Annotated[RopeScaling | None, "how the frequencies were changed for a longer context"] = None
    tie_embeddings: Annotated[bool, "use the token embedding as the output matrix too"] = False

    def __post_init__(self) -> None:
        derived: dict[str, int] = {"n_kv_heads": self.n_heads}
        if self._are_counts("dim"):
            # Three matrices of this width have as many parameters as the two of a classic 4 * dim layer.
            derived["hidden_dim"] = (8 * self.dim + 95) // 96 * 32  # 8/3 dim, rounded up to a multiple of 32
        if self._are_counts("dim", "n_heads") and self.dim % self.n_heads == 0:
            derived["head_dim"] = self.dim // self.n_heads
        for name, value in derived.items():
            if getattr(self, name) is UNSET:
                object.__setattr__(self, name, value)  # because the dataclass is frozen
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))

    def _are_counts(self, *names: str) -> bool:
        values = [getattr(self, name) for name in names]
        return all(isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in values)

    def _problems(self) -> Iterator[str]:
        for name in COUNTS:
            value = getattr(self, name)
            if value is UNSET and getattr(ModelArgs, name) is UNSET:
                continue  # it was not computed, because another field is wrong; the message is about that field
            if not self._are_counts(name):
                yield f"{name} is {value!r}: give a whole number of at least 1"
        if self._are_counts("dim", "n_heads") and self.head_dim is UNSET:
            yield f"dim is {self.dim}, not a multiple of n_heads {self.n_heads}: change one of them, or give head_dim"
        if self._are_counts("head_dim") and self.head_dim % 2:
            yield f"head_dim is {self.head_dim}: make it even, because RoPE rotates pairs"
        if self._are_counts("n_heads", "n_kv_heads") and self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads is {self.n_kv_heads}, not a divisor of n_heads {self.n_heads}: change one of them"
        # With a far larger norm_eps RMSNorm's output vanishes. With a far smaller rope_theta the angles overflow, with
        # a far larger one they vanish.
        for name, low, high in (("norm_eps", 0, 1), ("rope_theta", 1e-6, 1e15)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not low < value <= high:
                yield f"{name} is {value!r}: give a number above {low:g}, at most {high:g}"
        if not isinstance(self.tie_embeddings, bool):
            yield f"tie_embeddings is {self.tie_embeddings!r}: give true or false"
        if isinstance(self.rope_scaling, RopeScaling):
            yield from self.rope_scaling.problems()
            is_number = isinstance(self.rope_theta, int | float)
            if (is_number and self.rope_theta <= 1) or self.head_dim == 2:
                yield (
                    f"rope_theta is {self.rope_theta} and head_dim {self.head_dim}: rope_scaling needs a theta "
                    "above 1 and a head_dim above 2"
                )
        elif self.rope_scaling is not None:
            in_toml = '{ type = "linear", factor = 2.0 }'
            yield f'rope_scaling is {self.rope_scaling!r}: give RopeScaling("linear", 2.0), or in a TOML file {in_toml}'
