"""A plan's text as tokens: the tokenizer trained or loaded, the text tokenized and split."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cli import local_path, print_note, quantity
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..text.prepare import prepare
from ..text.separators import recognize
from ..text.sources import Documents
from ..text.token_cache import cache_home
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import TOKENIZER_KINDS, learn_tokenizer
from ..weights import load_tokenizer
from .config import DataArgs
from .evaluation import sampled_blocks
from .plan import Plan
from .summary import format_rows

FEW_DOCUMENTS = 100  # in the training text: with fewer, what follows BOS is not learnt in a run of minutes
OFTEN = 50  # a start that occurs so often has been learnt
SAMPLED_TOKENS = 5_000_000  # of the training text, to count starts in
# Where a text could start when BOS is rare: a paragraph, a line, a sentence, a word; the first that occurs often.
STARTS = ("\n\n", "\r\n\r\n", "\n", "\r\n", ".", "。", " ")


@dataclass(frozen=True)
class PreparedText:
    """A plan's text as tokens, and the model for it."""

    tokenizer: Tokenizer
    dataset: Dataset
    model: ModelArgs  # the plan's, with the vocabulary the tokenizer really has
    entries: list[Path]  # of the cache: the text's tokens, and the tokenizer where it was learnt from the text
    data: DataArgs  # the plan's, with what separates documents and what a text without a prompt starts with


def prepare_text(plan: Plan) -> PreparedText:
    """Train or load the tokenizer, tokenize, split. What was done before with the same files comes from the cache."""
    data, model = plan.data, plan.model
    learned, documents = None, None
    if plan.resume:
        tokenizer = load_tokenizer(plan.directory, model.vocab_size)
    elif data.tokenizer in TOKENIZER_KINDS:
        data, documents = open_text(data)
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
        data, documents = open_text(data)
    dataset = prepare(
        documents,
        tokenizer,
        context=model.max_seq_len,
        cache_dir=cache_home(),
        val_fraction=data.val_fraction,
        val_documents=data.val_documents(),
    )
    check_variety(dataset, tokenizer)
    documents.check_unchanged()  # a tokenizer that was learnt is of this very text
    entries = [dataset.entry, learned.parent if learned else None]
    if data.start_text is None:
        data = dataclasses.replace(data, start_text=choose_start(dataset, tokenizer, model.max_seq_len))
    return PreparedText(tokenizer, dataset, model, [entry for entry in entries if entry], data)


def open_text(data: DataArgs) -> tuple[DataArgs, Documents]:
    """The documents, and the settings with what separates them, which is recognized if it is not given."""
    documents = data.documents()
    if data.doc_separator is None:
        found = recognize(*documents.beginnings())
        tables = [file.name for file in documents.files if file and file.form != "text"]
        if tables:
            print_note(format_rows({"documents": f"each {data.text_key!r} of {first_of(tables)}"}))
        if found.note:
            print_note(format_rows({"documents": found.note}))
        data = dataclasses.replace(data, doc_separator=found.separator)
    return data, documents.with_separator(data.doc_separator or None)


def first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {quantity(len(names) - 1, 'other file')}"


def choose_start(dataset: Dataset, tokenizer: Tokenizer, context: int) -> str:
    """What a text without a prompt continues, after BOS; empty if there are enough documents to learn from.

    Otherwise BOS has hardly been trained, and what follows it alone is garbage. After BOS and a start that the training
    text has often, a paragraph's beginning, comes what usually follows that.
    """
    ids = sampled_blocks(dataset.train, SAMPLED_TOKENS)
    if occurrences(ids, [tokenizer.bos_id]) * len(dataset.train) >= FEW_DOCUMENTS * len(ids):
        return ""
    for text in STARTS:
        tokens = tokenizer.encode(text, bos=False)
        times = occurrences(ids, tokens) - occurrences(ids, [*tokens, tokenizer.bos_id])  # not where a document ends
        if len(tokens) + 1 < context and times >= OFTEN:
            return text
    return ""


def check_variety(dataset: Dataset, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the training text is white space, or one character again and again."""
    ids = np.unique(sampled_blocks(dataset.train, SAMPLED_TOKENS))
    characters = set(tokenizer.decode(ids.tolist()))
    if len(characters) < 2 or "".join(characters).isspace():
        shown = ", ".join(repr(character) for character in sorted(characters)[:4])
        raise ValueError(f"the training text holds nothing but {shown}: there is nothing to learn; give other text")


def occurrences(ids: np.ndarray, tokens: list[int]) -> int:
    """How often the tokens are in ``ids`` (N,), one after the other."""
    places = len(ids) - len(tokens) + 1
    if places < 1:
        return 0
    found = np.ones(places, bool)
    for shift, token in enumerate(tokens):
        found &= ids[shift : shift + places] == token
    return int(found.sum())


def check_prompt(tokens: int, context: int) -> None:
    if tokens >= context:
        raise ValueError(
            f"sample_prompt is {quantity(tokens, 'token')} long, which leaves none of the {context} positions "
            "(max_seq_len) to write in: shorten it, or give --sample_every 0"
        )
