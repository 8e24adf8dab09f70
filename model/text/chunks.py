"""Long text in pieces that a tokenizer reads as it would have read the whole, and where documents begin in it."""

from collections.abc import Iterable, Iterator

PIECE = 16_000  # characters: SentencePiece is fastest on some thousands at a time
Piece = tuple[str, bool]  # text, and whether a document starts with it


def split_text(text: str, size: int = PIECE) -> Iterator[str]:
    """Pieces of at most ``size`` characters; joined they are ``text``."""
    start = 0
    while len(text) - start > size:
        end = _cut_point(text, start, start + size)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut_point(text: str, start: int, end: int) -> int:
    """The last place up to ``end`` where no token lies across: before a space that follows something visible.

    Common tokenizers put a space only at the start of a piece. Text without such a place in its second half (Chinese,
    a table of numbers) is cut at ``end``.
    """
    place = end + 1
    while (place := text.rfind(" ", start + (end - start) // 2, place)) > start:
        if not text[place - 1].isspace():
            return place
    return end


def split_documents(blocks: Iterable[str], separator: str | None) -> Iterator[Piece]:
    """The blocks, joined, as documents between separators, in pieces; no more than a block is held."""
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
        rest = rest[sum(map(len, certain[:-1])) :]
    yield from _mark(split_text(rest), starts)


def _mark(pieces: Iterable[str], starts: bool) -> Iterator[Piece]:
    for piece in pieces:
        yield piece, starts
        starts = False
