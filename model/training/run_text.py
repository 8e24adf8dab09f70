"""The text of a run as tokens: prepare it for training, and find it again from the run directory."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from numpy.lib.stride_tricks import sliding_window_view

from ..cli import instances, print_note, quantity
from ..text.dataset import Dataset
from ..text.prepare import changed_since, load_dataset, prepare
from ..text.separators import recognize
from ..text.sources import Documents, is_pipe
from ..text.token_cache import cache_home, runs_using
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import TOKENIZER_KINDS, cached_tokenizer
from ..weights import load_tokenizer
from .config import SETTINGS_CLASSES, DataArgs, Run, read_run_settings
from .distributed import Ranks
from .evaluation import sampled_blocks, unigram_loss
from .state import read_progress

MIN_DOCUMENTS = 100  # with fewer documents, a run of a few minutes does not learn what follows BOS
MIN_OCCURRENCES = 50  # of a start_text in the training text, for the model to learn what follows it
# Candidates for start_text: the end of a paragraph, line, sentence or word. The first frequent one is used.
START_TEXTS = ("\n\n", "\r\n\r\n", "\n", "\r\n", ".", "。", " ")


class Text(NamedTuple):
    """The text of a run as tokens."""

    tokenizer: Tokenizer
    dataset: Dataset
    start_text: str  # put before a generation without a prompt
    unigram_loss: float  # nats per token when guessing each token by its frequency alone


def prepare_text(run: Run, ranks: Ranks) -> tuple[Run, Text]:
    """Train or load the tokenizer, tokenize, split. Results for the same files are reused from the cache.

    Returns the run with what only the text tells: doc_separator, start_text, and vocab_size if it is trained from
    scratch.

    The first process does this first. The others then do the same, and find its results in the cache; on another
    machine they make them from the same text.
    """
    run, text, notes = ranks.in_turn(lambda: read_text(run))
    if ranks.first(lambda: text.dataset.fingerprint) != text.dataset.fingerprint:
        raise ValueError(f"process {ranks.rank} has another text than the first process: give all the same files")
    for note in notes if ranks.is_first else ():
        print_note(note)
    return run, text


def read_text(run: Run) -> tuple[Run, Text, list[str]]:
    """``prepare_text`` in one process; the notes are for the user."""
    data, context = run.data, run.model.max_seq_len
    notes: list[str] = []
    if run.resume:
        tokenizer = load_tokenizer(run.directory, run.model.vocab_size)
        dataset = read_run_dataset(run.directory, data, tokenizer, context, use_cached=run.keeps_text)
        changed = changed_since(dataset) if run.keeps_text else []
        if changed:
            names = ", ".join(changed[:3])  # enough to know which
            notes.append(f"text           {names} changed since this run began; it continues with the text as it was")
    else:
        documents = data.open(data.data)
        if data.doc_separator is None:
            found = recognize(documents.beginnings())
            data = replace(data, doc_separator=found.separator)
            documents = replace(documents, separator=found.separator or None)
            notes += [f"documents      {found.note}"] if found.note else []
        if data.tokenizer in TOKENIZER_KINDS:
            vocab_size = run.model.vocab_size if "vocab_size" in run.given else None
            file = cached_tokenizer(documents, cache_home(), data.tokenizer, vocab_size)
            tokenizer = load_tokenizer(file)
        else:
            tokenizer = load_tokenizer(Path(data.tokenizer), run.model.vocab_size if run.train.init_from else None)
        dataset = tokenize(data, documents, tokenizer, context)
    start_text = data.start_text
    if start_text is None:
        start_text = choose_start_text(dataset, tokenizer, context)
    for name, prompt in (("start_text", start_text), ("sample_prompt", run.train.sample_prompt)):
        tokens = len(tokenizer.encode(prompt))
        if tokens >= context:
            raise ValueError(
                f"{name} is {quantity(tokens, 'token')} long, which leaves no room for a sample in a context of "
                f"{context} (max_seq_len): shorten it"
            )
    run = replace(run, data=replace(data, start_text=start_text))
    if not run.resume and not run.train.init_from:
        run = replace(run, model=replace(run.model, vocab_size=tokenizer.vocab_size))
    return run, Text(tokenizer, dataset, start_text, unigram_loss(dataset, tokenizer.vocab_size)), notes


def choose_start_text(dataset: Dataset, tokenizer: Tokenizer, context: int) -> str:
    """Choose the text that generation continues if there is no prompt; empty to continue BOS alone.

    With few documents, BOS has hardly been trained, and the model writes garbage after it. After a text that is
    frequent in the training text, for example a paragraph break, it writes normally. The result is empty if there are
    enough documents, or no such text.
    """
    ids = sampled_blocks(dataset.train)

    def occurrences(tokens: list[int]) -> int:
        return int((sliding_window_view(ids, len(tokens)) == tokens).all(1).sum()) if len(tokens) <= len(ids) else 0

    if occurrences([tokenizer.bos_id]) * len(dataset.train) / len(ids) >= MIN_DOCUMENTS:
        return ""
    for text in START_TEXTS:
        tokens = tokenizer.encode(text, bos=False)
        at_document_end = occurrences([*tokens, tokenizer.bos_id])
        if len(tokens) + 1 < context and occurrences(tokens) - at_document_end >= MIN_OCCURRENCES:
            return text
    return ""


def tokenize(data: DataArgs, documents: Documents, tokenizer: Tokenizer, context: int) -> Dataset:
    """The tokens of the documents, split into training and validation text as ``data`` says."""
    return prepare(
        documents,
        tokenizer,
        context=context,
        cache_dir=cache_home(),
        val_fraction=data.val_fraction,
        val_documents=data.open(data.val_data) if data.val_data else None,
    )


def read_run_data_args(directory: Path) -> DataArgs | None:
    """The text settings of the run in the directory; None if there is no run, or if its settings cannot be read."""
    settings = read_run_settings(directory)
    return instances(settings, *SETTINGS_CLASSES)[0] if settings else None


def read_run_dataset(
    directory: Path, data: DataArgs, tokenizer: Tokenizer, context: int, use_cached: bool = True
) -> Dataset:
    """The tokens of a run: from the cache, even if its text has changed, or else tokenized again from ``data``.

    Raises ValueError if ``data`` is not the text that the run was trained on.
    """
    saved = read_progress(directory)
    fingerprint = saved.text if saved else None
    for entry in sorted(cache_home().glob("tokens-*")) if use_cached else ():
        if str(directory.absolute()) in runs_using(entry):
            dataset = load_dataset(entry, data.val_fraction)
            if dataset and dataset.fingerprint == fingerprint:
                return dataset
    if use_cached and any(is_pipe(spec) for spec in (*data.data, *data.val_data)):
        raise ValueError(
            f"{directory} was trained on text from a pipe, and its tokens were not found in the cache: give --data"
        )
    dataset = tokenize(data, data.open(data.data), tokenizer, context)
    if fingerprint not in (None, dataset.fingerprint):
        raise ValueError(
            f"{directory} was trained on another text than {', '.join(data.data)} holds now, or on another split of "
            "it: give another --data, or leave the settings of the text as they were"
        )
    return dataset
