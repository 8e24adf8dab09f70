"""The tokenizer of a checkpoint: found beside the weights, checked against them, and saved for other programs too."""

import shutil
from pathlib import Path
from typing import Any

from ..cli.files import IDS, TABLE, read_json, write_atomically, write_json
from ..text.hf_tokenizer import HFTokenizer, hugging_face_files
from ..text.llama2c_tokenizer import Llama2cTokenizer
from ..text.tokenizer import SentencePieceTokenizer, Tokenizer, file_content
from .llama2c import find_model, is_model, open_header

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
    file = find_tokenizer(path) or path
    if file.is_dir():
        raise ValueError(f"{path} has neither tokenizer.model nor tokenizer.json: give one with --tokenizer")
    model = find_model(path) if file.suffix == ".bin" else None
    if model and model_vocab_size is None:  # a tokenizer.bin does not contain its number of tokens
        model_vocab_size = open_header(model).args.vocab_size
    if not file.is_file():
        problem = "is not a file" if file.exists() else "does not exist"
        raise ValueError(f"{file} {problem}: give a tokenizer.model, tokenizer.json or llama2.c tokenizer.bin")
    tokenizer = _open_tokenizer(file, model_vocab_size)
    ends = read_ids(file.parent).get("eos_token_id") if file.suffix != ".bin" else None
    if ends is not None:
        tokenizer.eos_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    check_size(tokenizer, model_vocab_size, file)
    return tokenizer


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
    tokens that tokenizer.model lacks, or if tokenizer.model is in tiktoken's format.
    """
    sentencepiece_file, json_file = path / "tokenizer.model", path / "tokenizer.json"
    if sentencepiece_file.is_file():
        json_needed = json_file.is_file() and (_has_added_tokens(path) or _is_tiktoken(sentencepiece_file))
        return json_file if json_needed else sentencepiece_file
    if json_file.is_file():
        return json_file
    model = find_model(path)
    return _find_beside(model) if model else None


def tokenizer_bin(model: Path) -> Path:
    """The file to which the tokenizer of a llama2.c model is written."""
    return model.with_name(f"{model.stem}.tokenizer.bin")


def names_beside(model: Path) -> list[str]:
    """The names that the tokenizer of a llama2.c model may have: the one that we write, then those of llama2.c."""
    V = open_header(model).args.vocab_size
    return [tokenizer_bin(model).name, f"tok{V}.bin", f"tok{V}.model", "tokenizer.bin", "tokenizer.model"]


def _find_beside(model: Path) -> Path | None:
    """The first file of ``names_beside`` that exists. Files of another vocabulary size are skipped.

    The file that we write is never skipped, because it is named after this model: if its size is wrong, the caller
    raises an error.
    """
    written_by_us, *candidates = (model.with_name(name) for name in names_beside(model))
    if written_by_us.is_file():
        return written_by_us
    V = open_header(model).args.vocab_size
    for file in candidates:
        try:
            if file.is_file() and _open_tokenizer(file, V).vocab_size == V:
                return file
        except ValueError:
            continue
    return None


def _has_added_tokens(directory: Path) -> bool:
    if (directory / "added_tokens.json").is_file():
        return True
    config = directory / "tokenizer_config.json"
    if not config.is_file():
        return False
    added = read_json(config, {"added_tokens_decoder": TABLE}).get("added_tokens_decoder") or {}
    return len(added) > 3  # unknown, BOS and EOS are in the tokenizer.model too


def _is_tiktoken(file: Path) -> bool:
    """Whether a file is in the format of Llama 3's tokenizer.model: lines of base64 and a rank."""
    with file.open("rb") as opened:
        first = opened.readline(200).split()
    return len(first) == 2 and first[1] == b"0"


def _open_tokenizer(file: Path, model_vocab_size: int | None) -> Tokenizer:
    if file.suffix == ".json":
        return HFTokenizer(file)
    if file.suffix == ".bin":
        if is_model(file):
            names = ", ".join(names_beside(file))
            raise ValueError(
                f"{file} contains weights, and there is no tokenizer beside it ({names}): give one with --tokenizer"
            )
        if model_vocab_size is None:
            raise ValueError(f"{file} does not contain its number of tokens: it can only be opened with its model")
        return Llama2cTokenizer(file, model_vocab_size)
    if _is_tiktoken(file):
        raise ValueError(f"{file} is in tiktoken's format: give the tokenizer.json of the same model")
    return SentencePieceTokenizer(file)


def read_ids(directory: Path) -> dict[str, Any]:
    """bos_token_id and eos_token_id, the latter one id or a list. generation_config.json overrides config.json."""
    ids: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (directory / name).is_file():
            config = read_json(directory / name, {"bos_token_id": IDS, "eos_token_id": IDS})
            ids |= {key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None}
    return ids


def save_tokenizer(tokenizer: Tokenizer, directory: str | Path) -> None:
    """Copy the tokenizer's file and its chat template, and write the files that transformers needs to use them."""
    directory = Path(directory)
    source = tokenizer.path.parent
    directory.mkdir(parents=True, exist_ok=True)
    template = None if isinstance(tokenizer, Llama2cTokenizer) else chat_template(source)
    file = copy_tokenizer(tokenizer, directory)
    if file.suffix == ".model":
        tokenizer_json, config = hugging_face_files(file) or ({}, {})
        if template is not None:
            config["chat_template"] = template
        if tokenizer_json:
            write_json(directory / "tokenizer.json", tokenizer_json)
        if config:
            write_json(directory / "tokenizer_config.json", config)
    if isinstance(tokenizer, HFTokenizer):
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (source / name).is_file():
                copy_file(source / name, directory / name)
    if not isinstance(tokenizer, Llama2cTokenizer) and (source / TEMPLATE).is_file():
        copy_file(source / TEMPLATE, directory / TEMPLATE)
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_id}
    if tokenizer.eos_ids:  # transformers fails on an empty list
        ids["eos_token_id"] = list(tokenizer.eos_ids)
    write_json(directory / "generation_config.json", ids)


def chat_template(directory: Path) -> Any:
    """The chat template in tokenizer_config.json: text, or a list of named templates; None if there is none."""
    config = directory / "tokenizer_config.json"
    return read_json(config).get("chat_template") if config.is_file() else None


def copy_tokenizer(tokenizer: Tokenizer, directory: Path) -> Path:
    """Copy only the tokenizer's file, under its usual name. llama2.c's becomes a tokenizer.model that encodes alike."""
    file = directory / ("tokenizer.json" if isinstance(tokenizer, HFTokenizer) else "tokenizer.model")
    content = tokenizer.proto if isinstance(tokenizer, Llama2cTokenizer) else file_content(tokenizer)
    if not is_same_file(tokenizer.path, file):
        write_atomically(file, lambda temporary: temporary.write_bytes(content))
    return file


def copy_file(source: Path, target: Path) -> None:
    if not is_same_file(source, target):
        write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))


def is_same_file(source: Path, target: Path) -> bool:
    return target.exists() and target.samefile(source)
