"""One file on disk, plain or gzipped, text or JSON lines, as documents in pieces."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from .chunks import Piece, split_documents

BLOCK = 1 << 20  # bytes read at a time
BOM = "\ufeff"
REMEDY = "convert it to UTF-8 first, for example with iconv -f LATIN1 -t UTF-8"


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
            raise ValueError(f"{name} is not text: byte {place} is zero; if it is UTF-16, {REMEDY}")
        yield text.removeprefix(BOM) if position == 0 else text
        position += len(raw)
        if not raw:
            return


def _decode(decoder: codecs.IncrementalDecoder, raw: bytes, name: str, start: int) -> str:
    try:
        return decoder.decode(raw, final=not raw)
    except UnicodeDecodeError as error:
        value = error.object[error.start]
        raise ValueError(f"{name} is not UTF-8 text: byte {start + error.start} is 0x{value:02x}; {REMEDY}") from None


def _json_lines(file: BinaryIO, name: str, text_key: str) -> Iterator[str]:
    position = 0
    for number, raw in enumerate(file, 1):
        line = _decode(codecs.getincrementaldecoder("utf-8")(), raw, name, position).removeprefix(BOM)
        position += len(raw)
        if not line.strip():
            continue
        try:
            text = json.loads(line)[text_key]
            text.encode()  # a lone half of a surrogate pair is JSON, but not text
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}:{number} is not valid JSON text ({error}): correct or remove the line") from None
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"{name}:{number} has no text under {text_key!r}: name the key with text_key") from None
        yield text
