"""Tokenize documents into cached training and validation token ids on disk."""

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
from ..cli.files import INTEGER, TEXT, read_json, write_json
from ..cli.machine import count_cores
from .dataset import Dataset
from .readers import Chunk
from .sources import Documents
from .token_cache import make_entry
from .tokenizer import Tokenizer

BATCH_CHARACTERS = 2_000_000  # characters tokenized together


class SplitChunk(NamedTuple):
    """A chunk of either the training or the validation text."""

    text: str
    starts_document: bool  # whether it is the first chunk of its document
    is_validation: bool


def measure(chunks: Iterable[Chunk]) -> tuple[str, int]:
    """A hash of the text with its document boundaries, and its length in characters. Raises ValueError if empty."""
    digest = hashlib.sha256()
    total = 0
    for chunk in chunks:
        digest.update(_hashed_bytes(chunk))
        total += len(chunk.text)
    if not total:
        raise ValueError("the sources hold no text: give a source with text")
    return digest.hexdigest(), total


def _hashed_bytes(chunk: Chunk) -> bytes:
    boundary = b"\xff" if chunk.starts_document else b""  # a byte that never occurs in UTF-8
    return boundary + chunk.text.encode()


def read_verified(documents: Documents, expected: str) -> Iterator[Chunk]:
    """The documents, read a second time. Raises ValueError at the end if their hash is not ``expected``."""
    digest = hashlib.sha256()
    for chunk in documents:
        digest.update(_hashed_bytes(chunk))
        yield chunk
    documents.check_unchanged()  # names the file, and also detects a change before the first read
    if digest.hexdigest() != expected:
        raise ValueError("the text changed while it was read: run again when nothing writes to its files")


def split_at(chunks: Iterable[Chunk], cut: int) -> Iterator[SplitChunk]:
    """The chunks before and after character ``cut``.

    The first validation chunk counts as the start of a document, so that the validation text begins with BOS.
    """
    position = 0
    in_validation = False
    for text, starts_document in chunks:
        head = text[: max(0, cut - position)]
        rest = text[len(head) :]
        if head:
            yield SplitChunk(head, starts_document, is_validation=False)
        if rest:
            yield SplitChunk(rest, starts_document or not in_validation, is_validation=True)
            in_validation = True
        position += len(text)


def write_tokens(folder: Path, chunks: Iterable[SplitChunk], tokenizer: Tokenizer, threads: int, bar: tqdm) -> int:
    """Write train.bin and val.bin into ``folder``. Returns the length of the validation text in bytes."""
    val_bytes = 0
    dtype = token_type(tokenizer)
    with (folder / "train.bin").open("wb") as train, (folder / "val.bin").open("wb") as val:
        for batch in _batches(chunks):
            texts = [_text_to_encode(chunk, tokenizer) for chunk in batch]
            for ids, chunk in zip(tokenizer.encode_batch(texts, threads), batch):
                if chunk.starts_document:
                    ids = [tokenizer.bos_id, *ids]
                file = val if chunk.is_validation else train
                file.write(np.array(ids, dtype).tobytes())
                if chunk.is_validation:
                    val_bytes += len(chunk.text.encode())
                bar.update(len(chunk.text))
        for file in (train, val):
            file.flush()
            os.fsync(file.fileno())
    return val_bytes


def _text_to_encode(chunk: SplitChunk, tokenizer: Tokenizer) -> str:
    """The text of the chunk. If it continues a document, without the leading space that the tokenizer will add."""
    if tokenizer.adds_space and not chunk.starts_document:
        return chunk.text.removeprefix(" ")
    return chunk.text


def _batches(chunks: Iterable[SplitChunk]) -> Iterator[list[SplitChunk]]:
    batch: list[SplitChunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def token_type(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


TOKENS_FORMAT = 1  # increase when train.bin, val.bin or meta.json change, so that older cache entries are not reused


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
    """The token ids of the documents, BOS before each, split into training and validation text.

    The validation text is ``val_documents``, or else the last ``val_fraction`` of the characters. It begins with BOS,
    so that its first piece is predicted too. The ids are cached in ``cache_dir``; the key is the files' paths, sizes
    and times, the tokenizer and the split. Raises ValueError if the training text is too short, if the validation
    text is empty, or if a file changes while it is tokenized.
    """
    if not val_documents and not 0 < val_fraction < 1:
        raise ValueError(
            f"val_fraction {val_fraction} leaves no training or no validation text: give a number in (0, 1)"
        )
    folder = Path(cache_dir) / entry_name(documents, tokenizer, val_fraction, val_documents)
    if load_dataset(folder) is None:
        specs = [*documents.specs, *(val_documents.specs if val_documents else [])]

        def fill(directory: Path) -> None:
            _tokenize(directory, documents, val_documents, tokenizer, val_fraction, workers or count_cores())

        make_entry(folder, specs, fill, lambda: load_dataset(folder) is not None)
    dataset = load_dataset(folder)
    if dataset is None:
        raise ValueError(f"{folder} was removed while it was read: run again")
    check_lengths(dataset, context, val_fraction)
    return dataset


def entry_name(documents: Documents, tokenizer: Tokenizer, val_fraction: float, val_documents: Documents | None) -> str:
    """The name of the cache entry. It changes with the files' paths, sizes and times, the tokenizer and the split."""
    split = val_documents.identity() if val_documents else val_fraction
    key = _digest([TOKENS_FORMAT, documents.identity(), split, tokenizer.fingerprint, tokenizer.bos_id])
    return f"tokens-{key[:32]}"


def check_lengths(dataset: Dataset, context: int, val_fraction: float) -> None:
    tokens = len(dataset.train)
    if tokens < context + 1:
        smaller_context = f", or a max_seq_len of at most {tokens - 1}" if tokens > 2 else ""
        raise ValueError(
            f"the training text is {quantity(tokens, 'token')} long, a context of {context} needs {context + 1}: "
            f"give more text{smaller_context}"
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
    """Write train.bin, val.bin and meta.json into ``folder``."""
    digest, total = measure(documents)
    cut = total if val_documents else int(total * (1 - val_fraction))
    chunks = split_at(read_verified(documents, digest), cut)
    if val_documents:
        val_digest, val_total = measure(val_documents)
        chunks = itertools.chain(chunks, split_at(read_verified(val_documents, val_digest), 0))
        digest = _digest([digest, val_digest])
        total += val_total
    with tqdm(total=total, unit="char", unit_scale=True, desc="tokenizing", disable=None, delay=1) as bar:
        val_bytes = write_tokens(folder, chunks, tokenizer, workers, bar)
    meta = {
        "dtype": str(token_type(tokenizer)),
        "val_bytes": val_bytes,
        "fingerprint": _digest([digest, cut, tokenizer.fingerprint]),
        "sizes": [(folder / f"{part}.bin").stat().st_size for part in ("train", "val")],
    }
    write_json(folder / "meta.json", meta)


def load_dataset(folder: Path) -> Dataset | None:
    """The cache entry in ``folder``; None if it is missing or damaged."""
    try:
        meta = read_json(folder / "meta.json", {"dtype": TEXT, "val_bytes": INTEGER, "fingerprint": TEXT})
        train, val = folder / "train.bin", folder / "val.bin"
        if [train.stat().st_size, val.stat().st_size] != meta["sizes"]:
            return None
        dtype = meta["dtype"]
        return Dataset(_map(train, dtype), _map(val, dtype), meta["val_bytes"], meta["fingerprint"], folder)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _map(file: Path, dtype: str) -> np.ndarray:
    """The ids in the file, memory-mapped because a text may be larger than the memory."""
    if file.stat().st_size == 0:  # cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(file, dtype, "r")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
