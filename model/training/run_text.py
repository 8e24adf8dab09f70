"""Find the text that a run was trained and validated on, from its run directory."""

import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..cli import from_settings
from ..text.dataset import Dataset
from ..text.prepare import load_dataset, prepare
from ..text.sources import Documents, is_pipe, is_url, open_documents
from ..text.token_cache import cache_home, download_path, runs_using
from ..text.tokenizer import Tokenizer
from .config import DataArgs, read_run_settings
from .state import read_progress


def read_run_data_args(directory: Path) -> DataArgs | None:
    """The text settings of the run in the directory; None if there is no run, or if its settings cannot be read."""
    settings = read_run_settings(directory)
    return from_settings(DataArgs, settings) if settings else None


def cached_dataset(directory: Path, data: DataArgs) -> Dataset | None:
    """The tokens of the run from the cache; None if it has no checkpoint, or the cache does not have them.

    Raises ValueError instead of None if the text came from a pipe, because it cannot be read again.
    """
    saved = read_progress(directory)
    for entry in sorted(cache_home().glob("tokens-*")):
        if str(directory.absolute()) in runs_using(entry):
            dataset = load_dataset(entry, data.val_fraction)
            if dataset and saved and dataset.fingerprint == saved.text:
                return dataset
    if any(is_pipe(spec) for spec in (*data.data, *data.val_data)):
        raise ValueError(
            f"{directory} was trained on text from a pipe, and its tokens were not found in the cache: give --data"
        )
    return None


def tokenize(data: DataArgs, documents: Documents, tokenizer: Tokenizer, context: int) -> Dataset:
    """The tokens of the documents, split into training and validation text as ``data`` says."""
    return prepare(
        documents,
        tokenizer,
        context=context,
        cache_dir=cache_home(),
        val_fraction=data.val_fraction,
        val_documents=data.val_documents(),
    )


def prepare_run_dataset(directory: Path, data: DataArgs, tokenizer: Tokenizer, context: int) -> Dataset:
    """The tokens of the run, from the cache if they are there, or else tokenized again from the text files.

    Raises ValueError if the files have changed since the run.
    """
    cached = cached_dataset(directory, data)
    if cached:
        return cached
    dataset = tokenize(data, data.documents(), tokenizer, context)
    saved = read_progress(directory)
    if saved and saved.text != dataset.fingerprint:
        names = ", ".join(data.data)
        raise ValueError(f"{names} changed since the training of {directory}: give the text to score with --data")
    return dataset


def validation_documents(dataset: Dataset, tokenizer: Tokenizer) -> Iterator[tuple[list[int], int]]:
    """(token ids, length in bytes of all but the first) of each document of the validation text.

    The first token is BOS, or the last token of the training text if the validation text begins inside a document.
    """
    starts = np.flatnonzero(dataset.val == tokenizer.bos_id).tolist()
    if starts[:1] != [0]:
        starts = [0, *starts]
    for start, end in zip(starts, [*starts[1:], len(dataset.val)]):
        tokens = dataset.val[start:end].tolist()
        if len(tokens) > 1:  # the first one alone leaves no token to predict
            yield tokens, len(tokenizer.decode(tokens).encode()) - len(tokenizer.decode(tokens[:1]).encode())


def describe_validation(data: DataArgs) -> str:
    """Name the validation text of a run with these settings."""
    if data.val_data:
        return f"{', '.join(data.val_data)}, the run's validation text"
    return f"the last {100 * data.val_fraction:g}% of {', '.join(data.data)}, the run's validation text"


def count_training_files(documents: Documents, data: DataArgs) -> int:
    """Count the files of ``documents`` that a run with these settings was trained on."""
    paths = [spec for spec in data.data if not (is_pipe(spec) or is_url(spec))]
    trained_on = {str(download_path(spec).resolve()) for spec in data.data if is_url(spec)}
    with suppress(ValueError, OSError), warnings.catch_warnings():  # the training files may have been removed
        warnings.simplefilter("ignore")
        trained_on |= set(open_documents(paths, data.text_key, None, data.glob).paths())
    return sum(path in trained_on for path in documents.paths())
