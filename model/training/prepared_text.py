"""A plan's text as tokens: the tokenizer trained or loaded, the text tokenized and split."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from ..cli import local_path
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..text.prepare import prepare
from ..text.token_cache import cache_home
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import TRAINABLE, learn_tokenizer
from ..weights import load_tokenizer
from .plan import Plan


@dataclass(frozen=True)
class PreparedText:
    """A plan's text as tokens, and the model for it."""

    tokenizer: Tokenizer
    dataset: Dataset
    model: ModelArgs  # the plan's, with the vocabulary the tokenizer really has
    entries: list[Path]  # of the cache: the text's tokens, and the tokenizer where it was learnt from the text


def prepare_text(plan: Plan) -> PreparedText:
    """Train or load the tokenizer, tokenize, split. What was done before with the same files comes from the cache."""
    data, model = plan.data, plan.model
    learned, documents = None, None
    if plan.resume:
        tokenizer = load_tokenizer(plan.directory, model.vocab_size)
    elif data.tokenizer in TRAINABLE:
        documents = data.documents()
        wanted = plan.given.get("vocab_size")
        learned = learn_tokenizer(documents, cache_home(), data.tokenizer, wanted)
        tokenizer = load_tokenizer(learned)
        if data.tokenizer == "bpe" and wanted is None:
            print(f"vocab_size     {tokenizer.vocab_size}, chosen to fit the text", file=sys.stderr)
    else:
        tokenizer = load_tokenizer(local_path(data.tokenizer), model.vocab_size if plan.train.init_from else None)
    if not (plan.resume or plan.train.init_from):
        model = dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
    if plan.train.sample_every:
        check_prompt(len(tokenizer.encode(plan.train.sample_prompt)), model.max_seq_len)
    if documents is None:  # only now: a mistake above is found before a pipe is read or a file fetched
        documents = data.documents()
    dataset = prepare(
        documents,
        tokenizer,
        context=model.max_seq_len,
        cache_dir=cache_home(),
        val_fraction=data.val_fraction,
        val_documents=data.val_documents(),
    )
    documents.check_unchanged()  # a tokenizer that was learnt is of this very text
    entries = [dataset.entry, learned.parent if learned else None]
    return PreparedText(tokenizer, dataset, model, [entry for entry in entries if entry])


def check_prompt(tokens: int, context: int) -> None:
    if tokens >= context:
        raise ValueError(
            f"sample_prompt is {tokens} tokens long, which leaves none of the {context} positions (max_seq_len) to "
            "write in: shorten it, or give --sample_every 0"
        )
