"""Tokenizers: text to ids, and ids back to the same text."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from sentencepiece import SentencePieceProcessor

REPLACEMENT = "\ufffd"  # what decoders put where bytes are not UTF-8


class TextStream:
    """Decodes token by token. The pieces of ``push`` and ``flush``, joined, equal ``decode`` of all the ids.

    A token alone does not say its text: a character may lie over several tokens, and a space that starts the first
    one may be a marker that the decoder drops. So the tokens since the last point where the text was complete are
    decoded together with those just before it, their context, which shows the decoder that the text goes on.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], is_open: Callable[[int], bool] = lambda token: False):
        """``is_open``: tokens whose text may still change until one of another kind follows."""
        self._decode = decode
        self._is_open = is_open
        self._window: list[int] = []
        self._context = self._context_length = self._given = 0

    def push(self, token: int) -> str:
        """The text that is now certain: often the token's own, sometimes nothing yet."""
        self._window.append(token)
        if self._is_open(token):
            return ""
        text = self._decode(self._window)
        # The last one to three replacement characters may be the start of a character whose other bytes are to come.
        unsure = min(3, len(text) - len(text.rstrip(REPLACEMENT)))
        given = self._given
        self._given = max(given, len(text) - unsure)
        # A decoder that drops spaces at the start may drop a context of spaces: wait until the next one has more.
        if not unsure and text[self._context_length :].strip():
            self._start_anew(self._window[self._context :])
        return text[given : len(text) - unsure]

    def flush(self) -> str:
        """The rest, when no more tokens come. The stream is then as new."""
        rest = self._decode(self._window)[self._given :]
        self._start_anew([])
        return rest

    def _start_anew(self, context: list[int]) -> None:
        self._window = context
        self._context = len(context)  # in tokens
        self._context_length = self._given = len(self._decode(context))  # in characters


SPACE = "\u2581"  # how SentencePiece writes a space inside a piece


def checked(text: str) -> str:
    """The text. Raises ValueError for half of a surrogate pair, the one kind of character that UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text is not UTF-8: its character {error.start} is {text[error.start]!r}, half of a surrogate pair; "
            "remove it, or read the text again as UTF-8"
        ) from None
    return text


class Tokenizer(Protocol):
    """What the rest of the project knows of a tokenizer.

    Every method that takes text raises ValueError if UTF-8 cannot encode it (``checked``).
    """

    path: Path  # the file it was read from
    vocab_size: int
    bos_id: int
    eos_ids: tuple[int, ...]  # any of them ends a text
    adds_space: bool  # encode puts a space before the text, as Llama 2's does
    fingerprint: str  # differs when the ids of some text may differ

    def encode(self, text: str, bos: bool = True) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """``encode(text, bos=False)`` of many texts."""
        ...

    def control_tokens(self, template: str) -> dict[str, int]:
        """The tokens that a chat template may name, by name: BOS, EOS, and what was added for it."""
        ...

    def encode_control(self, text: str) -> list[int]:
        """The tokens of a chat template's output, in which the name of a control token is that token."""
        ...

    def encode_literal(self, text: str) -> list[int]:
        """The tokens of typed text, in which the name of a control token is text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text, without BOS, EOS and other control ids."""
        ...

    def stream(self) -> TextStream: ...


def read_again(tokenizer: Tokenizer) -> bytes:
    """The content of the tokenizer's file. Raises ValueError if it is no longer what the tokenizer was made from."""
    content = tokenizer.path.read_bytes()
    if hashlib.sha256(content).hexdigest() != tokenizer.fingerprint:
        raise ValueError(f"{tokenizer.path} changed after it was read: run again")
    return content


class SentencePieceTokenizer:
    """A SentencePiece ``tokenizer.model``: one that ``train_tokenizer`` wrote, or a published one such as Llama 2's."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        proto = self.path.read_bytes()
        try:
            if not proto:
                raise ValueError("empty")  # which the library takes, and complains of later
            self._model = SentencePieceProcessor(model_proto=proto)
        except (RuntimeError, ValueError):
            raise ValueError(f"{path} is not a SentencePiece model: give a tokenizer.model file") from None
        self.vocab_size = self._model.get_piece_size()
        self.bos_id = self._model.bos_id()
        if self.bos_id < 0:
            raise ValueError(f"{path} has no beginning-of-text piece: train it with a bos_id")
        # Each document begins with BOS, so a BOS in generated text ends it as EOS does.
        self.eos_ids = tuple(i for i in (self._model.eos_id(), self.bos_id) if i >= 0)
        self.fingerprint = hashlib.sha256(proto).hexdigest()
        self.adds_space = self._model.encode("a", out_type=str)[0].startswith(SPACE)
        # SentencePiece takes the sign it writes for a space as a space; spelt in bytes it comes back as itself.
        spelt = [self._model.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]
        has_bytes = all(self._model.is_byte(i) for i in spelt)
        self._sign = spelt if has_bytes and not self.adds_space else None

    def encode(self, text: str, bos: bool = True) -> list[int]:
        ids = self.encode_batch([text])[0]
        return [self.bos_id, *ids] if bos else ids

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        rows: list[list[int]] = self._model.encode([checked(text) for text in texts], num_threads=threads)
        for row, text in enumerate(texts):
            if self._sign and SPACE in text:
                first, *others = self._model.encode(text.split(SPACE))
                rows[row] = first
                for part in others:
                    rows[row] += self._sign + part
        return rows

    def control_tokens(self, template: str = "") -> dict[str, int]:
        return {self._model.id_to_piece(i): i for i in range(self.vocab_size) if self._model.is_control(i)}

    def encode_control(self, text: str) -> list[int]:
        names = self.control_tokens()
        ids: list[int] = []
        for place, part in enumerate(re.split("(" + "|".join(map(re.escape, names)) + ")", checked(text))):
            if place % 2:  # split by a group: every second part is what the group matched
                ids.append(names[part])
            elif part:
                ids += self.encode_literal(part)
        return ids

    def encode_literal(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        ids = list(ids)
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise ValueError(f"token {max(ids)} or {min(ids)} is not among the {self.vocab_size} of {self.path}")
        return self._model.decode(ids)

    def stream(self) -> TextStream:
        return TextStream(self.decode)


PIECE = 16_000  # characters: SentencePiece is fastest on some thousands at a time


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
    """The last place up to ``end`` that no token crosses: before a space that follows something visible.

    Common tokenizers put a space only at the start of a piece. Text without such a place in its second half (Chinese,
    a table of numbers) is cut at ``end``.
    """
    place = end + 1
    while (place := text.rfind(" ", start + (end - start) // 2, place)) > start:
        if not text[place - 1].isspace():
            return place
    return end
