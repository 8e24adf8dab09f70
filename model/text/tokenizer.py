"""Tokenizers: text to ids, and ids back to the same text."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from sentencepiece import SentencePieceProcessor

from ..cli.files import kind_of_file
from .sentencepiece_model import CONTROL, USER_DEFINED, pieces_of

REPLACEMENT = "\ufffd"  # decoders use it for bytes that are not UTF-8


class TextStream:
    """Decode token by token. The results of ``push`` and ``flush``, joined, equal ``decode`` of all the ids.

    With a ``prefix``, which is the ids before them, they equal ``decode`` of all ids without the text of the prefix.

    Tokens cannot be decoded one by one: a character may span several tokens, and decoders drop a space at the start of
    a text. So new tokens are decoded together with the tokens just before them. Both form the window.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        is_incomplete: Callable[[int], bool] = lambda token: False,
        prefix: Sequence[int] = (),
    ):
        """``is_incomplete`` is true for tokens whose text depends on the tokens that follow."""
        self._decode = decode
        self._is_incomplete = is_incomplete
        self._returned = 0  # characters at the beginning of the window
        self._start_window([*prefix])

    def push(self, token: int) -> str:
        """The new text after this token. It is held back until the bytes of its last character are complete."""
        self._window.append(token)
        if self._is_incomplete(token):
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        new = text[self._returned :]
        self._returned = len(text)
        # The next window begins with the tokens of the new text, unless that is white space: a decoder may drop spaces
        # at the start.
        if new.strip():
            self._start_window(self._window[self._old_tokens :])
        return new

    def flush(self) -> str:
        """The remaining text after the last token. The stream can then be used for another text."""
        rest = self._decode(self._window)[self._returned :]
        self._start_window([])
        return rest

    def _start_window(self, tokens: list[int]) -> None:
        """Begin a window with tokens whose text has been returned."""
        self._window = tokens
        self._old_tokens = len(tokens)
        self._returned = len(self._decode(tokens)) if tokens else 0


U2581 = "\u2581"  # SentencePiece writes a space inside a piece as this character


def check_encodable(text: str, where: str = "the text") -> str:
    """Return the text. Raises ValueError if it is not a str, or has half of a surrogate pair, which UTF-8 lacks."""
    if not isinstance(text, str):
        raise ValueError(f"{where} is {text!r:.60}: give a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} is not UTF-8: character {error.start} is {text[error.start]!r}, half of a surrogate pair; "
            "remove it"
        ) from None
    return text


class Tokenizer(Protocol):
    """The interface of all tokenizers."""

    path: Path  # the file it was read from
    vocab_size: int
    bos_id: int
    eos_ids: tuple[int, ...]  # any of them ends a text
    adds_space: bool  # whether encode puts a space before the text, as for Llama 2
    content: bytes  # of the file

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """Raises ValueError if UTF-8 cannot encode the text."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode(text, bos=False)`` of many texts, on all cores."""

    def control_tokens(self, template: str) -> dict[str, int]:
        """Name -> id of the tokens that a chat template may use: BOS, EOS and tokens added for chat."""

    def encode_control(self, text: str) -> list[int]:
        """Encode a rendered chat template: the name of a control token becomes that token."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text, without BOS, EOS and other control tokens."""

    def stream(self, prefix: Sequence[int] = ()) -> TextStream: ...


def is_tiktoken(content: bytes) -> bool:
    """Whether a tokenizer.model is of tiktoken, as Llama 3's: lines of a token in base64 and its rank."""
    return re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", content) is not None


class SentencePieceTokenizer:
    """A SentencePiece ``tokenizer.model``, written by ``train_tokenizer`` or published with a model like Llama 2."""

    def __init__(self, path: str | Path, content: bytes | None = None):
        """``content`` is the model, if ``path`` has it in another format."""
        self.path = Path(path)
        self.content = self.path.read_bytes() if content is None else content
        try:
            if not self.content:
                raise ValueError("empty")  # the library would accept it and fail later
            self.model = SentencePieceProcessor(model_proto=self.content)
        except (RuntimeError, ValueError):
            kind = kind_of_file(self.content) or "is not a SentencePiece model: give one, or a tokenizer.json"
            if is_tiktoken(self.content):
                kind = "is a file of tiktoken, which is not read: give the tokenizer.json of this model"
            raise ValueError(f"{path} {kind}") from None
        self.vocab_size = self.model.get_piece_size()
        self.bos_id = self.model.bos_id()
        if self.bos_id < 0:
            raise ValueError(f"{path} has no beginning-of-text piece: train it with a bos_id")
        # Each document begins with BOS, so a BOS in generated text ends it as EOS does.
        self.eos_ids = tuple(i for i in (self.model.eos_id(), self.bos_id) if i >= 0)
        self.adds_space = self.model.encode("a", out_type=str)[0].startswith(U2581)

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """BOS comes first."""
        ids = self.encode_batch([text])[0]
        return [self.bos_id, *ids] if bos else ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        rows: list[list[int]] = self.model.encode([check_encodable(text) for text in texts])
        return rows

    @cached_property
    def _control(self) -> dict[str, int]:
        """Name -> id of the control pieces.

        Raises ValueError for user-defined pieces, as Yi has for chat: SentencePiece finds them in any text, so a user
        could type them.
        """
        pieces = pieces_of(self.content)
        if any(piece.kind == USER_DEFINED for piece in pieces):
            raise ValueError(f"{self.path} has user-defined pieces: for a chat, give the tokenizer.json of this model")
        return {piece.text: number for number, piece in enumerate(pieces) if piece.kind == CONTROL}

    def control_tokens(self, template: str) -> dict[str, int]:
        return self._control

    def encode_control(self, text: str) -> list[int]:
        # Of two names with the same beginning the longer one
        names = "|".join(map(re.escape, sorted(self._control, key=len, reverse=True)))
        ids: list[int] = []
        for number, part in enumerate(re.split(f"({names})", text)):
            if number % 2:  # re.split with a group returns the matches at the odd indices
                ids.append(self._control[part])
            elif part:
                ids += self.encode_batch([part])[0]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.model.decode(list(ids))

    def stream(self, prefix: Sequence[int] = ()) -> TextStream:
        return TextStream(self.decode, prefix=prefix)


COMPARED_CHARACTERS = 100_000


def warn_of_lost_text(tokenizer: Tokenizer, text: str) -> None:
    """Warn with an example if the beginning of a text does not come back as it was."""
    text = text[:COMPARED_CHARACTERS]
    decoded = tokenizer.decode(tokenizer.encode(text, bos=False))
    if decoded == text:
        return
    differences = (place for place, (one, other) in enumerate(zip(text, decoded)) if one != other)
    place = next(differences, min(len(text), len(decoded)))
    example = slice(max(0, place - 10), place + 20)
    warnings.warn(
        f"the tokenizer loses text: {text[example]!r} comes back as {decoded[example]!r}; bits per byte count all of "
        "the text, so they are too low",
        stacklevel=1,
    )


def split_text(text: str, size: int) -> Iterator[str]:
    """Split ``text`` into parts of at most ``size`` characters, at the end of a line or between words if possible."""
    start = 0
    while len(text) - start > size:
        end = _cut_point(text, start, start + size)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


# Up to the last place that hardly any token crosses: after a line end that a visible character follows, or before a
# space that follows one, because most tokenizers have spaces only at the start of a token.
LINE_END, WORD_END = (re.compile(pattern, re.DOTALL) for pattern in (r".*\n(?=\S)", r".*\S(?= )"))


def _cut_point(text: str, start: int, end: int) -> int:
    """The last such place in the second half of ``text[start:end]``.

    Without either (DNA, numbers separated by tabs), the text is cut at ``end``.
    """
    middle = start + (end - start) // 2
    half = text[middle : end + 1]
    found = LINE_END.match(half) or WORD_END.match(half)
    return middle + found.end() if found else end
