"""llama2.c's tokenizer.bin, read and written: the pieces and scores of a SentencePiece BPE model.

The format: int32 longest piece, then for each token float32 score, int32 length, that many bytes. Tokens 0 to 2 are
unknown, BOS and EOS, 3 to 258 the bytes. The number of tokens is not in the file, only in the model file.
"""

import hashlib
import heapq
import struct
from collections.abc import Container, Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from ..cli.files import write_atomically
from .tokenizer import U2581, SentencePieceTokenizer, TextStream, Tokenizer, check_encodable, file_content

BOS, EOS, FIRST_BYTE = 1, 2, 3
REMOVED = -1  # marks a token that was merged into its left neighbour


class Llama2cTokenizer:
    """BPE as in llama2.c: a space before the text, merges by best score, bytes for unknown characters."""

    def __init__(self, path: str | Path, vocab_size: int):
        self.path = Path(path)
        content = self.path.read_bytes()
        self._pieces, self._scores = _read_pieces(content, vocab_size, self.path)
        self._pieces[FIRST_BYTE : FIRST_BYTE + 256] = [bytes([byte]) for byte in range(256)]
        first = FIRST_BYTE + 256
        self._ids: dict[bytes, int] = {}
        for token in range(first, vocab_size):
            self._ids.setdefault(self._pieces[token], token)  # the first of equal pieces is used
        self.file_hash = self.fingerprint = hashlib.sha256(content).hexdigest()
        self.vocab_size = vocab_size
        self.bos_id = BOS
        # llama2.c's models were trained on stories separated by BOS, so a generated BOS ends the story too.
        self.eos_ids: tuple[int, ...] = (EOS, BOS)
        self.adds_space = True

    def pieces_and_scores(self) -> tuple[list[bytes], list[float]]:
        """The piece and the score of each token, by id."""
        return self._pieces, self._scores

    def encode(self, text: str, bos: bool = True) -> list[int]:
        ids = self._merge(" " + check_encodable(text)) if text else []
        return [BOS, *ids] if bos else ids

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(text, bos=False) for text in texts]

    def control_tokens(self, template: str) -> dict[str, int]:
        return {}

    def encode_control(self, text: str) -> list[int]:
        return self.encode(text, bos=False)

    encode_literal = encode_control

    def find_control(self, text: str, ids: Container[int]) -> list[tuple[int, int]]:
        return []

    def _merge(self, text: str) -> list[int]:
        """Merge the adjacent pair whose piece has the best score, leftmost first, until no pair forms a piece."""
        tokens: list[int] = []
        for character in text:
            raw = character.encode()
            found = self._ids.get(raw)
            tokens += [byte + FIRST_BYTE for byte in raw] if found is None else [found]
        left = list(range(-1, len(tokens) - 1))  # indices of the neighbours that are not removed
        right = list(range(1, len(tokens) + 1))
        heap: list[tuple[float, int, int, int, int]] = []

        def push_pair(i: int, j: int) -> None:
            if i >= 0 and j < len(tokens):
                a, b = tokens[i], tokens[j]
                merged = self._ids.get(self._pieces[a] + self._pieces[b])
                if merged is not None:
                    heapq.heappush(heap, (-self._scores[merged], i, a, b, merged))

        for i in range(len(tokens) - 1):
            push_pair(i, i + 1)
        while heap:
            _, i, a, b, merged = heapq.heappop(heap)
            j = right[i]
            if tokens[i] != a or j >= len(tokens) or tokens[j] != b:
                continue  # one of the two was merged with another token after this pair was pushed
            tokens[i] = merged
            tokens[j] = REMOVED
            right[i] = right[j]
            if right[i] < len(tokens):
                left[right[i]] = i
            push_pair(left[i], i)
            push_pair(i, right[i])
        return [token for token in tokens if token != REMOVED]

    def decode(self, ids: Sequence[int]) -> str:
        if any(not 0 <= token < self.vocab_size for token in ids):
            raise ValueError(f"a token of {list(ids)} is not among the {self.vocab_size} of {self.path}")
        raw = b"".join(self._pieces[token] for token in ids if token not in (BOS, EOS))
        return raw.removeprefix(b" ").decode(errors="replace")

    def stream(self) -> TextStream:
        return TextStream(self.decode)


def _read_pieces(content: bytes, vocab_size: int, path: Path) -> tuple[list[bytes], list[float]]:
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
        raise ValueError(
            f"{path} ends after {len(pieces)} of {vocab_size} tokens: give the file that belongs to the model"
        ) from None
    if position != len(content) or vocab_size < FIRST_BYTE + 256:
        raise ValueError(f"{path} does not hold {vocab_size} tokens: give the file that belongs to the model")
    return pieces, scores


SPECIAL_PIECES = {0: "<unk>", BOS: "\n<s>\n", EOS: "\n</s>\n"}  # as llama2.c's exporter writes them


def save(tokenizer: Tokenizer, path: Path) -> None:
    """Write ``tokenizer`` as a tokenizer.bin. Raises ValueError if the format cannot express it.

    llama2.c puts a space before every text, even if ``tokenizer`` does not: the caller must warn.
    """
    if isinstance(tokenizer, Llama2cTokenizer):
        content = file_content(tokenizer)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        content = pack(SentencePieceProcessor(model_proto=file_content(tokenizer)), tokenizer.path)
    else:
        raise ValueError(f"{tokenizer.path} is not a SentencePiece model: llama2.c cannot use it")
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def pack(model: SentencePieceProcessor, path: Path) -> bytes:
    ids = [model.unk_id(), model.bos_id(), model.eos_id()]
    byte_ids = [i for i in range(model.get_piece_size()) if model.is_byte(i)]
    if ids != [0, BOS, EOS] or byte_ids != list(range(FIRST_BYTE, FIRST_BYTE + 256)):
        raise ValueError(f"{path} orders its special tokens differently from llama2.c, whose first 259 are fixed")
    pieces = [_piece_bytes(model, i) for i in range(model.get_piece_size())]
    if model.is_unknown(model.piece_to_id(U2581)):
        raise ValueError(f"{path} has no piece for the space: llama2.c needs one")
    packed = [struct.pack("<fi", model.get_score(i), len(piece)) + piece for i, piece in enumerate(pieces)]
    return struct.pack("<i", max(map(len, pieces))) + b"".join(packed)


def sentencepiece_model(tokenizer: Llama2cTokenizer) -> bytes:
    """Convert a tokenizer.bin to a tokenizer.model that encodes the same way.

    It is the protocol buffer of sentencepiece_model.proto: the pieces with scores and types, the trainer's settings and
    the normalizer's.
    """
    if b" " not in tokenizer.pieces_and_scores()[0][FIRST_BYTE + 256 :]:
        raise ValueError(f"{tokenizer.path} has no piece for the space: no tokenizer.model would encode the same way")
    pieces = b"".join(
        _field(1, _piece_message(token, piece, score))
        for token, (piece, score) in enumerate(zip(*tokenizer.pieces_and_scores()))
    )
    # BPE, the vocabulary size, byte_fallback
    trainer = _field(3, 2) + _field(4, tokenizer.vocab_size) + _field(35, 1)
    # identity, a space before the text, extra spaces kept, spaces written as U+2581
    normalizer = _field(1, b"identity") + _field(3, 1) + _field(4, 0) + _field(5, 1)
    proto = pieces + _field(2, trainer) + _field(3, normalizer)
    try:
        SentencePieceProcessor(model_proto=proto)
    except RuntimeError:
        raise ValueError(f"{tokenizer.path} has pieces that SentencePiece does not allow") from None
    return proto


NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # the types of pieces in sentencepiece_model.proto


def _piece_message(token: int, piece: bytes, score: float) -> bytes:
    """The message of one piece in sentencepiece_model.proto."""
    if token == 0:
        text, piece_type = "<unk>", UNKNOWN
    elif token < FIRST_BYTE:
        text, piece_type = "<s>" if token == BOS else "</s>", CONTROL
    elif token < FIRST_BYTE + 256:
        text, piece_type = f"<0x{token - FIRST_BYTE:02X}>", BYTE
    else:
        text, piece_type = piece.decode().replace(" ", U2581), NORMAL
    return _field(1, text.encode()) + _field(2, struct.pack("<f", score), fixed=True) + _field(3, piece_type)


def _field(number: int, value: int | bytes, fixed: bool = False) -> bytes:
    """A protocol buffer field: a varint, four ``fixed`` bytes, or a length and that many bytes.

    Written here because sentencepiece's own sentencepiece_model_pb2 needs protobuf, which is not a dependency.
    """
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if fixed:
        return _varint(number << 3 | 5) + value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; the high bit is set if more bytes follow."""
    raw = bytearray()
    while value > 127:
        raw.append(value & 127 | 128)
        value >>= 7
    return bytes([*raw, value])


def _piece_bytes(model: SentencePieceProcessor, token: int) -> bytes:
    if token in SPECIAL_PIECES:
        return SPECIAL_PIECES[token].encode()
    if token < FIRST_BYTE + 256:
        return f"<0x{token - FIRST_BYTE:02X}>".encode()  # run.c prints the byte that this text names
    return model.id_to_piece(token).replace(U2581, " ").encode()
