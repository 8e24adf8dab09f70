"""Rewrite a model in another program's format; what the target cannot express is refused, not dropped.

python convert.py runs/demo demo.bin --to llama2c           for llama2.c's run.c, with demo.tokenizer.bin beside it
python convert.py meta-llama/original my-llama --to hf      for transformers, vLLM, llama.cpp's converter
python convert.py my-llama consolidated --to meta --dtype bfloat16
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from model.cli import Parser, run_script

if TYPE_CHECKING:
    from model import Transformer
    from model.text.tokenizer import Tokenizer


def main() -> None:
    parser = Parser(prog="convert.py", description="Rewrite a model in another program's format.")
    parser.add_argument("source", type=Path, metavar="SRC", help="run, Hugging Face or Meta directory or llama2.c .bin")
    parser.add_argument("target", type=Path, metavar="DST", help="a new directory; for llama2c a new file")
    parser.add_argument("--to", choices=("hf", "meta", "llama2c"), required=True, help="the format of DST")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of weights (default: SRC's)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer file (default: the one beside SRC)")
    flags = parser.parse_args()
    check(flags.source, flags.target, flags.to, flags.dtype, flags.tokenizer)

    import torch

    from model.weights import load_model

    model = load_model(flags.source, dtype=getattr(torch, flags.dtype) if flags.dtype else "stored")
    write(model, flags.source, flags.target, flags.to, flags.tokenizer)
    size = sum(tensor.numel() for tensor in model.parameters())
    print(f"{flags.target}: {size:,} parameters, read back with MODEL = {flags.target}", file=sys.stderr)


def check(source: Path, target: Path, to: str, dtype: str | None, tokenizer: Path | None) -> None:
    """Everything that can be refused before torch is imported. Nothing that exists is ever written over."""
    from model import weights
    from model.weights import llama2c
    from model.weights import meta as meta_params

    if target.exists() and not (target.is_dir() and not any(target.iterdir()) and to != "llama2c"):
        raise ValueError(f"{target} exists: name something new, or remove it first")
    if not target.absolute().parent.is_dir():
        raise ValueError(f"{target.absolute().parent} is not a directory: make it first")
    weights.check(source, tokenizer)
    args = weights.load_args(source)
    if to == "meta":
        meta_params.params_from(args)
        context = meta_params.context(args.rope_theta, args.rope_scaling)
        if args.max_seq_len != context:
            note(f"params.json cannot say that the context is {args.max_seq_len}: read back it is {context}")
    if to == "llama2c":
        if beside(target).exists():
            raise ValueError(f"{beside(target)} exists: it would be written, too; name another file, or remove it")
        llama2c.refuse(args)
        if dtype not in (None, "float32"):
            raise ValueError(f"dtype is {dtype}: llama2.c's files are float32")


def beside(target: Path) -> Path:
    return target.with_name(f"{target.stem}.tokenizer.bin")


def note(text: str) -> None:
    print(f"convert.py: note: {text}", file=sys.stderr)


def write(model: "Transformer", source: Path, target: Path, to: str, tokenizer: Path | None) -> None:
    from model.cli.files import write_atomically
    from model.weights import find_tokenizer, llama2c, load_tokenizer, meta, save_model, save_tokenizer
    from model.weights.tokenizers import copy_tokenizer, read_ids

    file = tokenizer or (find_tokenizer(source) if source.is_dir() else None)
    found = load_tokenizer(tokenizer or source, model.args.vocab_size) if file else None

    def write_directory(directory: Path) -> None:
        directory.mkdir()
        if to == "hf":
            if found:
                save_tokenizer(found, directory)
            save_model(model, directory, ids=None if found or source.is_file() else read_ids(source))
        else:
            if found:
                copy_tokenizer(found, directory)
            meta.save(model, directory)

    if to == "llama2c":
        if found:
            write_tokenizer_bin(found, beside(target))
        llama2c.save(model, target)
    else:
        write_atomically(target, write_directory)


def write_tokenizer_bin(tokenizer: "Tokenizer", path: Path) -> None:
    from model.weights import tokenizer_files as tokenizer_bin

    try:
        tokenizer_bin.save(tokenizer, path)
    except ValueError as error:
        note(f"the weights only: {error}")
    else:
        if not tokenizer.adds_space:
            note("llama2.c puts a space before every prompt, which this model's own tokenizer does not")


if __name__ == "__main__":
    run_script(main, "convert.py")
