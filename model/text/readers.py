"""Read the documents of one file, plain or gzipped, in chunks; guess the encoding of a file that is not UTF-8."""

import codecs
import gzip
import itertools
import shlex
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from .separators import Separator
from .tables import FileFormat, is_gzip, texts
from .tokenizer import split_text


class Chunk(NamedTuple):
    """A part of a document."""

    text: str
    starts_document: bool  # whether it is the first chunk of its document


def split_documents(blocks: Iterable[str], separator: str | None) -> Iterator[Chunk]:
    """Split a text, given in blocks, into documents at the ``Separator``. Holds about one block in memory."""
    finder = Separator(separator) if separator else None
    margin = finder.margin if finder else 0
    text = ""
    begin = 0  # of the text that is not yielded yet
    starts_document = True
    for block in itertools.chain(blocks, [None]):
        text += block or ""
        # A separator found before ``end`` is complete: the next block cannot make it longer.
        end = len(text) if block is None else max(begin, len(text) - margin)
        for start, stop in finder.places(text, begin) if finder else ():
            if start >= end:
                break
            yield from _chunks(text[begin:start], starts_document)
            begin = stop
            starts_document = True
        for part in split_text(text[begin:end]):
            if block is not None and begin + len(part) == end:
                break  # the next block may continue the last chunk
            yield Chunk(part, starts_document)
            starts_document = False
            begin += len(part)
        text = text[max(0, begin - 1) :]  # ``Separator`` looks back at one character before ``begin``
        begin = min(begin, 1)


def _chunks(document: str, starts_document: bool) -> Iterator[Chunk]:
    for text in split_text(document):
        yield Chunk(text, starts_document)
        starts_document = False


BLOCK = 1 << 20  # bytes read at a time
PROBE = 1 << 16  # bytes that are examined to detect a file's format or encoding
BOM = "\ufeff"


def first_bytes(path: Path) -> bytes:
    """The first bytes of a file, decompressed if its name ends in .gz and it is a valid gzip file."""
    try:
        with cast(BinaryIO, gzip.open(path) if is_gzip(path.name) else path.open("rb")) as file:
            return file.read(PROBE)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        with path.open("rb") as file:
            return file.read(PROBE)


def read_file(path: Path, name: str, file_format: FileFormat, text_key: str, separator: str | None) -> Iterator[Chunk]:
    """The documents of one file. Raises ValueError if it is not text.

    Errors call the file ``name``; its extension also shows whether it is gzipped, or TSV.
    """
    blocks = read_blocks(path, name)
    if file_format == "text":
        yield from split_documents(blocks, separator)
    else:
        for text in texts(file_format, blocks, name, text_key):
            yield from split_documents([text], None)


def read_blocks(path: Path, name: str) -> Generator[str]:
    """The text of one file in blocks, decompressed if ``name`` ends in .gz. Raises ValueError if it is not text."""
    try:
        with cast(BinaryIO, gzip.open(path) if is_gzip(name) else path.open("rb")) as file:
            yield from _blocks(file, name)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is not a complete gzip file ({error}): get the file again") from None


def _blocks(file: BinaryIO, name: str) -> Iterator[str]:
    """The file's text without a byte order mark; line ends are unchanged."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    while True:
        raw = file.read(BLOCK)
        pending = len(decoder.getstate()[0])  # bytes of a character that began in the previous block
        text = _decode(decoder, raw, name, position - pending)
        if "\0" in text:
            zero = position - pending + len(text[: text.index("\0")].encode())
            raise ValueError(f"{name} is not text: byte {zero} is zero; {how_to_convert(raw, raw.index(0), name)}")
        yield text.removeprefix(BOM) if position == 0 else text
        position += len(raw)
        if not raw:
            return


def _decode(decoder: codecs.IncrementalDecoder, raw: bytes, name: str, start: int) -> str:
    try:
        return decoder.decode(raw, final=not raw)
    except UnicodeDecodeError as error:
        wrong = f"byte {start + error.start} is 0x{error.object[error.start]:02x}"
        raise ValueError(
            f"{name} is not UTF-8 text: {wrong}; {how_to_convert(error.object, error.start, name)}"
        ) from None


# The most frequent characters of each language. Decoding with a wrong encoding gives fewer of them.
COMMON = {
    "GB18030": "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年",
    "BIG5": "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年",
    "CP932": "のにはをたがでてとしれさあいうるらなもりこそくかまきすっけよみ、。アイスルトンー",
    "EUC-JP": "のにはをたがでてとしれさあいうるらなもりこそくかまきすっけよみ、。アイスルトンー",
    "CP949": "이다는에을의가고를은하지로도사한기어리그나서자인아해있었",
    "CP1251": "оеаинтсрвлкмдпуяыьгзбчйхжшю",
    "KOI8-R": "оеаинтсрвлкмдпуяыьгзбчйхжшю",
    "CP1252": "éèàâêîôûçëïüöäßñáíóúåøæãõÉÀÜÖÄ«»’‘“”–—…°€£œ",
}
SINGLE_BYTE = ("CP1252", "CP1251", "KOI8-R")  # encodings with one byte per character
BYTE_ORDER_MARKS = {  # UTF-32 first, because the mark of its little-endian form begins with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def guess_encoding(raw: bytes) -> str | None:
    """iconv's name for the likeliest encoding of bytes that are not UTF-8; None if none is likely."""
    raw = raw[:PROBE]
    for mark, name in BYTE_ORDER_MARKS.items():
        if raw.startswith(mark):
            return name
    scores = {name: _score(raw, name, common) for name, common in COMMON.items()}
    scores |= {name: _utf16_score(raw, name) for name in ("UTF-16LE", "UTF-16BE")}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= 0.1 else None


def _decoded(raw: bytes, name: str) -> str | None:
    """The text, which may end within a character; None if the bytes are not valid in this encoding."""
    try:
        return codecs.getincrementaldecoder(name)().decode(raw)
    except UnicodeDecodeError:
        return None


def _score(raw: bytes, name: str, common: str) -> float:
    """How likely the encoding is: the fraction of common characters among the non-ASCII ones, adjusted for chance."""
    text = _decoded(raw, name)
    if text is None or "\0" in text:
        return 0.0
    non_ascii = [character for character in text if character > "\x7f"]
    fraction = sum(character in common for character in non_ascii) / max(1, len(non_ascii))
    if name not in SINGLE_BYTE:
        return fraction
    # The same bytes may be Latin or Cyrillic. Accented letters stand alone among ASCII, Cyrillic letters in runs; if it
    # is the other way round, the encoding is wrong.
    adjacent = sum(a > "\x7f" and b > "\x7f" for a, b in itertools.pairwise(text))
    in_runs = 2 * adjacent > len(non_ascii)
    is_latin = name == "CP1252"
    if in_runs == is_latin:
        return 0.0
    # Almost any bytes are valid in a single-byte encoding, and by chance about a third are common characters.
    return max(0.0, fraction - 0.4)


def _utf16_score(raw: bytes, name: str) -> float:
    """How likely the byte order is: the fraction of spaces, line ends and common characters, minus 0.1."""
    text = _decoded(raw, name)
    if not text or any(character < " " and character not in "\t\n\r\f" for character in text):
        return 0.0
    common = set("".join(COMMON.values()) + " \n\retaoinshrdlu")
    return max(0.0, sum(character in common for character in text) / len(text) - 0.1)


def is_binary(raw: bytes) -> bool:
    """Whether a file that starts with ``raw`` is not text.

    It has many control characters; or it has NUL bytes, and is not recognized as UTF-16 or UTF-32.
    """
    raw = raw[:PROBE]
    if b"\0" in raw:
        return not str(guess_encoding(raw)).startswith("UTF-")
    control = sum(raw.count(byte) for byte in range(32) if byte not in b"\t\n\r\f\b\x1b")
    return 10 * control > len(raw)


def how_to_convert(raw: bytes, wrong: int, name: str) -> str:
    """The command that converts the file ``name`` to UTF-8. ``raw`` is a part of it, with an invalid byte at ``wrong``.

    The encoding is guessed from the text around that byte.
    """
    start = 0
    if wrong > PROBE // 2:
        # Begin after a line end, so that no character is cut in two. That is not ensured in UTF-16, but there the first
        # wrong byte is so near the start of the file that this branch is not reached.
        near = wrong - PROBE // 2
        line_end = raw.rfind(b"\n", near, wrong)
        start = near if line_end < 0 else line_end + 1
    encoding = guess_encoding(raw[start:])
    if encoding is None:
        return "no other encoding fits either; give a text file, or convert it with iconv -f ENCODING -t UTF-8"
    command = f"iconv -f {encoding} -t UTF-8"
    path = Path(name)
    if not path.is_file():
        return f"it is probably {encoding}: pipe it through {command}"
    target = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    target = target.with_suffix(f".utf8{target.suffix}")
    source = f"{command} {shlex.quote(name)}"
    if target.suffix != path.suffix:
        source = f"gzip -dc {shlex.quote(name)} | {command}"
    return f"it is probably {encoding}; convert it: {source} > {shlex.quote(str(target))}"
