"""Token ids on disk, and the training and validation batches cut from them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

# Inputs and targets, int64 (B, T). A target is the token after its input, or UNCOUNTED if the loss does not count it.
Batch = tuple[np.ndarray, np.ndarray]
UNCOUNTED = -100  # PyTorch's losses ignore it
MIN_LENGTH = 64  # of a batch of conversations


@dataclass(frozen=True)
class Dataset:
    """The token ids of the training and the validation text, memory-mapped.

    Texts are cut into adjacent windows. Conversations are not cut: each has a row of ``row`` tokens, padded at the end.
    The loss counts only some of their tokens; the others are stored as ``~id``, which is negative.
    """

    train: np.ndarray  # uint16 or uint32, or int32 of conversations, (N,)
    val: np.ndarray
    val_bytes: int  # length in UTF-8 of the text that the targets of the validation stand for
    val_tokens: int  # the targets of the validation that count
    documents: int = 1  # in both
    separators: Sequence[int] = ()  # the tokens between two documents, which stand for no text
    row: int | None = None
    row_tokens: int | None = None  # without the padding, the mean of the training rows
    files: Sequence[str] = ()  # the paths of the training text

    @property
    def text_tokens(self) -> int:
        """The tokens of the training text, without padding."""
        return len(self.train) // self.row * self.row_tokens if self.row and self.row_tokens else len(self.train)

    def window_tokens(self, context: int) -> int:
        """The tokens of a window of ``context``, without padding: of conversations the mean."""
        return self.row_tokens or context

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
        return _windows(self.train, self._starts(first, rows, context, seed), context, self.row)

    def count(self, seen: int, *, batch_size: int, context: int, seed: int) -> int:
        """The targets of the whole batch, of all ranks, that the loss counts."""
        if not self.row:
            return batch_size * context
        starts = self._starts(seen, batch_size, context, seed)
        return int((self.train[starts[:, None] + np.arange(1, context + 1)] >= 0).sum())

    def _starts(self, first: int, rows: int, context: int, seed: int) -> np.ndarray:
        numbers = range(first, first + rows)
        return np.array([window_start(number, len(self.train), context, seed, self.row) for number in numbers])

    def val_batches(self, batch_size: int, context: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """Adjacent windows over the validation text: each token after the first is a target exactly once.

        Separators between documents do not count, because they stand for no text.

        The last batch of full windows may have fewer rows. A shorter window at the end is a separate batch.
        If the full windows have more than ``max_tokens`` tokens, only some of them are used: as many as ``max_tokens``
        allows, at least one, spread evenly over the text.
        """
        count, remainder = (len(self.val) // self.row, 0) if self.row else divmod(len(self.val) - 1, context)
        starts = np.arange(count) * (self.row or context)
        window = self.window_tokens(context)
        if max_tokens is not None and max_tokens < count * window:
            chosen = max(1, max_tokens // window)
            starts = starts[np.arange(chosen) * count // chosen]
            remainder = 0
        for row in range(0, len(starts), batch_size):
            yield self._val_windows(starts[row : row + batch_size], context)
        if remainder:
            yield self._val_windows(np.array([count * context]), remainder)

    def _val_windows(self, starts: np.ndarray, length: int) -> Batch:
        inputs, targets = _windows(self.val, starts, length, self.row)
        return inputs, np.where(np.isin(targets, self.separators), UNCOUNTED, targets)


def window_start(number: int, tokens: int, context: int, seed: int, row: int | None = None) -> int:
    """The index of the first token of a window, which is the ``number``-th of a run on ``tokens`` tokens.

    Each epoch cuts the text into adjacent windows in random order. The offset of the first window changes from epoch
    to epoch, so that no token is always the first of its window. Of conversations, each row of ``row`` tokens is a
    window.
    """
    # Of a text, one window fewer than fit, which leaves room for the offset
    windows = tokens // row if row else max(1, (tokens - 1) // context - 1)
    epoch, index = divmod(number, windows)
    order, random = _shuffled(windows, seed, epoch)
    offset = 0 if row else random % (tokens - windows * context)
    return int(order[index]) * (row or context) + offset


@lru_cache(maxsize=2)  # a batch may span two epochs
def _shuffled(count: int, seed: int, epoch: int) -> tuple[np.ndarray, int]:
    """A permutation of ``range(count)`` and a random number; both depend on (seed, epoch) only.

    Philox is counter-based, and its raw output is the same in every version of numpy.
    """
    raw = np.random.Philox(key=seed, counter=[0, epoch, 0, 0]).random_raw(count + 1)
    return np.argsort(raw[1:], kind="stable"), int(raw[0])


def _windows(tokens: np.ndarray, starts: np.ndarray, length: int, row: int | None) -> Batch:
    ids = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
    inputs, targets = ids[:, :-1], ids[:, 1:]
    if not row:
        return inputs, targets
    inputs = np.where(inputs < 0, ~inputs, inputs)
    targets = np.where(targets < 0, UNCOUNTED, targets)
    # Without padding, which is most of a row if the conversations are short. Lengths are powers of two, or else
    # torch.compile would compile the step for each length.
    used = 1 + int(np.flatnonzero((targets != UNCOUNTED).any(0)).max(initial=0))
    length = max(MIN_LENGTH, 1 << (used - 1).bit_length())
    return inputs[:, :length], targets[:, :length]
