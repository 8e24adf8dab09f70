"""Tokenizers as other projects train them, with SentencePiece."""

from pathlib import Path

from sentencepiece import SentencePieceTrainer

LOSSLESS = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}


def trained_by_sentencepiece(directory: Path, text: str, **options) -> Path:
    """``directory/tokenizer.model``, with SentencePiece's defaults, such as a space that is put before every text."""
    directory.mkdir(exist_ok=True)
    SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_prefix=str(directory / "tokenizer"),
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return directory / "tokenizer.model"
