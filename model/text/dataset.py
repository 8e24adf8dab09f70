"""Token ids on disk, and the batches that a step trains on."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

Batch = tuple[np.ndarray, np.ndarray]  # inputs and targets, int64 (B, T); a target is the token after its input


@dataclass(frozen=True)
class Dataset:
    """What ``prepare`` made: ids of the training and the validation text, mapped from disk."""

    train: np.ndarray  # uint16 or uint32, (N,)
    val: np.ndarray
    val_bytes: int  # the validation text's length in UTF-8: what bits per byte are counted over
    fingerprint: str  # of the text, its split and the tokenizer
    entry: Path | None = None  # of the cache, where the ids lie

    def batch(
        self, step: int, *, batch_size: int, context: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> Batch:
        """This rank's rows of the step's batch: (B / world_size, T).

        Every window of the text comes once before any comes again. A pure function of (seed, step): nothing is drawn
        from a state, so resuming needs none, and any number of ranks see the same batch between them.
        """
        if batch_size % world_size:
            raise ValueError(f"batch_size {batch_size} cannot be shared by {world_size} ranks: give a multiple")
        rows = batch_size // world_size
        first = step * batch_size + rank * rows
        starts = [window_start(row, len(self.train), context, seed) for row in range(first, first + rows)]
        return _windows(self.train, np.array(starts), context)

    def val_batches(self, batch_size: int, context: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """Windows side by side over the validation text, in which each token after the first is a target once.

        The last batch is smaller, and the last window is shorter and comes alone. With ``max_tokens``, so many
        tokens' worth of whole windows (at least one) are taken, evenly spread over the text.
        """
        whole, rest = divmod(len(self.val) - 1, context)
        starts = np.arange(whole) * context
        if max_tokens is not None and max_tokens < whole * context:
            count = max(1, max_tokens // context)
            starts, rest = starts[np.arange(count) * whole // count], 0
        for row in range(0, len(starts), batch_size):
            yield _windows(self.val, starts[row : row + batch_size], context)
        if rest:
            yield _windows(self.val, np.array([whole * context]), rest)


def window_start(row: int, tokens: int, context: int, seed: int) -> int:
    """Where the ``row``-th window of a run begins, in a text of so many tokens.

    The text is cut into windows side by side, which come in random order. In the next epoch the cut begins elsewhere,
    so that no token is the first of its window in every epoch.
    """
    windows = max(1, (tokens - 1) // context - 1)
    epoch, place = divmod(row, windows)
    order, random = _shuffled(windows, seed, epoch)
    return int(order[place]) * context + random % (tokens - windows * context)


@lru_cache(maxsize=2)  # the batch at the end of an epoch needs two
def _shuffled(count: int, seed: int, epoch: int) -> tuple[np.ndarray, int]:
    """The numbers below ``count`` in an order that depends on (seed, epoch) alone, and one random number more.

    Philox is a function of a key and a counter; its raw output is the same in every version of numpy.
    """
    raw = np.random.Philox(key=seed, counter=[0, epoch, 0, 0]).random_raw(count + 1)
    return np.argsort(raw[1:], kind="stable"), int(raw[0])


def _windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> Batch:
    rows = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
    return rows[:, :-1], rows[:, 1:]
