"""The separator between the documents inside a text file."""

import re
from collections.abc import Iterable

# The end-of-text tokens of published models. Alone on a line, one of these is nothing else but a separator.
TAGS = ("<|endoftext|>", "<|end_of_text|>", "<|eos|>", "<|EOS|>", "<eos>", "<EOS>", "[EOS]", "<eod>", "</s>")


class Separator:
    """Splits a text into documents. Without a separator it is one document.

    White space before one of TAGS, and blank lines after it, belong to no document. Any other separator must occur
    exactly as it is; only a line end in it may also be CRLF.
    """

    def __init__(self, separator: str | None):
        text = separator or ""
        self._is_tag = text.strip() in TAGS
        if self._is_tag:
            self._pattern = rf"{re.escape(text.strip())}(?:\s*\n)?"
        else:
            self._pattern = "\r?\n".join(map(re.escape, text.replace("\r\n", "\n").split("\n")))

    def split(self, text: str, at_end: bool) -> list[str]:
        """The documents. Unless ``at_end``, a separator that ends the text may be the beginning of a longer one."""
        if not self._pattern:
            return [text]
        return re.split(self._pattern if at_end else rf"{self._pattern}(?!\s*\Z)", text)

    def trim(self, document: str) -> str:
        """The document without the white space that belongs to the tag after it."""
        return document.rstrip() if self._is_tag else document


def recognize(beginnings: Iterable[str]) -> str:
    """The first of TAGS that is alone on a line of these texts; empty if there is none."""
    pattern = re.compile(rf"^[^\S\n]*({'|'.join(map(re.escape, TAGS))})[^\S\n]*$", re.MULTILINE)
    found = (pattern.search(text) for text in beginnings)
    return next((match[1] for match in found if match), "")
