"""Documents to token ids in the run directory, which training, --resume and evaluation read.

tokens.bin    the ids of all documents in order, the training text first
tokens.json   their dtype, where the training text ends and the validation text begins, and fields of ``Dataset``
"""

import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
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
    while batch := list(islice(remaining, BATCH)):
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
