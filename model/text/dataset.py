"""A text as token ids in a run directory, written once, and the training and validation batches cut from it.

tokens.bin     the ids of the training text, then those of the validation text
targets.bin    of conversations: each id again, or UNCOUNTED where the loss leaves it out
tokens.json    where the validation text begins, and other facts about both

tokenize.py writes them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..cli.files import read_json

IDS, TARGETS, META = "tokens.bin", "targets.bin", "tokens.json"
BLOCK = 1 << 20  # tokens that are looked at at a time
# Inputs and targets, int64 (B, T). A target is the token after its input, or UNCOUNTED if the loss does not count it.
Batch = tuple[np.ndarray, np.ndarray]
UNCOUNTED = -100  # PyTorch's losses ignore it
MIN_LENGTH = 64  # of a batch of conversations
PASSAGES, PASSAGE_TOKENS = 16, 512  # a part of the validation text has at most so many, each at least so long


@dataclass(frozen=True)
class Dataset:
    """The token ids of the training and the validation text, memory-mapped. Both are cut into adjacent windows."""

    train: np.ndarray  # uint16 or uint32, (N,)
    val: np.ndarray
    val_bytes: int  # length in UTF-8 of the text that the targets of the validation stand for
    val_tokens: int  # the targets of the validation that count
    documents: int = 1  # in both
    longest: int = 0  # tokens of the longest one; 0 in an older tokens.json
    val_name: str = ""  # the source of the validation text
    validation: str = "all"  # which part of it is the validation text, in words
    separators: Sequence[int] = ()  # the tokens between two documents, which stand for no text
    doc_separator: str = ""  # the text between two documents of a file

    @property
    def loss_targets(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the training and the validation text, and UNCOUNTED for those that the loss leaves out."""
        return self.train, self.val

    def window_tokens(self, context: int) -> int:
        """The tokens of a row of a batch, without padding: of conversations the mean."""
        return context

    def padded_tokens(self, context: int, rows: int) -> float:
        """The tokens of a row of a batch of ``rows``, with padding: of conversations the mean."""
        return context

    def as_windows(self) -> "Dataset":
        """The same tokens, cut into windows in any case."""
        return self

    def bits_per_byte(self, nats_per_token: float) -> float:
        """Bits per byte of the validation text: a loss that does not depend on the tokenizer."""
        return nats_per_token / math.log(2) * self.val_tokens / self.val_bytes

    def part(self, tokens: int) -> str:
        """What part of the validation text ``tokens`` targets are, in words; nothing if they are all."""
        return "" if tokens == self.val_tokens else f" (on {tokens:,} of {self.val_tokens:,} tokens)"

    def val_count(self, context: int, max_tokens: int | None) -> int:
        """The targets in ``val_batches`` that the loss counts."""
        return sum(int((targets != UNCOUNTED).sum()) for _, targets in self.val_batches(64, context, max_tokens))

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
        return self._train_rows(seen + rank * rows, rows, context, seed)

    def target_count(self, seen: int, *, batch_size: int, context: int, seed: int) -> int:
        """The targets of the whole batch, of all ranks, that the loss counts."""
        return batch_size * context

    def _train_rows(self, first: int, rows: int, context: int, seed: int) -> Batch:
        starts = [window_start(number, len(self.train), context, seed) for number in range(first, first + rows)]
        return _windows(self.train, np.array(starts), context)

    def val_batches(self, batch_size: int, context: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """Adjacent windows over the validation text: each token after the first is a target exactly once.

        Separators between documents do not count, because they stand for no text.

        If there are more than ``max_tokens`` targets, only about ``max_tokens`` of them are used, in passages that are
        spread evenly over the text (``spread_passages``). They follow from the text alone, so that models of any
        context are validated on the same tokens. A window does not reach beyond its passage.

        The last batch of full windows may have fewer rows. Shorter windows, at the ends of passages, come last.
        """
        passages, length = spread_passages(len(self.val) - 1, max_tokens)
        count, remainder = divmod(length, context)
        windows = (passages[:, None] + context * np.arange(count)).ravel()
        for starts, size in ((windows, context), (passages + count * context, remainder)):
            for row in range(0, len(starts) if size else 0, batch_size):
                yield self.val_windows(starts[row : row + batch_size], size)

    def val_windows(self, starts: np.ndarray, length: int) -> Batch:
        """Windows of the validation text that begin at ``starts``."""
        inputs, targets = _windows(self.val, starts, length)
        return inputs, np.where(np.isin(targets, self.separators), UNCOUNTED, targets)


def _windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> Batch:
    ids = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
    return ids[:, :-1], ids[:, 1:]


def spread_passages(total: int, max_tokens: int | None) -> tuple[np.ndarray, int]:
    """The starts and the length of evenly spread passages of ``total`` tokens that together have about ``max_tokens``.

    If ``total`` is not more than that, one passage has all of them.
    """
    if max_tokens is None or max_tokens >= total:
        return np.zeros(1, np.int64), total
    number = min(PASSAGES, max(1, max_tokens // PASSAGE_TOKENS))
    length = max_tokens // number
    return np.arange(number) * (total - length) // max(1, number - 1), length


def spread_numbers(count: int, max_tokens: int | None, length: int) -> np.ndarray:
    """The numbers of evenly spread conversations that together have about ``max_tokens``, or of all ``count``.

    ``length`` is the mean of their tokens.
    """
    if max_tokens is None or max_tokens >= count * length:
        return np.arange(count)
    chosen = max(1, max_tokens // length)
    return np.arange(chosen) * count // chosen


def window_start(number: int, tokens: int, context: int, seed: int) -> int:
    """The index of the first token of a window, which is the ``number``-th of a run on ``tokens`` tokens.

    Each epoch cuts the text into adjacent windows in random order. The offset of the first window changes from epoch
    to epoch, so that no token is always the first of its window.
    """
    windows = max(1, (tokens - 1) // context - 1)  # one fewer than fit, which leaves room for the offset
    index, random = _window_index(number, windows, seed)
    return index * context + random % (tokens - windows * context)


def _window_index(number: int, windows: int, seed: int) -> tuple[int, int]:
    """Where the ``number``-th window of a run is in the text: its index, and a random number, the same for an epoch."""
    epoch, index = divmod(number, windows)
    order, random = _shuffled(windows, seed, epoch)
    return int(order[index]), random


@lru_cache(maxsize=2)  # a batch may span two epochs
def _shuffled(count: int, seed: int, epoch: int) -> tuple[np.ndarray, int]:
    """A permutation of ``range(count)`` and a random number; both depend on (seed, epoch) only.

    Philox is counter-based, and its raw output is the same in every version of numpy.
    """
    raw = np.random.Philox(key=seed, counter=[0, epoch, 0, 0]).random_raw(count + 1)
    return np.argsort(raw[1:], kind="stable"), int(raw[0])


@dataclass(frozen=True, kw_only=True)
class Conversations(Dataset):
    """Conversations, which are not cut: each is a row of a batch, padded at the end. The loss counts the answers."""

    train_targets: np.ndarray  # the ids again, or UNCOUNTED
    val_targets: np.ndarray
    train_ends: np.ndarray  # the index after each conversation, in ``train``
    val_ends: np.ndarray

    @property
    def loss_targets(self) -> tuple[np.ndarray, np.ndarray]:
        return self.train_targets, self.val_targets

    def window_tokens(self, context: int) -> int:
        return len(self.train) // len(self.train_ends)

    def padded_tokens(self, context: int, rows: int) -> float:
        order, _ = _shuffled(len(self.train_ends), 0, 0)
        batches = min(256, max(1, len(order) // rows))
        lengths = np.diff(self.train_ends, prepend=0)[order[: batches * rows]] - 1
        longest = np.maximum.reduceat(lengths, np.arange(batches) * rows)  # of each batch
        return float(np.mean([padded_length(int(length), context) for length in longest]))

    def as_windows(self) -> Dataset:
        return Dataset(self.train, self.val, self.val_bytes, self.val_tokens)

    def target_count(self, seen: int, *, batch_size: int, context: int, seed: int) -> int:
        starts, ends = _bounds(self.train_ends, self._numbers(seen, batch_size, seed))
        rows = (self.train_targets[start + 1 : end] for start, end in zip(starts, ends))
        return sum(int((row != UNCOUNTED).sum()) for row in rows)

    def _train_rows(self, first: int, rows: int, context: int, seed: int) -> Batch:
        numbers = self._numbers(first, rows, seed)
        return _padded(self.train, self.train_targets, self.train_ends, numbers, context)

    def _numbers(self, first: int, rows: int, seed: int) -> np.ndarray:
        """The conversations of rows of a batch."""
        count = len(self.train_ends)
        return np.array([_window_index(number, count, seed)[0] for number in range(first, first + rows)])

    def val_batches(self, batch_size: int, context: int, max_tokens: int | None = None) -> Iterator[Batch]:
        numbers = spread_numbers(len(self.val_ends), max_tokens, self.window_tokens(context))
        for row in range(0, len(numbers), batch_size):
            yield _padded(self.val, self.val_targets, self.val_ends, numbers[row : row + batch_size], context)


def _padded(ids: np.ndarray, targets: np.ndarray, ends: np.ndarray, numbers: np.ndarray, context: int) -> Batch:
    """The conversations of these numbers, padded to ``padded_length``."""
    starts, ends = _bounds(ends, numbers)
    T = padded_length(int((ends - starts).max()) - 1, context)
    inputs = np.zeros((len(numbers), T), np.int64)
    outputs = np.full((len(numbers), T), UNCOUNTED)
    for row, (start, end) in enumerate(zip(starts, ends)):
        inputs[row, : end - start - 1] = ids[start : end - 1]
        outputs[row, : end - start - 1] = targets[start + 1 : end]
    return inputs, outputs


def _bounds(ends: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the conversations of these numbers start and end."""
    return np.where(numbers > 0, ends[numbers - 1], 0), ends[numbers]


def padded_length(longest: int, context: int) -> int:
    """The next power of two, because torch.compile compiles a step again for each length."""
    return min(context, max(MIN_LENGTH, 1 << (longest - 1).bit_length()))


def load_dataset(directory: Path) -> Dataset:
    """The training and validation text in a run directory, memory-mapped, because it may be larger than the memory.

    Raises ValueError if the directory has no tokens, or if they are damaged.
    """
    file = directory / META
    if not file.exists():
        raise ValueError(f"{file} is missing: the directory has no text of a run")
    facts = read_json(file)
    facts.pop("start_text", None)
    try:
        dtype, train, total = (facts.pop(name) for name in ("dtype", "train", "total"))
        ids = np.memmap(directory / IDS, dtype, "r")
        fits = 0 < train < total == len(ids)
        facts |= {"train": ids[:train], "val": ids[train:]}
        dataset: Dataset
        if "lengths" in facts:
            targets = np.memmap(directory / TARGETS, np.int32, "r")
            lengths = np.array(facts.pop("lengths"), dtype=np.int64)
            ends = np.cumsum(lengths)
            first = np.searchsorted(ends, train) + 1  # the number of the first conversation for validation
            facts |= {"train_targets": targets[:train], "train_ends": ends[:first]}
            facts |= {"val_targets": targets[train:], "val_ends": ends[first:] - train}
            dataset = Conversations(**facts)
            fits = fits and len(targets) == total == ends[-1] and lengths.min() > 0 and train in ends
        else:
            dataset = Dataset(**facts)
            fits = fits and np.array(dataset.separators, dtype=np.int64).ndim == 1
        fits = fits and min(dataset.val_bytes, dataset.val_tokens, dataset.documents) > 0
    except (KeyError, TypeError, ValueError, OverflowError, FileNotFoundError):
        fits = False
    if not fits:
        raise ValueError(f"{file} and {IDS} are damaged, or do not belong together: restore them, or start a new run")
    return dataset


def start_text(directory: Path) -> str:
    """What a generation without a prompt begins after: a line break if the run in the directory knows few documents."""
    facts = read_json(directory / META) if (directory / META).is_file() else {}
    text = facts.get("start_text")
    return text if isinstance(text, str) else ""
