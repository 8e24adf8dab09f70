"""Documents to token ids in the run directory, which training, --resume and evaluation read.

tokens.bin    the ids of all documents in order, the training text first
tokens.json   ``Tokens``: how to read them, and from which files they were made
"""

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..cli.files import read_json, write_atomically, write_text
from ..cli.machine import count_cores
from .dataset import Dataset
from .readers import Chunk
from .sources import Documents
from .tokenizer import Tokenizer

IDS, META = "tokens.bin", "tokens.json"
BATCH = 128  # chunks tokenized together: up to 2 million characters


@dataclass(frozen=True)
class Tokens:
    """The content of tokens.json."""

    dtype: str  # uint16 or uint32
    train: int  # number of tokens of the training text, the first ones
    val: int  # index of the first token of the validation text, which is the last of the training text in some splits
    total: int
    val_bytes: int  # length in UTF-8 of what the targets of the validation stand for
    val_tokens: int  # these targets
    documents: int
    files: tuple[str, ...]  # the paths of the training text
    separators: tuple[int, ...] = ()  # the tokens between two documents
    row: int | None = None  # of conversations: the tokens of a row; with each lies whether the loss counts it
    row_tokens: int | None = None  # without the padding, the mean of the training rows


def surrounding_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens before and after each document of a training text.

    A document begins as a prompt does. It ends in the model's end token, unless the BOS of the next document ends a
    generated text, too.
    """
    with_start, without = tokenizer.encode("a"), tokenizer.encode("a", bos=False)
    start = with_start[: len(with_start) - len(without)]
    ends = tokenizer.eos_ids or (tokenizer.bos_id,)
    return start, [] if start and start[0] in ends else [ends[0]]


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
    has no text, or if a file changes while it is read.
    """
    sources = [documents, *([val_documents] if val_documents else [])]
    before = [source.state() for source in sources]
    start, end = surrounding_tokens(tokenizer)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    counts = Counts()

    def write(path: Path) -> None:
        total = sum(source.text_size() for source in sources) or None
        bar = tqdm(total=total, unit="B", unit_scale=True, desc="tokenizing", disable=None, delay=1)
        with path.open("wb") as file, bar:

            def put(ids: list[int]) -> None:
                file.write(np.array(ids, dtype).tobytes())
                counts.total += len(ids)

            for source in sources:
                counts.begins.append(len(counts.tokens))
                for text, starts_document, ids in encode_chunks(source, tokenizer):
                    if starts_document:
                        put(end if counts.is_inside else [])
                        ids = start + ids
                    counts.add(starts_document)
                    put(ids)
                    length = len(text.encode())
                    counts.size += length
                    counts.text_tokens += len(ids) - (len(start) if starts_document else 0)
                    bar.update(length)
                if counts.begins[-1] == len(counts.tokens):
                    raise ValueError("the sources hold no text: give a source with text")
                put(end)
                counts.is_inside = False
            file.flush()
            os.fsync(file.fileno())

    write_atomically(directory / IDS, write)
    for source, state in zip(sources, before):
        check_unchanged(source, state)
    chunk = counts.begins[1] if val_documents else counts.nearest(1 - val_fraction)
    train, size, text_tokens, begins_document = counts.place(chunk)
    tokens = Tokens(
        dtype=str(dtype),
        train=train,
        # If it begins inside a document, or documents begin without BOS, its first token is the last one before it: the
        # context from which the first token that counts is predicted.
        val=train if begins_document and start else train - 1,
        total=counts.total,
        val_bytes=counts.size - size,
        val_tokens=counts.text_tokens - text_tokens,
        documents=sum(counts.starts),
        files=tuple(os.path.realpath(path) for path in documents.paths()),
        separators=(*start[:1], *end),
    )
    write_text(directory / META, json.dumps(asdict(tokens)))


class Counts:
    """For each chunk how many tokens, bytes and tokens of text are before it, and whether it begins a document."""

    def __init__(self) -> None:
        self.tokens, self.sizes, self.texts, self.starts = array("q"), array("q"), array("q"), array("b")
        self.begins: list[int] = []  # the number of chunks before each source
        self.total = self.size = self.text_tokens = 0  # so far: tokens, bytes, and tokens that are no separators
        self.is_inside = False  # whether a document has begun and not ended

    def add(self, starts_document: bool) -> None:
        self.tokens.append(self.total)
        self.sizes.append(self.size)
        self.texts.append(self.text_tokens)
        self.starts.append(starts_document)
        self.is_inside = True

    def nearest(self, fraction: float) -> int:
        """The chunk nearest to this fraction of the tokens; not the first one, if there are several."""
        offsets = np.array([*self.tokens, self.total])
        return max(1, min(len(self.tokens) - 1, int(np.abs(offsets - fraction * self.total).argmin())))

    def place(self, chunk: int) -> tuple[int, int, int, bool]:
        """What is before the chunk or, after the last one, in all; and whether a document begins there."""
        if chunk == len(self.tokens):
            return self.total, self.size, self.text_tokens, True
        return self.tokens[chunk], self.sizes[chunk], self.texts[chunk], bool(self.starts[chunk])


def encode_chunks(chunks: Iterable[Chunk], tokenizer: Tokenizer) -> Iterator[tuple[str, bool, list[int]]]:
    """Each chunk, whether it begins a document, and its token ids, without BOS."""
    remaining = iter(chunks)
    while batch := list(islice(remaining, BATCH)):
        texts = []
        for text, starts_document in batch:
            # The tokenizer would add a space to the one at which the document was cut
            is_cut = tokenizer.adds_space and not starts_document
            texts.append(text.removeprefix(" ") if is_cut else text)
        for (text, starts_document), ids in zip(batch, tokenizer.encode_batch(texts, count_cores())):
            yield text, starts_document, ids


def check_unchanged(documents: Documents, state: object) -> None:
    """Raise ValueError if a file of the documents has changed since their ``state()`` was this."""
    if documents.state() != state:
        raise ValueError("the text changed while it was read: run again when nothing writes to it")


def load_tokens(directory: Path) -> Tokens:
    """The content of tokens.json. Raises ValueError if it is missing or damaged."""
    path = directory / META
    if not path.exists():
        raise ValueError(f"{path} is missing: the directory has no text of a run")
    try:
        values = read_json(path)
        tokens = Tokens(**values | {name: tuple(values[name]) for name in ("separators", "files")})
        counts = [tokens.train, tokens.val, tokens.total, tokens.val_bytes, tokens.val_tokens, tokens.documents]
        counts += [*tokens.separators, tokens.row or 0, tokens.row_tokens or 0]
        ordered = 0 <= tokens.val <= tokens.total and 0 <= tokens.train <= tokens.total
        if tokens.dtype not in ("uint16", "uint32") or not ordered or any(type(count) is not int for count in counts):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path} is damaged: restore it") from None
    return tokens


def load_dataset(directory: Path) -> Dataset:
    """The training and validation text in a run directory, memory-mapped, because it may be larger than the memory.

    Raises ValueError if the directory has no tokens, or if they are damaged.
    """
    tokens = load_tokens(directory)
    size = (directory / IDS).stat().st_size if (directory / IDS).exists() else 0
    dtype = conversation_dtype(tokens.dtype) if tokens.row else np.dtype(tokens.dtype)
    if size != tokens.total * dtype.itemsize:
        raise ValueError(f"{directory / IDS} has {size} bytes, not those of {tokens.total} tokens: restore it")
    stored = np.memmap(directory / IDS, dtype, "r")
    ids, counted = (stored["id"], stored["counted"]) if tokens.row else (stored, None)
    return Dataset(
        ids[: tokens.train],
        ids[tokens.val :],
        tokens.val_bytes,
        tokens.val_tokens,
        tokens.documents,
        tokens.separators,
        tokens.row,
        tokens.row_tokens,
        None if counted is None else counted[: tokens.train],
        None if counted is None else counted[tokens.val :],
    )


def conversation_dtype(dtype: str) -> np.dtype:
    """A token of a conversation in tokens.bin, and whether the loss counts it."""
    return np.dtype([("id", dtype), ("counted", "?")])
