"""Read documents, and train tokenizers as other projects do."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceTrainer

from model.text.readers import Part
from model.text.sources import open_documents

# Of Llama 2's tokenizer, which is lossless: bytes for unknown characters, and a space that is put before every text
LLAMA2_SETTINGS = {
    "model_type": "bpe", "vocab_size": 330, "byte_fallback": True, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}  # fmt: skip


TEXT = "".join(f"user asks {i}: what is a rope? assistant answers: {i * i} yards.\n\n" for i in range(300))


def byte_level_tokenizer(text: str, vocab_size: int) -> Any:
    """A byte-level BPE of the library ``tokenizers``, as in GPT-2 and Llama 3, without special tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def llama3_tokenizer(directory: Path) -> None:
    """Like Llama 3's: byte-level BPE, and special tokens."""
    directory.mkdir()
    tokenizer = byte_level_tokenizer(TEXT, 400)
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(names)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": names[0], "eos_token": names[1]}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def join_parts(parts: Iterable[Part]) -> list[str]:
    """The documents that consist of the parts."""
    documents: list[str] = []
    for text, starts_document in parts:
        assert text
        if starts_document:
            documents.append("")
        documents[-1] += text
    return documents


def read_documents(*specs: str | Path, **options) -> list[str]:
    return join_parts(open_documents([str(spec) for spec in specs], **options))


def refusal(*specs: str | Path, **options) -> str:
    """The one-line error of reading these sources."""
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z") as error:
        read_documents(*specs, **options)
    return str(error.value)


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
