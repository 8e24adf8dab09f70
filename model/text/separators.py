"""Recognize the separator between the documents inside a text file, in a sample of its beginning.

If a separator is missed, the model learns it as text. Then BOS occurs only once per file, too rarely for a model that
generates from BOS alone. If ordinary text is taken for a separator, documents are cut apart. So a text is split only if
the separator is certain. If one is only likely, a note tells how to split the text there.
"""

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import NamedTuple

from ..cli import quantity

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
# There are two kinds of known separators. A mark is a tag for the end of a text, or a form feed; it separates documents
# even inside a line, and a tag for the beginning of a text may follow. The other kind is a whole line, or several.
MARK = re.compile(rf"\s*({'|'.join(map(re.escape, TAGS))}|\f)\s*{OPENING}?\s*")
LINES = re.compile(r"\s*\n(\S|\S.*\S)[\r\n]\s*", re.DOTALL)
# What is dropped at the start of a document: blank lines, or one space; and the same around an opening tag.
START = re.compile(rf"(?:\s*[\r\n]| )?(?:{OPENING}(?:\s*[\r\n]| )?)?")


class Separator:
    """Finds the places of a text that separate two documents.

    Around a mark or a line, white space at the end of a document and blank lines at its start do not belong to it. Any
    other separator must occur exactly as it is.
    """

    def __init__(self, separator: str):
        known = MARK.fullmatch(separator) or LINES.fullmatch(separator)
        self.is_known = known is not None
        self.pattern = _pattern(known[1]) if known else re.compile(re.escape(separator))

    def trim(self, document: str, at_start: bool, at_end: bool) -> str:
        """The document without the white space and the tag that belong to the separators around it."""
        if self.is_known and at_start:
            document = START.sub("", document, count=1)
        return document.rstrip() if self.is_known and at_end else document


def _pattern(core: str) -> re.Pattern[str]:
    """Finds the tag, the form feed or the lines. A match at the end of a text may be the beginning of a longer line."""
    found = re.escape(core)
    if core in TAGS or core == "\f":
        return re.compile(found)
    # The core alone on a line: (?<![^\n])core(?![^\r\n]). A pattern that begins with literal text is searched faster,
    # so the lookbehind stands after the core, and has to step back over it.
    return re.compile(rf"{found}(?<![^\n]{found})(?![^\r\n])")


# A horizontal rule: a line of one sign, repeated at least five times
RULE = re.compile(r"^(?P<sign>[=*_~-])(?P=sign){4,}(?=\r?$)", re.MULTILINE)
COMMENT = re.compile(r"^%[^\r\n]", re.MULTILINE)  # in TeX, Matlab and Erlang, which also have lines with % alone
HTML = re.compile(r"</p>|<br|</a>|</div>", re.IGNORECASE)  # in HTML </s> is no separator: it ends struck-through text
QUOTES = tuple("\"'`")
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


@dataclass
class Candidate:
    """A string that may be a separator, and where it occurs in the samples."""

    core: str  # without the line ends around it
    count: int  # of all occurrences
    places: list[Place]  # the first MAX_PLACES occurrences
    files: int  # how many files have it
    lengths: list[int]  # characters between two places of the same file, up to MAX_PLACES of them

    def fraction(self, test: Callable[[Place], bool]) -> float:
        """The fraction of places for which ``test`` is true."""
        return sum(map(test, self.places)) / len(self.places)


Test = Callable[[Candidate, Sequence[str]], bool]  # of a candidate and all samples


class Recognized(NamedTuple):
    separator: str  # empty if none is certain
    note: str | None  # for the user


def recognize(samples: Sequence[str], is_all: bool) -> Recognized:
    """Recognize the separator in ``samples``, the beginnings of the files. ``is_all``: they are the whole text.

    A separator is certain only if at least half of the files have it.
    """
    tags = sorted((_find(samples, tag) for tag in TAGS), key=lambda tag: -tag.count)
    rules = Counter(match[0] for text in samples for match in RULE.finditer(text))
    # Each candidate, its smallest count, whether it may be a separator at all, and whether it certainly is
    table: list[tuple[Candidate, int, Test, Test]] = [
        *((tag, 3, _is_no_constant, _is_certain_tag) for tag in tags),
        (_find(samples, "\f"), 3, _is_any, _is_between_texts),
        (_find(samples, "%"), 5, _is_no_comment, _is_any),  # in the quotation files of the program fortune
        *((_find(samples, rule), 10, _is_usual_rule, _is_certain_rule) for rule, _ in rules.most_common(1)),
    ]
    sampled = "" if is_all else f" in a sample of {quantity(sum(map(len, samples)), 'character')}"
    hint = None
    for candidate, min_count, is_possible, is_certain in table:
        if candidate.count < min_count or not is_possible(candidate, samples):
            continue
        times = f"{candidate.count:,} times{sampled}"
        if 2 * candidate.files >= len(samples) and is_certain(candidate, samples):
            is_line = candidate.core not in (*TAGS, "\f")
            note = f'split at {_describe(candidate.core)}, {times}; to keep it as text: --doc_separator ""'
            return Recognized(f"\n{candidate.core}\n" if is_line else candidate.core, note)
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


def _find(texts: Sequence[str], core: str) -> Candidate:
    """The occurrences of a tag, a form feed, or a line."""
    found = Candidate(core, 0, [], 0, [])
    for text in texts:
        last_end = None
        for match in _pattern(core).finditer(text):
            start, end = match.span()
            found.count += 1
            if len(found.places) < MAX_PLACES:
                found.places.append(Place(text[max(0, start - SURROUNDING) : start], text[end : end + SURROUNDING]))
                if last_end is not None:
                    found.lengths.append(start - last_end)
            last_end = end
        found.files += last_end is not None
    return found


def _is_any(candidate: Candidate, texts: Sequence[str]) -> bool:
    return True


def _is_no_constant(tag: Candidate, texts: Sequence[str]) -> bool:
    return tag.fraction(_is_quoted) < 0.5


def _is_no_comment(percents: Candidate, texts: Sequence[str]) -> bool:
    return 10 * sum(1 for text in texts for _ in COMMENT.finditer(text)) <= percents.count


def _is_usual_rule(rule: Candidate, texts: Sequence[str]) -> bool:
    return rule.count >= MIN_FRACTION * sum(1 for text in texts for _ in RULE.finditer(text))


def _is_certain_tag(tag: Candidate, texts: Sequence[str]) -> bool:
    if tag.core == "</s>" and any(HTML.search(text) for text in texts):
        return False
    if tag.count < MIN_TAGS and tag.fraction(_is_alone) < MIN_FRACTION:
        return False
    return tag.fraction(_ends_document) >= MIN_FRACTION


def _is_certain_rule(rule: Candidate, texts: Sequence[str]) -> bool:
    """Whether the texts between the rules have similar lengths: documents do, the parts of a table do not."""
    if len(rule.core) < MIN_RULE or rule.core[0] not in "=-":
        return False
    if not _is_between_texts(rule, texts) or min(rule.lengths, default=0) < MIN_DOCUMENT:
        return False
    return statistics.pstdev(rule.lengths) <= MAX_VARIATION * statistics.fmean(rule.lengths)


def _is_between_texts(candidate: Candidate, texts: Sequence[str]) -> bool:
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
    return place.before.endswith(QUOTES) and place.after.startswith(QUOTES)


def _ends_sentence(place: Place) -> bool:
    before = place.before.rstrip()
    return not before or before.endswith(SENTENCE_END)


def _document_continues(place: Place) -> bool:
    """Whether a lower-case letter or a heading (# or *) follows. A rule above a heading decorates it."""
    after = place.after.lstrip()
    return after[:1].islower() or after.startswith(("#", "*"))
