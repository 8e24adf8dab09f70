"""Recognize the separator between the documents inside a text file, in a sample of its beginning.

If a separator is missed, the model learns it as text. Then BOS occurs only once per file, too rarely for a model that
generates from BOS alone. If ordinary text is taken for a separator, documents are cut apart. So a text is split only if
the separator is certain.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..cli import quantity

SURROUNDING = 200  # characters before and after a separator that are examined

# The end-of-text tokens of published models, written as text.
TAGS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_document|>",
    "<|eos|>",
    "<|EOS|>",
    "<eos>",
    "<EOS>",
    "[EOS]",
    "<eod>",
    "</s>",
)
MARKS = (*TAGS, "\f")
OPENING = r"(?:<s>|<bos>|<BOS>|\[BOS\]|<\|bos\|>|<\|startoftext\|>|<\|begin_of_text\|>)"
# There are two kinds of known separators. A mark is a tag for the end of a text, or a form feed; it separates documents
# even inside a line, and a tag for the beginning of a text may follow. The other kind is a whole line, or several.
MARK = re.compile(rf"\s*({'|'.join(map(re.escape, MARKS))})\s*{OPENING}?\s*")
LINES = re.compile(r"\s*\n(\S|\S.*\S)[\r\n]\s*", re.DOTALL)
# What is dropped at the start of a document: blank lines, or one space; and the same around an opening tag.
START = re.compile(rf"(?:\s*[\r\n]| )?(?:{OPENING}(?:\s*[\r\n]| )?)?")


class Separator:
    """Splits a text into documents. Without a separator it is one document.

    Around a mark or a line, white space at the end of a document and blank lines at its start do not belong to it. Any
    other separator must occur exactly as it is.
    """

    def __init__(self, separator: str | None):
        known = MARK.fullmatch(separator or "") or LINES.fullmatch(separator or "")
        self._is_known = known is not None
        self._pattern = _pattern(known[1]) if known else re.escape(separator or "")

    def split(self, text: str, at_end: bool) -> list[str]:
        """The documents. Unless ``at_end``, a separator that ends the text may be the beginning of a longer line."""
        if not self._pattern:
            return [text]
        return re.split(self._pattern if at_end else rf"{self._pattern}(?!\Z)", text)

    def trim(self, document: str, at_start: bool, at_end: bool) -> str:
        """The document without the white space and the tag that belong to the separators around it."""
        if self._is_known and at_start:
            document = START.sub("", document, count=1)
        return document.rstrip() if self._is_known and at_end else document


def _pattern(core: str) -> str:
    """The expression that finds the tag, the form feed or the lines."""
    found = re.escape(core)
    if core in MARKS:
        return found
    # The core alone on a line: (?<![^\n])core(?![^\r\n]). A pattern that begins with literal text is searched faster,
    # so the lookbehind stands after the core, and has to step back over it.
    return rf"{found}(?<![^\n]{found})(?![^\r\n])"


# A horizontal rule: a line of one sign, repeated at least five times
RULE = re.compile(r"^(?P<sign>[=*_~-])(?P=sign){4,}(?=\r?$)", re.MULTILINE)
COMMENT = re.compile(r"^%[^\r\n]", re.MULTILINE)  # in TeX, Matlab and Erlang, which also have lines with % alone
HTML = re.compile(r"</p>|<br|</a>|</div>", re.IGNORECASE)  # in HTML </s> is no separator: it ends struck-through text
QUOTES = tuple("\"'`")
SENTENCE_END = tuple(".!?…。！？\"'”’」』")
# The least fraction of a separator's places that must look like the end of a document, and of the rules of a text that
# must be alike
MIN_FRACTION = 0.9
MIN_DOCUMENT = 40  # characters; a shorter text between two rules is a title
MIN_RULE = 10  # characters; shorter rules separate the scenes of a novel
MIN_COUNT = 3
MIN_TAGS = 5  # fewer tags may be string constants in a program
MIN_RULES = 10


class Place(NamedTuple):
    """The text around one occurrence of a separator."""

    before: str
    after: str


class Candidate:
    """A string that may be a separator, and where it occurs in the samples, the beginnings of the files."""

    def __init__(self, core: str, samples: Sequence[str]):
        """``core`` is a tag, a form feed, or a line without the line ends around it."""
        self.core = core
        self.places = [(text, *match.span()) for text in samples for match in re.finditer(_pattern(core), text)]

    def fraction(self, test: Callable[[Place], bool]) -> float:
        """The fraction of places for which ``test`` is true."""
        passed = 0
        for text, start, end in self.places:
            passed += test(Place(text[max(0, start - SURROUNDING) : start], text[end : end + SURROUNDING]))
        return passed / len(self.places)

    def shortest_part(self) -> int:
        """The fewest characters between two places in the same file."""
        pairs = pairwise(self.places)
        return min((start - end for (text, _, end), (other, start, _) in pairs if other is text), default=0)


class Recognized(NamedTuple):
    separator: str  # empty if none is certain
    note: str | None  # for the user


def recognize(samples: Sequence[str]) -> Recognized:
    """Recognize the separator in ``samples``, the beginnings of the files.

    A separator is certain only if at least half of the files have it. If a tag or a form feed is not certain, the note
    tells how to split the text there.
    """
    rules = Counter(match[0] for text in samples for match in RULE.finditer(text)).most_common(1)
    marks = sorted((Candidate(mark, samples) for mark in MARKS), key=lambda mark: -len(mark.places))
    lines = [Candidate(core, samples) for core in ("%", *(rule for rule, _ in rules))]
    hint = None
    for candidate in (*marks, *lines):
        count = len(candidate.places)
        if count < MIN_COUNT:
            continue
        name = "form feeds" if candidate.core == "\f" else candidate.core[:40]
        found = f"{name}, {count:,} times in the first {quantity(sum(map(len, samples)), 'character')}"
        files = len({id(text) for text, _, _ in candidate.places})
        if 2 * files >= len(samples) and _is_certain(candidate, samples):
            separator = candidate.core if candidate.core in MARKS else f"\n{candidate.core}\n"
            return Recognized(separator, f'split at {found}; to keep it as text: --doc_separator ""')
        if candidate.core in MARKS and not hint:
            setting = f"doc_separator = {json.dumps(candidate.core)} in a config"
            hint = f"not split inside a file; {found}, may separate documents: if so, give {setting}"
    return Recognized("", hint)


def _is_certain(candidate: Candidate, texts: Sequence[str]) -> bool:
    """Whether the text around the occurrences shows that they separate documents."""
    core, count = candidate.core, len(candidate.places)
    if core in TAGS:
        if core == "</s>" and any(HTML.search(text) for text in texts):
            return False
        return candidate.fraction(_is_alone if count < MIN_TAGS else _ends_document) >= MIN_FRACTION
    if core == "%":  # in the quotation files of the program fortune
        return count >= MIN_TAGS and 10 * sum(len(COMMENT.findall(text)) for text in texts) <= count
    is_between_texts = (
        candidate.fraction(_ends_sentence) >= MIN_FRACTION and candidate.fraction(_continues) <= 1 - MIN_FRACTION
    )
    if core == "\f" or not is_between_texts:
        return is_between_texts
    # A rule. The parts of a table are shorter than documents.
    return (
        core[0] in "=-"
        and len(core) >= MIN_RULE
        and count >= max(MIN_RULES, MIN_FRACTION * sum(len(RULE.findall(text)) for text in texts))
        and candidate.shortest_part() >= MIN_DOCUMENT
    )


def _ends_document(place: Place) -> bool:
    """Whether a tag is alone on its line, ends a line without a space before it, or follows a sentence.

    A tag in quotes is part of a program, or of an article about tokenizers.
    """
    if place.before.endswith(QUOTES) and place.after.startswith(QUOTES):
        return False
    ends_line = not place.after.partition("\n")[0].strip()
    follows_space = place.before[-1:] in (" ", "\t")
    return _is_alone(place) or (ends_line and not follows_space) or _ends_sentence(place)


def _is_alone(place: Place) -> bool:
    """Whether nothing else is on its line."""
    return not place.before.rpartition("\n")[2].strip() and not place.after.partition("\n")[0].strip()


def _ends_sentence(place: Place) -> bool:
    before = place.before.rstrip()
    return not before or before.endswith(SENTENCE_END)


def _continues(place: Place) -> bool:
    """Whether a lower-case letter or a heading (# or *) follows. A rule above a heading decorates it."""
    after = place.after.lstrip()
    return after[:1].islower() or after.startswith(("#", "*"))
