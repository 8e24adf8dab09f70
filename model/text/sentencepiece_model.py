"""The kinds of the pieces of a SentencePiece ``tokenizer.model``, which its library does not tell; and such a model.

The file is one message in protobuf's wire format: fields, each a varint (number << 3 | wire type) and a value. Reading
the few fields that are needed takes less than the package protobuf, whose version other programs fix.
Numbers of fields are those of sentencepiece_model.proto in SentencePiece's repository.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # kinds of pieces
PIECE = 1  # the field of the model
PIECE_TEXT, PIECE_SCORE, PIECE_KIND = 1, 2, 3
# A field of the model, and in it the field of the type, the type BPE, and the field that lets bytes be pieces
TRAINER, MODEL_TYPE, BPE, BYTE_FALLBACK = 2, 3, 2, 35
NORMALIZER, DUMMY_PREFIX, REMOVES_SPACES = 3, 3, 4  # a field of the model, and fields in it
VARINT, SIZED, FOUR_BYTES = 0, 2, 5  # wire types in a model; SIZED is a length and so many bytes


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


def bpe_model(pieces: Iterable[Piece]) -> bytes:
    """A model like Llama 2's: BPE, bytes for unknown characters, a space before every text, and all spaces kept."""
    content = b""
    for text, score, kind in pieces:
        fields = _sized(PIECE_TEXT, text.encode()) + _tag(PIECE_SCORE, FOUR_BYTES) + struct.pack("<f", score)
        content += _sized(PIECE, fields + _number(PIECE_KIND, kind))
    content += _sized(TRAINER, _number(MODEL_TYPE, BPE) + _number(BYTE_FALLBACK, 1))
    return content + _sized(NORMALIZER, _number(DUMMY_PREFIX, 1) + _number(REMOVES_SPACES, 0))


def _tag(number: int, wire_type: int) -> bytes:
    return _varint_bytes(number << 3 | wire_type)


def _number(number: int, value: int) -> bytes:
    return _tag(number, VARINT) + _varint_bytes(value)


def _sized(number: int, value: bytes) -> bytes:
    return _tag(number, SIZED) + _varint_bytes(len(value)) + value


def _varint_bytes(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint_bytes(rest) if rest else bytes([low])
