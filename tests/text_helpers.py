"""Read documents, and make a tokenizer like Llama 2's, for tests of text."""

from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from model.text.readers import Chunk
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer


def join_chunks(chunks: Iterable[Chunk]) -> list[str]:
    """The documents that the chunks are parts of."""
    documents: list[str] = []
    for text, starts_document in chunks:
        assert text
        if starts_document:
            documents.append("")
        documents[-1] += text
    return documents


def read_documents(*specs: str | Path, **options) -> list[str]:
    return join_chunks(open_documents([str(spec) for spec in specs], **options))


def llama2_tokenizer(folder: Path, text: str, vocab_size: int = 330) -> SentencePieceTokenizer:
    """A model with Llama 2's settings: a space before the text, bytes for unknown characters."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_prefix=str(folder / "llama2"), model_type="bpe",
        vocab_size=vocab_size, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return SentencePieceTokenizer(folder / "llama2.model")
