"""One file on disk, plain or gzipped, as documents in pieces; and what it is if not UTF-8 text."""

import codecs
import gzip
import itertools
import shlex
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from .tables import Form, texts
from .tokenizer import split_text

Piece = tuple[str, bool]  # text, and whether a document starts with it
LINE_ENDS = "\r\n"


def split_documents(blocks: Iterable[str], separator: str | None) -> Iterator[Piece]:
    """The blocks, joined, as documents between separators, in pieces; no more than a block is held.

    A separator that is a whole line may also be the first or last line of the text, without the line end before or
    after it.
    """
    if separator and separator[0] in LINE_ENDS and separator[-1] in LINE_ENDS and separator.strip():
        blocks = _without_outer_lines(blocks, separator)
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
        rest = rest[sum(len(piece) for piece in certain[:-1]) :]
    yield from _mark(split_text(rest), starts)


def _without_outer_lines(blocks: Iterable[str], separator: str) -> Iterator[str]:
    first, last = separator.lstrip(LINE_ENDS), separator.rstrip(LINE_ENDS)
    held, begun = "", False
    for block in blocks:
        held += block
        if not begun and len(held) >= len(first):
            held, begun = held.removeprefix(first), True
        if begun:
            yield held[: -len(last)]
            held = held[-len(last) :]
    yield held.removesuffix(last)


def _mark(pieces: Iterable[str], starts: bool) -> Iterator[Piece]:
    for piece in pieces:
        yield piece, starts
        starts = False


BLOCK = 1 << 20  # bytes read at a time
PROBE = 1 << 16  # bytes from the start of a file that are enough to tell what it is
BOM = "\ufeff"


def first_bytes(path: Path) -> bytes:
    """The start of a file, of a gzipped one after unpacking; what cannot be unpacked comes as it is."""
    try:
        with cast(BinaryIO, gzip.open(path) if path.name.endswith(".gz") else path.open("rb")) as file:
            return file.read(PROBE)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return path.read_bytes()[:PROBE]


def read_file(path: Path, name: str, form: Form, text_key: str, separator: str | None) -> Iterator[Piece]:
    """The documents of one file. ``name`` is what errors call it. Raises ValueError on what is not text."""
    blocks = read_blocks(path, name)
    if form == "text":
        yield from split_documents(blocks, separator)
    else:
        for text in texts(form, blocks, name, text_key):
            yield from split_documents([text], None)


def read_blocks(path: Path, name: str) -> Generator[str]:
    """The text of one file, unpacked, in blocks that end anywhere. Raises ValueError on what is not text."""
    try:
        with cast(BinaryIO, gzip.open(path) if name.endswith(".gz") else path.open("rb")) as file:
            yield from _blocks(file, name)
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


# The characters that each language writes most often; of an encoding that does not fit, few or none of them come out.
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
SINGLE = ("CP1252", "CP1251", "KOI8-R")  # a byte for each character
BYTE_ORDER_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


def guess_encoding(raw: bytes) -> str | None:
    """The name that iconv gives to the likeliest encoding of text that is not UTF-8; None where none is likely."""
    raw = raw[:PROBE]
    for mark, name in BYTE_ORDER_MARKS.items():
        if raw.startswith(mark):
            return name
    scores = {name: _score(raw, name, common) for name, common in COMMON.items()}
    scores |= {name: _utf16_score(raw, name) for name in ("UTF-16LE", "UTF-16BE")}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= 0.1 else None


def _decoded(raw: bytes, name: str) -> str | None:
    """The text, which may end within a character; None where the bytes cannot be in this encoding."""
    try:
        return codecs.getincrementaldecoder(name)().decode(raw)
    except UnicodeDecodeError:
        return None


def _score(raw: bytes, name: str, common: str) -> float:
    """The fraction of common characters among those beyond ASCII."""
    text = _decoded(raw, name)
    if text is None or "\0" in text:
        return 0.0
    wide = [character for character in text if character > "\x7f"]
    # Accented letters are single among Latin ones, Cyrillic letters come in runs; the bytes are the same.
    together = sum(a > "\x7f" and b > "\x7f" for a, b in itertools.pairwise(text))
    fraction = sum(character in common for character in wide) / max(1, len(wide))
    if name not in SINGLE:
        return fraction
    in_runs = 2 * together > len(wide)
    is_latin = name == "CP1252"
    if in_runs == is_latin:
        return 0.0
    # Any bytes are text in an encoding of single bytes, and a third of them common by chance.
    return max(0.0, fraction - 0.4)


def _utf16_score(raw: bytes, name: str) -> float:
    """The fraction of spaces, line ends and common characters of all languages: high for the right half."""
    text = _decoded(raw, name)
    if not text or any(character < " " and character not in "\t\n\r\f" for character in text):
        return 0.0
    common = set("".join(COMMON.values()) + " \n\retaoinshrdlu")
    return max(0.0, sum(character in common for character in text) / len(text) - 0.1)


def is_binary(raw: bytes) -> bool:
    """Whether a file that starts so is no text in any encoding: zero bytes, or control characters in numbers."""
    raw = raw[:PROBE]
    if b"\0" in raw:
        return not str(guess_encoding(raw)).startswith("UTF-")
    control = sum(raw.count(byte) for byte in range(32) if byte not in b"\t\n\r\f\b\x1b")
    return 10 * control > len(raw)


def how_to_convert(raw: bytes, place: int, name: str) -> str:
    """How to convert the file called ``name``, of which ``raw`` is a part with the first wrong byte at ``place``."""
    near = max(0, place - PROBE // 2)
    line_end = raw.rfind(b"\n", near, place)
    start = near if line_end < 0 else line_end + 1  # of a line, so as not to begin within a character
    encoding = guess_encoding(raw if place < PROBE // 2 else raw[start:])
    if encoding is None:
        return "no other encoding fits either; give a text file, or convert it with iconv -f ENCODING -t UTF-8"
    command = f"iconv -f {encoding} -t UTF-8"
    if name == "standard input":
        return f"it is probably {encoding}: pipe it through {command}"
    return f"it is probably {encoding}; convert it: {command} {shlex.quote(name)} > {shlex.quote(name + '.utf8.txt')}"
