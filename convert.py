#!/usr/bin/env python3
"""Convert a model from or to another format.

python convert.py Meta-Llama-3-8B llama3              make a Hugging Face directory, which all programs read
python convert.py stories15M.bin stories15M           from llama2.c's format
python convert.py runs/demo demo.bin --to llama2c     into that format

All other programs read Hugging Face directories with safetensors only. An architecture that the format cannot express
is refused.
"""

import startup

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

from model.cli import POSITIONAL, Parser, parse, print_note
from model.cli.files import write_atomically, write_json
from model.config import check_settings
from model.text.tokenizer import Tokenizer, is_tiktoken

# Everything that imports PyTorch is imported by the functions that use it, so that --help does not wait for it.
if TYPE_CHECKING:
    from model.transformer import Transformer
    from model.weights import Checkpoint


@dataclass(frozen=True)
class Options:
    """Models and formats."""

    source: Annotated[
        Path,
        "a run, another Hugging Face directory (pytorch_model.bin is read, too), an id of the Hub, a Meta directory, "
        "or a llama2.c .bin",
        POSITIONAL,
    ]
    target: Annotated[Path, "a new directory; for llama2c a new file", POSITIONAL]
    to: Annotated[Literal["hf", "llama2c"], "the format of TARGET"] = "hf"
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, "dtype of the weights (default: as in SOURCE)"
    ] = None
    tokenizer: Annotated[Path | None, "tokenizer file (default: the one beside SOURCE)"] = None

    def __post_init__(self) -> None:
        check_settings(self)


def main() -> None:
    options, _ = parse(Parser(prog="convert.py", description=__doc__), Options)
    check_target(options.target, options.to)

    from model.cli.machine import DTYPES_BY_NAME

    source = open_source(options.source)  # reads no weights yet
    check_format(source, options.to, options.dtype)
    tokenizer = open_tokenizer(source, options.tokenizer)
    model = source.model(dtype=DTYPES_BY_NAME[options.dtype] if options.dtype else "stored")
    if options.to == "llama2c":
        next_step = write_file(model, tokenizer, options.target)
    else:
        write_atomically(options.target, partial(write_directory, model, tokenizer, source.path))
        option = "" if tokenizer else " --tokenizer FILE"
        next_step = f"python generate.py {quote(str(options.target))}{option} reads it"
    size = sum(weight.numel() for weight in model.parameters())
    print_note(f"{options.target} has {size:,} parameters; {next_step}")


def open_source(path: Path) -> "Checkpoint":
    """Open a model in any format that is read, without reading its tensors."""
    from model.weights import llama2c, meta, open_checkpoint

    if path.is_file():
        return llama2c.open_file(path)
    if (path / "params.json").is_file() and not (path / "config.json").is_file():
        return meta.open_directory(path)
    return open_checkpoint(path, pickles=True)


def open_tokenizer(source: "Checkpoint", file: Path | None) -> Tokenizer | None:
    """The tokenizer in ``file`` or beside the weights, or None, with a note."""
    from model.weights import llama2c, load_tokenizer
    from model.weights.tokenizers import check_size, tokenizer_files

    path, is_directory = source.path, source.path.is_dir()
    if file is None:
        files = tokenizer_files(path if is_directory else path.parent)
        if not files and not is_directory:
            files = [each for each in (tokenizer_bin(path), path.parent / "tokenizer.bin") if each.is_file()]
        problem = "" if files else f"{path} has no tokenizer{'' if is_directory else ' beside it'}"
        if len(files) == 1 and is_tiktoken(files[0].read_bytes()):
            problem = f"{files[0]} is a file of tiktoken, which is not read"
        if problem:
            print_note(f"note: {problem}: converting the weights only; or give --tokenizer, a tokenizer.json")
            return None
        file = files[0] if files[0].suffix == ".bin" else files[0].parent
    if file.suffix != ".bin":
        return load_tokenizer(file, source.args.vocab_size)
    tokenizer = llama2c.open_tokenizer(file)
    check_size(tokenizer, source.args.vocab_size, file)
    print_note(f"note: the tokenizer is {file}, which puts a space before every text, as llama2.c does")
    return tokenizer


def tokenizer_bin(model: Path) -> Path:
    """The file to which the tokenizer of a llama2.c model is written."""
    return model.parent / f"{model.stem}.tokenizer.bin"


def check_target(target: Path, to: str) -> None:
    """Raise ValueError if the output would overwrite anything."""
    for path in (target, tokenizer_bin(target)) if to == "llama2c" else (target,):
        if os.path.lexists(path):  # also a link that leads nowhere
            raise ValueError(f"{path} exists: give a new name, or remove it first")
    if not target.absolute().parent.is_dir():
        raise ValueError(f"{target.absolute().parent} is not a directory: create it first")


def check_format(source: "Checkpoint", to: str, dtype: str | None) -> None:
    """Raise ValueError if the format cannot express the model."""
    from model.weights import llama2c

    if source.subclass_name:
        raise ValueError(
            f"{source.path} has the weights of {source.subclass_name}: no format can describe that network"
        )
    if to == "llama2c":
        llama2c.header_of(source.args)
        if dtype not in (None, "float32"):
            raise ValueError(f"dtype is {dtype}: llama2.c's format is float32; leave --dtype out")


def write_directory(model: "Transformer", tokenizer: Tokenizer | None, source: Path, directory: Path) -> None:
    """Write the model in Hugging Face format. Without a tokenizer, the ids of BOS and EOS are those of the source."""
    from model.weights import save_model, save_tokenizer
    from model.weights.tokenizers import read_ids

    directory.mkdir()
    if tokenizer:
        save_tokenizer(tokenizer, directory)
    elif ids := read_ids(source):
        write_json(directory / "generation_config.json", ids)
    save_model(model, directory)


def write_file(model: "Transformer", tokenizer: Tokenizer | None, path: Path) -> str:
    """Write the model in llama2.c's format, then its tokenizer. Returns how llama2.c reads them."""
    from model.weights import llama2c

    llama2c.save(model, path)
    file = tokenizer_bin(path)
    try:
        if tokenizer:
            llama2c.save_tokenizer(tokenizer, file)
    except ValueError as error:
        print_note(f"note: converting the weights only: {error}")
        tokenizer = None
    if tokenizer is None:
        return f"llama2.c reads it with ./run {quote(str(path))} -z TOKENIZER.bin"
    if not tokenizer.adds_space:
        print_note("note: llama2.c puts a space before every prompt, but this model's tokenizer does not")
    return f"{file} is its tokenizer; llama2.c reads both with ./run {quote(str(path))} -z {quote(str(file))}"


if __name__ == "__main__":
    startup.run(main, "convert.py")
