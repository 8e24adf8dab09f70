"""The tokenizer of a checkpoint: found beside the weights, compared with them, and written so that others read it."""

import shutil
from pathlib import Path
from typing import Any

from ..cli.files import IDS, TABLE, read_json, write_atomically, write_json
from ..text.hf_tokenizer import HFTokenizer, hugging_face_files
from ..text.llama2c_tokenizer import Llama2cTokenizer, sentencepiece_model
from ..text.tokenizer import SentencePieceTokenizer, Tokenizer, read_again
from .llama2c import find_model, is_model, open_header

TEMPLATE = "chat_template.jinja"
PADDING = 128  # rows that a vocabulary may have been rounded up by


def load_tokenizer(path: str | Path, model_vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer in a directory or beside a llama2.c model, or a tokenizer.model, tokenizer.json or tokenizer.bin.

    Its end ids are those of generation_config.json or config.json beside it, where these say any. Raises ValueError
    when it is not of a model with ``model_vocab_size`` tokens.
    """
    path = Path(path)
    file = find_tokenizer(path) or path
    if file.is_dir():
        raise ValueError(f"{path} has neither tokenizer.model nor tokenizer.json: give one with --tokenizer")
    model = find_model(path) if file.suffix == ".bin" else None
    if model and model_vocab_size is None:  # a tokenizer.bin does not say how many tokens it has
        model_vocab_size = open_header(model).args.vocab_size
    if not file.is_file():
        is_not = "is not a file" if file.exists() else "does not exist"
        raise ValueError(f"{file} {is_not}: give a tokenizer.model, tokenizer.json or llama2.c tokenizer.bin")
    tokenizer = _open_tokenizer(file, model_vocab_size)
    ends = read_ids(file.parent).get("eos_token_id") if file.suffix != ".bin" else None
    if ends is not None:
        tokenizer.eos_ids = tuple(ends) if isinstance(ends, list) else (ends,)
    check_size(tokenizer, model_vocab_size, file)
    return tokenizer


def check_size(tokenizer: Tokenizer, model_vocab_size: int | None, file: Path) -> None:
    if model_vocab_size is None:
        return
    # The tables of a tokenizer.json's model are often rounded up; a SentencePiece model's never are.
    spare = PADDING if isinstance(tokenizer, HFTokenizer) else 1
    if not 0 <= model_vocab_size - tokenizer.vocab_size < spare:
        raise ValueError(
            f"{file} has {tokenizer.vocab_size} tokens, the model {model_vocab_size}: give the model's own tokenizer"
        )


def find_tokenizer(path: Path) -> Path | None:
    """The tokenizer file of a model: in its directory, or beside a llama2.c model.

    tokenizer.model needs no extra; where tokens were added to it later, only tokenizer.json knows them.
    """
    pieces, whole = path / "tokenizer.model", path / "tokenizer.json"
    if pieces.is_file() and not (whole.is_file() and (_has_added(path) or _is_tiktoken(pieces))):
        return pieces
    if whole.is_file():
        return whole
    model = find_model(path)
    return _find_beside(model) if model else None


def tokenizer_bin(model: Path) -> Path:
    """Where the tokenizer of a llama2.c model is written."""
    return model.with_name(f"{model.stem}.tokenizer.bin")


def names_beside(model: Path) -> list[str]:
    """What the tokenizer of a llama2.c model may be called: our own name for it, then those of llama2.c."""
    V = open_header(model).args.vocab_size
    return [tokenizer_bin(model).name, f"tok{V}.bin", f"tok{V}.model", "tokenizer.bin", "tokenizer.model"]


def _find_beside(model: Path) -> Path | None:
    """The first of ``names_beside`` that is there; one with another number of tokens is another model's."""
    own, *others = (model.with_name(name) for name in names_beside(model))
    if own.is_file():  # it can only be this model's: if it does not fit, that is an error
        return own
    V = open_header(model).args.vocab_size
    for file in others:
        try:
            if file.is_file() and _open_tokenizer(file, V).vocab_size == V:
                return file
        except ValueError:
            continue
    return None


def _has_added(directory: Path) -> bool:
    if (directory / "added_tokens.json").is_file():
        return True
    config = directory / "tokenizer_config.json"
    if not config.is_file():
        return False
    added = read_json(config, {"added_tokens_decoder": TABLE}).get("added_tokens_decoder") or {}
    return len(added) > 3  # unknown, BOS and EOS are in the tokenizer.model itself


def _is_tiktoken(file: Path) -> bool:
    """Llama 3's tokenizer.model: lines of base64 and a rank."""
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
                f"{file} holds weights, and beside it is no tokenizer ({names}): give one with --tokenizer"
            )
        if model_vocab_size is None:
            raise ValueError(f"{file} does not say how many tokens it has: it is only opened with its model")
        return Llama2cTokenizer(file, model_vocab_size)
    if _is_tiktoken(file):
        raise ValueError(f"{file} is in tiktoken's format: give the tokenizer.json of the same model")
    return SentencePieceTokenizer(file)


def read_ids(directory: Path) -> dict[str, Any]:
    """bos_token_id and eos_token_id, the latter one or a list: generation_config.json is asked before config.json."""
    ids: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (directory / name).is_file():
            found = read_json(directory / name, {"bos_token_id": IDS, "eos_token_id": IDS})
            ids |= {key: found[key] for key in ("bos_token_id", "eos_token_id") if found.get(key) is not None}
    return ids


def save_tokenizer(tokenizer: Tokenizer, directory: str | Path) -> None:
    """Copy the tokenizer's file and the chat template beside it, with what transformers needs to use them alike."""
    directory = Path(directory)
    beside = tokenizer.path.parent
    directory.mkdir(parents=True, exist_ok=True)
    template = None if isinstance(tokenizer, Llama2cTokenizer) else chat_template(beside)
    file = copy_tokenizer(tokenizer, directory)
    if file.suffix == ".model":
        whole, config = hugging_face_files(file) or ({}, {})
        if template is not None:
            config["chat_template"] = template
        if whole:
            write_json(directory / "tokenizer.json", whole)
        if config:
            write_json(directory / "tokenizer_config.json", config)
    if isinstance(tokenizer, HFTokenizer):
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (beside / name).is_file():
                copy(beside / name, directory / name)
    if not isinstance(tokenizer, Llama2cTokenizer) and (beside / TEMPLATE).is_file():
        copy(beside / TEMPLATE, directory / TEMPLATE)
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_id}  # where texts begin and end
    if tokenizer.eos_ids:  # transformers fails on an empty list
        ids["eos_token_id"] = list(tokenizer.eos_ids)
    write_json(directory / "generation_config.json", ids)


def chat_template(directory: Path) -> Any:
    """What tokenizer_config.json holds: a text, or several by name."""
    config = directory / "tokenizer_config.json"
    return read_json(config).get("chat_template") if config.is_file() else None


def copy_tokenizer(tokenizer: Tokenizer, directory: Path) -> Path:
    """The file alone, under the name by which it is found; llama2.c's as the tokenizer.model that encodes alike."""
    file = directory / ("tokenizer.json" if isinstance(tokenizer, HFTokenizer) else "tokenizer.model")
    content = sentencepiece_model(tokenizer) if isinstance(tokenizer, Llama2cTokenizer) else read_again(tokenizer)
    if not is_same(tokenizer.path, file):
        write_atomically(file, lambda temporary: temporary.write_bytes(content))
    return file


def copy(source: Path, target: Path) -> None:
    if not is_same(source, target):
        write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))


def is_same(source: Path, target: Path) -> bool:
    return target.exists() and target.samefile(source)
