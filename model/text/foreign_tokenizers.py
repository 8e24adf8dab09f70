"""Tokenizers of other programs: Hugging Face's tokenizer.json and llama2.c's tokenizer.bin.

tokenizer.bin: int32 longest piece, then for each token float32 score, int32 length, that many bytes. Tokens 0 to 2 are
unknown, BOS and EOS, 3 to 258 the bytes. It does not say how many tokens there are: the model does.
"""

import hashlib
import heapq
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cli.files import FLAG, TOKEN, Kind, read_json
from .tokenizer import TextStream

BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class HFTokenizer:
    """A tokenizer.json with its special tokens, as its own library reads it.

    Which tokens begin and end a text is said by the file's post-processor and by ``tokenizer_config.json`` and
    ``special_tokens_map.json`` beside it. Chat models have several end tokens, which the model's configuration
    lists: give them as ``eos_ids``. Raises ValueError when no BOS is named.
    """

    def __init__(self, path: str | Path, eos_ids: Sequence[int] | None = None):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ValueError(f"{path} needs the extra hf: pip install -e '.[hf]', or give a tokenizer.model") from None
        self.path = Path(path)
        content = self.path.read_bytes()
        try:
            self._model = Tokenizer.from_str(content.decode())
        except BaseException as error:  # the library raises bare Exceptions, and where its Rust panics not even these
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ValueError(f"{path} is not a tokenizer.json ({error}): get the file again") from None
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self.vocab_size = max(self._model.get_vocab().values()) + 1
        self._special = {token for token, added in self._model.get_added_tokens_decoder().items() if added.special}
        settings = _settings_beside(self.path)
        added = self._model.encode("", add_special_tokens=True).ids
        bos = added[0] if added else self._id_of(settings.get("bos_token"))
        if bos is None:
            raise ValueError(f"{path} names no BOS token: put its tokenizer_config.json beside it")
        self.bos_id: int = bos
        eos = self._id_of(settings.get("eos_token"))
        self.eos_ids = tuple(eos_ids) if eos_ids is not None else () if eos is None else (eos,)
        # A file with a post-processor that adds nothing is of a model that was trained without BOS.
        without = read_json(self.path).get("post_processor") is not None or settings.get("add_bos_token") is False
        self._starts = bool(added) or settings.get("add_bos_token") is True or not without
        probe = self._model.encode("a", add_special_tokens=False).tokens
        self.adds_space = bool(probe) and probe[0][0] in "\u2581\u0120 "

    def _id_of(self, token: Any) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return self._model.token_to_id(content) if isinstance(content, str) else None

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """BOS comes first where the model was trained so, and in the empty text, which has to start somehow."""
        return [self.bos_id] * (bos and (self._starts or not text)) + self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Many texts at once. The library takes all cores whatever ``threads`` says."""
        return [row.ids for row in self._model.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(list(ids), skip_special_tokens=True)

    def stream(self) -> TextStream:
        return TextStream(self.decode, self._is_open)

    def _is_open(self, token: int) -> bool:
        """A byte piece, as a wrong one spoils the whole run for the decoder; and what it skips, which ends no run."""
        piece = self._model.id_to_token(token)
        return piece is None or token in self._special or BYTE_PIECE.fullmatch(piece) is not None


KINDS: dict[str, Kind] = {"bos_token": TOKEN, "eos_token": TOKEN, "add_bos_token": FLAG}


def _settings_beside(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path.parent / name).is_file():
            said = read_json(path.parent / name, KINDS)
            settings |= {key: value for key, value in said.items() if value is not None}
    return settings


BOS, EOS, FIRST_BYTE = 1, 2, 3
GONE = -1  # where a token was that has been joined to its left neighbour


class Llama2cTokenizer:
    """Byte-pair merging by best score, as llama2.c does it: a space before the text, bytes for unknown characters."""

    def __init__(self, path: str | Path, vocab_size: int):
        self.path = Path(path)
        content = self.path.read_bytes()
        self._pieces, self._scores = _read(content, vocab_size, self.path)
        self._pieces[FIRST_BYTE : FIRST_BYTE + 256] = [bytes([byte]) for byte in range(256)]
        first = FIRST_BYTE + 256
        self._ids = {piece: token for token, piece in reversed(list(enumerate(self._pieces))) if token >= first}
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self.vocab_size = vocab_size
        self.bos_id = BOS
        # llama2.c's models were trained on stories that BOS sets apart: it ends one, too.
        self.eos_ids: tuple[int, ...] = (EOS, BOS)
        self.adds_space = True

    def entries(self) -> tuple[list[bytes], list[float]]:
        """The pieces and their scores, token by token."""
        return self._pieces, self._scores

    def encode(self, text: str, bos: bool = True) -> list[int]:
        return [BOS] * bos + self._merge(" " + text if text else "")

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(text, bos=False) for text in texts]

    def _merge(self, text: str) -> list[int]:
        """Join the neighbours whose piece has the best score, the leftmost of equals, until none makes a piece."""
        tokens: list[int] = []
        for character in text:
            raw = character.encode()
            found = self._ids.get(raw)
            tokens += [byte + FIRST_BYTE for byte in raw] if found is None else [found]
        left, right = list(range(-1, len(tokens) - 1)), list(range(1, len(tokens) + 1))
        heap: list[tuple[float, int, int, int, int]] = []

        def offer(i: int, j: int) -> None:
            if i >= 0 and j < len(tokens):
                a, b = tokens[i], tokens[j]
                joined = self._ids.get(self._pieces[a] + self._pieces[b])
                if joined is not None:
                    heapq.heappush(heap, (-self._scores[joined], i, a, b, joined))

        for i in range(len(tokens) - 1):
            offer(i, i + 1)
        while heap:
            _, i, a, b, joined = heapq.heappop(heap)
            j = right[i]
            if tokens[i] != a or j >= len(tokens) or tokens[j] != b:
                continue  # one of the two has been joined to something else since
            tokens[i], tokens[j] = joined, GONE
            right[i] = right[j]
            if right[i] < len(tokens):
                left[right[i]] = i
            offer(left[i], i)
            offer(i, right[i])
        return [token for token in tokens if token != GONE]

    def decode(self, ids: Sequence[int]) -> str:
        if any(not 0 <= token < self.vocab_size for token in ids):
            raise ValueError(f"a token of {list(ids)} is not among the {self.vocab_size} of {self.path}")
        raw = b"".join(self._pieces[token] for token in ids if token not in (BOS, EOS))
        return raw.removeprefix(b" ").decode(errors="replace")

    def stream(self) -> TextStream:
        return TextStream(self.decode)


def _read(content: bytes, vocab_size: int, path: Path) -> tuple[list[bytes], list[float]]:
    pieces, scores, position = [], [], 4
    try:
        for _ in range(vocab_size):
            score, length = struct.unpack_from("<fi", content, position)
            position += 8
            if not 0 <= length <= len(content) - position:
                raise struct.error
            pieces.append(content[position : position + length])
            scores.append(score)
            position += length
    except struct.error:
        raise ValueError(f"{path} ends after {len(pieces)} of {vocab_size} tokens: give the model's own file") from None
    if position != len(content) or vocab_size < FIRST_BYTE + 256:
        raise ValueError(f"{path} does not hold {vocab_size} tokens: give the tokenizer.bin of the model's vocabulary")
    return pieces, scores
