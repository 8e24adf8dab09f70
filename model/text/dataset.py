"""Token ids on disk, and the training and validation batches cut from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Batch = tuple[np.ndarray, np.ndarray]  # inputs and targets, int64 (B, T); a target is the token after its input


@dataclass(frozen=True)
class Dataset:
    """The token ids of the training and the validation text, memory-mapped."""

    train: np.ndarray  # uint16 or uint32, (N,)
    val: np.ndarray
    val_bytes: int  # length in UTF-8 of what val[1:] encodes, for bits per byte
    documents: int = 1  # in both
    separators: tuple[int, ...] = ()  # the tokens between two documents, which stand for no text

    def batch(
        self, seen: int, *, batch_size: int, context: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> Batch:
        """This rank's rows of the batch after ``seen`` windows: (B / world_size, T).

        Each window of the text is used once per epoch, also if a run is resumed with another ``batch_size``. The batch
        is a pure function of (seed, seen), so resuming needs no generator state, and the batch is the same for any
        number of ranks.
        """
        if batch_size % world_size:
            raise ValueError(f"batch_size {batch_size} cannot be shared by {world_size} ranks: give a multiple")
        rows = batch_size // world_size
        first = seen + rank * rows
        starts = [window_start(row, len(self.train), context, seed) for row in range(first, first + rows)]
        return _windows(self.train, np.array(starts), context)

    def val_batches(self, batch_size: int, context: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """Adjacent windows over the validation text: each token after the first is a target exactly once.

        The last batch of full windows may have fewer rows. A shorter window at the end is a separate batch.
        If the full windows have more than ``max_tokens`` tokens, only some of them are used: as many as ``max_tokens``
        allows, at least one, spread evenly over the text.
        """
        count, remainder = divmod(len(self.val) - 1, context)
        starts = np.arange(count) * context
        if max_tokens is not None and max_tokens < count * context:
            chosen = max(1, max_tokens // context)
            starts = starts[np.arange(chosen) * count // chosen]
            remainder = 0
        for row in range(0, len(starts), batch_size):
            yield _windows(self.val, starts[row : row + batch_size], context)
        if remainder:
            yield _windows(self.val, np.array([count * context]), remainder)


def window_start(row: int, tokens: int, context: int, seed: int) -> int:
    """The index of the first token of the ``row``-th window of a run, in a text of ``tokens`` tokens.

    Each epoch cuts the text into adjacent windows in random order. The offset of the first window changes from epoch
    to epoch, so that no token is always the first of its window.
    """
    windows = max(1, (tokens - 1) // context - 1)  # one fewer than fit, which leaves room for the offset
    epoch, index = divmod(row, windows)
    order, random = _shuffled(windows, seed, epoch)
    return int(order[index]) * context + random % (tokens - windows * context)


@lru_cache(maxsize=2)  # a batch may span two epochs
def _shuffled(count: int, seed: int, epoch: int) -> tuple[np.ndarray, int]:
    """A permutation of ``range(count)`` and a random number; both depend on (seed, epoch) only.

    Philox is counter-based, and its raw output is the same in every version of numpy.
    """
    raw = np.random.Philox(key=seed, counter=[0, epoch, 0, 0]).random_raw(count + 1)
    return np.argsort(raw[1:], kind="stable"), int(raw[0])


def _windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> Batch:
    rows = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
    return rows[:, :-1], rows[:, 1:]
