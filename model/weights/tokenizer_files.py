"""A SentencePiece tokenizer in the files of other programs: Hugging Face's tokenizer.json, llama2.c's tokenizer.bin.

From tokenizer.model alone transformers would guess: it puts a space before every text, whatever the model says.
"""

import struct
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from ..cli.files import write_atomically
from ..text.foreign_tokenizers import EOS, FIRST_BYTE, Llama2cTokenizer
from ..text.tokenizer import SPACE, SentencePieceTokenizer, Tokenizer


def describe(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """tokenizer.json and tokenizer_config.json of a BPE or character model; None of a kind that is not merged."""
    model = SentencePieceProcessor(model_proto=path.read_bytes())
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    plain = {i for i in range(len(pieces)) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))}
    merged = [i for i in plain if len(pieces[i]) > 1]
    if not all(model.get_score(i).is_integer() for i in merged):  # BPE scores are ranks, other models' probabilities
        return None
    merged.sort(key=lambda i: -model.get_score(i))
    merges = [split for i in merged for split in _splits(pieces[i], {pieces[i] for i in plain})]
    prefix = model.encode("a", out_type=str)[0].startswith(SPACE)
    special = [i for i in range(len(pieces)) if model.is_control(i) or model.is_unknown(i)]
    names = {"bos_token": model.bos_id(), "eos_token": model.eos_id(), "unk_token": model.unk_id()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["add_prefix_space"] = prefix  # llama.cpp's converter takes it for true where it is not said
    config |= {name: pieces[i] for name, i in names.items() if i >= 0}
    return _whole(pieces, merges, special, model, prefix), config


def _splits(piece: str, known: set[str]) -> list[list[str]]:
    """Every pair of neighbours that this piece can come from; all of them have its rank."""
    halves = ([piece[:i], piece[i:]] for i in range(1, len(piece)))
    return [[left, right] for left, right in halves if left in known and right in known]


def _whole(
    pieces: list[str], merges: list[list[str]], special: list[int], model: SentencePieceProcessor, prefix: bool
) -> dict[str, Any]:
    bos = pieces[model.bos_id()]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    spaces: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    text: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    text += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        spaces.insert(0, {"type": "Prepend", "prepend": SPACE})
        text.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": pieces[i], **flags} for i in special],
        "normalizer": {"type": "Sequence", "normalizers": spaces},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [first, *({"Sequence": {"id": part, "type_id": 0}} for part in "AB")],
            "special_tokens": {bos: {"id": bos, "ids": [model.bos_id()], "tokens": [bos]}},
        },
        "decoder": {"type": "Sequence", "decoders": text},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces[model.unk_id()],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": merges,
        },
    }


MARKS = {0: "<unk>", 1: "\n<s>\n", EOS: "\n</s>\n"}  # as llama2.c's own exporter spells them


def save(tokenizer: Tokenizer, path: Path) -> None:
    """Raises ValueError for ids in another order than llama2.c takes for granted."""
    if isinstance(tokenizer, Llama2cTokenizer):
        content = tokenizer.path.read_bytes()
    elif isinstance(tokenizer, SentencePieceTokenizer):
        content = pack(SentencePieceProcessor(model_proto=tokenizer.path.read_bytes()), tokenizer.path)
    else:
        raise ValueError(f"{tokenizer.path} is no SentencePiece model: llama2.c has no form for it")
    write_atomically(path, lambda temporary: temporary.write_bytes(content) and None)


def pack(model: SentencePieceProcessor, path: Path) -> bytes:
    ids = [model.unk_id(), model.bos_id(), model.eos_id()]
    if ids != [0, 1, 2] or [i for i in range(model.get_piece_size()) if model.is_byte(i)] != list(range(3, 259)):
        raise ValueError(f"{path} has its special pieces elsewhere than llama2.c, whose first 259 tokens are fixed")
    pieces = [_bytes(model, i) for i in range(model.get_piece_size())]
    if model.is_unknown(model.piece_to_id(SPACE)):
        raise ValueError(f"{path} has no piece for the space, which llama2.c would spell in other bytes")
    entries = [struct.pack("<fi", model.get_score(i), len(piece)) + piece for i, piece in enumerate(pieces)]
    return struct.pack("<i", max(map(len, pieces))) + b"".join(entries)


def sentencepiece_model(tokenizer: Llama2cTokenizer) -> bytes:
    """A tokenizer.bin as the tokenizer.model that encodes alike, for those who know only that.

    The protocol buffer of sentencepiece_model.proto: the pieces with scores and types, then what is not the default:
    BPE (model_type 2), the vocabulary size, byte_fallback; identity, with a space before the text as llama2.c has it.
    """
    if b" " not in tokenizer.entries()[0][FIRST_BYTE + 256 :]:
        raise ValueError(f"{tokenizer.path} has no piece for the space: no tokenizer.model would encode alike")
    pieces = b"".join(_field(1, entry) for entry in map(_entry, range(tokenizer.vocab_size), *tokenizer.entries()))
    trainer = _field(3, 2) + _field(4, tokenizer.vocab_size) + _field(35, 1)
    normalizer = _field(1, b"identity") + _field(3, 1) + _field(4, 0) + _field(5, 1)
    proto = pieces + _field(2, trainer) + _field(3, normalizer)
    try:
        SentencePieceProcessor(model_proto=proto)
    except RuntimeError:
        raise ValueError(f"{tokenizer.path} holds pieces that SentencePiece cannot have") from None
    return proto


def _entry(token: int, piece: bytes, score: float) -> bytes:
    normal, unknown, control, byte = 1, 2, 3, 6
    if token < FIRST_BYTE:
        text, kind = ("<unk>", "<s>", "</s>")[token], control if token else unknown
    elif token < FIRST_BYTE + 256:
        text, kind = f"<0x{token - FIRST_BYTE:02X}>", byte
    else:
        text, kind = piece.decode().replace(" ", SPACE), normal
    return _field(1, text.encode()) + _field(2, struct.pack("<f", score), fixed=True) + _field(3, kind)


def _field(number: int, value: int | bytes, fixed: bool = False) -> bytes:
    """A field of a protocol buffer: a varint, four bytes that are ``fixed``, or as many bytes as are said before."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 5) + value if fixed else _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    raw = bytearray()
    while value > 127:
        raw.append(value & 127 | 128)
        value >>= 7
    return bytes([*raw, value])


def _bytes(model: SentencePieceProcessor, token: int) -> bytes:
    if token in MARKS:
        return MARKS[token].encode()
    if token < FIRST_BYTE + 256:
        # The exporter writes bytes above 127 as the character of that number; readers know them by their place.
        return chr(token - FIRST_BYTE).encode()
    return model.id_to_piece(token).replace(SPACE, " ").encode()
