"""llama2.c's tokenizer.bin <-> a SentencePiece model: the pieces and scores of BPE.

The format: int32 longest piece, then for each token float32 score, int32 length, that many bytes. Tokens 0 to 2 are
unknown, BOS and EOS, 3 to 258 the bytes. The number of tokens is not in the file, only in the model file.
"""

import struct
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from ..cli.files import write_atomically
from ..text.sentencepiece_model import BYTE, CONTROL, UNKNOWN, Piece, bpe_model
from ..text.tokenizer import U2581, SentencePieceTokenizer, Tokenizer

BOS, EOS, FIRST_BYTE = 1, 2, 3
FIRST_PIECE = FIRST_BYTE + 256  # the tokens before it are the same in every file


def read(path: Path, vocab_size: int) -> bytes:
    """The tokenizer.model that encodes as llama2.c does: a space before the text, merges by best score.

    Raises ValueError if the file does not hold ``vocab_size`` tokens, or if SentencePiece would not encode alike.
    """
    found, scores = _read_pieces(path.read_bytes(), vocab_size, path)
    pieces = [Piece("<unk>", scores[0], UNKNOWN)]
    pieces += [Piece("<s>", scores[BOS], CONTROL), Piece("</s>", scores[EOS], CONTROL)]
    pieces += [Piece(f"<0x{byte:02X}>", scores[FIRST_BYTE + byte], BYTE) for byte in range(256)]
    try:
        for raw, score in zip(found[FIRST_PIECE:], scores[FIRST_PIECE:]):
            pieces.append(Piece(raw.decode().replace(" ", U2581), score))
        model = bpe_model(pieces)
        SentencePieceProcessor(model_proto=model)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} has pieces that SentencePiece does not allow ({error}): get the file again") from None
    if b" " not in found[FIRST_PIECE:]:
        # llama2.c would fall back to the byte of the space, SentencePiece to the bytes of its space sign
        raise ValueError(f"{path} has no piece for the space: SentencePiece cannot encode as llama2.c does")
    return model


def _read_pieces(content: bytes, vocab_size: int, path: str | Path) -> tuple[list[bytes], list[float]]:
    """The piece and the score of each token. Raises ValueError if the file does not hold ``vocab_size`` tokens."""
    pieces: list[bytes] = []
    scores: list[float] = []
    position = 4
    while position + 8 <= len(content):
        score, length = struct.unpack_from("<fI", content, position)
        position += 8 + length
        pieces.append(content[position - length : position])
        scores.append(score)
    if position != len(content) or len(pieces) != vocab_size or vocab_size < FIRST_PIECE:
        raise ValueError(f"{path} does not hold {vocab_size} tokens: give the file that belongs to the model")
    return pieces, scores


def save(tokenizer: Tokenizer, path: Path) -> None:
    """Write ``tokenizer`` as a tokenizer.bin. Raises ValueError if the format cannot express it.

    llama2.c puts a space before every text, even if ``tokenizer`` does not: the caller must warn.
    """
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise ValueError(f"{tokenizer.path} is not a SentencePiece model: llama2.c cannot use it")
    model = SentencePieceProcessor(model_proto=tokenizer.content)
    ids = [model.unk_id(), model.bos_id(), model.eos_id()]
    byte_ids = [i for i in range(tokenizer.vocab_size) if model.is_byte(i)]
    if ids != [0, BOS, EOS] or byte_ids != list(range(FIRST_BYTE, FIRST_PIECE)):
        raise ValueError(
            f"{tokenizer.path} orders its special tokens differently from llama2.c, whose first 259 are fixed"
        )
    if model.is_unknown(model.piece_to_id(U2581)):
        raise ValueError(f"{tokenizer.path} has no piece for the space: llama2.c needs one")
    # As llama2.c's exporter writes them. run.c prints the byte that the name of a byte piece gives.
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [model.id_to_piece(i).replace(U2581, " ") for i in range(FIRST_PIECE, tokenizer.vocab_size)]
    encoded = [piece.encode() for piece in pieces]
    packed = [struct.pack("<fi", model.get_score(i), len(piece)) + piece for i, piece in enumerate(encoded)]
    content = struct.pack("<i", max(map(len, encoded))) + b"".join(packed)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
