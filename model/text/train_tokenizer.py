"""A new SentencePiece tokenizer from any text. It loses nothing: whatever the text, decode(encode(text)) == text."""

import hashlib
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from ..cli.files import write_atomically
from .sources import Documents
from .token_cache import make_entry
from .tokenizer import checked, split_text

TOKENIZER_FORMAT = 3  # of what is learnt: another number makes kept tokenizers unread
TRAINABLE = ("bpe", "char")
SAMPLE_CHARACTERS = 10_000_000  # characters to learn from: more of them change the pieces little and the time much
MOST_PIECES = 32768  # pieces that are chosen; more can be asked for
FEW, COVERAGE = 1000, 0.9995  # of more distinct characters, the rarest 0.05% of the text are spelt in bytes
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
    "hard_vocab_limit": False,
}


def train_tokenizer(texts: Iterable[str], path: str | Path, kind: str = "bpe", vocab_size: int | None = None) -> Path:
    """Learn the pieces of ``texts`` and write them to ``path``, a file or a directory for ``tokenizer.model``.

    ``bpe`` learns exactly ``vocab_size`` pieces, by default as many as ``fitting_size`` says, or fewer where the text
    has no more; ``char`` has one for each character that occurs, however many.
    The same text gives the same file. Memory is bounded by a sample spread evenly over the text.
    Raises ValueError when the text is empty, when UTF-8 cannot encode it, or when it has too many characters or too
    few words for ``vocab_size``.
    """
    if kind not in TRAINABLE:
        raise ValueError(f"tokenizer kind {kind!r} is unknown: give one of {', '.join(TRAINABLE)}")
    sample, total = spread_sample(texts)
    counts = Counter(itertools.chain.from_iterable(sample))
    if not counts:
        raise ValueError("there is no text to learn a tokenizer from: give a source that holds some")
    counts[" "] += 1  # always a piece of its own: in bytes it would come back as the sign it is written with
    least = SPECIAL + len(counts)
    coverage = 1.0
    if kind == "bpe" and vocab_size is None:
        coverage = COVERAGE if len(counts) > FEW else 1.0
        wanted = fitting_size(total, covered(counts, coverage))
    elif kind == "bpe" and vocab_size is not None:
        if vocab_size < least:
            raise ValueError(
                f"vocab_size {vocab_size} is too small: {SPECIAL} special pieces and the text's {len(counts)} distinct "
                f"characters need at least {least}"
            )
        wanted = vocab_size
    else:
        wanted = least
    proto = _train(sample, kind, wanted, coverage)
    got = SentencePieceProcessor(model_proto=proto).get_piece_size()
    if kind == "bpe" and vocab_size is not None and got < vocab_size:
        raise ValueError(f"vocab_size {vocab_size} is too large: the text gives fewer pieces; ask for at most {got}")
    path = Path(path)
    file = path / "tokenizer.model" if path.is_dir() or not path.suffix else path
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, lambda temporary: temporary.write_bytes(proto))
    return file


def fitting_size(characters: int, distinct: int) -> int:
    """A vocabulary for a text of so many characters, ``distinct`` of which get a piece of their own.

    Longer texts can teach more pieces: the power of two next to 0.72 times the square root of their length, which is
    1024 for 2 MB of English and 32768 for 2 GB. All characters, and half as many pieces again of several, fit in.
    """
    growth = min(2 ** round(math.log2(0.72 * math.sqrt(characters))), MOST_PIECES)
    least = SPECIAL + distinct + growth // 2
    return max(growth, 64 * math.ceil(least / 64))


def covered(counts: Counter[str], fraction: float) -> int:
    """How many of the characters, the most frequent first, make up this fraction of the text."""
    wanted = fraction * counts.total()
    so_far = 0
    for place, (_, count) in enumerate(counts.most_common(), 1):
        so_far += count
        if so_far >= wanted:
            return place
    return len(counts)


def learn_tokenizer(
    documents: Documents,
    cache_dir: str | Path,
    kind: str = "bpe",
    vocab_size: int | None = None,
) -> Path:
    """``train_tokenizer`` on the documents, or what it made of the same files before: the path in ``cache_dir``.

    Raises ValueError when a file changes while it is read.
    """
    facts = [TOKENIZER_FORMAT, documents.identity(), kind, vocab_size]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    folder = Path(cache_dir) / f"tokenizer-{key[:32]}"
    file = folder / "tokenizer.model"
    if not file.exists():

        def fill(place: Path) -> None:
            train_tokenizer(documents.texts(), place, kind, vocab_size)
            documents.check_unchanged()

        make_entry(folder, documents.specs, fill, file.exists)
    return file


def spread_sample(texts: Iterable[str], limit: int = SAMPLE_CHARACTERS) -> tuple[list[str], int]:
    """Pieces from all over the text, at most ``limit`` characters: every second is dropped whenever they are more.

    Returns them, and how many characters the whole text has.
    """
    kept: list[str] = []
    size, stride, total = 0, 1, 0
    pieces = (piece for text in texts for piece in split_text(checked(text), LINE))
    for number, piece in enumerate(pieces):
        total += len(piece)
        if number % stride == 0:
            kept.append(piece.translate(RESERVED))
            size += len(piece)
        while size > limit and len(kept) > 1:
            kept = kept[::2]
            size = sum(len(piece) for piece in kept)
            stride *= 2
    return [piece for piece in kept if piece], total


def _train(sample: list[str], kind: str, vocab_size: int, coverage: float) -> bytes:
    required = "\u2581"  # the sign for a space, and what the trainer drops at the end of a sentence
    for end in "\n\r":
        if any(end in piece for piece in sample):
            required += end
    proto = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([*sample, " "]),  # it wants one that is not empty
        model_writer=proto,
        model_type=kind,
        vocab_size=vocab_size,
        character_coverage=coverage,
        required_chars=required,
        allow_whitespace_only_pieces=True,  # indentation is a piece
        max_sentence_length=1 << 20,
        num_threads=1,  # it is written into the file, which is to be the same everywhere
        minloglevel=2,
        **LOSSLESS,
    )
    return proto.getvalue()
