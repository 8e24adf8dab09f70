"""Prepare the text of a run: train or load the tokenizer, tokenize, split off the validation text."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..cli import Settings, print_note, quantity
from ..text.dataset import Dataset
from ..text.prepare import changed_since
from ..text.separators import recognize
from ..text.sources import Documents
from ..text.token_cache import cache_home
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import TOKENIZER_KINDS, cached_tokenizer
from ..weights import load_tokenizer
from .config import DataArgs, Run, TrainArgs
from .distributed import Ranks
from .evaluation import sampled_blocks
from .run_text import cached_dataset, tokenize
from .sizing import candidate_models, needs_choice
from .summary import format_rows

MIN_DOCUMENTS = 100  # with fewer documents, a run of a few minutes does not learn what follows BOS
MIN_OCCURRENCES = 50  # of a start_text in the training text, for the model to learn what follows it
SAMPLED_TOKENS = 5_000_000  # tokens of the training text in which a start_text is counted
# Candidates for start_text: the end of a paragraph, line, sentence or word. The first frequent one is used.
START_TEXTS = ("\n\n", "\r\n\r\n", "\n", "\r\n", ".", "。", " ")


class Text(NamedTuple):
    """The text of a run as tokens."""

    tokenizer: Tokenizer
    dataset: Dataset
    settings: Settings  # found in the text: doc_separator, start_text, and vocab_size of a model trained from scratch
    entries: list[Path]  # cache entries: the tokens, and the tokenizer if it was trained on the text
    notes: list[str]  # for the user


def prepare_text(run: Run, ranks: Ranks) -> Text:
    """Train or load the tokenizer, tokenize, split. Results for the same files are reused from the cache.

    The first process does this first. The others then do the same, and find its results in the cache; on another
    machine they make them from the same text.
    """
    text = ranks.in_turn(lambda: read_text(run))
    if ranks.first(lambda: text.dataset.fingerprint) != text.dataset.fingerprint:
        raise ValueError(f"process {ranks.rank} has another text than the first process: give all the same files")
    for note in (*run.notes, *text.notes) if ranks.is_first else ():
        print_note(note)
    return text


def read_text(run: Run) -> Text:
    """``prepare_text`` in one process."""
    data = run.data
    # If the model is chosen later, the candidates differ in size but not in context.
    context = (candidate_models(run.settings)[0] if needs_choice(run) else run.model).max_seq_len
    notes: list[str] = []
    trained_tokenizer: Path | None = None
    documents: Documents | None = None
    if run.saved is not None:
        tokenizer = load_tokenizer(run.directory, run.model.vocab_size)
    elif data.tokenizer in TOKENIZER_KINDS:
        data, documents, notes_of_text = open_text(data)
        notes += notes_of_text
        vocab_size = run.settings.get("vocab_size")
        trained_tokenizer = cached_tokenizer(documents, cache_home(), data.tokenizer, vocab_size)
        tokenizer = load_tokenizer(trained_tokenizer)
        if data.tokenizer == "bpe" and vocab_size is None:
            notes.append(format_rows({"vocab_size": f"{tokenizer.vocab_size}, chosen to fit the text"}))
    else:
        vocab_size = run.settings["vocab_size"] if run.settings.get("init_from") else None
        tokenizer = load_tokenizer(Path(data.tokenizer), vocab_size)
    check_prompts(run.settings, tokenizer, context)
    dataset = cached_dataset(run.directory, data) if run.keeps_text else None
    if dataset:
        if changed := changed_since(dataset):
            note = f"{abbreviate(changed)} changed since this run began, which continues with the text as it was"
            notes.append(format_rows({"text": note}))
    else:
        if documents is None:  # after the checks above, because it may read a pipe or download a file
            data, documents, notes_of_text = open_text(data)
            notes += notes_of_text
        dataset = tokenize(data, documents, tokenizer, context)
        documents.check_unchanged()  # a file may have changed after the tokenizer was trained on it
    check_variety(dataset, tokenizer)
    start_text = data.start_text
    if start_text is None:
        start_text = choose_start_text(dataset, tokenizer, context)
    found: Settings = {"doc_separator": data.doc_separator, "start_text": start_text}
    if run.saved is None and not run.settings.get("init_from"):
        found["vocab_size"] = tokenizer.vocab_size
    entries = [dataset.entry, trained_tokenizer.parent if trained_tokenizer else None]
    return Text(tokenizer, dataset, found, [entry for entry in entries if entry], notes)


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


def check_prompts(settings: Settings, tokenizer: Tokenizer, context: int) -> None:
    """Raise ValueError if ``sample_prompt`` or ``start_text`` leaves no room for a generated token."""
    names = ["start_text"]  # generate.py needs it even if there are no samples
    if settings.get("sample_every", TrainArgs.sample_every):
        names.append("sample_prompt")
    for name in names:
        prompt = settings.get(name)
        tokens = len(tokenizer.encode(prompt)) if prompt else 0
        if tokens >= context:
            raise ValueError(
                f"{name} is {quantity(tokens, 'token')} long, which leaves no room for a sample in a context of "
                f"{context} (max_seq_len): shorten it"
            )
