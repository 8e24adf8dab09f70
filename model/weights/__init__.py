"""Checkpoints on disk: a run directory, Hugging Face, Meta and llama2.c, all opened by looking at the path.

    files.py         whole files or none
    layout.py        the tensors' names and shapes, and why query and key rows are permuted
    hf_config.py, hf_rope.py    config.json <-> ModelArgs
    huggingface.py   Hugging Face's directories, and so our own runs
    meta.py, meta_params.py    Meta's directories
    llama2c.py       llama2.c's .bin files
    tokenizers.py    the tokenizer that belongs to the weights
    tokenizer_json.py, tokenizer_bin.py    a SentencePiece tokenizer for transformers, for llama2.c
    empty.py         a network that waits for its weights
    checkpoint.py    any of them

The names below are loaded when first used, and torch only once the path has passed every check that needs none.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import check, load_args, load_model, save_model
    from .tokenizers import find_tokenizer, load_tokenizer, save_tokenizer

_HOME = dict.fromkeys(("check", "load_args", "load_model", "save_model"), "checkpoint")
_HOME |= dict.fromkeys(("find_tokenizer", "load_tokenizer", "save_tokenizer"), "tokenizers")

__all__ = ["check", "find_tokenizer", "load_args", "load_model", "load_tokenizer", "save_model", "save_tokenizer"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
