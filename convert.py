#!/usr/bin/env python3
"""Convert a model from or to another format: python convert.py SRC DST [--to hf|meta|llama2c]

All other programs read Hugging Face directories only. An architecture that the format cannot express is refused. Meta's
format has no context length: it is dropped with a note. ``--force`` drops norm_eps for llama2.c, with a note.
"""

import startup  # noqa: F401, I001  must come before torch

import argparse
import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from model.cli import Parser, print_note, run_script
from model.cli.files import write_atomically, write_json
from model.cli.machine import DTYPES_BY_NAME
from model.text.tokenizer import Tokenizer
from model.training.estimate import count_parameters
from model.transformer import Transformer
from model.weights import Checkpoint, find_tokenizer, llama2c, llama2c_tokenizer, load_tokenizer, meta
from model.weights import save_model, save_tokenizer
from model.weights.loading import Weights
from model.weights.tokenizers import read_ids


def main() -> None:
    flags = parse_flags()
    check_target(flags.target, flags.to)
    source = open_source(flags.source)  # reads no weights yet
    check_format(source, flags.to, flags.dtype, flags.version, flags.force)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = open_tokenizer(source, flags.tokenizer, Path(scratch))
        if tokenizer is None:
            note(f"{flags.source} has no tokenizer: converting the weights only; give a tokenizer with --tokenizer")
        if flags.version == 2:
            model = source.model(int8=True, group_size=llama2c.group_size_for(source.args))
        else:
            model = source.model(dtype=DTYPES_BY_NAME[flags.dtype] if flags.dtype else "stored")
        if flags.to == "llama2c":
            write_file(model, tokenizer, flags.target)
        else:
            write = partial(write_directory, model, tokenizer, flags.source, flags.to)
            write_atomically(flags.target, write)
    size = count_parameters(source.args).total
    command = f"python generate.py {quote(str(flags.target))}{'' if tokenizer else ' --tokenizer FILE'}"
    print_note(f"{flags.target} has {size:,} parameters{f'; {command} reads it' if flags.to == 'hf' else ''}")


def open_source(path: Path) -> Weights:
    """Open a Hugging Face or a Meta directory, or a llama2.c file, without reading the weights."""
    if path.is_file() and path.suffix not in (".gguf", ".safetensors", ".pth", ".pt", ".json"):
        return llama2c.Llama2c(path)
    if (path / "params.json").is_file() and not (path / "config.json").is_file():
        return meta.Meta(path)
    return Checkpoint(path)


def open_tokenizer(source: Weights, file: Path | None, scratch: Path) -> Tokenizer | None:
    """The tokenizer in ``file`` or beside the weights, or None. llama2.c's is first converted, in ``scratch``."""
    if file is None and source.path.is_dir():
        file = find_tokenizer(source.path) and source.path
    elif file is None:
        beside = (tokenizer_bin(source.path), source.path.with_name("tokenizer.bin"))
        file = next((path for path in beside if path.is_file()), None)
    if file is None:
        return None
    if file.suffix == ".bin":
        converted = scratch / "tokenizer.model"
        converted.write_bytes(llama2c_tokenizer.read(file, source.args.vocab_size))
        file = converted
    return load_tokenizer(file, source.args.vocab_size)


def tokenizer_bin(model: Path) -> Path:
    """The file to which the tokenizer of a llama2.c model is written."""
    return model.parent / f"{model.stem}.tokenizer.bin"


def parse_flags() -> argparse.Namespace:
    parser = Parser(prog="convert.py", description="Convert a model from or to another format.")
    parser.add_argument(
        "source",
        type=Path,
        metavar="SRC",
        help="a run, another Hugging Face directory, a Meta directory, or a llama2.c .bin",
    )
    parser.add_argument("target", type=Path, metavar="DST", help="a new directory; for llama2c a new file")
    parser.add_argument("--to", choices=("hf", "meta", "llama2c"), default="hf", help="the format of DST (default: hf)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="dtype of the weights (default: as in SRC)"
    )
    parser.add_argument(
        "--version",
        type=int,
        choices=(0, 2),
        default=0,
        help="version of llama2.c's format: 0 for float32, 2 for int8 (default: 0)",
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer file (default: the one beside SRC)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="for llama2c: convert even if norm_eps differs from llama2.c's, which changes the logits",
    )
    return parser.parse_args()


def check_target(target: Path, to: str) -> None:
    """Raise ValueError if the output would overwrite anything."""
    for path in (target, tokenizer_bin(target)) if to == "llama2c" else (target,):
        if os.path.lexists(path):  # also a link that leads nowhere
            raise ValueError(f"{path} exists: give a new name, or remove it first")
    if not target.absolute().parent.is_dir():
        raise ValueError(f"{target.absolute().parent} is not a directory: create it first")


def check_format(source: Weights, to: str, dtype: str | None, version: int, force: bool) -> None:
    """Raise ValueError if the format cannot express the model. What it drops is noted."""
    args = source.args
    if version and to != "llama2c":
        raise ValueError(f"version is {version}: only llama2.c's format has versions; leave --version out")
    if source.subclass_name:
        raise ValueError(
            f"{source.path} has the weights of {source.subclass_name}: no format can describe that network"
        )
    if to == "meta":
        meta.params_from(args)
        context = meta.default_context(args.rope_theta, args.rope_scaling)
        if args.max_seq_len != context:
            note(f"Meta's params.json cannot store the context of {args.max_seq_len}: readers will use {context}")
    if to == "llama2c":
        llama2c.header_of(replace(args, norm_eps=llama2c.NORM_EPS))
        stored = "int8" if version else "float32"
        if dtype not in (None, stored):
            raise ValueError(f"dtype is {dtype}: version {version} of llama2.c's format is {stored}; leave --dtype out")
        if args.norm_eps != llama2c.NORM_EPS and not force:
            raise ValueError(
                f"norm_eps is {args.norm_eps}, and llama2.c fixes it at {llama2c.NORM_EPS}: --force converts the model "
                "anyway, and its logits change a little"
            )
        if args.norm_eps != llama2c.NORM_EPS:
            note(f"llama2.c computes with a norm_eps of {llama2c.NORM_EPS} instead of {args.norm_eps}")


def note(text: str) -> None:
    print_note(f"note: {text}")


def write_directory(model: Transformer, tokenizer: Tokenizer | None, source: Path, to: str, directory: Path) -> None:
    """Write the model in Hugging Face or Meta format.

    The settings of the tokenizer and the ids of BOS and EOS are written for both, although Meta's code reads only
    tokenizer.model: else they would be lost on the way back.
    """
    directory.mkdir()
    if tokenizer:
        save_tokenizer(tokenizer, directory)
    elif ids := read_ids(source):
        write_json(directory / "generation_config.json", ids)
    if to == "meta":
        meta.save(model, directory)
    else:
        save_model(model, directory)


def write_file(model: Transformer, tokenizer: Tokenizer | None, path: Path) -> None:
    """Write the model in llama2.c's format, then its tokenizer."""
    model.args = replace(model.args, norm_eps=llama2c.NORM_EPS)
    llama2c.save(model, path)
    if tokenizer is None:
        return
    try:
        llama2c_tokenizer.save(tokenizer, tokenizer_bin(path))
    except ValueError as error:
        note(f"converting the weights only: {error}")
    else:
        if not tokenizer.adds_space:
            note("llama2.c puts a space before every prompt, but this model's tokenizer does not")


if __name__ == "__main__":
    run_script(main, "convert.py")
