"""Documents to token ids: the files of a ``Dataset``.

A document is encoded whole, so its tokens do not depend on its neighbours. The validation text is chosen when all
tokens are known, by one rule (``divide``).
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from ..cli import quantity
from ..cli.files import write_atomically, write_text
from .dataset import BLOCK, IDS, META, TARGETS, UNCOUNTED
from .readers import Part
from .sources import Documents
from .tokenizer import REPLACEMENT, Tokenizer

BATCH_CHARACTERS = 2_000_000  # tokenized together, on all cores
# A document longer than this share of the text is divided. Otherwise it could be most of the validation text: of the
# documentation bundled with Python, one of 438 documents would be a quarter.
LONG = 0.02
# With fewer documents, BOS has hardly been trained, and the model would write garbage after it. So a generation without
# a prompt begins after a line break, if the text has one near its beginning.
MIN_DOCUMENTS, BEGINNING = 100, 1_000_000  # tokens


class EncodedPart(NamedTuple):
    """The tokens of a document, or of a part of a long one; of a conversation, those of one of its rows."""

    ids: Sequence[int]
    size: int  # length in UTF-8 of the text that they stand for; of a conversation, of what the loss counts
    starts_document: bool = True
    targets: Sequence[int] = ()  # of a conversation: its ids, or UNCOUNTED


# An ``EncodedPart`` that was written: its number of tokens, its size, and which document and source it is of, from 0
PART_DTYPE = np.dtype([("tokens", "i8"), ("size", "i8"), ("document", "i8"), ("source", "i8")])


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
    facts["doc_separator"] = documents.separator
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
) -> Iterator[EncodedPart]:
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
) -> Iterator[EncodedPart]:
    encoded = tokenizer.encode_batch([part.text for part, _ in batch])
    for ((text, starts), ends), ids in zip(batch, encoded):
        if starts:
            ids = [*start, *ids]
        yield EncodedPart([*ids, *(end if ends else [])], len(text.encode()), starts)


def write_dataset(
    directory: Path,
    sources: Sequence[Documents],
    encode: Callable[[Documents], Iterable[EncodedPart]],
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
        val_bytes = validation_bytes(parts, documents, ids, tokenizer, separators)
    train = int((documents.cuts - documents.starts).sum())
    val_tokens = sum(  # the first token is never predicted
        int((~np.isin(counted[begin : begin + BLOCK], [UNCOUNTED, *separators])).sum())
        for begin in range(train + 1, len(counted), BLOCK)
    )
    if not (train and val_bytes and val_tokens):
        raise ValueError(
            "the text is too short to be divided into training and validation text: give more, or val_data"
        )
    noun = "conversation" if are_conversations else "document"
    facts: dict[str, Any] = {
        "dtype": str(dtype),
        "train": train,
        "total": len(counted),
        "val_bytes": val_bytes,
        "val_tokens": val_tokens,
        "documents": len(documents.ends),
        "longest": int((documents.ends - documents.starts).max()),
        "val_name": sources[-1].name,
        "validation": "all" if len(sources) > 1 else describe_validation(documents, noun),
        "separators": list(separators),
    }
    if are_conversations:
        is_val = (documents.cuts < documents.ends)[parts["document"]]
        facts["lengths"] = [*parts["tokens"][~is_val].tolist(), *parts["tokens"][is_val].tolist()]
    return facts


def write_parts(
    sources: Sequence[Documents],
    encode: Callable[[Documents], Iterable[EncodedPart]],
    dtype: np.dtype,
    id_file: IO[bytes],
    target_file: IO[bytes],
) -> np.ndarray:
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
                if starts_document:
                    document += 1
                rows.extend([len(ids), size, document, number])
                bar.update(size)
            if document == before:
                raise ValueError(f"{source.name} holds no text: give a source with text")
    id_file.flush()
    target_file.flush()
    return np.frombuffer(rows, PART_DTYPE)


class Division(NamedTuple):
    """Of each document, in the order in which they are read: where it starts, its validation text starts, and it ends.

    A document without validation text is cut at its end.
    """

    starts: np.ndarray
    cuts: np.ndarray
    ends: np.ndarray


def divide(parts: np.ndarray, val_fraction: float, cuts_documents: bool) -> Division:
    """Choose the validation text: the second source, or else about ``val_fraction`` of everything.

    That is the end of each long document (LONG), and every tenth of the short ones if ``val_fraction`` is a tenth, so
    that all files and kinds of documents have a part in it. Without ``cuts_documents`` all documents count as short.
    """
    lengths = np.bincount(parts["document"], parts["tokens"]).astype(np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    if parts["source"].any():
        is_val = np.bincount(parts["document"], parts["source"]) > 0
        return Division(starts, np.where(is_val, starts, ends), ends)
    is_long = (lengths > LONG * ends[-1]) & cuts_documents
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
    parts: np.ndarray, documents: Division, ids: np.ndarray, tokenizer: Tokenizer, separators: Sequence[int]
) -> int:
    """The size of the text that the targets of the validation stand for.

    If the validation text begins inside a part, its tokens before and after that place tell how much of it counts.
    """
    cuts = documents.cuts.copy()
    first = int((documents.cuts < documents.ends).argmax())  # the document with which the validation text begins
    if ids[cuts[first]] not in separators:
        cuts[first] += 1  # because its first token is not predicted
    cuts = cuts[parts["document"]]  # for each part, where its document is cut
    ends = np.cumsum(parts["tokens"])
    starts = ends - parts["tokens"]
    total = int(parts["size"][cuts <= starts].sum())
    for index in np.flatnonzero((starts < cuts) & (cuts < ends)):
        start, cut, end = starts[index], cuts[index], ends[index]
        before, whole = tokenizer.decode(ids[start:cut].tolist()), tokenizer.decode(ids[start:end].tolist())
        share_before = len(before.rstrip(REPLACEMENT).encode()) / max(1, len(whole.encode()))
        total += round(parts["size"][index] * (1 - share_before))
    return total


def describe_validation(documents: Division, noun: str) -> str:
    """Which part of the documents is for validation, in words."""
    lengths, tails = documents.ends - documents.starts, documents.ends - documents.cuts
    is_cut = (tails > 0) & (tails < lengths)
    cut, count = int(is_cut.sum()), len(lengths)
    end = f"the last {tails[is_cut].sum() / lengths[is_cut].sum():.1%}" if cut else ""
    if cut == count:
        return end if count == 1 else f"{end} of each {noun}"
    whole = int((tails == lengths).sum())
    if not whole:
        return f"{end} of the {cut} longest"
    return f"{whole:,} of {quantity(count, noun)}" + (f", and {end} of the {cut} longest," if cut else "")
