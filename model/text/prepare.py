"""Tokenize documents into token ids on disk, cached, and split them into training and validation text.

A cache entry holds tokens.bin, the ids of all documents in order; chunks.bin, for each chunk of the text how many
tokens and bytes come before it; and meta.json. Validation is the end of the tokens, from a chunk on, so that another
val_fraction uses the same entry.
"""

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..cli import quantity
from ..cli.files import INTEGER, TEXT, read_json, write_text
from ..cli.machine import count_cores
from .dataset import Dataset
from .readers import Chunk
from .sources import SPOOL_PREFIX, Documents, FileStatus, changed_files
from .token_cache import make_entry
from .tokenizer import Tokenizer

TOKENS_FORMAT = 2  # increase when the files of an entry change, so that older entries are not reused
BATCH_CHARACTERS = 2_000_000  # characters tokenized together
META = "meta.json"


def prepare(
    documents: Documents,
    tokenizer: Tokenizer,
    *,
    context: int,
    cache_dir: str | Path,
    val_fraction: float = 0.1,
    val_documents: Documents | None = None,
) -> Dataset:
    """The token ids of the documents, BOS before each, split into training and validation text.

    The validation text is ``val_documents``, or else the last ``val_fraction`` of the tokens. The ids are cached in
    ``cache_dir``; the key is the files' paths, sizes and times, and the tokenizer. Raises ValueError if the training
    text is too short, if the validation text is empty, or if a file changes while it is tokenized.
    """
    if not val_documents and not 0 < val_fraction < 1:
        raise ValueError(
            f"val_fraction {val_fraction} leaves no training or no validation text: give a number in (0, 1)"
        )
    sources = [documents, *([val_documents] if val_documents else [])]
    facts = [TOKENS_FORMAT, [source.identity() for source in sources], tokenizer.fingerprint, tokenizer.bos_id]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    folder = Path(cache_dir) / f"tokens-{key[:32]}"
    if load_dataset(folder, val_fraction) is None:
        make_entry(
            folder,
            [spec for source in sources for spec in source.specs],
            lambda directory: tokenize(directory, sources, tokenizer),
            lambda: load_dataset(folder, val_fraction) is not None,
        )
    dataset = load_dataset(folder, val_fraction)
    if dataset is None:
        raise ValueError(f"{folder} was removed while it was read: run again")
    check_lengths(dataset, context, val_fraction)
    return dataset


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


def tokenize(folder: Path, sources: list[Documents], tokenizer: Tokenizer) -> None:
    """Write the tokens of ``sources``, the training and perhaps the validation text, into ``folder``.

    Each file is read once. Raises ValueError if it changed since it was opened.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    digest = hashlib.sha256()
    tokens = size = chunks = 0  # so far; the size in bytes
    val_chunk = None  # where the second source begins
    total = sum(source.text_size() for source in sources)
    with (
        (folder / "tokens.bin").open("wb") as ids_file,
        (folder / "chunks.bin").open("wb") as chunks_file,
        tqdm(total=total or None, unit="B", unit_scale=True, desc="tokenizing", disable=None, delay=1) as bar,
    ):
        for source in sources:
            val_chunk = chunks if source is not sources[0] else None
            for batch in _batches(source):
                texts = [_text_to_encode(chunk, tokenizer) for chunk in batch]
                for ids, chunk in zip(tokenizer.encode_batch(texts, count_cores()), batch):
                    chunks_file.write(np.array([tokens, size], np.int64).tobytes())
                    row = np.array([tokenizer.bos_id, *ids] if chunk.starts_document else ids, dtype).tobytes()
                    ids_file.write(row)
                    digest.update(row)
                    tokens += len(row) // dtype.itemsize
                    length = len(chunk.text.encode())
                    size += length
                    bar.update(length)
                chunks += len(batch)
            if chunks == (val_chunk or 0):
                raise ValueError("the sources hold no text: give a source with text")
            source.check_unchanged()
        chunks_file.write(np.array([tokens, size], np.int64).tobytes())
        for file in (ids_file, chunks_file):
            file.flush()
            os.fsync(file.fileno())
    files = [status for source in sources for status in source.statuses_at_open]
    meta = {
        "dtype": str(dtype),
        "bos_id": tokenizer.bos_id,
        "tokens": tokens,
        "chunks": chunks,
        "val_chunk": val_chunk,
        "fingerprint": hashlib.sha256(f"{digest.hexdigest()} {tokenizer.fingerprint}".encode()).hexdigest(),
        "files": [status for status in files if not os.path.basename(status.path).startswith(SPOOL_PREFIX)],
    }
    write_text(folder / META, json.dumps(meta))  # in ASCII, because a file's name may not be Unicode


def _text_to_encode(chunk: Chunk, tokenizer: Tokenizer) -> str:
    """The text of the chunk. If it continues a document, without the leading space that the tokenizer will add."""
    if tokenizer.adds_space and not chunk.starts_document:
        return chunk.text.removeprefix(" ")
    return chunk.text


def _batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    batch: list[Chunk] = []
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


def load_dataset(folder: Path, val_fraction: float) -> Dataset | None:
    """The cache entry in ``folder``; None if it is missing or damaged.

    If the validation text begins inside a document, its first token is the last one before it: the context from which
    the first token that counts is predicted.
    """
    checks = {"dtype": TEXT, "bos_id": INTEGER, "tokens": INTEGER, "chunks": INTEGER, "fingerprint": TEXT}
    try:
        meta = read_json(folder / META, checks)
        # Memory-mapped, because a text may be larger than the memory
        tokens = np.memmap(folder / "tokens.bin", meta["dtype"], "r")
        chunks = np.memmap(folder / "chunks.bin", np.int64, "r").reshape(-1, 2)  # (N + 1, 2): tokens, bytes before each
        count = meta["chunks"]
        if (len(tokens), len(chunks)) != (meta["tokens"], count + 1):
            return None
        val_chunk = meta["val_chunk"]
        if val_chunk is None:  # at least one chunk for training, and if there are several, one for validation
            chunks_before = bisect_right(chunks[:, 0], (1 - val_fraction) * len(tokens)) - 1
            val_chunk = max(1, min(count - 1, chunks_before))
        start, bytes_before = map(int, chunks[val_chunk])
        begins_document = start == len(tokens) or tokens[start] == meta["bos_id"]
        val = tokens[start if begins_document else start - 1 :]
        fingerprint = f"{meta['fingerprint']} {start}"
        return Dataset(tokens[:start], val, int(chunks[-1, 1]) - bytes_before, fingerprint, folder)
    except (OSError, ValueError, TypeError, LookupError):
        return None


def changed_since(dataset: Dataset) -> list[str]:
    """The paths of the text files that changed or were removed after the dataset was made from them."""
    if dataset.entry is None:
        return []
    files: list[Any] = read_json(dataset.entry / META)["files"]
    return changed_files([FileStatus(*file) for file in files])
