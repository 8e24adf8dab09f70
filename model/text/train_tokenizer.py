"""Train a SentencePiece tokenizer on any text. It is lossless: decode(encode(text)) == text."""

import io
import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tqdm import tqdm

from ..cli.files import write_bytes
from .tokenizer import split_text

TOKENIZER_KINDS = ("bpe", "char")
SAMPLE_CHARACTERS = 10_000_000  # more characters take longer and hardly change the pieces
# For bpe without --vocab_size: if a text has more than MANY_CHARACTERS distinct characters, the rarest, 0.05% of the
# text, are encoded as bytes.
MANY_CHARACTERS, COVERAGE = 1000, 0.9995
# The default vocabulary has about one piece per 300 characters, so that each piece occurs often enough, up to 4,096
# pieces. With more, a short run spends its time on the embeddings: benchmarks/README.md has the losses.
CHARACTERS_PER_PIECE, MAX_DEFAULT_VOCAB = 300, 4096
CHUNK_CHARACTERS = 4000  # length of the parts that SentencePiece gets as sentences; far below max_sentence_length
SPECIAL = 3 + 256  # <unk>, <s>, </s>, and the bytes that spell characters outside the vocabulary
# SentencePiece uses U+2581 for a space and U+2585 for unknown characters, and skips sentences with the latter. These
# and NUL are removed from the sample, so they are encoded as bytes.
RESERVED = {0x2581: None, 0x2585: None, 0: None}


def train_tokenizer(
    texts: Iterable[str], path: str | Path, kind: str = "bpe", vocab_size: int | None = None, size: int = 0
) -> Path:
    """Train a tokenizer on ``texts`` and write it to ``path``, a file or a directory for ``tokenizer.model``.

    ``bpe`` has exactly ``vocab_size`` pieces. Without ``vocab_size`` it has ``default_vocab_size`` pieces, or fewer if
    the text is too short for them. ``char`` has one piece per distinct character and ignores ``vocab_size``.
    ``size`` is that of the text in bytes, for the progress bar, or 0 if it is not known.
    The same text gives the same file. Memory is bounded, because a sample spread evenly over the text is used.
    Raises ValueError if the text is empty, or if it has too many distinct characters or too few words for
    ``vocab_size``.
    """
    with tqdm(total=size or None, unit="B", unit_scale=True, desc="reading", disable=None, delay=1) as bar:
        sample, total = spread_sample(watched(texts, bar))
    counts = Counter(itertools.chain.from_iterable(sample))
    if not counts:
        raise ValueError("there is no text to train a tokenizer on: give a source with text")
    # The space must be a piece. SentencePiece turns it into U+2581; without a piece, that would be encoded as three
    # bytes, which decode to U+2581 and not to a space.
    counts[" "] += 1
    smallest = SPECIAL + len(counts)
    coverage = 1.0
    if kind == "char":
        pieces = smallest
    elif vocab_size is None:
        coverage = COVERAGE if len(counts) > MANY_CHARACTERS else 1.0
        pieces = default_vocab_size(total, count_covering(counts, coverage))
    elif vocab_size < smallest:
        raise ValueError(
            f"vocab_size {vocab_size} is too small: {SPECIAL} special pieces and the text's {len(counts)} distinct "
            f"characters need at least {smallest}"
        )
    else:
        # Each further piece joins two of the sample. SentencePiece takes seconds for sizes of billions.
        pieces = min(vocab_size, smallest + counts.total())
    proto = _train(sample, kind, pieces, coverage)
    trained = SentencePieceProcessor(model_proto=proto).get_piece_size()
    if kind == "bpe" and vocab_size is not None and trained < vocab_size:
        raise ValueError(f"vocab_size {vocab_size} is too large for this text: give at most {trained}")
    path = Path(path)
    file = path / "tokenizer.model" if path.is_dir() or not path.suffix else path
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, proto)
    return file


def watched(texts: Iterable[str], bar: tqdm) -> Iterator[str]:
    """The texts, shown on a bar as they are read."""
    for text in texts:
        yield text
        bar.update(len(text.encode()))


def default_vocab_size(characters: int, distinct: int) -> int:
    """The vocabulary size for a text of ``characters`` characters, if ``distinct`` distinct characters become pieces.

    The power of two nearest to ``characters`` / CHARACTERS_PER_PIECE, at most MAX_DEFAULT_VOCAB: 1024 for 300 KB of
    English, 4096 from 1 MB on. If the special pieces and the single characters fill more than half of this power of
    two, the size is their number plus half the power of two, rounded up to a multiple of 64.
    """
    by_length = min(2 ** round(math.log2(max(characters / CHARACTERS_PER_PIECE, 1))), MAX_DEFAULT_VOCAB)
    needed = SPECIAL + distinct + by_length // 2
    return max(by_length, 64 * math.ceil(needed / 64))


def count_covering(counts: Counter[str], fraction: float) -> int:
    """The number of the most frequent characters that make up this fraction of the text."""
    covered = list(itertools.accumulate(count for _, count in counts.most_common()))
    return 1 + bisect_left(covered, fraction * counts.total())


def spread_sample(texts: Iterable[str], limit: int = SAMPLE_CHARACTERS) -> tuple[list[str], int]:
    """Chunks spread evenly over the text, at most ``limit`` characters, and the length of the text in characters.

    Every second chunk is dropped whenever the chunks exceed the limit.
    """
    kept: list[str] = []
    size = 0
    stride = 1
    total = 0
    chunks = (chunk for text in texts for chunk in split_text(text, CHUNK_CHARACTERS))
    for number, chunk in enumerate(chunks):
        total += len(chunk)
        if number % stride == 0:
            kept.append(chunk.translate(RESERVED))
            size += len(chunk)
        while size > limit and len(kept) > 1:
            kept = kept[::2]
            size = sum(len(chunk) for chunk in kept)
            stride *= 2
    return [chunk for chunk in kept if chunk], total


def _train(sample: list[str], kind: str, vocab_size: int, coverage: float) -> bytes:
    # The space, and line ends, which the trainer drops at the end of a sentence
    required = "\u2581" + "".join(end for end in "\n\r" if any(end in line for line in sample))
    proto = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([*sample, " "]),  # SentencePiece fails if every sentence is empty
        model_writer=proto,
        model_type=kind,
        vocab_size=vocab_size,
        character_coverage=coverage,
        required_chars=required,
        allow_whitespace_only_pieces=True,  # indentation is a piece
        max_sentence_length=1 << 20,
        num_threads=1,  # the number is stored in the file, which must be the same on every machine
        minloglevel=2,
        hard_vocab_limit=False,
        # Lossless:
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
    )
    return proto.getvalue()
