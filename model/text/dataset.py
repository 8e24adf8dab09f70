"""A text as token ids in a run directory, written once, and the training and validation batches cut from it.

tokens.bin    the ids of all documents in order, the training text first
tokens.json   their dtype, where the training text ends and the validation text begins, and fields of ``Dataset``
"""

import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from ..cli.files import read_json, write_atomically, write_text
from .readers import Chunk
from .sources import Documents
from .tokenizer import Tokenizer

IDS, META = "tokens.bin", "tokens.json"
CHUNKS = 128  # tokenized together: up to 2 million characters
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

    def bits_per_byte(self, nats_per_token: float) -> float:
        """Bits per byte of the validation text: a loss that does not depend on the tokenizer."""
        return nats_per_token / math.log(2) * self.val_tokens / self.val_bytes

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


# How a text becomes these files.


class Counts(NamedTuple):
    """What a piece holds, or several together. A piece is a chunk of a text or a conversation, and is not divided."""

    ids: int
    size: int  # length in UTF-8 of the text that the counted ids stand for
    counted: int  # ids without those between documents, or of a conversation those that the loss counts
    padding: int = 0
    documents: int = 1  # that begin here
    has_context: bool = True  # whether no id before this piece is needed to predict its first counted one


Piece = tuple[Sequence[int] | np.ndarray, Counts]  # the ids


def tokenize(
    directory: Path,
    documents: Documents,
    tokenizer: Tokenizer,
    val_fraction: float = 0.1,
    val_documents: Documents | None = None,
) -> None:
    """Write the tokens of the documents into ``directory``, split into training and validation text.

    The validation text is ``val_documents``, or else the end of the tokens, beginning at the chunk nearest to
    ``val_fraction`` of them, so within 8,000 characters of it. Each file is read once. Raises ValueError if a source
    has no text, or if there is only one chunk to train and to validate on.
    """
    start, end = surrounding_tokens(tokenizer)

    def encode(source: Documents) -> Iterator[Piece]:
        encoded = chain(encode_chunks(source, tokenizer), [("", True, [])])
        for (text, starts_document, ids), (_, ends_document, _) in pairwise(encoded):
            before = start if starts_document else []
            piece = [*before, *ids, *(end if ends_document else [])]
            size = len(text.encode())
            yield piece, Counts(len(piece), size, len(ids), 0, int(starts_document), has_context=before != [])

    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    sources = [documents, val_documents] if val_documents else [documents]
    write_pieces(directory, sources, encode, dtype, val_fraction, separators=[*start[:1], *end])


def surrounding_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens before and after each document of a training text.

    A document begins as a prompt does. It ends in the model's end token, unless the BOS of the next document ends a
    generated text, too.
    """
    with_start, without = tokenizer.encode("a"), tokenizer.encode("a", bos=False)
    start = with_start[: len(with_start) - len(without)]
    ends = tokenizer.eos_ids or (tokenizer.bos_id,)
    return start, [] if start and start[0] in ends else [ends[0]]


def encode_chunks(chunks: Iterable[Chunk], tokenizer: Tokenizer) -> Iterator[tuple[str, bool, list[int]]]:
    """Each chunk, whether it begins a document, and its token ids, without BOS."""
    remaining = iter(chunks)
    while batch := list(islice(remaining, CHUNKS)):
        texts = []
        for text, starts_document in batch:
            # The tokenizer would add a space to the one at which the document was cut
            is_cut = tokenizer.adds_space and not starts_document
            texts.append(text.removeprefix(" ") if is_cut else text)
        for (text, starts_document), ids in zip(batch, tokenizer.encode_batch(texts)):
            yield text, starts_document, ids


def write_pieces(
    directory: Path,
    sources: Sequence[Documents],
    encode: Callable[[Documents], Iterable[Piece]],
    dtype: np.dtype,
    val_fraction: float,
    separators: Sequence[int] = (),
    row: int | None = None,
) -> None:
    """Write the encoded pieces of the sources, and how to read them. The second source, if any, is for validation."""
    numbers = array("q")  # a table with a row for each piece; a list of pieces would take much memory
    lengths = [0]  # of the table after each source

    def write(path: Path) -> None:
        total = sum(source.text_size() for source in sources) or None
        bar = tqdm(total=total, unit="B", unit_scale=True, desc="tokenizing", disable=None, delay=1)
        with path.open("wb") as file, bar:
            for source in sources:
                for ids, counts in encode(source):
                    file.write(np.asarray(ids, dtype).tobytes())
                    numbers.extend(counts)
                    bar.update(counts.size)
                lengths.append(len(numbers) // len(Counts._fields))
                if lengths[-1] == lengths[-2]:
                    raise ValueError("the sources hold no text: give a source with text")

    write_atomically(directory / IDS, write)
    table = np.frombuffer(numbers, np.int64).reshape(-1, len(Counts._fields))
    if len(table) < 2:
        raise ValueError(
            "the text is too short to be divided into training and validation text: give more, or val_data"
        )
    if len(sources) == 2:
        first = lengths[1]  # piece of the validation text
    else:
        places = table[:, 0].cumsum() - table[:, 0]  # at which the pieces begin
        nearest = int(np.abs(places - (1 - val_fraction) * table[:, 0].sum()).argmin())
        first = max(1, nearest)
    train, val = (Counts(*part.sum(0).tolist()) for part in (table[:first], table[first:]))
    has_context = Counts(*table[first].tolist()).has_context
    facts = {
        "dtype": str(dtype),
        "train": train.ids,
        # The context of the first token that counts is the last token of the training text, unless the text has one.
        "val": train.ids if has_context else train.ids - 1,
        "total": train.ids + val.ids,
        "val_bytes": val.size,
        "val_tokens": val.counted,
        "documents": train.documents + val.documents,
        "files": [os.path.realpath(path) for path in sources[0].paths()],
        "separators": separators,
        "row": row,
        "row_tokens": row and math.ceil((train.ids - train.padding) / (train.ids // row)),
    }
    write_text(directory / META, json.dumps(facts))


def load_dataset(directory: Path) -> Dataset:
    """The training and validation text in a run directory, memory-mapped, because it may be larger than the memory.

    Raises ValueError if the directory has no tokens, or if they are damaged.
    """
    path = directory / META
    if not path.exists():
        raise ValueError(f"{path} is missing: the directory has no text of a run")
    facts = read_json(path)
    try:
        dtype, train, val, total = (facts.pop(name) for name in ("dtype", "train", "val", "total"))
        size = (directory / IDS).stat().st_size if (directory / IDS).exists() else 0
        if size != total * np.dtype(dtype).itemsize:
            raise ValueError(f"{directory / IDS} has {size} bytes, not those of {total} tokens: restore it")
        ids = np.memmap(directory / IDS, dtype, "r")
        return Dataset(ids[:train], ids[val:], **facts)
    except (KeyError, TypeError):  # fields are missing, or there are others
        raise ValueError(f"{path} is damaged: restore it") from None
