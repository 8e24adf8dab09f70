#!/usr/bin/env python3
"""Measure how well a model predicts a text, in nats per token and bits per byte: python evaluate.py MODEL"""

import startup  # noqa: F401, I001  must come before torch

import argparse
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from model.cli import (
    Parser,
    add_flags,
    explain_out_of_memory,
    print_note,
    quantity,
    read_flags,
    run_script,
)
from model.cli.machine import pick_device, pick_dtype
from model.decoding.chat import DEFAULT_TEMPLATE, open_chat
from model.decoding.options import ModelOptions, add_model, load_network, open_model
from model.decoding.scoring import Document, Score, encoded_documents, score_documents, total
from model.ranges import Range
from model.text.dataset import UNCOUNTED, Dataset
from model.text.prepare import load_dataset, load_tokens, surrounding_tokens
from model.text.separators import recognize
from model.text.sources import Documents, open_documents
from model.text.tokenizer import Tokenizer
from model.training.config import DataArgs, Globs, TextKey
from model.training.conversations import Example, examples_at
from model.training.loss import NextTokenLoss
from model.training.run_text import read_run_data_args
from model.transformer import Transformer
from model.weights import Checkpoint


@dataclass(frozen=True)
class Options(ModelOptions):
    """Text and model."""

    data: Annotated[
        tuple[str, ...],
        "text: files, folders, globs, URLs, - for stdin, python-docs (default: the validation text of the run)",
    ] = ()
    glob: Globs = ()
    text_key: TextKey = "text"
    doc_separator: Annotated[
        str | None,
        "separator between the documents of a file; '' for none (default: as in the run, or else recognized)",
    ] = None
    stride: Annotated[
        int | None, "tokens scored per window; a smaller stride gives each token more context (default: all)", Range(1)
    ] = None
    batch_size: Annotated[int, "windows scored at the same time", Range(1)] = 8
    json: Annotated[
        bool, "print JSON lines instead of a table: one per document, one per file if there are several, the total"
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer and not self.data:
            raise ValueError("tokenizer cannot be used with the run's validation text: add --data")


def main() -> None:
    flags, options = parse_flags()
    device = pick_device(options.device)
    checkpoint = open_model(flags.model)  # reads no weights yet, so that mistakes are found first
    run_data = read_run_data_args(checkpoint.path)  # None if the model is not a run
    tokenizer = checkpoint.tokenizer(options.tokenizer)
    if options.data:
        text = given_text(checkpoint, options, run_data, tokenizer)
    else:
        text = validation_text(checkpoint, run_data, tokenizer)

    dtype = pick_dtype(options.dtype, device, checkpoint.dtype)
    with explain_out_of_memory("lower --batch_size, or give a smaller model", device):
        model = load_network(checkpoint, options, device, dtype)
        with tqdm(unit="tok", unit_scale=True, file=sys.stderr, delay=1, disable=None) as bar:
            if isinstance(text, Conversations):
                scores = score_conversations(model, text.examples, tokenizer, bar.update)
            else:
                scores = score_documents(model, text, options.stride, options.batch_size, bar.update)
    if not scores:
        name = ", ".join(options.data) or "the validation text"
        raise ValueError(f"{name}: no document has a token to predict: give more text")
    if options.json:
        print_json(scores)
    else:
        print_table(scores)


def parse_flags() -> tuple[argparse.Namespace, Options]:
    parser = Parser("--data", prog="evaluate.py", description="Measure how well a model predicts a text.")
    add_model(parser)
    add_flags(parser, Options)
    flags = parser.parse_args()
    return flags, Options(**read_flags(flags, Options))


class Conversations(NamedTuple):
    """Conversations, of which only the tokens that the assistant has to write are scored."""

    examples: Iterator[Example]


def given_text(
    checkpoint: Checkpoint, options: Options, run_data: DataArgs | None, tokenizer: Tokenizer
) -> Iterator[Document] | Conversations:
    """The text of --data. The separator is that of the flag, else of the run, else recognized."""
    source = open_documents(options.data, options.text_key, None, options.glob)
    trained_on = count_training_files(source, checkpoint.path) if run_data else 0
    if trained_on:
        print_note(
            f"note: {checkpoint.path} was trained on {trained_on:,} of the {quantity(len(source.paths()), 'file')} to "
            "score: scores on training text are better than on new text; without --data, the validation text is scored"
        )
    if source.has_conversations():
        if options.stride or options.doc_separator:
            raise ValueError("stride and doc_separator are for texts, and the data are conversations: leave them out")
        chat = open_chat(checkpoint.path, tokenizer, default=DEFAULT_TEMPLATE)
        row = checkpoint.args.max_seq_len + 1
        return Conversations(each for rows in source.conversations() for each in examples_at(*rows, chat, row))
    separator = options.doc_separator
    if separator is None and run_data:
        separator = run_data.doc_separator
    if separator is None:
        separator = recognize(source.beginnings())
        if separator:
            print_note(f"note: documents are separated by {separator}; to score it as text: --doc_separator ''")
    return encoded_documents(replace(source, separator=separator or None), tokenizer)


def validation_text(
    checkpoint: Checkpoint, run_data: DataArgs | None, tokenizer: Tokenizer
) -> Iterator[Document] | Conversations:
    """The validation text of the run in the model's directory. Raises ValueError if the model is not a run."""
    if run_data is None:
        raise ValueError(
            f"{checkpoint.path} is not a run of train.py, or its config.toml cannot be read: name the text to score "
            "with --data"
        )
    try:
        dataset = load_dataset(checkpoint.path)
    except ValueError as error:
        raise ValueError(f"{error}; name a text with --data") from None
    share = len(dataset.val) / (len(dataset.train) + len(dataset.val))
    text = ", ".join(run_data.val_data) or f"the last {share:.1%} of {', '.join(run_data.data)}"
    print_note(f"note: scoring {text}, the run's validation text; name another text with --data")
    if dataset.row and dataset.val_counted is not None:
        rows = zip(dataset.val.reshape(-1, dataset.row), dataset.val_counted.reshape(-1, dataset.row))
        return Conversations(Example(ids.tolist(), counted.tolist()) for ids, counted in rows)
    return validation_documents(dataset, tokenizer)


@torch.no_grad()
def score_conversations(
    model: Transformer, conversations: Iterator[Example], tokenizer: Tokenizer, on_scored: Callable[[int], object]
) -> list[Score]:
    """The score of each conversation, one at a time."""
    weight = model.norm.weight
    loss = NextTokenLoss(model, weight.dtype)
    scores = []
    for example in conversations:
        tokens = torch.tensor(example.tokens, device=weight.device)  # (T + 1,)
        counted = torch.tensor(example.counted, device=weight.device)
        targets = tokens.where(counted, UNCOUNTED)
        nats = loss(tokens[None, :-1], targets[None, 1:]).item()
        scores.append(Score(nats, sum(example.counted), max(1, len(example.text(tokenizer).encode()))))
        on_scored(scores[-1].tokens)
    return scores


PART = 100_000  # tokens read at a time


def validation_documents(dataset: Dataset, tokenizer: Tokenizer) -> Iterator[Document]:
    """The documents of the validation text.

    Each begins with BOS, unless the model has none. If the validation text begins inside a document, its first token is
    the last one of the training text.
    """
    val = dataset.val
    start, _ = surrounding_tokens(tokenizer)
    ends = [*np.flatnonzero(np.isin(val, dataset.separators)).tolist(), len(val)]
    begin = 0
    for end in ends:
        tokens = val[begin:end]
        if begin and start:
            tokens = val[begin - 1 : end]  # from the BOS on
        begin = end + 1
        if len(tokens) < 2:
            continue  # no token to predict
        size = dataset.val_bytes
        if len(ends) > 2 or ends[0] > 0:
            size = len(tokenizer.decode(tokens.tolist()).encode()) - len(tokenizer.decode(tokens[:1].tolist()).encode())
        parts = [tokens[i : i + PART] for i in range(0, len(tokens), PART)]
        yield Document(zip(map(np.ndarray.tolist, parts), itertools.chain([size], itertools.repeat(0))))


def count_training_files(documents: Documents, directory: Path) -> int:
    """Count the files of ``documents`` that the run in the directory was trained on."""
    try:
        trained_on = set(load_tokens(directory).files)
    except ValueError:
        return 0
    return sum(os.path.realpath(path) in trained_on for path in documents.paths())


def scores_by_file(scores: Sequence[Score]) -> dict[str, list[Score]]:
    """The scores of each file; none if there is only one file, because the total says the same."""
    files: dict[str, list[Score]] = {}
    for score in scores:
        files.setdefault(score.file, []).append(score)
    return files if len(files) > 1 else {}


def print_json(scores: Sequence[Score]) -> None:
    """Print one line per document, one per file if there are several, and one for the total."""
    for number, score in enumerate(scores, 1):
        file = {"file": score.file} if score.file else {}
        print(json.dumps({"document": number} | file | score.figures()))
    for name, of_file in scores_by_file(scores).items():
        print(json.dumps({"file": name, "documents": len(of_file)} | total(of_file).figures()))
    print(json.dumps({"documents": len(scores)} | total(scores).figures()))


def print_table(scores: Sequence[Score]) -> None:
    """Print one line per file if there are several, and one for the total."""
    print("nats per token    perplexity  bits per byte       tokens        bytes  text")
    rows = [(name, total(of_file)) for name, of_file in scores_by_file(scores).items()]
    for name, score in [*rows, (quantity(len(scores), "document"), total(scores))]:
        figures = score.figures()
        perplexity = figures["perplexity"] or math.inf
        print(
            f"{figures['nats_per_token']:14.4f}  {perplexity:12,.3f}  {figures['bits_per_byte']:13.4f}  "
            f"{score.tokens:11,}  {score.bytes:11,}  {name}"
        )
    if len(scores) > 1:
        means = [score.nats / score.tokens for score in scores]
        print(
            f"nats per token of a document: from {min(means):.4f} to {max(means):.4f}, median "
            f"{statistics.median(means):.4f}"
        )


if __name__ == "__main__":
    run_script(main, "evaluate.py")
