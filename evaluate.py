#!/usr/bin/env python3
"""Measure how well a model predicts a text, in nats per token and bits per byte: python evaluate.py MODEL"""

import startup  # noqa: F401, I001  must come before torch

import argparse
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
from model.decoding.scoring import Document, Score, check_finite, encoded_documents, score_documents, total
from model.ranges import Range
from model.text.dataset import UNCOUNTED, Batch, Dataset
from model.text.prepare import load_dataset, load_tokens
from model.text.sources import Documents, open_documents
from model.text.tokenizer import Tokenizer
from model.training.config import DataArgs, Globs, TextKey
from model.training.conversations import Example, examples_at
from model.training.loss import NextTokenLoss
from model.training.run_text import read_run_data_args
from model.transformer import Transformer
from model.weights import Checkpoint

VALIDATION = "validation text"
TOKENS_AT_ONCE = 2048  # of the validation text; an int8 network keeps the logits of all of them


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
        if (self.tokenizer or self.stride) and not self.data:
            raise ValueError("tokenizer and stride cannot be used with the run's validation text: add --data")


def main() -> None:
    flags, options = parse_flags()
    device = pick_device(options.device)
    checkpoint = open_model(flags.model)  # reads no weights yet, so that mistakes are found first
    run_data = read_run_data_args(checkpoint.path)  # None if the model is not a run
    tokenizer = checkpoint.tokenizer(options.tokenizer)
    text: Dataset | Conversations | Iterator[Document]
    if options.data:
        text = given_text(checkpoint, options, run_data, tokenizer)
    else:
        text = validation_text(checkpoint, run_data)

    dtype = pick_dtype(options.dtype, device, checkpoint.dtype)
    with explain_out_of_memory("lower --batch_size, or give a smaller model", device):
        model = load_network(checkpoint, options, device, dtype)
        with tqdm(unit="tok", unit_scale=True, file=sys.stderr, delay=1, disable=None) as bar:
            if isinstance(text, Dataset):
                scores = score_validation(model, text, options.batch_size, bar.update)
            elif isinstance(text, Conversations):
                scores = score_conversations(model, text.examples, tokenizer, bar.update)
            else:
                scores = score_documents(model, text, options.stride, options.batch_size, bar.update)
    if not scores:
        raise ValueError(f"{', '.join(options.data)}: no document has a token to predict: give more text")
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
        separator = source.recognize_separator()
        if separator:
            print_note(f"note: documents are separated by {separator}; to score it as text: --doc_separator ''")
    return encoded_documents(replace(source, separator=separator or None), tokenizer)


def validation_text(checkpoint: Checkpoint, run_data: DataArgs | None) -> Dataset:
    """The text of the run in the model's directory. Raises ValueError if the model is not a run."""
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
    return dataset


def score_validation(
    model: Transformer, dataset: Dataset, batch_size: int, on_scored: Callable[[int], object]
) -> list[Score]:
    """One score of the whole validation text, in the windows of training: the loss that train.py prints."""
    loss = NextTokenLoss(model, model.norm.weight.dtype)
    score = Score(0.0, dataset.val_tokens, dataset.val_bytes, VALIDATION)
    context = model.args.max_seq_len
    rows = max(1, min(batch_size, TOKENS_AT_ONCE // context))
    for batch in dataset.val_batches(rows, context):
        score.nats += sum_of_nats(loss, batch)
        on_scored(batch[1].size)
    return [score]


def score_conversations(
    model: Transformer, conversations: Iterator[Example], tokenizer: Tokenizer, on_scored: Callable[[int], object]
) -> list[Score]:
    """The score of each conversation, one at a time."""
    loss = NextTokenLoss(model, model.norm.weight.dtype)
    scores = []
    for example in conversations:
        tokens = np.array([example.tokens])  # (1, T + 1)
        targets = np.where([example.counted], tokens, UNCOUNTED)
        nats = sum_of_nats(loss, (tokens[:, :-1], targets[:, 1:]))
        scores.append(Score(nats, sum(example.counted), max(1, len(example.text(tokenizer).encode()))))
        on_scored(scores[-1].tokens)
    return scores


@torch.no_grad()
def sum_of_nats(loss: NextTokenLoss, batch: Batch) -> float:
    """Raises ValueError if the loss is not finite."""
    device = next(loss.parameters()).device
    inputs, targets = (torch.from_numpy(part).to(device) for part in batch)  # (B, T) each
    return check_finite(loss(inputs, targets).item())


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
    """Print one line per document, one per file if there are several, and one for the total.

    The validation text of a run has one line.
    """
    if scores[0].file == VALIDATION:
        print(json.dumps(scores[0].figures()))
        return
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
    what = scores[0].file if len(scores) == 1 else quantity(len(scores), "document")
    for name, score in [*rows, (what, total(scores))]:
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
