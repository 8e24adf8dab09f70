"""The kinds of the pieces of a SentencePiece ``tokenizer.model``, which its library does not tell.

The file is one message in protobuf's wire format: fields, each a varint (number << 3 | wire type) and a value. Reading
the few fields that are needed takes less than the package protobuf, whose version other programs fix.
Numbers of fields are those of sentencepiece_model.proto in SentencePiece's repository.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # kinds of pieces
PIECE = 1  # the field of the model
PIECE_TEXT, PIECE_SCORE, PIECE_KIND = 1, 2, 3
VARINT, FOUR_BYTES = 0, 5  # wire types; the only other one in a model is 2, a length and so many bytes


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
