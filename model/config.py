"""ModelArgs: every number that shapes the network, checked before any tensor is allocated."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from .ranges import Range, is_number, raise_problems, range_problems
from .rope_scaling import UNSET, RopeScaling


@dataclass(frozen=True)
class ModelArgs:
    """The architecture.

    Raises ValueError that lists every problem at once, each with its value and the fix. Fields with the default UNSET
    are computed from the others if they are left out.
    """

    dim: Annotated[int, "width of the residual stream", Range(1)] = 256
    n_layers: Annotated[int, "transformer blocks", Range(1)] = 6
    n_heads: Annotated[int, "query heads", Range(1)] = 8
    n_kv_heads: Annotated[int, "key/value heads, each serving a group of query heads (default: n_heads)", Range(1)] = (
        UNSET
    )
    head_dim: Annotated[int, "width of one head (default: dim / n_heads)", Range(2)] = UNSET
    hidden_dim: Annotated[
        int, "width of the feed-forward layer (default: 8/3 dim, rounded up to a multiple of 32)", Range(1)
    ] = UNSET
    vocab_size: Annotated[int, "tokens in the vocabulary", Range(1)] = 2048
    max_seq_len: Annotated[int, "context: the most positions the network can see", Range(1)] = 256
    # With a far larger norm_eps RMSNorm's output vanishes. With a far smaller rope_theta the angles overflow, with a
    # far larger one they vanish.
    norm_eps: Annotated[float, "added to the mean square in RMSNorm", Range(1e-12, 1)] = 1e-5
    rope_theta: Annotated[float, "base of the rotation frequencies", Range(1e-6, 1e15)] = 10000.0
    rope_scaling: Annotated[RopeScaling | None, "how the frequencies were changed for a longer context"] = None
    tie_embeddings: Annotated[bool, "use the token embedding as the output matrix too"] = False
    qkv_bias: Annotated[bool, "add a bias to queries, keys and values, as Qwen2 does"] = False
    qk_norm: Annotated[bool, "normalize each head of queries and keys before the rotation, as Qwen3 does"] = False

    def __post_init__(self) -> None:
        derived: dict[str, int] = {"n_kv_heads": self.n_heads}
        if is_number(self.dim, int):
            # Three matrices of this width have as many parameters as the two of a classic 4 * dim layer.
            derived["hidden_dim"] = (8 * self.dim + 95) // 96 * 32  # 8/3 dim, rounded up to a multiple of 32
        if self._are_counts("dim", "n_heads") and self.dim % self.n_heads == 0:
            derived["head_dim"] = self.dim // self.n_heads
        for name, value in derived.items():
            if getattr(self, name) is UNSET:
                object.__setattr__(self, name, value)  # because the dataclass is frozen
        raise_problems([*range_problems(self), *self._problems()])

    def _are_counts(self, *names: str) -> bool:
        return all(is_number(getattr(self, name), int) and getattr(self, name) >= 1 for name in names)

    def _problems(self) -> Iterator[str]:
        """Yield the problems of several fields together."""
        if self._are_counts("dim", "n_heads") and self.head_dim is UNSET:
            yield f"dim is {self.dim}, not a multiple of n_heads {self.n_heads}: change one of them, or give head_dim"
        if self._are_counts("head_dim") and self.head_dim % 2:
            yield f"head_dim is {self.head_dim}: make it even, because RoPE rotates pairs"
        if self._are_counts("n_heads", "n_kv_heads") and self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads is {self.n_kv_heads}, not a divisor of n_heads {self.n_heads}: change one of them"
        if isinstance(self.rope_scaling, RopeScaling):
            for problem in self.rope_scaling.problems():
                yield f"rope_scaling {problem}"
            if (is_number(self.rope_theta) and self.rope_theta <= 1) or self.head_dim == 2:
                yield (
                    f"rope_theta is {self.rope_theta} and head_dim {self.head_dim}: rope_scaling needs a theta "
                    "above 1 and a head_dim above 2"
                )
        elif self.rope_scaling is not None:
            in_toml = '{ type = "linear", factor = 2.0 }'
            yield f'rope_scaling is {self.rope_scaling!r}: give RopeScaling("linear", 2.0), or in a TOML file {in_toml}'
