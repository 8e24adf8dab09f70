"""The KV cache: keys and values of all earlier tokens, so that a forward computes those of the new ones only."""

import torch
from torch import Tensor

from .config import ModelArgs


class KVCache:
    """Keys, already rotated, and values of every layer, allocated once.

    The cache has no position of its own: the caller passes ``start_pos``, and so may overwrite, fork or start anew.
    What lies beyond ``start_pos + T`` is never read, whatever it holds.
    """

    dropped = 0  # tokens that it has forgotten: none, but for EndlessCache
    spare = 0  # slots that are never filled

    def __init__(
        self,
        args: ModelArgs,
        batch_size: int = 1,
        max_seq_len: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.max_seq_len = args.max_seq_len if max_seq_len is None else max_seq_len
        if not 1 <= self.max_seq_len <= args.max_seq_len:
            raise ValueError(f"max_seq_len is {self.max_seq_len}: the network allows 1 to {args.max_seq_len}")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give at least 1")
        self.batch_size = batch_size
        shape = (args.n_layers, batch_size, args.n_kv_heads, self.max_seq_len + self.spare, args.head_dim)
        keys = torch.zeros(shape, dtype=dtype, device=device)
        values = torch.zeros_like(keys)
        self.keys, self.values = (t[..., : self.max_seq_len, :] for t in (keys, values))  # (L, B, K, max_seq_len, D)
        # Views of each layer's part. A compiler writes in place only into a tensor that nothing else reads later on:
        # with one tensor for all layers it would copy the whole cache at every second layer.
        self.layers = list(zip(keys.unbind(), values.unbind()))  # L pairs of (B, K, max_seq_len + spare, D)

    def update(self, layer: int, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of T new tokens, (B, K, T, D), and return those of all S = start_pos + T.

        They are detached: a cache that held a graph would keep every step's activations alive.
        """
        end = start_pos + xk.shape[2]
        keys, values = self.layers[layer]  # (B, K, max_seq_len, D)
        keys[:, :, start_pos:end] = xk.detach()
        values[:, :, start_pos:end] = xv.detach()
        return keys[:, :, :end].type_as(xk), values[:, :, :end].type_as(xv)  # (B, K, S, D)

    def restrict(self, mask: Tensor | None, start_pos: int, T: int) -> Tensor | None:
        """The network's mask, (T, S) or None, less what this cache hides: nothing, since all its slots are filled."""
        return mask

    def make_room(self, start_pos: int, T: int = 1) -> int:
        """The ``start_pos`` at which T more tokens fit: as it is, since this cache forgets nothing."""
        return start_pos


SINKS = 4  # first tokens of a text that an endless cache keeps


class EndlessCache(KVCache):
    """A cache for texts beyond the context: when it is full it drops its oldest quarter, but the first ``keep`` tokens.

    Keys are cached rotated, and rotations add: to move a key to a position n lower, it is rotated by -n. Nothing is
    computed anew. The first tokens stay, because heads give them the weight that they have no other use for (attention
    sinks, StreamingLLM, arXiv:2309.17453). The rotations are those of ``freqs_cis``, the network's table, so this is
    for networks whose scores depend on distances only (``Transformer.shift_invariant``).
    """

    spare = 1  # compilers make code of its own for a slice that is the whole: with this, no token's keys are

    def __init__(
        self,
        args: ModelArgs,
        freqs_cis: Tensor,
        batch_size: int = 1,
        max_seq_len: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        keep: int = SINKS,
    ) -> None:
        super().__init__(args, batch_size, max_seq_len, dtype, device)
        if self.max_seq_len < 2:
            raise ValueError("max_seq_len is 1: an endless text needs a context of at least 2 tokens")
        self.freqs_cis = freqs_cis.detach()
        self.quarter = max(1, self.max_seq_len // 4)
        self.keep = min(keep, self.max_seq_len - self.quarter - 1)

    def make_room(self, start_pos: int, T: int = 1) -> int:
        """Drop quarters of the ``start_pos`` tokens until T more fit; raises ValueError where they never do."""
        most = self.max_seq_len - min(self.keep, start_pos)
        if most < T:
            raise ValueError(f"{T} tokens do not fit into a context of {self.max_seq_len}: give at most {most}")
        while start_pos + T > self.max_seq_len:
            start_pos -= self.drop(min(self.quarter, start_pos - self.keep), start_pos)
        return start_pos

    def drop(self, count: int, length: int) -> int:
        """Forget ``count`` of the ``length`` tokens: the oldest ones after the first ``keep``. Returns ``count``."""
        back = self.freqs_cis[count].to(self.keys.device)  # (D/2,)
        back = (
            back / back.abs()
        ).conj()  # of length 1: YaRN's table also lengthens, and that has been done to the keys
        old, new = slice(self.keep + count, length), slice(self.keep, length - count)
        dropped, self.dropped = self.dropped, -1  # whoever interrupts the move finds out that there is no text
        for keys, values in self.layers:  # (B, K, max_seq_len, D)
            pairs = torch.view_as_complex(keys[:, :, old].float().unflatten(-1, (-1, 2)))  # (B, K, N, D/2)
            keys[:, :, new] = torch.view_as_real(pairs * back).flatten(3).type_as(keys)  # (B, K, N, D)
            values[:, :, new] = values[:, :, old].clone()  # values are not rotated
        self.dropped = dropped + count
        return count
