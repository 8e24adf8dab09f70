"""The tokenizer of a checkpoint: found beside the weights, checked against them, and saved for other programs too."""

import json
import reprlib
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from ..cli.files import read_json, write_atomically, write_json
from ..text.hf_tokenizer import HFTokenizer, added_tokens, hugging_face_files, read_settings
from ..text.tokenizer import SentencePieceTokenizer, Tokenizer

TEMPLATE = "chat_template.jinja"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # beside a tokenizer.json
# Rows of a network without a token, as a share of all: its vocabulary may be rounded up, by DeepSeek's 102,400 rows for
# 100,015 tokens the most.
MAX_VOCAB_PADDING = 128
MAX_VOCAB_PADDING_SHARE = 32  # one row in so many


def load_tokenizer(path: str | Path, model_vocab_size: int | None = None) -> Tokenizer:
    """Load the tokenizer in a directory, or in a tokenizer.model or tokenizer.json.

    Its ``eos_ids`` are those of generation_config.json or config.json beside it, if these have any. Raises ValueError
    if it does not fit a model with ``model_vocab_size`` tokens.
    """
    path = Path(path)
    file = find_tokenizer(path, model_vocab_size) or path
    if file.is_dir():
        raise ValueError(f"{path} has no tokenizer (tokenizer.model, tokenizer.json): give one with --tokenizer")
    if not file.is_file():
        raise ValueError(f"{file} is not a file: give a tokenizer.model or tokenizer.json")
    tokenizer = _open_tokenizer(file)
    ends = read_ids(file.parent).get("eos_token_id")
    if ends is not None:
        tokenizer.eos_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    check_size(tokenizer, model_vocab_size, file)
    return tokenizer


def find_tokenizer(path: Path, model_vocab_size: int | None = None) -> Path | None:
    """The tokenizer file in a directory.

    tokenizer.model is preferred, because it needs no optional package. But tokenizer.json is used if texts begin
    without BOS, or if tokenizer.model lacks tokens: those that were added, or some of the model's.
    """
    model_file, json_file = path / "tokenizer.model", path / "tokenizer.json"
    if not json_file.is_file():
        return model_file if model_file.is_file() else None
    if not model_file.is_file():
        return json_file
    try:
        model = SentencePieceProcessor(model_proto=model_file.read_bytes())
    except RuntimeError:  # in another format, as Llama 3's
        return json_file
    has_all = model_vocab_size in (None, model.get_piece_size()) and not _missing(model, path)
    return model_file if has_all and _adds_bos(path) else json_file


def _missing(model: SentencePieceProcessor, directory: Path) -> list[str]:
    """The added tokens that a SentencePiece model lacks."""
    pieces = {model.id_to_piece(number): number for number in range(model.get_piece_size())}
    return [token for token, number in added_tokens(directory).items() if pieces.get(token) != number]


def _open_tokenizer(file: Path) -> Tokenizer:
    if file.suffix == ".json":
        return HFTokenizer(file)
    if file.suffix == ".bin":
        raise ValueError(f"{file} is in llama2.c's format: give the tokenizer.model from which it was made")
    tokenizer = SentencePieceTokenizer(file)
    missing = _missing(SentencePieceProcessor(model_proto=tokenizer.content), file.parent)
    if missing:
        raise ValueError(f"{file} lacks the added tokens {', '.join(missing)}: give the tokenizer.json of this model")
    if not _adds_bos(file.parent):
        raise ValueError(f"{file} is of a model whose texts begin without BOS: give its tokenizer.json")
    return tokenizer


def _adds_bos(directory: Path) -> bool:
    """Whether texts begin with BOS: ``add_bos_token`` says it, else the post-processor of a tokenizer.json beside it.

    Without both they do, as in Meta's code and in transformers 4; transformers 5 leaves BOS out.
    """
    adds_bos = read_settings(directory).get("add_bos_token")
    if adds_bos is not None or not (directory / "tokenizer.json").is_file():
        return adds_bos is not False
    return "SpecialToken" in json.dumps(read_json(directory / "tokenizer.json").get("post_processor"))


def check_size(tokenizer: Tokenizer, model_vocab_size: int | None, file: Path) -> None:
    """Raise ValueError if the tokenizer is not that of a model with ``model_vocab_size`` tokens.

    A SentencePiece model must have as many. A tokenizer.json may have fewer, because the vocabulary of a network is
    often rounded up.
    """
    if model_vocab_size is None:
        return
    allowed = max(MAX_VOCAB_PADDING, model_vocab_size // MAX_VOCAB_PADDING_SHARE)
    padding = model_vocab_size - tokenizer.vocab_size
    if not 0 <= padding < (allowed if isinstance(tokenizer, HFTokenizer) else 1):
        raise ValueError(
            f"{file} has {tokenizer.vocab_size} tokens, the model {model_vocab_size}: give the tokenizer of this model"
        )


def read_ids(directory: Path) -> dict[str, Any]:
    """bos_token_id and eos_token_id, the latter one id or a list. generation_config.json overrides config.json."""
    ids: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        config = read_json(directory / name) if (directory / name).is_file() else {}
        for key in ("bos_token_id", "eos_token_id"):
            value = config.get(key)
            if value is None:
                continue
            if not all(type(each) is int for each in (value if isinstance(value, list) else [value])):
                raise ValueError(
                    f"{directory / name}: {key} is {reprlib.repr(value)}: a token id or a list of them is needed"
                )
            ids[key] = value
    return ids


def save_tokenizer(tokenizer: Tokenizer, directory: str | Path) -> None:
    """Copy the tokenizer's file and its chat template, and write the files that transformers needs to use them."""
    directory = Path(directory)
    source = tokenizer.path.parent
    directory.mkdir(parents=True, exist_ok=True)
    copied = [TEMPLATE]
    if isinstance(tokenizer, SentencePieceTokenizer):
        _write(directory / "tokenizer.model", tokenizer.content)
        tokenizer_json, config = hugging_face_files(tokenizer.path) or ({}, {})
        config |= {name: value for name, value in read_settings(source).items() if name == "chat_template"}
        if tokenizer_json:
            write_json(directory / "tokenizer.json", tokenizer_json)
        if config:
            write_json(directory / "tokenizer_config.json", config)
    else:
        _write(directory / "tokenizer.json", tokenizer.content)
        copied += SETTINGS
    for name in copied:
        if (source / name).is_file():
            _write(directory / name, (source / name).read_bytes())
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_id}
    if tokenizer.eos_ids:  # transformers fails on an empty list
        ids["eos_token_id"] = list(tokenizer.eos_ids)
    write_json(directory / "generation_config.json", ids)


def _write(file: Path, content: bytes) -> None:
    write_atomically(file, lambda temporary: temporary.write_bytes(content))
