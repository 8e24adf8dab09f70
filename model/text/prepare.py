"""Documents to token ids in the run directory, which training, --resume and evaluation read.

tokens.bin    the ids of all documents in order, the training text first
tokens.json   ``Tokens``: how to read them, and from which files they were made
"""

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from ..cli.files import read_json, write_atomically, write_text
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
    files: list[str]  # the paths of the training text
    separators: list[int] = field(default_factory=list)  # the tokens between two documents
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


class Place(NamedTuple):
    """What is before a chunk, and whether it begins a document."""

    tokens: int
    size: int  # bytes of text
    text_tokens: int  # tokens without those between documents
    starts_document: bool


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
    numbers = array("q")  # those of the Place of each chunk, and of the end
    first_chunks: list[int] = []  # of each source

    def write(path: Path) -> None:
        tokens = size = text_tokens = 0
        total = sum(source.text_size() for source in sources) or None
        bar = tqdm(total=total, unit="B", unit_scale=True, desc="tokenizing", disable=None, delay=1)
        with path.open("wb") as file, bar:

            def put(ids: list[int]) -> int:
                file.write(np.array(ids, dtype).tobytes())
                return len(ids)

            for source in sources:
                first_chunks.append(len(numbers) // len(Place._fields))
                is_first = True
                for text, starts_document, ids in encode_chunks(source, tokenizer):
                    if starts_document and not is_first:
                        tokens += put(end)
                    is_first = False
                    numbers.extend(Place(tokens, size, text_tokens, starts_document))
                    tokens += put(start + ids if starts_document else ids)
                    text_tokens += len(ids)
                    size += len(text.encode())
                    bar.update(len(text.encode()))
                if is_first:
                    raise ValueError("the sources hold no text: give a source with text")
                tokens += put(end)
        numbers.extend(Place(tokens, size, text_tokens, True))

    write_atomically(directory / IDS, write)
    for source, state in zip(sources, before):
        check_unchanged(source, state)
    places = np.frombuffer(numbers, np.int64).reshape(-1, len(Place._fields))
    total, total_size, total_text_tokens, _ = places[-1].tolist()
    if val_documents:
        chunk = first_chunks[1]
    else:  # not the first one, if there are several
        nearest = int(np.abs(places[:, 0] - (1 - val_fraction) * total).argmin())
        chunk = max(1, min(len(places) - 2, nearest))
    val = Place(*places[chunk].tolist())
    tokens = Tokens(
        dtype=str(dtype),
        train=val.tokens,
        # If it begins inside a document, or documents begin without BOS, its first token is the last one before it: the
        # context from which the first token that counts is predicted.
        val=val.tokens if val.starts_document and start else val.tokens - 1,
        total=total,
        val_bytes=total_size - val.size,
        val_tokens=total_text_tokens - val.text_tokens,
        documents=int(places[:-1, 3].sum()),
        files=[os.path.realpath(path) for path in documents.paths()],
        separators=[*start[:1], *end],
    )
    write_text(directory / META, json.dumps(asdict(tokens)))


def encode_chunks(chunks: Iterable[Chunk], tokenizer: Tokenizer) -> Iterator[tuple[str, bool, list[int]]]:
    """Each chunk, whether it begins a document, and its token ids, without BOS."""
    remaining = iter(chunks)
    while batch := list(islice(remaining, BATCH)):
        texts = []
        for text, starts_document in batch:
            # The tokenizer would add a space to the one at which the document was cut
            is_cut = tokenizer.adds_space and not starts_document
            texts.append(text.removeprefix(" ") if is_cut else text)
        for (text, starts_document), ids in zip(batch, tokenizer.encode_batch(texts)):
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
        return Tokens(**read_json(path))
    except TypeError:  # fields are missing, or there are others
        raise ValueError(f"{path} is damaged: restore it") from None


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
