"""A SentencePiece model as llama2.c's tokenizer.bin, whose layout ``model.text.llama2c`` gives."""

import struct
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from ..text.llama2c import EOS, FIRST_BYTE, Llama2cTokenizer
from ..text.tokenizer import SentencePieceTokenizer, Tokenizer
from .files import write_atomically

MARKS = {0: "<unk>", 1: "\n<s>\n", EOS: "\n</s>\n"}  # as llama2.c's own exporter spells them


def save(tokenizer: Tokenizer, path: Path) -> None:
    """Raises ValueError for ids in another order than llama2.c takes for granted."""
    if isinstance(tokenizer, Llama2cTokenizer):
        content = tokenizer.path.read_bytes()
    elif isinstance(tokenizer, SentencePieceTokenizer):
        content = pack(SentencePieceProcessor(model_file=str(tokenizer.path)), tokenizer.path)
    else:
        raise ValueError(f"{tokenizer.path} is no SentencePiece model: llama2.c has no form for it")
    write_atomically(path, lambda temporary: temporary.write_bytes(content) and None)


def pack(model: SentencePieceProcessor, path: Path) -> bytes:
    ids = [model.unk_id(), model.bos_id(), model.eos_id()]
    if ids != [0, 1, 2] or [i for i in range(model.get_piece_size()) if model.is_byte(i)] != list(range(3, 259)):
        raise ValueError(f"{path} has its special pieces elsewhere than llama2.c, whose first 259 tokens are fixed")
    pieces = [_bytes(model, i) for i in range(model.get_piece_size())]
    entries = [struct.pack("<fi", model.get_score(i), len(piece)) + piece for i, piece in enumerate(pieces)]
    return struct.pack("<i", max(map(len, pieces))) + b"".join(entries)


def _bytes(model: SentencePieceProcessor, token: int) -> bytes:
    if token in MARKS:
        return MARKS[token].encode()
    if token < FIRST_BYTE + 256:
        # The exporter writes bytes above 127 as the character of that number; readers know them by their place.
        return chr(token - FIRST_BYTE).encode()
    return model.id_to_piece(token).replace("\u2581", " ").encode()
