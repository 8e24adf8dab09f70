"""A text as token ids in a run directory, written once, and the training and validation batches cut from it.

tokens.bin     the ids of the training text, then those of the validation text
targets.bin    of conversations: each id again, or UNCOUNTED where the loss leaves it out
tokens.json    where the validation text begins, and other facts about both

A document is encoded whole, so its tokens do not depend on what stands beside it. What is for validation is decided
when all tokens are known, by one rule (``divide``).
"""

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from ..cli import quantity
from ..cli.files import read_json, write_atomically, write_text
from .readers import Part
from .sources import Documents
from .tokenizer import REPLACEMENT, Tokenizer

IDS, TARGETS, META = "tokens.bin", "targets.bin", "tokens.json"
BATCH_CHARACTERS = 2_000_000  # tokenized together, on all cores
BLOCK = 1 << 20  # tokens that are copied or counted at a time
# Inputs and targets, int64 (B, T). A target is the token after its input, or UNCOUNTED if the loss does not count it.
Batch = tuple[np.ndarray, np.ndarray]
UNCOUNTED = -100  # PyTorch's losses ignore it
# A document longer than the MANY-th part of the text is divided; of the others some are for validation as a whole.
MANY = 100
# With fewer documents, BOS has hardly been trained, and the model would write garbage after it. So a generation without
# a prompt begins after a line break, if the text has one near its beginning.
MIN_DOCUMENTS, BEGINNING = 100, 1_000_000  # tokens


@dataclass(frozen=True)
class Dataset:
    """The token ids of the training and the validation text, memory-mapped. Both are cut into adjacent windows."""

    train: np.ndarray  # uint16 or uint32, (N,)
    val: np.ndarray
    val_bytes: int  # length in UTF-8 of the text that the targets of the validation stand for
    val_tokens: int  # the targets of the validation that count
    documents: int = 1  # in both
    val_name: str = ""  # the source of the validation text
    validation: str = "all"  # what of it is the validation text, in words
    separators: Sequence[int] = ()  # the tokens between two documents, which stand for no text
    doc_separator: str = ""  # the text between two documents of a file

    @property
    def counted_train(self) -> np.ndarray:
        """The ids of the training text, and UNCOUNTED for those that the loss leaves out."""
        return self.train

    @property
    def counted_val(self) -> np.ndarray:
        return self.val

    def window_tokens(self, context: int) -> int:
        """The tokens of a window of ``context``, without padding: of conversations the mean."""
        return context

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
        return self._train_rows(seen + rank * rows, rows, context, seed)

    def count(self, seen: int, *, batch_size: int, context: int, seed: int) -> int:
        """The targets of the whole batch, of all ranks, that the loss counts."""
        return batch_size * context

    def _train_rows(self, first: int, rows: int, context: int, seed: int) -> Batch:
        starts = [window_start(number, len(self.train), context, seed) for number in range(first, first + rows)]
        return _windows(self.train, np.array(starts), context)

    def val_batches(self, batch_size: int, context: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """Adjacent windows over the validation text: each token after the first is a target exactly once.

        Separators between documents do not count, because they stand for no text.

        The last batch of full windows may have fewer rows. A shorter window at the end is a separate batch.
        If the full windows have more than ``max_tokens`` tokens, only some of them are used: as many as ``max_tokens``
        allows, at least one, spread evenly over the text.
        """
        count, remainder = divmod(len(self.val) - 1, context)
        numbers = spread_numbers(count, max_tokens, context)
        for row in range(0, len(numbers), batch_size):
            yield self._val_windows(numbers[row : row + batch_size] * context, context)
        if remainder and len(numbers) == count:
            yield self._val_windows(np.array([count * context]), remainder)

    def _val_windows(self, starts: np.ndarray, length: int) -> Batch:
        inputs, targets = _windows(self.val, starts, length)
        return inputs, np.where(np.isin(targets, self.separators), UNCOUNTED, targets)


def _windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> Batch:
    ids = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
    return ids[:, :-1], ids[:, 1:]


def spread_numbers(count: int, max_tokens: int | None, window: int) -> np.ndarray:
    """The numbers of all ``count`` windows, or if they have more than ``max_tokens`` tokens of some, evenly spread."""
    if max_tokens is None or max_tokens >= count * window:
        return np.arange(count)
    chosen = max(1, max_tokens // window)
    return np.arange(chosen) * count // chosen


def window_start(number: int, tokens: int, context: int, seed: int) -> int:
    """The index of the first token of a window, which is the ``number``-th of a run on ``tokens`` tokens.

    Each epoch cuts the text into adjacent windows in random order. The offset of the first window changes from epoch
    to epoch, so that no token is always the first of its window.
    """
    windows = max(1, (tokens - 1) // context - 1)  # one fewer than fit, which leaves room for the offset
    index, random = _place(number, windows, seed)
    return index * context + random % (tokens - windows * context)


def _place(number: int, windows: int, seed: int) -> tuple[int, int]:
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


MIN_LENGTH = 64  # of a batch of conversations


@dataclass(frozen=True)
class Conversations(Dataset):
    """Conversations, which are not cut: each is a row of a batch, padded at the end. The loss counts the answers."""

    train_targets: np.ndarray = field(default_factory=lambda: np.empty(0))
    val_targets: np.ndarray = field(default_factory=lambda: np.empty(0))
    lengths: np.ndarray = field(default_factory=lambda: np.empty(0))  # of the rows, those of the training text first

    @property
    def counted_train(self) -> np.ndarray:
        return self.train_targets

    @property
    def counted_val(self) -> np.ndarray:
        return self.val_targets

    @property
    def ends(self) -> np.ndarray:
        """The index after each row in the ids of both texts."""
        return np.cumsum(self.lengths)

    @property
    def train_rows(self) -> int:
        return int(np.searchsorted(self.ends, len(self.train))) + 1

    def window_tokens(self, context: int) -> int:
        return max(1, len(self.train) // self.train_rows)

    def count(self, seen: int, *, batch_size: int, context: int, seed: int) -> int:
        return int((self._train_rows(seen, batch_size, context, seed)[1] != UNCOUNTED).sum())

    def _train_rows(self, first: int, rows: int, context: int, seed: int) -> Batch:
        numbers = [_place(number, self.train_rows, seed)[0] for number in range(first, first + rows)]
        return self._padded(self.train, self.train_targets, self.ends[numbers], self.lengths[numbers], context)

    def val_batches(self, batch_size: int, context: int, max_tokens: int | None = None) -> Iterator[Batch]:
        lengths = self.lengths[self.train_rows :]
        ends = self.ends[self.train_rows :] - len(self.train)
        numbers = spread_numbers(len(lengths), max_tokens, self.window_tokens(context))
        for row in range(0, len(numbers), batch_size):
            chosen = numbers[row : row + batch_size]
            yield self._padded(self.val, self.val_targets, ends[chosen], lengths[chosen], context)

    @staticmethod
    def _padded(ids: np.ndarray, targets: np.ndarray, ends: np.ndarray, lengths: np.ndarray, context: int) -> Batch:
        """Rows as long as the longest, up to the next power of two.

        For any other length torch.compile would compile the step again.
        """
        longest = int(lengths.max()) - 1
        T = min(context, max(MIN_LENGTH, 1 << (longest - 1).bit_length()))
        inputs = np.zeros((len(ends), T), np.int64)
        outputs = np.full((len(ends), T), UNCOUNTED)
        for row, (end, length) in enumerate(zip(ends, lengths)):
            inputs[row, : length - 1] = ids[end - length : end - 1]
            outputs[row, : length - 1] = targets[end - length + 1 : end]
        return inputs, outputs


# How a text becomes these files.


class Encoded(NamedTuple):
    """The tokens of a document, or of a part of a long one; of a conversation, those of one of its rows."""

    ids: Sequence[int]
    size: int  # length in UTF-8 of the text that they stand for; of a conversation, of what the loss counts
    starts_document: bool = True
    targets: Sequence[int] = ()  # of a conversation: its ids, or UNCOUNTED


class Parts(NamedTuple):
    """What was written, as arrays with a row for each ``Encoded``; a list of a million would take much memory."""

    tokens: np.ndarray  # their number
    sizes: np.ndarray
    documents: np.ndarray  # the number of the document, from 0
    sources: np.ndarray  # the number of the source, from 0


def tokenize(
    directory: Path,
    documents: Documents,
    tokenizer: Tokenizer,
    val_fraction: float = 0.1,
    val_documents: Documents | None = None,
) -> None:
    """Write the tokens of the documents into ``directory``, divided into training and validation text.

    The validation text is ``val_documents``, or about ``val_fraction`` of the documents. Each file is read once. Raises
    ValueError if a source has no text, or too little to be divided.
    """
    start, end = surrounding_tokens(tokenizer)
    sources = [documents, val_documents] if val_documents else [documents]
    facts = write_dataset(
        directory,
        sources,
        lambda source: encode_documents(source, tokenizer, start, end),
        tokenizer,
        val_fraction,
        separators=[*start[:1], *end],
    )
    beginning = np.fromfile(directory / IDS, facts["dtype"], BEGINNING)
    has_line_breaks = np.isin(beginning, tokenizer.encode("\n", bos=False)[-1:]).any()
    facts["start_text"] = "\n" if facts["documents"] < MIN_DOCUMENTS and has_line_breaks else ""
    facts["doc_separator"] = documents.separator or ""
    write_text(directory / META, json.dumps(facts))


def surrounding_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens before and after each document of a training text.

    A document begins as a prompt does. It ends in the model's end token, unless the BOS of the next document ends a
    generated text, too.
    """
    with_start, without = tokenizer.encode("a"), tokenizer.encode("a", bos=False)
    start = with_start[: len(with_start) - len(without)]
    ends = tokenizer.eos_ids or (tokenizer.bos_id,)
    return start, [] if start and start[0] in ends else [ends[0]]


def encode_documents(
    parts: Iterable[Part], tokenizer: Tokenizer, start: Sequence[int], end: Sequence[int]
) -> Iterator[Encoded]:
    """The tokens of each document, in parts if it is long, with ``start`` before and ``end`` after it."""
    batch: list[tuple[Part, bool]] = []  # with whether the document ends there
    characters = 0
    for part, following in pairwise(chain(parts, [Part("", starts_document=True)])):
        batch.append((part, following.starts_document))
        characters += len(part.text)
        if characters >= BATCH_CHARACTERS:
            yield from _encode_batch(batch, tokenizer, start, end)
            batch, characters = [], 0
    yield from _encode_batch(batch, tokenizer, start, end)


def _encode_batch(
    batch: Sequence[tuple[Part, bool]], tokenizer: Tokenizer, start: Sequence[int], end: Sequence[int]
) -> Iterator[Encoded]:
    # A tokenizer that puts a space before every text would put one where a document is cut. So it gets a line end
    # before the part, and the tokens of both are dropped.
    line_end = tokenizer.encode("\n", bos=False) if tokenizer.adds_space else []
    texts = [text if starts or not line_end else "\n" + text for (text, starts), _ in batch]
    for ((text, starts), ends), ids in zip(batch, tokenizer.encode_batch(texts)):
        if starts:
            ids = [*start, *ids]
        elif ids[: len(line_end)] == line_end:
            ids = ids[len(line_end) :]
        yield Encoded([*ids, *(end if ends else [])], len(text.encode()), starts)


def write_dataset(
    directory: Path,
    sources: Sequence[Documents],
    encode: Callable[[Documents], Iterable[Encoded]],
    tokenizer: Tokenizer,
    val_fraction: float,
    separators: Sequence[int] = (),
    are_conversations: bool = False,
) -> dict[str, Any]:
    """Write the ids of the sources, and the targets of conversations; returns the facts about them for tokens.json.

    The second source, if any, is for validation. Raises ValueError if the text is too short to be divided.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    with TemporaryFile(dir=directory) as id_file, TemporaryFile(dir=directory) as target_file:
        parts = write_parts(sources, encode, dtype, id_file, target_file)
        documents = divide(parts, val_fraction, cuts_documents=not are_conversations)
        ids = np.memmap(id_file, dtype, "r")
        write_divided(ids, documents, directory / IDS)
        counted = np.memmap(directory / IDS, dtype, "r")
        if are_conversations:
            write_divided(np.memmap(target_file, np.int32, "r"), documents, directory / TARGETS)
            counted = np.memmap(directory / TARGETS, np.int32, "r")
        train = int((documents.cuts - documents.starts).sum())
        val_bytes = validation_bytes(parts, documents, ids, tokenizer, separators)
    val_tokens = sum(  # the first token is never predicted
        int((~np.isin(counted[begin : begin + BLOCK], [UNCOUNTED, *separators])).sum())
        for begin in range(train + 1, len(counted), BLOCK)
    )
    if not (train and val_bytes and val_tokens):
        raise ValueError(
            "the text is too short to be divided into training and validation text: give more, or val_data"
        )
    facts: dict[str, Any] = {
        "dtype": str(dtype),
        "train": train,
        "total": len(counted),
        "val_bytes": val_bytes,
        "val_tokens": val_tokens,
        "documents": len(documents.ends),
        "val_name": sources[-1].name,
        "validation": "all",
        "separators": list(separators),
    }
    if len(sources) == 1:
        facts["validation"] = describe_validation(documents, "conversation" if are_conversations else "document")
    if are_conversations:
        is_val = (documents.cuts < documents.ends)[parts.documents]
        facts["lengths"] = [*parts.tokens[~is_val].tolist(), *parts.tokens[is_val].tolist()]
    return facts


def write_parts(
    sources: Sequence[Documents],
    encode: Callable[[Documents], Iterable[Encoded]],
    dtype: np.dtype,
    id_file: IO[bytes],
    target_file: IO[bytes],
) -> Parts:
    """Write the tokens of all sources in the order in which they are read."""
    rows = array("q")
    document = -1
    total = sum(source.text_size() for source in sources) or None
    with tqdm(total=total, unit="B", unit_scale=True, desc="tokenizing", disable=None, delay=1) as bar:
        for number, source in enumerate(sources):
            before = document
            for ids, size, starts_document, targets in encode(source):
                id_file.write(np.asarray(ids, dtype).tobytes())
                target_file.write(np.asarray(targets, np.int32).tobytes())
                document += starts_document
                rows.extend([len(ids), size, document, number])
                bar.update(size)
            if document == before:
                raise ValueError(f"{source.name} holds no text: give a source with text")
    id_file.flush()
    target_file.flush()
    return Parts(*np.frombuffer(rows, np.int64).reshape(-1, len(Parts._fields)).T)


class Division(NamedTuple):
    """Of each document, in the order in which they are read: where it starts, its validation text starts, and it ends.

    A document without validation text is cut at its end.
    """

    starts: np.ndarray
    cuts: np.ndarray
    ends: np.ndarray


def divide(parts: Parts, val_fraction: float, cuts_documents: bool) -> Division:
    """Decide what is for validation: the second source, or else about ``val_fraction`` of everything.

    The end of each document that is longer than a MANY-th part of the text, and of the shorter ones every tenth, if
    ``val_fraction`` is a tenth. So all files and kinds of documents have a part in it. Without ``cuts_documents`` all
    count as short.
    """
    lengths = np.bincount(parts.documents, parts.tokens).astype(np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    if parts.sources.any():
        is_val = np.bincount(parts.documents, parts.sources) > 0
        return Division(starts, np.where(is_val, starts, ends), ends)
    is_long = (lengths > ends[-1] / MANY) & cuts_documents
    numbers = np.cumsum(~is_long)  # of the short documents, from 1
    share = val_fraction + 1e-12  # because ten times 0.1 must not be less than 1
    is_val = ~is_long & (np.floor(numbers * share) > np.floor((numbers - 1) * share))
    cuts = np.where(is_val, starts, ends)
    cuts[is_long] -= np.maximum(1, np.round(val_fraction * lengths[is_long])).astype(np.int64)
    if np.array_equal(cuts, ends):  # too few for one in ten
        cuts[-1] = starts[-1]
    return Division(starts, cuts, ends)


def write_divided(tokens: np.ndarray, documents: Division, path: Path) -> None:
    """Write the training text of all documents, then their validation text."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for begin, end in chain(zip(documents.starts, documents.cuts), zip(documents.cuts, documents.ends)):
                file.write(plain[begin:end].data)

    plain = np.asarray(tokens)  # slicing a memmap takes longer
    write_atomically(path, write)


def validation_bytes(
    parts: Parts, documents: Division, ids: np.ndarray, tokenizer: Tokenizer, separators: Sequence[int]
) -> int:
    """The size of the text that the targets of the validation stand for."""
    ends = np.cumsum(parts.tokens)
    starts = ends - parts.tokens
    first = int((documents.cuts < documents.ends).argmax())  # the document with which the validation text begins
    cuts = documents.cuts.copy()
    if ids[cuts[first]] not in separators:
        cuts[first] += 1  # because its first token is not predicted
    cuts = cuts[parts.documents]
    total = int(parts.sizes[cuts <= starts].sum())
    for index in np.flatnonzero((starts < cuts) & (cuts < ends)):  # the parts that are cut themselves
        before, whole = (tokenizer.decode(ids[starts[index] : end].tolist()) for end in (cuts[index], ends[index]))
        share = len(before.rstrip(REPLACEMENT).encode()) / max(1, len(whole.encode()))
        total += round(parts.sizes[index] * (1 - share))
    return total


def describe_validation(documents: Division, noun: str) -> str:
    """What of the documents is for validation, in words."""
    lengths, tails = documents.ends - documents.starts, documents.ends - documents.cuts
    is_cut = (tails > 0) & (tails < lengths)
    cut, count = int(is_cut.sum()), len(lengths)
    end = f"the last {tails[is_cut].sum() / lengths[is_cut].sum():.1%}" if cut else ""
    if cut == count:
        return end if count == 1 else f"{end} of each {noun}"
    whole = f"{int((tails == lengths).sum()):,} of {quantity(count, noun)}"
    return f"{whole}, and {end} of the {cut} longest," if cut else whole


def load_dataset(directory: Path, vocab_size: int | None = None) -> Dataset:
    """The training and validation text in a run directory, memory-mapped, because it may be larger than the memory.

    Raises ValueError if the directory has no tokens, or if they are damaged, or not those of ``vocab_size``.
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
            facts |= {"train_targets": targets[:train], "val_targets": targets[train:], "lengths": lengths}
            dataset = Conversations(**facts)
            fits &= len(targets) == total == lengths.sum() and lengths.min() > 0 and train in dataset.ends
        else:
            dataset = Dataset(**facts)
            fits &= np.array(dataset.separators, dtype=np.int64).ndim == 1
        fits &= min(dataset.val_bytes, dataset.val_tokens, dataset.documents) > 0
    except (KeyError, TypeError, ValueError, OverflowError, FileNotFoundError):
        fits = False
    if not fits:
        raise ValueError(f"{file} and {IDS} are damaged, or do not belong together: restore them, or start a new run")
    if vocab_size is not None:
        largest = max(int(ids[begin : begin + BLOCK].max()) for begin in range(0, total, BLOCK))
        if largest >= vocab_size:
            raise ValueError(
                f"{directory / IDS} has the token {largest}, but the vocabulary ends at {vocab_size - 1}: restore it"
            )
    return dataset


def start_text(directory: Path) -> str:
    """What a generation without a prompt begins after: a line break if the run in the directory knows few documents."""
    facts = read_json(directory / META) if (directory / META).is_file() else {}
    text = facts.get("start_text")
    return text if isinstance(text, str) else ""
