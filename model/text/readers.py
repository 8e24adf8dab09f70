"""One file on disk, plain or gzipped, text or JSON lines, as documents; long ones in pieces encoded as a whole."""

import codecs
import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from .encodings import SAMPLE, how_to_convert

PIECE = 16_000  # characters: SentencePiece is fastest on some thousands at a time
Piece = tuple[str, bool]  # text, and whether a document starts with it


def split_text(text: str, size: int = PIECE) -> Iterator[str]:
    """Pieces of at most ``size`` characters; joined they are ``text``."""
    start = 0
    while len(text) - start > size:
        end = _cut_point(text, start, start + size)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut_point(text: str, start: int, end: int) -> int:
    """The last place up to ``end`` where no token lies across: before a space that follows something visible.

    Common tokenizers put a space only at the start of a piece. Text without such a place in its second half (Chinese,
    a table of numbers) is cut at ``end``.
    """
    place = end + 1
    while (place := text.rfind(" ", start + (end - start) // 2, place)) > start:
        if not text[place - 1].isspace():
            return place
    return end


def split_documents(blocks: Iterable[str], separator: str | None) -> Iterator[Piece]:
    """The blocks, joined, as documents between separators, in pieces; no more than a block is held."""
    rest, starts = "", True
    hold = len(separator or "")  # a separator may lie across two blocks
    for block in blocks:
        *whole, rest = (rest + block).split(separator) if separator else [rest + block]
        for document in whole:
            yield from _mark(split_text(document), starts)
            starts = True
        certain = list(split_text(rest[: max(0, len(rest) - hold)]))
        for piece in certain[:-1]:
            yield piece, starts
            starts = False
        rest = rest[sum(map(len, certain[:-1])) :]
    yield from _mark(split_text(rest), starts)


def _mark(pieces: Iterable[str], starts: bool) -> Iterator[Piece]:
    for piece in pieces:
        yield piece, starts
        starts = False


BLOCK = 1 << 20  # bytes read at a time
LONGEST_LINE = 100_000_000  # bytes of a .jsonl, which is read line by line
BOM = "\ufeff"


def first_bytes(path: Path) -> bytes:
    """The start of a file, of a gzipped one after unpacking; what cannot be unpacked comes as it is."""
    try:
        with cast(BinaryIO, gzip.open(path) if path.name.endswith(".gz") else path.open("rb")) as file:
            return file.read(SAMPLE)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return path.read_bytes()[:SAMPLE]


def read_file(path: Path, name: str, text_key: str, separator: str | None) -> Iterator[Piece]:
    """The documents of one file. ``name`` is what errors call it. Raises ValueError on what is not text."""
    plain = name.removesuffix(".gz")
    try:
        with cast(BinaryIO, gzip.open(path) if name.endswith(".gz") else path.open("rb")) as file:
            if plain.endswith(".jsonl"):
                for text in _json_lines(file, name, text_key):
                    yield from split_documents([text], None)
            else:
                yield from split_documents(_blocks(file, name), separator)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is not a whole gzip file ({error}): get it again") from None


def _blocks(file: BinaryIO, name: str) -> Iterator[str]:
    """The file's text with its line ends as they are, without the mark that some editors put first."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    while True:
        raw = file.read(BLOCK)
        waiting = len(decoder.getstate()[0])
        text = _decode(decoder, raw, name, position - waiting)
        if "\0" in text:
            place = position - waiting + len(text[: text.index("\0")].encode())
            raise ValueError(f"{name} is not text: byte {place} is zero; {how_to_convert(raw, raw.index(0), name)}")
        yield text.removeprefix(BOM) if position == 0 else text
        position += len(raw)
        if not raw:
            return


def _decode(decoder: codecs.IncrementalDecoder, raw: bytes, name: str, start: int) -> str:
    try:
        return decoder.decode(raw, final=not raw)
    except UnicodeDecodeError as error:
        what = f"byte {start + error.start} is 0x{error.object[error.start]:02x}"
        raise ValueError(
            f"{name} is not UTF-8 text: {what}; {how_to_convert(error.object, error.start, name)}"
        ) from None


def _json_lines(file: BinaryIO, name: str, text_key: str) -> Iterator[str]:
    position = 0
    for number in itertools.count(1):
        raw = file.readline(LONGEST_LINE + 1)
        if len(raw) > LONGEST_LINE:
            raise ValueError(f"{name}:{number} is over {LONGEST_LINE // 1_000_000} MB long: split the line")
        if not raw:
            return
        line = _decode(codecs.getincrementaldecoder("utf-8")(), raw, name, position).removeprefix(BOM)
        position += len(raw)
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            text = value.get(text_key) if isinstance(value, dict) else None
            if isinstance(text, str):
                text.encode()  # a lone half of a surrogate pair is JSON, but not text
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}:{number} is not valid JSON text ({error}): correct or remove the line") from None
        if not isinstance(text, str):
            texts = [key for key in value if isinstance(value[key], str)] if isinstance(value, dict) else []
            there = f"give text_key one of {', '.join(map(ascii, texts[:8]))}" if texts else "it has no text at all"
            raise ValueError(f"{name}:{number} has no text under {text_key!r}: {there}")
        yield text
