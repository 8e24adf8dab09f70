"""Bytes that are not UTF-8: whether they are text at all, in which encoding most likely, and how to convert them."""

import codecs
import itertools
import shlex

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
MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
SAMPLE = 1 << 16  # bytes that are looked at


def guess_encoding(raw: bytes) -> str | None:
    """The name that iconv gives to the likeliest encoding of text that is not UTF-8; None where none is likely."""
    raw = raw[:SAMPLE]
    for mark, name in (
        (codecs.BOM_UTF32_LE, "UTF-32"),
        (codecs.BOM_UTF16_LE, "UTF-16"),
        (codecs.BOM_UTF16_BE, "UTF-16"),
    ):
        if raw.startswith(mark):
            return name
    scores = {name: _score(raw, name, common) for name, common in COMMON.items()}
    scores |= {name: _utf16_score(raw, name) for name in ("UTF-16LE", "UTF-16BE")}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= 0.1 else None


def _decode(raw: bytes, name: str) -> str | None:
    """The text, which may end within a character; None where the bytes cannot be in this encoding."""
    try:
        return codecs.getincrementaldecoder(name)().decode(raw)
    except UnicodeDecodeError:
        return None


def _score(raw: bytes, name: str, common: str) -> float:
    """The fraction of common characters among those beyond ASCII."""
    text = _decode(raw, name)
    if text is None or "\0" in text:
        return 0.0
    wide = [character for character in text if character > "\x7f"]
    # Accents stand alone among Latin letters, Cyrillic letters stand together; the bytes are the same.
    together = sum(a > "\x7f" and b > "\x7f" for a, b in itertools.pairwise(text))
    if name in SINGLE and (name == "CP1252") == (2 * together > len(wide)):
        return 0.0
    share = sum(character in common for character in wide) / max(1, len(wide))
    # Any bytes are text in an encoding of single bytes, and a third of them common by chance.
    return share if name not in SINGLE else max(0.0, share - 0.4)


def _utf16_score(raw: bytes, name: str) -> float:
    """The fraction of spaces, line ends and common characters of all languages: high for the right half."""
    text = _decode(raw, name)
    if not text or any(character < " " and character not in "\t\n\r\f" for character in text):
        return 0.0
    common = set("".join(COMMON.values()) + " \n\retaoinshrdlu")
    return max(0.0, sum(character in common for character in text) / len(text) - 0.1)


def is_binary(raw: bytes) -> bool:
    """Whether a file that starts so is no text in any encoding: zero bytes, or control characters in numbers."""
    raw = raw[:SAMPLE]
    if b"\0" in raw:
        return not str(guess_encoding(raw)).startswith("UTF-")
    control = sum(raw.count(byte) for byte in range(32) if byte not in b"\t\n\r\f\b\x1b")
    return 10 * control > len(raw)


def how_to_convert(raw: bytes, place: int, name: str) -> str:
    """How to convert the file called ``name``, of which ``raw`` is a part with the first wrong byte at ``place``."""
    start = raw.rfind(b"\n", max(0, place - SAMPLE // 2), place) + 1 or max(0, place - SAMPLE // 2)
    encoding = guess_encoding(raw if place < SAMPLE // 2 else raw[start:])
    if encoding is None:
        return "no other encoding fits either; give a text file, or convert it with iconv -f ENCODING -t UTF-8"
    command = f"iconv -f {encoding} -t UTF-8"
    if name == "standard input":
        return f"it is probably {encoding}: pipe it through {command}"
    return f"it is probably {encoding}; convert it: {command} {shlex.quote(name)} > {shlex.quote(name + '.utf8.txt')}"
