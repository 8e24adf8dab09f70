"""What separates the documents inside a text file, recognized in a sample of its beginning.

A separator that is not recognized is learnt as text: it turns up in what the model writes, and BOS, which is where a
text without a prompt starts, is seen once in the whole training. A separator that is none cuts documents into pieces.
So a text is split only where the separator is certain; where it is likely, a note says which flag would split.
"""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import NamedTuple

NEAR = 200  # characters before and after a separator that are looked at
MOST_PLACES = 20_000  # that are looked at; more are only quantity

# What the tokenizers of published models put at a text's end, as text.
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
RULE = re.compile(r"^(?P<sign>[=*_~-])(?P=sign){4,}(?=\r?$)", re.MULTILINE)
PERCENT = re.compile(r"^%(?=\r?$)", re.MULTILINE)  # of fortune's files
COMMENT = re.compile(r"^%[^\r\n]", re.MULTILINE)  # of TeX, Matlab and Erlang, where % may be alone on a line, too
FORM_FEED = re.compile("\f")
HTML = re.compile(r"</p>|<br|</a>|</div>", re.IGNORECASE)  # in which </s> ends text that is struck through
QUOTES = "\"'`"
SENTENCE_END = tuple(".!?…。！？\"'”’」』")
MOSTLY = 0.9  # of the places where a separator stands, so many must look like the end of a document
SIMILAR = 1.0  # the standard deviation of the documents' lengths over their mean, at most, between rules
SHORT = 40  # characters: what lies between two rules and is shorter is a title
LONG = 10  # signs of a rule between documents: short ones, and asterisks, stand between the scenes of a novel
FEW = 5  # places: in a program, fewer tags may stand by chance where a text could end


class Place(NamedTuple):
    """Where a separator stands: the text around it."""

    before: str  # ends with what stands just before it
    after: str
    is_outer: bool  # nothing but white space lies between it and the text's beginning or end


@dataclass(frozen=True)
class Candidate:
    """A separator that recurs."""

    core: str  # without the line ends around it
    count: int
    places: list[Place]  # the first MOST_PLACES of them
    files: int  # how many have it
    lengths: list[int]  # characters between two places of the same file

    def share(self, test: Callable[[Place], bool]) -> float:
        """The fraction of places that pass."""
        return sum(map(test, self.places)) / len(self.places)


class Recognized(NamedTuple):
    separator: str  # what to split at; empty if nothing is certain
    note: str | None  # for the user


def recognize(samples: Sequence[str], is_all: bool) -> Recognized:
    """What separates the documents in ``samples``, how each file begins; ``is_all`` is whether they are all the text.

    A separator is certain only if half of the files have it.
    """
    sampled = "" if is_all else f" in the first {sum(map(len, samples)) / 1e6:.0f} million characters"
    hint = None
    for candidate, certain in _candidates(samples):
        times = f"{candidate.count:,} times{sampled}"
        if certain and 2 * candidate.files >= len(samples):
            note = f'split at {_shown(candidate.core)}, {times}; to keep it as text: --doc_separator ""'
            return Recognized(separator_text(candidate), note)
        hint = hint or f"not split inside a file; {_how_to_split(candidate.core, times)}"
    return Recognized("", hint)


def _shown(core: str) -> str:
    if core == "\f":
        return "form feeds"
    return core if len(core) <= 30 else f"lines of {len(core)} {core[0]}"


def _how_to_split(core: str, times: str) -> str:
    setting = f"--doc_separator={quote(core)}"
    if core == "\f":
        setting = 'doc_separator = "\\f" in a settings file'
    return f"{_shown(core)}, {times}, may separate documents: if so, give {setting}"


def separator_text(candidate: Candidate) -> str:
    """The separator with the line ends and spaces, and the sign of a text's beginning, that it has at every place."""
    inner = [place for place in candidate.places if not place.is_outer] or candidate.places
    before = [_trailing_space(place.before) for place in inner]
    after = [_leading_space(place.after) for place in inner]
    head = _common_start([text[::-1] for text in before])[::-1]
    tail = _common_start(after)
    if len(set(after)) > 1:  # what they share may be part of a sign
        tail = tail[: len(tail) - len(tail.lstrip())]
    return head + candidate.core + tail


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # what these two share, all between them share
    length = 0
    while length < len(first) and first[length] == last[length]:
        length += 1
    return first[:length]


def _trailing_space(text: str) -> str:
    return text[len(text.rstrip()) :]


def _leading_space(text: str) -> str:
    """With the sign of a text's beginning, if one follows."""
    found = re.match(rf"\s*(?:{OPENING}[^\S\n]*)?", text)
    return found[0] if found else ""


def _candidates(texts: Sequence[str]) -> Iterator[tuple[Candidate, bool]]:
    """What recurs, and whether it is certain to separate documents; the most frequent tag first."""
    tags = [_candidate(texts, tag, re.compile(re.escape(tag)), 3) for tag in TAGS]
    for tag in sorted(filter(None, tags), key=lambda tag: -tag.count):
        if tag.share(_is_quoted) < 0.5:
            yield tag, _is_certain_tag(tag, texts)
    feeds = _candidate(texts, "\f", FORM_FEED, 3)
    if feeds:
        yield feeds, feeds.share(_ends_sentence) >= MOSTLY and feeds.share(_continues) <= 1 - MOSTLY
    percents = _candidate(texts, "%", PERCENT, 5)
    if percents and 10 * sum(_count(COMMENT, text) for text in texts) <= percents.count:
        yield percents, True
    rules = Counter(match[0] for text in texts for match in RULE.finditer(text))
    for core, count in rules.most_common(1):
        rule = _candidate(texts, core, re.compile(rf"^{re.escape(core)}(?=\r?$)", re.MULTILINE), 10)
        if rule and count >= MOSTLY * rules.total():
            yield rule, _is_certain_rule(rule)


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _candidate(texts: Sequence[str], core: str, pattern: re.Pattern[str], least: int) -> Candidate | None:
    """What the pattern finds; None if that is less often than ``least``."""
    places: list[Place] = []
    lengths: list[int] = []
    count = files = 0
    for text in texts:
        last_end = None
        for match in pattern.finditer(text):
            start, end = match.span()
            count += 1
            if len(places) < MOST_PLACES:
                before, after = text[max(0, start - NEAR) : start], text[end : end + NEAR]
                at_start = start <= NEAR and not before.strip()
                at_end = end + NEAR >= len(text) and not after.strip()
                places.append(Place(before, after, at_start or at_end))
                if last_end is not None:
                    lengths.append(start - last_end)
            last_end = end
        files += last_end is not None
    return Candidate(core, count, places, files, lengths) if count >= least else None


def _is_certain_tag(tag: Candidate, texts: Sequence[str]) -> bool:
    if tag.core == "</s>" and any(HTML.search(text) for text in texts):
        return False
    if tag.count < FEW and tag.share(_is_alone) < MOSTLY:
        return False
    return tag.share(_ends_document) >= MOSTLY


def _is_certain_rule(rule: Candidate) -> bool:
    """Between rules that separate documents lie texts that are alike: headings and tables lie between others."""
    if len(rule.core) < LONG or rule.core[0] not in "=-":
        return False
    likely = rule.share(_ends_sentence) >= MOSTLY and rule.share(_continues) <= 1 - MOSTLY
    if not likely or min(rule.lengths, default=0) < SHORT:
        return False
    return statistics.pstdev(rule.lengths) <= SIMILAR * statistics.fmean(rule.lengths)


def _ends_document(place: Place) -> bool:
    """A tag alone on its line, at the end of a line without a space before it, or after the end of a sentence."""
    if _is_quoted(place):
        return False
    line = place.before.rpartition("\n")[2]
    ends_line = re.match(r"[^\S\n]*(\n|$)", place.after) is not None
    if ends_line and (not line.strip() or not line[-1].isspace()):
        return True
    return _ends_sentence(place)


def _is_alone(place: Place) -> bool:
    """On its line."""
    return not place.before.rpartition("\n")[2].strip() and not place.after.partition("\n")[0].strip()


def _is_quoted(place: Place) -> bool:
    """As in a program, or in a text on tokenizers."""
    return place.before.endswith(tuple(QUOTES)) and place.after.startswith(tuple(QUOTES))


def _ends_sentence(place: Place) -> bool:
    before = place.before.rstrip()
    return not before or before.endswith(SENTENCE_END)


def _continues(place: Place) -> bool:
    """Whether the text goes on after the place rather than begins: with a small letter, or with a heading's sign."""
    after = place.after.lstrip()
    return after[:1].islower() or after.startswith(("#", "*"))
