"""Tokenize documents into token ids on disk, cached, and split them into training and validation text.

A cache entry holds tokens.bin, the ids of all documents in order; chunks.bin, for each chunk of the text how many
tokens and bytes come before it; and meta.json. Validation is the end of the tokens, from a chunk on, so that another
val_fraction uses the same entry.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..cli import quantity
from ..cli.machine import count_cores
from .dataset import Dataset
from .sources import Documents, file_digest
from .token_cache import cached
from .tokenizer import Tokenizer

TOKENS_FORMAT = 3  # increase when the files of an entry change, so that older entries are not reused
BATCH = 128  # chunks tokenized together: up to 2 million characters
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

    The validation text is ``val_documents``, or else the end of the tokens, beginning at the chunk nearest to
    ``val_fraction`` of them, so within 8,000 characters of it. The ids are cached in ``cache_dir``; the key is the
    files' paths and content, and the tokenizer. Raises ValueError if the training text is too short, if the
    validation text is empty, or if a file changes while it is tokenized.
    """
    sources = [documents, *([val_documents] if val_documents else [])]
    facts = [TOKENS_FORMAT, [source.identity() for source in sources], tokenizer.fingerprint, tokenizer.bos_id]
    folder = Path(cache_dir) / f"tokens-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"
    dataset = cached(
        folder,
        [spec for source in sources for spec in source.specs],
        lambda: load_dataset(folder, val_fraction),
        lambda directory: tokenize(directory, sources, tokenizer),
    )
    tokens = len(dataset.train)
    if tokens < context + 1:
        raise ValueError(
            f"the training text is {quantity(tokens, 'token')} long, a context of {context} needs {context + 1}: "
            "give more text, or a smaller max_seq_len"
        )
    if not dataset.val_bytes:
        raise ValueError(f"the validation text is empty: give more text, or a val_fraction above {val_fraction}")
    return dataset


def tokenize(folder: Path, sources: list[Documents], tokenizer: Tokenizer) -> None:
    """Write the tokens of ``sources``, the training and perhaps the validation text, into ``folder``.

    Each file is read once. Raises ValueError if it changed since it was opened.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    digest = hashlib.sha256()
    tokens = size = chunks = 0  # so far; the size in bytes
    total = sum(source.text_size() for source in sources) or None
    begins = []  # the number of chunks before each source
    with (
        (folder / "tokens.bin").open("wb") as ids_file,
        (folder / "chunks.bin").open("wb") as chunks_file,
        tqdm(total=total, unit="B", unit_scale=True, desc="tokenizing", disable=None, delay=1) as bar,
    ):
        for source in sources:
            begins.append(chunks)
            for text, starts_document, ids in _encoded(source, tokenizer):
                chunks_file.write(np.array([tokens, size], np.int64).tobytes())
                row = np.array([tokenizer.bos_id, *ids] if starts_document else ids, dtype).tobytes()
                ids_file.write(row)
                digest.update(row)
                tokens += len(row) // dtype.itemsize
                length = len(text.encode())
                size += length
                chunks += 1
                bar.update(length)
            if chunks == begins[-1]:
                raise ValueError("the sources hold no text: give a source with text")
            source.check_unchanged()
        chunks_file.write(np.array([tokens, size], np.int64).tobytes())
        for file in (ids_file, chunks_file):
            file.flush()
            os.fsync(file.fileno())
    meta = {
        "format": TOKENS_FORMAT,
        "dtype": str(dtype),
        "bos_id": tokenizer.bos_id,
        "val_chunk": begins[1] if len(begins) > 1 else None,
        "fingerprint": hashlib.sha256(f"{digest.hexdigest()} {tokenizer.fingerprint}".encode()).hexdigest(),
        "digests": [(path, digest) for source in sources for path, digest in source.digests if path],
    }
    (folder / META).write_text(json.dumps(meta), encoding="utf-8")


def _encoded(documents: Documents, tokenizer: Tokenizer) -> Iterator[tuple[str, bool, list[int]]]:
    """Each chunk with its token ids."""
    chunks = iter(documents)
    while batch := list(islice(chunks, BATCH)):
        texts = []
        for text, starts_document in batch:
            # The tokenizer would add a space to the one at which the document was cut
            is_cut = tokenizer.adds_space and not starts_document
            texts.append(text.removeprefix(" ") if is_cut else text)
        for (text, starts_document), ids in zip(batch, tokenizer.encode_batch(texts, count_cores())):
            yield text, starts_document, ids


def load_dataset(folder: Path, val_fraction: float) -> Dataset | None:
    """The cache entry in ``folder``; None if it is missing, damaged or of another version of this program.

    If the validation text begins inside a document, its first token is the last one before it: the context from which
    the first token that counts is predicted.
    """
    try:
        meta = _read_meta(folder)
        # Memory-mapped, because a text may be larger than the memory
        tokens = np.memmap(folder / "tokens.bin", meta["dtype"], "r")
        chunks = np.memmap(folder / "chunks.bin", np.int64, "r").reshape(-1, 2)  # (N + 1, 2): tokens, bytes before each
    except (OSError, ValueError):
        return None
    if meta.get("format") != TOKENS_FORMAT or chunks[-1, 0] != len(tokens):
        return None
    val_chunk = meta["val_chunk"]
    if val_chunk is None:  # at least one chunk for training, and if there are several, one for validation
        nearest = int(np.abs(chunks[:, 0] - (1 - val_fraction) * len(tokens)).argmin())
        val_chunk = max(1, min(len(chunks) - 2, nearest))
    start, bytes_before = map(int, chunks[val_chunk])
    begins_document = start == len(tokens) or tokens[start] == meta["bos_id"]
    val = tokens[start if begins_document else start - 1 :]
    return Dataset(tokens[:start], val, int(chunks[-1, 1]) - bytes_before, f"{meta['fingerprint']} {start}", folder)


def changed_since(dataset: Dataset) -> list[str]:
    """The paths of the text files that changed or were removed after the dataset was made from them."""
    digests = _read_meta(dataset.entry)["digests"] if dataset.entry else []
    return [path for path, digest in digests if file_digest(path) != digest]


def _read_meta(folder: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
    return meta
