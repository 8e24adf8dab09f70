"""The tokenizer of a checkpoint: found beside the weights, checked against them, and saved for other programs too."""

import json
import math
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cli.files import read_json, write_bytes, write_json
from ..text.hf_tokenizer import HFTokenizer, added_tokens, hugging_face_files, read_if_present, read_settings
from ..text.tokenizer import SentencePieceTokenizer, Tokenizer
from .hub import local_directory

TEMPLATE = "chat_template.jinja"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # beside a tokenizer.json
# A network may have more rows than its tokenizer has tokens, because its vocabulary is rounded up: fewer than the
# larger of these. DeepSeek's has the most, 102,400 for 100,015 tokens.
MAX_VOCAB_PADDING = 128
MAX_VOCAB_PADDING_SHARE = 32  # one row in so many


def load_tokenizer(path: str | Path, model_vocab_size: int | None = None) -> Tokenizer:
    """Load the tokenizer in a directory, in a tokenizer.model or tokenizer.json, or of a model of the Hub.

    Of a directory with both, tokenizer.model is preferred, because it needs no optional package, and tokenizer.json is
    taken if tokenizer.model does not fit. Raises ValueError if none fits a model with ``model_vocab_size`` tokens.
    """
    files = tokenizer_files(local_directory(path, weights=False))
    if not files:
        raise ValueError(f"{path} has no tokenizer (tokenizer.model, tokenizer.json): give one with --tokenizer")
    try:
        return _open_tokenizer(files[0], model_vocab_size)
    except ValueError:
        if len(files) == 1:
            raise
        return _open_tokenizer(files[1], model_vocab_size)


def tokenizer_files(path: Path) -> list[Path]:
    """The path itself, or the tokenizer.model and tokenizer.json that a directory has."""
    if not path.is_dir():
        return [path]
    return [path / name for name in ("tokenizer.model", "tokenizer.json") if (path / name).is_file()]


def _open_tokenizer(file: Path, model_vocab_size: int | None) -> Tokenizer:
    """Open a tokenizer, with the ``eos_ids`` of generation_config.json or config.json beside it, if these have any.

    Raises ValueError if it encodes differently from the tokenizer of its model.
    """
    if not file.is_file():
        raise ValueError(f"{file} is not a file: give a tokenizer.model or tokenizer.json")
    tokenizer = HFTokenizer(file) if file.suffix == ".json" else SentencePieceTokenizer(file)
    if isinstance(tokenizer, SentencePieceTokenizer):
        added = added_tokens(file.parent).items()
        rows = math.inf if model_vocab_size is None else model_vocab_size  # a network lacks the tokens after these
        missing = [token for token, number in added if number < rows and tokenizer.model.piece_to_id(token) != number]
        if missing:
            raise ValueError(
                f"{file} lacks the added tokens {', '.join(missing)}: give the tokenizer.json of this model"
            )
        if not _adds_bos(file.parent):
            raise ValueError(f"{file} is of a model whose texts begin without BOS: give its tokenizer.json")
    ends = read_ids(file.parent).get("eos_token_id")
    if ends is not None:
        tokenizer.eos_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    check_size(tokenizer, model_vocab_size, file)
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
    often rounded up, or more if they are added ones, because a fine-tuning may add a token that the network never sees.
    """
    if model_vocab_size is None:
        return
    too_much_padding = 1
    if isinstance(tokenizer, HFTokenizer):
        too_much_padding = max(MAX_VOCAB_PADDING, model_vocab_size // MAX_VOCAB_PADDING_SHARE)
        if tokenizer.vocab_size > model_vocab_size:
            tokenizer.restrict(model_vocab_size)
    if not 0 <= model_vocab_size - tokenizer.vocab_size < too_much_padding:
        raise ValueError(
            f"{file} has {tokenizer.vocab_size} tokens, the model {model_vocab_size}: give the tokenizer of this model"
        )


def read_ids(directory: Path) -> dict[str, Any]:
    """bos_token_id and eos_token_id, the latter one id or a list. generation_config.json overrides config.json."""
    ids: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        config = read_if_present(directory / name)
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


def save_tokenizer(tokenizer: Tokenizer, directory: str | Path, eos_ids: Sequence[int] | None = None) -> None:
    """Copy the tokenizer's file and its chat template, and write the files that transformers needs to use them.

    Among these is generation_config.json with ``eos_ids``, by default the tokenizer's.
    """
    eos_ids = tokenizer.eos_ids if eos_ids is None else eos_ids
    directory = Path(directory)
    source = tokenizer.path.parent
    directory.mkdir(parents=True, exist_ok=True)
    copied = [TEMPLATE]
    if isinstance(tokenizer, SentencePieceTokenizer):
        write_bytes(directory / "tokenizer.model", tokenizer.content)
        tokenizer_json, config = hugging_face_files(tokenizer) or ({}, {})
        config |= {name: value for name, value in read_settings(source).items() if name == "chat_template"}
        if tokenizer_json:
            write_json(directory / "tokenizer.json", tokenizer_json)
        if config:
            write_json(directory / "tokenizer_config.json", config)
    else:
        write_bytes(directory / "tokenizer.json", tokenizer.content)
        copied += SETTINGS
    for name in copied:
        if (source / name).is_file():
            write_bytes(directory / name, (source / name).read_bytes())
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_id}
    if eos_ids:  # transformers fails on an empty list
        ids["eos_token_id"] = list(eos_ids)
    write_json(directory / "generation_config.json", ids)
