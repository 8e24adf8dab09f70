"""A new SentencePiece tokenizer from any text. It loses nothing: whatever the text, decode(encode(text)) == text."""

import hashlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from ..cli.files import write_atomically
from .readers import split_text
from .sources import Documents

FORMAT = 1  # of what is learnt: another number makes kept tokenizers unread
KINDS = ("bpe", "char")
SAMPLE = 10_000_000  # characters to learn from: more of them change the pieces little and the time much
LINE = 4000  # characters; SentencePiece leaves out sentences over 4192 bytes unless told otherwise
SPECIAL = 3 + 256  # <unk>, <s>, </s>, and one piece for each byte, for characters that are not in the vocabulary
# SentencePiece's own signs, for a space and for the unknown; it would leave out each sentence with the second. Both
# are spelt in bytes when they occur.
RESERVED = {0x2581: None, 0x2585: None, 0: None}
LOSSLESS: dict[str, Any] = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "character_coverage": 1.0,
    "hard_vocab_limit": False,
}


def train_tokenizer(texts: Iterable[str], path: str | Path, kind: str = "bpe", vocab_size: int = 1024) -> Path:
    """Learn the pieces of ``texts`` and write them to ``path``, a file or a directory for ``tokenizer.model``.

    ``bpe`` learns exactly ``vocab_size`` pieces; ``char`` has one for each character that occurs, however many.
    The same text gives the same file. Memory is bounded by a sample spread evenly over the text.
    Raises ValueError when the text is empty, or when it has too many characters or too few words for ``vocab_size``.
    """
    if kind not in KINDS:
        raise ValueError(f"tokenizer kind {kind!r} is unknown: give one of {', '.join(KINDS)}")
    sample = spread_sample(texts)
    alphabet = set().union(*sample)
    if not alphabet:
        raise ValueError("there is no text to learn a tokenizer from: give a source that holds some")
    least = SPECIAL + len(alphabet)
    if kind == "bpe" and vocab_size < least:
        raise ValueError(
            f"vocab_size {vocab_size} is too small: {SPECIAL} special pieces and the text's {len(alphabet)} distinct "
            f"characters need at least {least}"
        )
    proto = _train(sample, kind, least if kind == "char" else vocab_size)
    got = SentencePieceProcessor(model_proto=proto).get_piece_size()
    if kind == "bpe" and got < vocab_size:
        raise ValueError(f"vocab_size {vocab_size} is too large: the text gives {got} pieces; ask for at most {got}")
    path = Path(path)
    file = path / "tokenizer.model" if path.is_dir() or not path.suffix else path
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, lambda temporary: temporary.write_bytes(proto))
    return file


def learn_tokenizer(documents: Documents, cache_dir: str | Path, kind: str = "bpe", vocab_size: int = 1024) -> Path:
    """``train_tokenizer`` on the documents, or what it made of the same files before: the path in ``cache_dir``."""
    facts = [FORMAT, documents.identity(), kind, vocab_size]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    file = Path(cache_dir) / f"tokenizer-{key[:32]}.model"
    return file if file.exists() else train_tokenizer(documents.texts(), file, kind, vocab_size)


def spread_sample(texts: Iterable[str], limit: int = SAMPLE) -> list[str]:
    """Pieces from all over the text, at most ``limit`` characters: every second is dropped whenever they are more."""
    kept: list[str] = []
    size, stride = 0, 1
    pieces = (piece for text in texts for piece in split_text(text, LINE))
    for number, piece in enumerate(pieces):
        if number % stride == 0:
            kept.append(piece.translate(RESERVED))
            size += len(piece)
        while size > limit and len(kept) > 1:
            kept = kept[::2]
            size, stride = sum(map(len, kept)), stride * 2
    return [piece for piece in kept if piece]


def _train(sample: list[str], kind: str, vocab_size: int) -> bytes:
    proto = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sample),
        model_writer=proto,
        model_type=kind,
        vocab_size=vocab_size,
        allow_whitespace_only_pieces=True,  # indentation is a piece
        max_sentence_length=1 << 20,
        num_threads=1,  # it is written into the file, which is to be the same everywhere
        minloglevel=2,
        **LOSSLESS,
    )
    return proto.getvalue()
