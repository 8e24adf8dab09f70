"""The tokenizer of a checkpoint: found beside the weights, checked against them, and saved for other programs too."""

import json
import reprlib
from pathlib import Path
from shlex import quote
from typing import Any

from sentencepiece import SentencePieceProcessor

from ..cli.files import read_json, write_atomically, write_json
from ..text.hf_tokenizer import HFTokenizer, added_tokens, hugging_face_files, read_settings, with_added_tokens
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

    tokenizer.model is preferred, because it needs no optional package. But tokenizer.json is used if tokenizer.model
    lacks tokens: those that were added, or some of the model's.
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
    return model_file if has_all else json_file


def _missing(model: SentencePieceProcessor, directory: Path) -> dict[str, int]:
    """Token -> id of the added tokens that a SentencePiece model lacks."""
    added = {token: number for token, (number, _) in added_tokens(directory).items()}
    size = model.get_piece_size()
    return {token: number for token, number in added.items() if number >= size or model.id_to_piece(number) != token}


def _open_tokenizer(file: Path) -> Tokenizer:
    if file.suffix == ".json":
        return HFTokenizer(file)
    if file.suffix == ".bin":
        raise ValueError(
            f"{file} is in llama2.c's format: convert it together with its model, with "
            f"`python convert.py MODEL.bin NEW_DIRECTORY --tokenizer {quote(str(file))}`"
        )
    with file.open("rb") as opened:
        first_line = opened.readline(200).split()
    if len(first_line) == 2 and first_line[1] == b"0":  # base64 and a rank, as in Llama 3's tokenizer.model
        raise ValueError(f"{file} is in tiktoken's format: give the tokenizer.json of the same model")
    tokenizer = SentencePieceTokenizer(file, _adds_bos(file.parent))
    missing = _missing(SentencePieceProcessor(model_proto=tokenizer.content), file.parent)
    if not missing:
        return tokenizer
    content = with_added_tokens(file, read_settings(file.parent), tokenizer.adds_bos)
    if content is None:
        names = ", ".join(f"{token} ({number})" for token, number in missing.items())
        raise ValueError(f"{file} lacks added tokens and is not a BPE model: {names}: give a tokenizer.json")
    return HFTokenizer(file, json.dumps(content).encode())


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
    often rounded up, and added tokens beyond it: only a text that contains one is refused.
    """
    if model_vocab_size is None:
        return
    padding = model_vocab_size - tokenizer.vocab_size
    fits = padding == 0
    if isinstance(tokenizer, HFTokenizer):
        fits = padding < max(MAX_VOCAB_PADDING, model_vocab_size // MAX_VOCAB_PADDING_SHARE)
        fits = fits and tokenizer.base_vocab_size <= model_vocab_size
        tokenizer.model_vocab_size = model_vocab_size
    if not fits:
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
    is_sentencepiece = isinstance(tokenizer, SentencePieceTokenizer)
    _write(directory / ("tokenizer.model" if is_sentencepiece else "tokenizer.json"), tokenizer.content)
    for name in (TEMPLATE, *(() if is_sentencepiece else SETTINGS)):
        if (source / name).is_file():
            _write(directory / name, (source / name).read_bytes())
    if isinstance(tokenizer, SentencePieceTokenizer):
        tokenizer_json, config = hugging_face_files(tokenizer.path, tokenizer.adds_bos) or ({}, {})
        config |= {name: value for name, value in read_settings(source).items() if name == "chat_template"}
        if tokenizer_json:
            write_json(directory / "tokenizer.json", tokenizer_json)
        if config:
            write_json(directory / "tokenizer_config.json", config)
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_id}
    if tokenizer.eos_ids:  # transformers fails on an empty list
        ids["eos_token_id"] = list(tokenizer.eos_ids)
    write_json(directory / "generation_config.json", ids)


def _write(file: Path, content: bytes) -> None:
    write_atomically(file, lambda temporary: temporary.write_bytes(content))
