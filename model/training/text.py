"""The text of a run, as tokens. Imports no torch: most mistakes are in the text, and are answered at once."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cli import read_toml
from ..config import ModelArgs
from ..text.cache import cache_home
from ..text.dataset import Dataset
from ..text.prepare import prepare
from ..text.sources import open_documents
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import KINDS, learn_tokenizer
from ..weights import load_tokenizer
from .config import CLASSES
from .setup import CONFIG, Plan, assemble


@dataclass(frozen=True)
class Text:
    """A plan's text, and the model that reads it."""

    tokenizer: Tokenizer
    dataset: Dataset
    model: ModelArgs  # the plan's, with the vocabulary the tokenizer really has


def prepare_text(plan: Plan) -> Text:
    """Train or load the tokenizer, tokenize, split. What was done before with the same files comes from the cache."""
    data, model = plan.data, plan.model
    sources: dict[str, Any] = {"text_key": data.text_key, "doc_separator": data.doc_separator or None}
    sources["patterns"] = data.glob
    if plan.resume:
        tokenizer = load_tokenizer(plan.directory, model.vocab_size)
    elif data.tokenizer in KINDS:
        documents = open_documents(data.data, **sources)
        file = learn_tokenizer(documents, cache_home(), data.tokenizer, plan.vocab_size, data.data, plan.directory)
        tokenizer = load_tokenizer(file)
        if data.tokenizer == "bpe" and plan.vocab_size is None:
            print(f"vocab_size     {tokenizer.vocab_size}, chosen to fit the text", file=sys.stderr)
    else:
        tokenizer = load_tokenizer(data.tokenizer, model.vocab_size if plan.train.init_from else None)
    if not (plan.resume or plan.train.init_from):
        model = dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
    if plan.train.sample_every:
        check_prompt(len(tokenizer.encode(plan.train.sample_prompt)), model.max_seq_len)
    dataset = prepare(
        data.data,
        tokenizer,
        context=model.max_seq_len,
        cache_dir=cache_home(),
        val_fraction=data.val_fraction,
        val_specs=data.val_data or None,
        run=plan.directory,
        **sources,
    )
    return Text(tokenizer, dataset, model)


def check_prompt(tokens: int, context: int) -> None:
    if tokens >= context:
        raise ValueError(
            f"sample_prompt is {tokens} tokens long, which leaves none of the {context} positions (max_seq_len) to "
            "write in: shorten it, or give --sample_every 0"
        )


def reread_text(directory: Path) -> Text:
    """What the first of several processes prepared, for the others: its run directory and its cache hold it."""
    plan = assemble(read_toml(directory / CONFIG, *CLASSES), directory)
    return prepare_text(dataclasses.replace(plan, resume=True))
