"""Long text in pieces that a tokenizer reads as it would have read the whole."""

from collections.abc import Iterator


def split_text(text: str, size: int) -> Iterator[str]:
    """Pieces of at most ``size`` characters; joined they are ``text``."""
    start = 0
    while len(text) - start > size:
        end = cut_point(text, start, start + size)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def cut_point(text: str, start: int, end: int) -> int:
    """The last place up to ``end`` where no token lies across: before a space that follows something visible.

    Common tokenizers put a space only at the start of a piece. Text without such a place in its second half (Chinese,
    a table of numbers) is cut at ``end``.
    """
    place = end
    while (place := text.rfind(" ", start + (end - start) // 2, place)) > start:
        if not text[place - 1].isspace():
            return place
    return end
