"""Recognize the separator between the documents inside a text file, in a sample of its beginning.

If a separator is missed, the model learns it as text. Then BOS occurs only once per file, too rarely for a model that
generates from BOS alone. If ordinary text is taken for a separator, documents are cut apart. So a text is split only if
the separator is certain. If one is only likely, a note tells how to split the text there.
"""

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import NamedTuple

from ..cli import quantity

SEPARATOR_FORMAT = 2  # increase when texts are split at other places, so that tokens cached before are not reused
SURROUNDING = 200  # characters before and after a separator that are examined
MAX_PLACES = 20_000  # occurrences that are examined; the others are only counted

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
OPENING = r"(?:<s>|<bos>|<BOS>|\[BOS\]|<\|bos\|>|<\|startoftext\|>|<\|begin_of_text\|>)"
# A separator has a head, a core and a tail, the three groups of these patterns. Head and tail are the white space
# around the core. There are two kinds. In a mark separator the core is a tag for the end of a text, or a form feed, and
# the tail may end with a tag for the beginning of a text. In a line separator the core is one or more lines, and head
# and tail contain line ends.
MARK_SEPARATOR = re.compile(rf"(\s*)({'|'.join(map(re.escape, TAGS))}|\f)(\s*(?:{OPENING}[^\S\n]*)?)")
LINE_SEPARATOR = re.compile(r"(\s*\n)(\S|\S.*\S)([\r\n]\s*)", re.DOTALL)
# A horizontal rule: a line of one sign, repeated at least five times
RULE = re.compile(r"^(?P<sign>[=*_~-])(?P=sign){4,}(?=\r?$)", re.MULTILINE)
PERCENT = re.compile(r"^%(?=\r?$)", re.MULTILINE)  # in the quotation files of the program ``fortune``
COMMENT = re.compile(r"^%[^\r\n]", re.MULTILINE)  # in TeX, Matlab and Erlang, which also have lines with % alone
FORM_FEED = re.compile("\f")
HTML = re.compile(r"</p>|<br|</a>|</div>", re.IGNORECASE)  # in HTML </s> is no separator: it ends struck-through text
QUOTES = "\"'`"
SENTENCE_END = tuple(".!?…。！？\"'”’」』")
# The least fraction of a separator's places that must look like the end of a document, and of the rules of a text that
# must be alike
MIN_FRACTION = 0.9
MAX_VARIATION = 1.0  # largest standard deviation / mean of the lengths of the documents between rules
MIN_DOCUMENT = 40  # characters; a shorter text between two rules is a title
MIN_RULE = 10  # characters; shorter rules separate the scenes of a novel
MIN_TAGS = 5  # fewer tags may be string constants in a program


class Place(NamedTuple):
    """The text around one occurrence of a separator."""

    before: str
    after: str
    is_outer: bool  # only white space lies between it and the start or end of the file


@dataclass(frozen=True)
class Candidate:
    """A string that recurs and may be a separator."""

    core: str  # without the line ends around it
    count: int
    places: list[Place]  # the first MAX_PLACES occurrences
    files: int  # how many files have it
    lengths: list[int]  # characters between two places of the same file, up to MAX_PLACES of them

    def fraction(self, test: Callable[[Place], bool]) -> float:
        """The fraction of places for which ``test`` is true."""
        return sum(map(test, self.places)) / len(self.places)


class Recognized(NamedTuple):
    separator: str  # empty if none is certain
    note: str | None  # for the user


def recognize(samples: Sequence[str], is_all: bool) -> Recognized:
    """Recognize the separator in ``samples``, the beginnings of the files. ``is_all``: they are the whole text.

    A separator is certain only if at least half of the files have it.
    """
    sampled = "" if is_all else f" in a sample of {quantity(sum(map(len, samples)), 'character')}"
    hint = None
    for candidate, certain in _candidates(samples):
        times = f"{candidate.count:,} times{sampled}"
        if certain and 2 * candidate.files >= len(samples):
            note = f'split at {_describe(candidate.core)}, {times}; to keep it as text: --doc_separator ""'
            return Recognized(separator_text(candidate), note)
        hint = hint or f"not split inside a file; {_how_to_split(candidate.core, times)}"
    return Recognized("", hint)


def _describe(core: str) -> str:
    if core == "\f":
        return "form feeds"
    return core if len(core) <= 30 else f"lines of {len(core)} {core[0]!r} signs"


def _how_to_split(core: str, times: str) -> str:
    if core in TAGS:
        setting = f"--doc_separator={quote(core)}"
    else:
        separator = core if core == "\f" else f"\n{core}\n"
        setting = f"doc_separator = {json.dumps(separator)} in a config"
    return f"{_describe(core)}, {times}, may separate documents: if so, give {setting}"


def separator_text(candidate: Candidate) -> str:
    """The core, with the white space and the beginning-of-text tag around it that all places share.

    Places at the start or end of a file do not count.
    """
    inner = [place for place in candidate.places if not place.is_outer] or candidate.places
    before = [_trailing_space(place.before).replace("\r\n", "\n") for place in inner]
    after = [_leading_space_and_tag(place.after).replace("\r\n", "\n") for place in inner]
    head = _common_start([text[::-1] for text in before])[::-1]
    tail = _leading_space_and_tag(_common_start(after))  # the common start may end inside a tag: that part is dropped
    return head + candidate.core + tail


class Separator:
    """Finds the places of a text that separate two documents.

    If the core is a tag or a form feed, every occurrence separates documents, even inside a line. The core of a line
    separator must be a whole line. Head and tail may be missing, wholly or in part, as at the start or end of the text,
    beside another separator, or at places that ``recognize`` did not see. A separator of neither kind must occur
    exactly as it is.
    """

    def __init__(self, separator: str):
        self.margin = 2 * len(separator) + 1  # more than the length of an occurrence, in which each LF may be CR LF
        mark = MARK_SEPARATOR.fullmatch(separator)
        parts = mark or LINE_SEPARATOR.fullmatch(separator)
        head, core, tail = parts.groups() if parts else ("", separator, "")
        core = re.escape(core)
        if parts and not mark:
            # The core alone on a line: (?<![^\n])core(?![^\r\n]). A pattern that begins with literal text is searched
            # faster, so the lookbehind stands after the core, and has to step back over it.
            core = rf"{core}(?<![^\n]{core})(?![^\r\n])"
        self._core_and_tail = re.compile(core + _optional(tail))
        self._head = re.compile(_optional(head) + r"\Z")
        opening = re.search(OPENING, tail)
        self._opening = opening[0] if opening else ""

    def places(self, text: str, begin: int) -> Iterator[tuple[int, int]]:
        """The start and end of each place after ``begin``.

        At the end of ``text`` a place may end too early, before white space that has not been read yet.
        """
        if begin == 0 and self._opening and text.startswith(self._opening):
            begin = len(self._opening)  # no separator stands before the first document, but a beginning-of-text tag may
            yield 0, begin
        for match in self._core_and_tail.finditer(text, begin):
            head = self._head.search(text, max(begin, match.start() - self.margin), match.start())
            yield head.start() if head else match.start(), match.end()
            begin = match.end()


def _optional(text: str) -> str:
    """A pattern for white space and tags, any of which may be missing. Each line end may be CR LF."""
    pattern = ""
    for part in re.findall(rf"{OPENING}|\r?\n|.", text, re.DOTALL):
        pattern += r"(?:\r?\n)?" if part.endswith("\n") else f"(?:{re.escape(part)})?"
    return pattern


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # their common start is that of all texts, which sort between them
    length = 0
    while length < len(first) and first[length] == last[length]:
        length += 1
    return first[:length]


def _trailing_space(text: str) -> str:
    return text[len(text.rstrip()) :]


def _leading_space_and_tag(text: str) -> str:
    """The white space at the start of ``text``, and the beginning-of-text tag if one follows."""
    match = re.match(rf"\s*(?:{OPENING}[^\S\n]*)?", text)
    return match[0] if match else ""


def _candidates(texts: Sequence[str]) -> Iterator[tuple[Candidate, bool]]:
    """Each candidate, and whether it certainly separates documents; the most frequent tag first."""
    tags = [_candidate(texts, tag, re.compile(re.escape(tag)), 3) for tag in TAGS]
    for tag in sorted(filter(None, tags), key=lambda tag: -tag.count):
        if tag.fraction(_is_quoted) < 0.5:
            yield tag, _is_certain_tag(tag, texts)
    feeds = _candidate(texts, "\f", FORM_FEED, 3)
    if feeds:
        yield feeds, _is_between_texts(feeds)
    percents = _candidate(texts, "%", PERCENT, 5)
    if percents and 10 * sum(_count(COMMENT, text) for text in texts) <= percents.count:
        yield percents, True
    rules = Counter(match[0] for text in texts for match in RULE.finditer(text))
    for core, count in rules.most_common(1):
        rule = _candidate(texts, core, re.compile(rf"^{re.escape(core)}(?=\r?$)", re.MULTILINE), 10)
        if rule and count >= MIN_FRACTION * rules.total():
            yield rule, _is_certain_rule(rule)


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _candidate(texts: Sequence[str], core: str, pattern: re.Pattern[str], min_count: int) -> Candidate | None:
    """The matches of the pattern; None if there are fewer than ``min_count``."""
    places: list[Place] = []
    lengths: list[int] = []
    count = 0
    files = 0
    for text in texts:
        last_end = None
        for match in pattern.finditer(text):
            start, end = match.span()
            count += 1
            if len(places) < MAX_PLACES:
                before, after = text[max(0, start - SURROUNDING) : start], text[end : end + SURROUNDING]
                at_start = start <= SURROUNDING and not before.strip()
                at_end = end + SURROUNDING >= len(text) and not after.strip()
                places.append(Place(before, after, at_start or at_end))
                if last_end is not None:
                    lengths.append(start - last_end)
            last_end = end
        if last_end is not None:
            files += 1
    return Candidate(core, count, places, files, lengths) if count >= min_count else None


def _is_certain_tag(tag: Candidate, texts: Sequence[str]) -> bool:
    if tag.core == "</s>" and any(HTML.search(text) for text in texts):
        return False
    if tag.count < MIN_TAGS and tag.fraction(_is_alone) < MIN_FRACTION:
        return False
    return tag.fraction(_ends_document) >= MIN_FRACTION


def _is_certain_rule(rule: Candidate) -> bool:
    """Whether the texts between the rules have similar lengths: documents do, the parts of a table do not."""
    if len(rule.core) < MIN_RULE or rule.core[0] not in "=-":
        return False
    if not _is_between_texts(rule) or min(rule.lengths, default=0) < MIN_DOCUMENT:
        return False
    return statistics.pstdev(rule.lengths) <= MAX_VARIATION * statistics.fmean(rule.lengths)


def _is_between_texts(candidate: Candidate) -> bool:
    """Whether the text before most places ends a sentence, and the text after them does not continue it."""
    return (
        candidate.fraction(_ends_sentence) >= MIN_FRACTION
        and candidate.fraction(_document_continues) <= 1 - MIN_FRACTION
    )


def _ends_document(place: Place) -> bool:
    """Whether a tag is alone on its line, ends a line without a space before it, or follows a sentence."""
    if _is_quoted(place):
        return False
    line = place.before.rpartition("\n")[2]
    ends_line = re.match(r"[^\S\n]*(\n|$)", place.after) is not None
    if ends_line and (not line.strip() or not line[-1].isspace()):
        return True
    return _ends_sentence(place)


def _is_alone(place: Place) -> bool:
    """Whether nothing else is on its line."""
    return not place.before.rpartition("\n")[2].strip() and not place.after.partition("\n")[0].strip()


def _is_quoted(place: Place) -> bool:
    """Whether it is in quotes, as in a program or in an article about tokenizers."""
    return place.before.endswith(tuple(QUOTES)) and place.after.startswith(tuple(QUOTES))


def _ends_sentence(place: Place) -> bool:
    before = place.before.rstrip()
    return not before or before.endswith(SENTENCE_END)


def _document_continues(place: Place) -> bool:
    """Whether a lower-case letter or a heading (# or *) follows. A rule above a heading decorates it."""
    after = place.after.lstrip()
    return after[:1].islower() or after.startswith(("#", "*"))
