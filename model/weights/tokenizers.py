"""The tokenizer of a checkpoint: found beside the weights, checked against them, and saved for other programs too."""

import reprlib
from pathlib import Path
from typing import Any

from ..cli.files import read_json, write_atomically, write_json
from ..text.hf_tokenizer import HFTokenizer, hugging_face_files, read_settings
from ..text.llama2c_tokenizer import Llama2cTokenizer
from ..text.tokenizer import SentencePieceTokenizer, Tokenizer
from .llama2c import find_model

TEMPLATE = "chat_template.jinja"
# The vocabulary of a network may be rounded up: to a multiple of 128, and Qwen's 151,665 tokens to 151,936 or 152,064.
MAX_VOCAB_PADDING = 128
MAX_VOCAB_PADDING_SHARE = 256  # one row in so many


def load_tokenizer(path: str | Path, model_vocab_size: int | None = None) -> Tokenizer:
    """Load the tokenizer in a directory, beside a llama2.c model, or in a tokenizer.model, .json or .bin file.

    Except for a .bin file, its ``eos_ids`` are those of generation_config.json or config.json beside it, if these have
    any. Raises ValueError if it does not fit a model with ``model_vocab_size`` tokens.
    """
    path = Path(path)
    found = find_tokenizer(path)
    model = find_model(path) if found is None or found.suffix == ".bin" else None
    if found is None and (model or path.is_dir()):
        names = names_beside(model.path, model.args.vocab_size) if model else ["tokenizer.model", "tokenizer.json"]
        raise ValueError(f"{path} has no tokenizer ({', '.join(names)}): give one with --tokenizer")
    file = found or path
    if not file.is_file():
        raise ValueError(f"{file} is not a file: give a tokenizer.model, tokenizer.json or llama2.c tokenizer.bin")
    if model and model_vocab_size is None:  # a tokenizer.bin does not contain its number of tokens
        model_vocab_size = model.args.vocab_size
    tokenizer = _open_tokenizer(file, model_vocab_size)
    ends = read_ids(file.parent).get("eos_token_id") if file.suffix != ".bin" else None
    if ends is not None:
        tokenizer.eos_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    check_size(tokenizer, model_vocab_size, file)
    return tokenizer


def _open_tokenizer(file: Path, model_vocab_size: int | None) -> Tokenizer:
    if file.suffix == ".json":
        return HFTokenizer(file)
    if file.suffix == ".bin":
        if model_vocab_size is None:
            raise ValueError(f"{file} does not contain its number of tokens: it can only be opened with its model")
        return Llama2cTokenizer(file, model_vocab_size)
    with file.open("rb") as opened:
        first_line = opened.readline(200).split()
    if len(first_line) == 2 and first_line[1] == b"0":  # base64 and a rank, as in Llama 3's tokenizer.model
        raise ValueError(f"{file} is in tiktoken's format: give the tokenizer.json of the same model")
    return SentencePieceTokenizer(file)


def check_size(tokenizer: Tokenizer, model_vocab_size: int | None, file: Path) -> None:
    if model_vocab_size is None:
        return
    # Networks with a tokenizer.json often have a vocabulary that is rounded up; those with a tokenizer.model never do.
    limit = 1
    if isinstance(tokenizer, HFTokenizer):
        limit = max(MAX_VOCAB_PADDING, model_vocab_size // MAX_VOCAB_PADDING_SHARE)
    if not 0 <= model_vocab_size - tokenizer.vocab_size < limit:
        raise ValueError(
            f"{file} has {tokenizer.vocab_size} tokens, the model {model_vocab_size}: give the tokenizer of this model"
        )


def find_tokenizer(path: Path) -> Path | None:
    """The tokenizer file of a model: in its directory, or beside a llama2.c model.

    tokenizer.model is preferred, because it needs no optional package. But tokenizer.json is used if it has added
    tokens that tokenizer.model lacks.
    """
    sentencepiece_file, json_file = path / "tokenizer.model", path / "tokenizer.json"
    if json_file.is_file() and not (sentencepiece_file.is_file() and not _has_added_tokens(path)):
        return json_file
    if sentencepiece_file.is_file():
        return sentencepiece_file
    model = find_model(path)
    if model is None:
        return None
    files = [model.path.with_name(name) for name in names_beside(model.path, model.args.vocab_size)]
    return next((file for file in files if file.is_file()), None)


def names_beside(model: Path, vocab_size: int) -> list[str]:
    """The names that the tokenizer of a llama2.c model may have: the one that we write, then those of llama2.c."""
    return [tokenizer_bin(model).name, f"tok{vocab_size}.bin", "tokenizer.bin"]


def tokenizer_bin(model: Path) -> Path:
    """The file to which the tokenizer of a llama2.c model is written."""
    return model.with_name(f"{model.stem}.tokenizer.bin")


def _has_added_tokens(directory: Path) -> bool:
    if (directory / "added_tokens.json").is_file():
        return True
    config = directory / "tokenizer_config.json"
    if not config.is_file():
        return False
    added = read_json(config).get("added_tokens_decoder")
    return isinstance(added, dict) and len(added) > 3  # unknown, BOS and EOS are in the tokenizer.model too


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
    file = copy_tokenizer(tokenizer, directory)
    names = [TEMPLATE]
    if file.suffix == ".json":
        names += ["tokenizer_config.json", "special_tokens_map.json"]
    for name in names:
        if (source / name).is_file():
            _write(directory / name, (source / name).read_bytes())
    if file.suffix == ".model":
        tokenizer_json, config = hugging_face_files(file) or ({}, {})
        config |= {name: value for name, value in read_settings(source).items() if name == "chat_template"}
        if tokenizer_json:
            write_json(directory / "tokenizer.json", tokenizer_json)
        if config:
            write_json(directory / "tokenizer_config.json", config)
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_id}
    if tokenizer.eos_ids:  # transformers fails on an empty list
        ids["eos_token_id"] = list(tokenizer.eos_ids)
    write_json(directory / "generation_config.json", ids)


def copy_tokenizer(tokenizer: Tokenizer, directory: Path) -> Path:
    """Copy only the tokenizer's file, under its usual name. llama2.c's becomes a tokenizer.model that encodes alike."""
    file = directory / ("tokenizer.json" if isinstance(tokenizer, HFTokenizer) else "tokenizer.model")
    content = tokenizer.proto if isinstance(tokenizer, SentencePieceTokenizer) else tokenizer.content
    _write(file, content)
    return file


def _write(file: Path, content: bytes) -> None:
    write_atomically(file, lambda temporary: temporary.write_bytes(content))
