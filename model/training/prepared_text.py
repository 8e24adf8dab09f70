"""Prepare the text of a plan: train or load the tokenizer, tokenize, split off the validation text."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cli import print_note, quantity
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..text.prepare import prepare
from ..text.separators import recognize
from ..text.sources import Documents
from ..text.token_cache import cache_home
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import TOKENIZER_KINDS, cached_tokenizer
from ..weights import load_tokenizer
from .config import DataArgs, TrainArgs
from .evaluation import sampled_blocks
from .plan import Plan
from .run_text import cached_dataset
from .summary import format_rows

MIN_DOCUMENTS = 100  # with fewer documents, a run of a few minutes does not learn what follows BOS
MIN_OCCURRENCES = 50  # of a start_text in the training text, for the model to learn what follows it
SAMPLED_TOKENS = 5_000_000  # tokens of the training text in which a start_text is counted
# Candidates for start_text: the end of a paragraph, line, sentence or word. The first frequent one is used.
START_TEXTS = ("\n\n", "\r\n\r\n", "\n", "\r\n", ".", "。", " ")


@dataclass(frozen=True)
class PreparedText:
    """The text of a plan as tokens, and the model for it."""

    tokenizer: Tokenizer
    dataset: Dataset
    model_args: ModelArgs  # the plan's; if trained from scratch, with the vocabulary size of the tokenizer
    entries: list[Path]  # cache entries: the tokens, and the tokenizer if it was trained on the text
    data: DataArgs  # the plan's, with doc_separator and start_text filled in


def prepare_text(plan: Plan) -> PreparedText:
    """Train or load the tokenizer, tokenize, split. Results for the same files are reused from the cache."""
    data, model = plan.data, plan.model_args
    tokenizer_file: Path | None = None
    documents: Documents | None = None
    notes: list[str] = []  # printed when nothing can fail any more, so that an error stands alone
    if plan.resume:
        tokenizer = load_tokenizer(plan.directory, model.vocab_size)
    elif data.tokenizer in TOKENIZER_KINDS:
        data, documents, notes = open_text(data)
        vocab_size = plan.settings.get("vocab_size")
        tokenizer_file = cached_tokenizer(documents, cache_home(), data.tokenizer, vocab_size)
        tokenizer = load_tokenizer(tokenizer_file)
        if data.tokenizer == "bpe" and vocab_size is None:
            notes.append(format_rows({"vocab_size": f"{tokenizer.vocab_size}, chosen to fit the text"}))
    else:
        tokenizer = load_tokenizer(Path(data.tokenizer), model.vocab_size if plan.train.init_from else None)
    if not (plan.resume or plan.train.init_from):
        model = dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
    check_prompts(data, plan.train, tokenizer, model.max_seq_len)
    dataset = cached_dataset(plan.directory, data) if plan.keeps_text else None
    if dataset is None:
        if documents is None:  # after the checks above, because it may read a pipe or download a file
            data, documents, notes = open_text(data)
        dataset = prepare(
            documents,
            tokenizer,
            context=model.max_seq_len,
            cache_dir=cache_home(),
            val_fraction=data.val_fraction,
            val_documents=data.val_documents(),
        )
        documents.check_unchanged()  # a file may have changed after the tokenizer was trained on it
    check_variety(dataset, tokenizer)
    entries = [dataset.entry, tokenizer_file.parent if tokenizer_file else None]
    if data.start_text is None:
        data = dataclasses.replace(data, start_text=choose_start_text(dataset, tokenizer, model.max_seq_len))
    for note in notes:
        print_note(note)
    return PreparedText(tokenizer, dataset, model, [entry for entry in entries if entry], data)


def open_text(data: DataArgs) -> tuple[DataArgs, Documents, list[str]]:
    """Returns the settings with a separator (recognized if none is set), the documents, and notes for the user."""
    documents = data.documents()
    notes = []
    if data.doc_separator is None:
        found = recognize(*documents.beginnings())
        tables = [file.name for file in documents.files if file and file.format != "text"]
        if tables:
            notes.append(format_rows({"documents": f"each {data.text_key!r} of {abbreviate(tables)}"}))
        if found.note:
            notes.append(format_rows({"documents": found.note}))
        data = dataclasses.replace(data, doc_separator=found.separator)
    return data, documents.with_separator(data.doc_separator or None), notes


def abbreviate(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {quantity(len(names) - 1, 'other file')}"


def choose_start_text(dataset: Dataset, tokenizer: Tokenizer, context: int) -> str:
    """Choose the text that generation continues if there is no prompt; empty to continue BOS alone.

    With few documents, BOS has hardly been trained, and the model writes garbage after it. After a text that is
    frequent in the training text, for example a paragraph break, it writes normally. The result is empty if there are
    enough documents, or no such text.
    """
    ids = sampled_blocks(dataset.train, SAMPLED_TOKENS)
    documents = occurrences(ids, [tokenizer.bos_id]) * len(dataset.train) / len(ids)
    if documents >= MIN_DOCUMENTS:
        return ""
    for text in START_TEXTS:
        tokens = tokenizer.encode(text, bos=False)
        at_document_end = occurrences(ids, [*tokens, tokenizer.bos_id])
        if len(tokens) + 1 < context and occurrences(ids, tokens) - at_document_end >= MIN_OCCURRENCES:
            return text
    return ""


def check_variety(dataset: Dataset, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the training text is only white space, or a single repeated character."""
    ids = np.flatnonzero(np.bincount(sampled_blocks(dataset.train, SAMPLED_TOKENS)))
    characters = set(tokenizer.decode(ids.tolist()))
    if "\ufffd" in characters:
        return  # bytes out of their order in the text form no characters; such a text is taken to be varied enough
    if len(characters) < 2 or "".join(characters).isspace():
        examples = ", ".join(repr(character) for character in sorted(characters)[:4])
        raise ValueError(f"the training text holds nothing but {examples}: there is nothing to learn; give other text")


def occurrences(ids: np.ndarray, tokens: list[int]) -> int:
    """Count the occurrences of the sequence ``tokens`` in ``ids`` (N,)."""
    places = len(ids) - len(tokens) + 1
    if places < 1:
        return 0
    matches = np.ones(places, bool)
    for shift, token in enumerate(tokens):
        matches &= ids[shift : shift + places] == token
    return int(matches.sum())


def check_prompts(data: DataArgs, train: TrainArgs, tokenizer: Tokenizer, context: int) -> None:
    """Raise ValueError if ``sample_prompt`` or ``start_text`` leaves no room for a generated token."""
    prompts = {}
    if data.start_text:  # generate.py needs it even if there are no samples
        prompts["start_text"] = data.start_text
    if train.sample_every:
        prompts["sample_prompt"] = train.sample_prompt
    for name, prompt in prompts.items():
        tokens = len(tokenizer.encode(prompt))
        if tokens >= context:
            raise ValueError(
                f"{name} is {quantity(tokens, 'token')} long, which leaves no room for a sample in a context of "
                f"{context} (max_seq_len): shorten it"
            )
