"""Documents to training and validation tokens on disk, once."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from ..cli import quantity
from ..cli.files import read_json, write_json
from ..cli.machine import count_cores
from .dataset import Dataset
from .readers import Piece
from .sources import Documents
from .token_cache import make_entry
from .tokenizer import Tokenizer

BATCH_CHARACTERS = 2_000_000  # characters tokenized together


class Part(NamedTuple):
    """A piece of text, which belongs to one side of the split."""

    text: str
    starts: bool  # whether a document starts with it
    is_validation: bool


def measure(documents: Iterable[Piece]) -> tuple[str, int]:
    """A hash of the text and its documents' starts, and the number of characters. Raises ValueError when none."""
    digest, total = hashlib.sha256(), 0
    for text, starts in documents:
        digest.update(_hashed_bytes(text, starts))
        total += len(text)
    if not total:
        raise ValueError("the sources hold no text: give some that do")
    return digest.hexdigest(), total


def _hashed_bytes(text: str, starts: bool) -> bytes:
    mark = b"\xff" if starts else b""  # a byte that UTF-8 never has
    return mark + text.encode()


def verified(documents: Documents, expected: str) -> Iterator[Piece]:
    """The documents, read once more. Raises ValueError at their end if ``measure`` read another text."""
    digest = hashlib.sha256()
    for text, starts in documents:
        digest.update(_hashed_bytes(text, starts))
        yield text, starts
    documents.check_unchanged()  # which names the file, and finds what changed before the first reading, too
    if digest.hexdigest() != expected:
        raise ValueError("the text changed while it was read: run again when nothing writes to its files")


def split_at(documents: Iterable[Piece], cut: int) -> Iterator[Part]:
    """The pieces before and after ``cut`` characters; the validation text, after it, starts as a document does."""
    position = 0
    past = False
    for text, starts in documents:
        head = text[: max(0, cut - position)]
        rest = text[len(head) :]
        if head:
            yield Part(head, starts, is_validation=False)
        if rest:
            yield Part(rest, starts or not past, is_validation=True)
            past = True
        position += len(text)


def write_tokens(folder: Path, parts: Iterable[Part], tokenizer: Tokenizer, threads: int, bar: tqdm) -> int:
    """Write train.bin and val.bin into ``folder``. Returns the length of the validation text in bytes."""
    val_bytes = 0
    dtype = token_type(tokenizer)
    with (folder / "train.bin").open("wb") as train, (folder / "val.bin").open("wb") as val:
        for batch in _batches(parts):
            texts = [part.text if part.starts else _continued(part.text, tokenizer) for part in batch]
            for ids, part in zip(tokenizer.encode_batch(texts, threads), batch):
                if part.starts:
                    ids = [tokenizer.bos_id, *ids]
                file = val if part.is_validation else train
                file.write(np.array(ids, dtype).tobytes())
                if part.is_validation:
                    val_bytes += len(part.text.encode())
                bar.update(len(part.text))
        for file in (train, val):
            file.flush()
            os.fsync(file.fileno())
    return val_bytes


def _continued(text: str, tokenizer: Tokenizer) -> str:
    """A piece from within a document, for a tokenizer that puts back the space that the piece was cut at."""
    return text.removeprefix(" ") if tokenizer.adds_space else text


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def token_type(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


TOKENS_FORMAT = 1  # of the cache: another number makes old ones unread


def prepare(
    documents: Documents,
    tokenizer: Tokenizer,
    *,
    context: int,
    cache_dir: str | Path,
    val_fraction: float = 0.1,
    val_documents: Documents | None = None,
    workers: int | None = None,
) -> Dataset:
    """The token ids of the documents' text, BOS before each document, split into training and validation.

    Validation is the text of ``val_documents``, or else the last ``val_fraction`` of the characters; it begins with
    BOS, so that its first token too is predicted. The ids are kept below ``cache_dir``, found again by the files'
    paths, sizes and times, the tokenizer and the split. Raises ValueError when either part is too short, or when a
    file changes after its documents were opened and before it is read.
    """
    if not val_documents and not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction {val_fraction} leaves no training or no validation text: give one in (0, 1)")
    split = val_documents.identity() if val_documents else val_fraction
    key = _digest([TOKENS_FORMAT, documents.identity(), split, tokenizer.fingerprint, tokenizer.bos_id])
    folder = Path(cache_dir) / f"tokens-{key[:32]}"
    if load_dataset(folder) is None:
        specs = [*documents.specs, *(val_documents.specs if val_documents else [])]

        def fill(place: Path) -> None:
            _tokenize(place, documents, val_documents, tokenizer, val_fraction, workers or count_cores())

        make_entry(folder, specs, fill, lambda: load_dataset(folder) is not None)
    dataset = load_dataset(folder)
    if dataset is None:
        raise ValueError(f"{folder} vanished while it was read: run again")
    check_lengths(dataset, context, val_fraction)
    return dataset


def check_lengths(dataset: Dataset, context: int, val_fraction: float) -> None:
    tokens = len(dataset.train)
    if tokens < context + 1:
        shorter = f", or a max_seq_len of at most {tokens - 1}" if tokens > 2 else ""
        raise ValueError(
            f"the training text is {quantity(tokens, 'token')} long, a context of {context} needs {context + 1}: "
            f"give more text{shorter}"
        )
    if not dataset.val_bytes:
        raise ValueError(f"the validation text is empty: give more text, or a val_fraction above {val_fraction}")


def _tokenize(
    folder: Path,
    documents: Documents,
    val_documents: Documents | None,
    tokenizer: Tokenizer,
    val_fraction: float,
    workers: int,
) -> None:
    """Fill the directory ``folder``."""
    digest, total = measure(documents)
    cut = total if val_documents else int(total * (1 - val_fraction))
    pieces = split_at(verified(documents, digest), cut)
    if val_documents:
        val_digest, val_total = measure(val_documents)
        pieces = itertools.chain(pieces, split_at(verified(val_documents, val_digest), 0))
        digest = _digest([digest, val_digest])
        total += val_total
    with tqdm(total=total, unit="char", unit_scale=True, desc="tokenizing", disable=None, delay=1) as bar:
        val_bytes = write_tokens(folder, pieces, tokenizer, workers, bar)
    meta = {
        "dtype": str(token_type(tokenizer)),
        "val_bytes": val_bytes,
        "fingerprint": _digest([digest, cut, tokenizer.fingerprint]),
        "sizes": [(folder / f"{part}.bin").stat().st_size for part in ("train", "val")],
    }
    write_json(folder / "meta.json", meta)


def load_dataset(folder: Path) -> Dataset | None:
    """The entry of the cache in ``folder``; None when there is none, or it is not what was written."""
    try:
        meta = read_json(folder / "meta.json")
        train, val = folder / "train.bin", folder / "val.bin"
        if [train.stat().st_size, val.stat().st_size] != meta["sizes"]:
            return None
        dtype = meta["dtype"]
        return Dataset(_map(train, dtype), _map(val, dtype), meta["val_bytes"], meta["fingerprint"], folder)
    except (OSError, ValueError, KeyError):
        return None


def _map(file: Path, dtype: str) -> np.ndarray:
    """The ids in the file, mapped, because a text may be larger than the memory; an empty file cannot be mapped."""
    return np.memmap(file, dtype, "r") if file.stat().st_size else np.zeros(0, dtype)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
