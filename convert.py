#!/usr/bin/env python3
"""Convert a model to another format: python convert.py SRC DST --to hf|meta|llama2c

An architecture that the format cannot express is refused. Meta's format has no context length: it is dropped with a
note. ``--force`` replaces norm_eps for llama2.c.
"""

import startup  # noqa: F401, I001  must come before torch

import math
import os
import random
from dataclasses import replace
from pathlib import Path

import torch

from model.cli import Parser, format_path, print_note, run_script
from model.cli.files import is_utf8, write_atomically
from model.cli.machine import DTYPES_BY_NAME
from model.text import llama2c_tokenizer
from model.text.tokenizer import Tokenizer
from model.transformer import RMSNorm, Transformer
from model.weights import Checkpoint, llama2c, meta, open_checkpoint, save_model, save_tokenizer
from model.weights.layout import tensor_shapes
from model.weights.tokenizers import copy_tokenizer, read_ids, tokenizer_bin

SAMPLE_TEXT = "Once upon a time there was a ropewalk, a long lane where rope is laid. The rope was long and strong."
SAMPLE_TOKENS = 32


def main() -> None:
    parser = Parser(prog="convert.py", description="Convert a model to another format.")
    parser.add_argument(
        "source", type=Path, metavar="SRC", help="a run, Hugging Face or Meta directory, or a llama2.c .bin"
    )
    parser.add_argument("target", type=Path, metavar="DST", help="a new directory; for llama2c a new file")
    parser.add_argument("--to", choices=("hf", "meta", "llama2c"), required=True, help="the format of DST")
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
        help="for llama2c: convert even if norm_eps differs from llama2.c's, and report how much the logits change",
    )
    flags = parser.parse_args()
    check_target(flags.target, flags.to)
    checkpoint = open_checkpoint(flags.source)
    check_format(checkpoint, flags.to, flags.dtype, flags.version)
    other_eps = flags.to == "llama2c" and checkpoint.args.norm_eps != llama2c.NORM_EPS
    if other_eps and not flags.force:
        raise ValueError(
            f"norm_eps is {checkpoint.args.norm_eps}, and llama2.c fixes it at {llama2c.NORM_EPS}: --force converts "
            "the model anyway, and reports how much the logits change"
        )
    has_tokenizer = flags.tokenizer or checkpoint.has_tokenizer()
    tokenizer = checkpoint.tokenizer(flags.tokenizer) if has_tokenizer else None
    if tokenizer is None:
        note(f"{flags.source} has no tokenizer: converting the weights only; give a tokenizer with --tokenizer")
    checkpoint.tie_equal_matrices()
    if flags.version == 2:
        model = checkpoint.model(int8=True, group_size=llama2c.group_size_for(checkpoint.args))
    else:
        # other_eps implies llama2.c, whose version 0 stores float32, so the change is measured in float32.
        dtype_name = "float32" if other_eps else flags.dtype
        model = checkpoint.model(dtype=DTYPES_BY_NAME[dtype_name] if dtype_name else "stored")
    if other_eps:
        note(change_norm_eps(model, llama2c.NORM_EPS, tokenizer))
    check_target(flags.target, flags.to)  # again, because reading a large model takes minutes
    if flags.to == "llama2c":
        write_file(model, tokenizer, flags.target)
    else:
        ids = read_ids(flags.source) if flags.source.is_dir() and not tokenizer else None
        write_atomically(flags.target, lambda directory: write_directory(model, tokenizer, directory, flags.to, ids))
    size = sum(math.prod(shape) for shape in tensor_shapes(checkpoint.args).values())
    command = f"python generate.py {format_path(flags.target)}{'' if tokenizer else ' --tokenizer FILE'}"
    print_note(f"{flags.target} has {size:,} parameters; {command} reads it")


def check_target(target: Path, to: str) -> None:
    """Raise ValueError if the output would overwrite anything.

    A new directory may replace an empty one, unless that is a link, a mount point or the current directory. A file for
    llama2c replaces nothing.
    """
    if not is_utf8(str(target)):
        raise ValueError(f"{str(target)!a} is not UTF-8: give a name in UTF-8")
    is_empty_directory = target.is_dir() and not any(target.iterdir())
    if is_empty_directory and (target.is_symlink() or os.path.ismount(target) or target.samefile(".")):
        raise ValueError(f"{target} cannot be replaced by another directory: give a new name, or a name inside it")
    if os.path.lexists(target) and not (is_empty_directory and to != "llama2c"):  # also a link that leads nowhere
        raise ValueError(f"{target} exists: give a new name, or remove it first")
    if not target.absolute().parent.is_dir():
        raise ValueError(f"{target.absolute().parent} is not a directory: create it first")
    if to == "llama2c" and tokenizer_bin(target).exists():
        raise ValueError(f"{tokenizer_bin(target)} exists and would be overwritten: give a new name, or remove it")


def check_format(checkpoint: Checkpoint, to: str, dtype: str | None, version: int) -> None:
    """Raise ValueError if the format cannot express the model."""
    args = checkpoint.args
    if version and to != "llama2c":
        raise ValueError(f"version is {version}: only llama2.c's format has versions; leave --version out")
    if checkpoint.subclass_name:
        raise ValueError(
            f"{checkpoint.path} has the weights of {checkpoint.subclass_name}: no format can describe that network"
        )
    if to == "meta":
        meta.params_from(args)
        context = meta.default_context(args.rope_theta, args.rope_scaling)
        if args.max_seq_len != context:
            note(f"Meta's params.json cannot store the context of {args.max_seq_len}: readers will use {context}")
    if to == "llama2c":
        llama2c.header_of(replace(args, norm_eps=llama2c.NORM_EPS))  # norm_eps is checked in main, see --force
        stored = "int8" if version else "float32"
        if dtype not in (None, stored):
            raise ValueError(f"dtype is {dtype}: version {version} of llama2.c's format is {stored}; leave --dtype out")


def note(text: str) -> None:
    print_note(f"note: {text}")


@torch.no_grad()
def change_norm_eps(model: Transformer, norm_eps: float, tokenizer: Tokenizer | None) -> str:
    """Change the epsilon of the norms in place. Returns a note on how much the logits of a few tokens change."""
    args = model.args
    if tokenizer:
        ids = tokenizer.encode(SAMPLE_TEXT)
        kind = "of an English text"
    else:
        ids = random.Random(0).choices(range(args.vocab_size), k=SAMPLE_TOKENS)
        kind = "drawn at random"
    tokens = torch.tensor([ids[: args.max_seq_len]])  # (1, T)
    before = model(tokens)[0]  # (T, V)
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.eps = norm_eps
    model.args = replace(args, norm_eps=norm_eps)
    after = model(tokens)[0]  # (T, V)
    same = int((before.argmax(-1) == after.argmax(-1)).sum())
    return (
        f"norm_eps changed from {args.norm_eps} to {norm_eps}. Logits range from {before.min():.3g} to "
        f"{before.max():.3g}; the largest change is {(after - before).abs().max():.2g}. The most likely next token is "
        f"the same after {same} of {tokens.numel()} tokens {kind}"
    )


def write_directory(
    model: Transformer, tokenizer: Tokenizer | None, directory: Path, to: str, ids: dict[str, object] | None
) -> None:
    """Write the model in Hugging Face or Meta format. ``ids`` are BOS and EOS for a model without a tokenizer."""
    directory.mkdir()
    if to == "hf":
        if tokenizer:
            save_tokenizer(tokenizer, directory)
        save_model(model, directory, ids=ids)
    else:
        if tokenizer:
            copy_tokenizer(tokenizer, directory)
        meta.save(model, directory)


def write_file(model: Transformer, tokenizer: Tokenizer | None, path: Path) -> None:
    """Write the model in llama2.c's format. The weights are written last: if they exist, the conversion is complete."""
    if tokenizer:
        try:
            llama2c_tokenizer.save(tokenizer, tokenizer_bin(path))
        except ValueError as error:
            note(f"converting the weights only: {error}")
        else:
            if not tokenizer.adds_space:
                note("llama2.c puts a space before every prompt, but this model's tokenizer does not")
    try:
        llama2c.save(model, path)
    except BaseException:
        tokenizer_bin(path).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    run_script(main, "convert.py")
