"""The kinds of the pieces of a SentencePiece ``tokenizer.model``, which its library does not tell, and a new model.

The file is one message in protobuf's wire format: fields, each a varint (number << 3 | wire type) and a value. Reading
and writing the few fields that are needed takes less than the package protobuf, whose version other programs fix.
Numbers of fields are those of sentencepiece_model.proto in SentencePiece's repository.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # kinds of pieces
BPE = 2  # the kind of a model
PIECE, TRAINER, NORMALIZER = 1, 2, 3  # fields of the model
PIECE_TEXT, PIECE_SCORE, PIECE_KIND = 1, 2, 3
MODEL_KIND, VOCAB_SIZE, BYTE_FALLBACK = 3, 4, 35  # fields of the trainer
NORMALIZER_NAME, REMOVE_EXTRA_WHITESPACES = 1, 4  # fields of the normalizer
VARINT, LENGTH, FOUR_BYTES = 0, 2, 5  # wire types; a model has no others


class Piece(NamedTuple):
    text: str
    score: float
    kind: int = NORMAL


def pieces_of(model: bytes) -> list[Piece]:
    """The pieces of a model, each at the index that is its id. SentencePiece must have read the model before."""
    pieces = []
    for number, value in _fields(model):
        if number == PIECE:
            piece = dict(_fields(value))
            (score,) = struct.unpack("<f", piece.get(PIECE_SCORE, bytes(4)))
            pieces.append(Piece(piece[PIECE_TEXT].decode(), score, piece.get(PIECE_KIND, NORMAL)))
    return pieces


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value): an int for a varint, otherwise bytes."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            varint, position = _varint(message, position)
            yield number, varint
            continue
        size, position = (4, position) if wire_type == FOUR_BYTES else _varint(message, position)
        yield number, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number that begins at ``position``, seven bits in each byte, and the position after it."""
    number = shift = 0
    while message[position] > 127:
        number |= (message[position] & 127) << shift
        shift += 7
        position += 1
    return number | message[position] << shift, position + 1


def bpe_model(pieces: Sequence[Piece]) -> bytes:
    """A BPE model with byte fallback, which puts a space before the text and changes nothing else in it."""
    model = b""
    for piece in pieces:
        fields = _field(PIECE_TEXT, piece.text.encode())
        fields += _field(PIECE_SCORE, struct.pack("<f", piece.score), FOUR_BYTES) + _field(PIECE_KIND, piece.kind)
        model += _field(PIECE, fields)
    trainer = _field(MODEL_KIND, BPE) + _field(VOCAB_SIZE, len(pieces)) + _field(BYTE_FALLBACK, 1)
    normalizer = _field(NORMALIZER_NAME, b"identity") + _field(REMOVE_EXTRA_WHITESPACES, 0)
    return model + _field(TRAINER, trainer) + _field(NORMALIZER, normalizer)


def _field(number: int, value: int | bytes, wire_type: int = LENGTH) -> bytes:
    if isinstance(value, int):
        return _as_varint(number << 3 | VARINT) + _as_varint(value)
    size = _as_varint(len(value)) if wire_type == LENGTH else b""
    return _as_varint(number << 3 | wire_type) + size + value


def _as_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])
