"""What topics are given, checked before anything is computed: numbers, memory, the trained model and its text."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cli import build, read_toml
from ..cli.machine import check_memory
from ..positions import NOTE, load_study, read_note
from ..text.prepare import prepare
from ..text.sources import open_documents
from ..text.token_cache import cache_home
from ..text.tokenizer import Tokenizer
from ..training.config import CLASSES, DataArgs
from ..transformer import Transformer
from ..weights import load_model, load_tokenizer
from ..weights.checkpoint import newest_run

CONFIG = "config.toml"  # of a run: what it was trained on


def check_at_least(least: int, options: Any, *names: str) -> None:
    """Raises ValueError for the first of these options that is below ``least``."""
    for name in names:
        if getattr(options, name) < least:
            raise ValueError(f"{name} is {getattr(options, name)}: give at least {least}")


def check_even(options: Any, name: str) -> None:
    if getattr(options, name) < 2 or getattr(options, name) % 2:
        raise ValueError(f"{name} is {getattr(options, name)}: give an even number above 0, because RoPE rotates pairs")


def check_theta(theta: float) -> None:
    """The base of the frequencies: Raises ValueError for one whose angles would be NaN or meaningless."""
    if not (math.isfinite(theta) and 1 <= theta <= 1e30):
        raise ValueError(f"theta is {theta:g}: give a number from 1 to 1e30, such as 10000")


def open_model(path: Path | None) -> tuple[Transformer, Tokenizer, str]:
    """The model, its tokenizer, and its scheme. Raises ValueError for what is no model."""
    path = path or newest_run()
    if (path / NOTE).exists():
        note = read_note(path)
        positions = note["args"].max_seq_len
        check_memory(32 * positions * note["args"].dim, f"{path / NOTE}: max_seq_len {positions}")
        return load_study(path).eval(), load_tokenizer(path), note["scheme"]
    return load_model(path).float().eval(), load_tokenizer(path), "rope"


def open_text(path: Path | None, data: tuple[str, ...], tokenizer: Tokenizer, needed: int) -> tuple[np.ndarray, str]:
    """Token ids of the text to test a model on, and its name: the end of ``data``, or else its own validation text.

    Raises ValueError when neither is known, or the text has fewer than ``needed`` tokens.
    """
    if data:
        text = "".join(open_documents(data).texts())
        ids, name = np.array(tokenizer.encode(text[-16 * needed :])), f"the end of {', '.join(data)}"  # 16 characters
    else:  # are more than a token has on average
        ids, name = validation_text(path or newest_run(), tokenizer)
    if len(ids) < needed:
        raise ValueError(
            f"{name} has {len(ids)} tokens, {needed} are needed: give more text with --data, or ask for less"
        )
    return ids, name


def validation_text(path: Path, tokenizer: Tokenizer) -> tuple[np.ndarray, str]:
    """The validation tokens of a run, as in its training, found again by its config.toml."""
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path} has no {CONFIG} that says what it was trained on: give the text with --data")
    said = build(DataArgs, read_toml(path / CONFIG, *CLASSES))
    if "-" in (*said.data, *said.val_data):
        raise ValueError(f"{path} was trained on standard input, which is gone: give the text with --data")
    try:
        dataset = prepare(
            said.data, tokenizer, context=1, cache_dir=cache_home(), val_fraction=said.val_fraction,
            val_specs=said.val_data or None, text_key=said.text_key, doc_separator=said.doc_separator or None,
            patterns=said.glob,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{path} was trained on another text ({error}): give the text with --data") from None
    return dataset.val, f"the validation text of {', '.join(said.val_data or said.data)}"


def windows_of(ids: np.ndarray, windows: int, length: int) -> Tensor:
    """So many pieces of ``length`` tokens, evenly spread over the text: int64 (windows, length)."""
    starts = np.linspace(0, len(ids) - length, windows).astype(int)
    return torch.from_numpy(np.stack([ids[start : start + length] for start in starts]).astype(np.int64))
