"""Pieces of text to token ids in two files, on all cores, with no more than a few pieces held."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .chunks import Piece
from .tokenizer import Tokenizer

BATCH = 2_000_000  # characters tokenized together
Part = tuple[str, bool, bool]  # text, whether a document starts there, whether it is validation text


def measure(documents: Iterable[Piece]) -> tuple[str, int]:
    """A hash of the text and its documents' starts, and the number of characters. Raises ValueError when none."""
    digest, total = hashlib.sha256(), 0
    for text, starts in documents:
        digest.update(b"\xff" * starts + text.encode())  # a byte that UTF-8 never has
        total += len(text)
    if not total:
        raise ValueError("the sources hold no text: give some that do")
    return digest.hexdigest(), total


def split_at(documents: Iterable[Piece], cut: int) -> Iterator[Part]:
    """The pieces before and after ``cut`` characters; the validation text, after it, starts as a document does."""
    position, past = 0, False
    for text, starts in documents:
        head = text[: max(0, cut - position)]
        if head:
            yield head, starts, False
        if len(head) < len(text):
            yield text[len(head) :], starts or not past, True
            past = True
        position += len(text)


def write_tokens(folder: Path, parts: Iterable[Part], tokenizer: Tokenizer, threads: int, bar: tqdm) -> int:
    """Write train.bin and val.bin into ``folder``. Returns the length of the validation text in bytes."""
    val_bytes = 0
    dtype = token_type(tokenizer)
    with (folder / "train.bin").open("wb") as train, (folder / "val.bin").open("wb") as val:
        for batch in _batches(parts):
            texts = [text if starts else _continued(text, tokenizer) for text, starts, _ in batch]
            for ids, (text, starts, past) in zip(tokenizer.encode_batch(texts, threads), batch):
                (val if past else train).write(np.array([tokenizer.bos_id] * starts + ids, dtype).tobytes())
                val_bytes += len(text.encode()) * past
                bar.update(len(text))
        for file in (train, val):
            file.flush()
            os.fsync(file.fileno())
    return val_bytes


def _continued(text: str, tokenizer: Tokenizer) -> str:
    """A piece from within a document, for a tokenizer that puts back the space that the piece was cut at."""
    return text.removeprefix(" ") if tokenizer.adds_space else text


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    batch, size = [], 0
    for part in parts:
        batch.append(part)
        size += len(part[0])
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def token_type(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
