#!/usr/bin/env python3
"""Measure how well a model predicts a text, in nats per token and bits per byte: python evaluate.py MODEL"""

import startup  # noqa: F401, I001  must come before torch

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from tqdm import tqdm

from model.cli import Parser, add_flags, explain_out_of_memory, print_note, quantity, read_flags, run_script
from model.cli.machine import pick_device, pick_dtype
from model.decoding.chat import DEFAULT_TEMPLATE, Chat
from model.decoding.options import ModelOptions, add_model, load_network, open_model
from model.decoding.scoring import TOKENS_AT_ONCE, Score, Text, document_texts, score_texts, total
from model.ranges import Range
from model.text.dataset import UNCOUNTED
from model.text.prepare import load_dataset
from model.text.sources import Documents, open_documents
from model.text.tokenizer import Tokenizer
from model.training.config import DataArgs, Globs, TextKey
from model.training.conversations import Example, examples_at
from model.training.run_text import read_run_data_args
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
    json: Annotated[bool, "print JSON lines: one per document if there are several, and one for the total"] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tokenizer or self.stride) and not self.data:
            raise ValueError("tokenizer and stride cannot be used with the run's validation text: add --data")


def main() -> None:
    parser = Parser("--data", prog="evaluate.py", description="Measure how well a model predicts a text.")
    add_model(parser)
    add_flags(parser, Options)
    flags = parser.parse_args()
    options = Options(**read_flags(flags, Options))
    device = pick_device(options.device)
    checkpoint = open_model(flags.model)  # reads no weights yet, so that mistakes are found first
    run_data = read_run_data_args(checkpoint.path)  # None if the model is not a run
    tokenizer = checkpoint.tokenizer(options.tokenizer)
    if options.data:
        texts = given_texts(checkpoint, options, run_data, tokenizer)
    else:
        texts = [validation_text(checkpoint, run_data)]

    dtype = pick_dtype(options.dtype, device, checkpoint.dtype)
    with explain_out_of_memory("give a smaller model", device):
        model = load_network(checkpoint, options, device, dtype)
        with tqdm(unit="tok", unit_scale=True, file=sys.stderr, delay=1, disable=None) as bar:
            scores = score_texts(model, texts, bar.update)
    if not scores:
        raise ValueError(f"{', '.join(options.data)}: there is no text to score: give more, or shorter conversations")
    if options.json:
        print_json(scores)
    else:
        print_table(total(scores))


def given_texts(
    checkpoint: Checkpoint, options: Options, run_data: DataArgs | None, tokenizer: Tokenizer
) -> Iterable[Text]:
    """The texts of --data. The separator is that of the flag, else of the run, else recognized."""
    context = checkpoint.args.max_seq_len
    stride = options.stride or context
    if stride > context:
        raise ValueError(
            f"stride is {stride}: windows are {quantity(context, 'token')} long (max_seq_len); give at most that"
        )
    source = open_documents(options.data, options.text_key, None, options.glob)
    trained_on = count_training_files(source, checkpoint.path) if run_data else 0
    if trained_on:
        print_note(
            f"note: {checkpoint.path} was trained on {trained_on:,} of {quantity(len(source.paths()), 'file')} to "
            "score: scores on training text are better than on new text; without --data, the validation text is scored"
        )
    if source.has_conversations():
        if options.stride or options.doc_separator:
            raise ValueError("stride and doc_separator are for texts, and the data are conversations: leave them out")
        chat = Chat(checkpoint.path, tokenizer, default=DEFAULT_TEMPLATE)
        return (
            conversation_text(where, example, tokenizer)
            for where, messages in source.conversations()
            for example in examples_at(where, messages, chat, context + 1)
        )
    separator = options.doc_separator
    if separator is None and run_data:
        separator = run_data.doc_separator
    if separator is None:
        separator = source.recognize_separator()
        if separator:
            print_note(f"note: documents are separated by {separator}; to score it as text: --doc_separator ''")
    return document_texts(replace(source, separator=separator or None), tokenizer, context, stride)


def conversation_text(where: str, example: Example, tokenizer: Tokenizer) -> Text:
    """A conversation in one window, of which only the tokens that the assistant has to write are scored."""
    tokens = np.array([example.tokens])  # (1, T + 1)
    targets = np.where([example.counted], tokens, UNCOUNTED)
    size = max(1, len(example.text(tokenizer).encode()))
    return Score(where, size), [(tokens[:, :-1], targets[:, 1:])]


def validation_text(checkpoint: Checkpoint, run_data: DataArgs | None) -> Text:
    """The validation text of the run in the model's directory, in the windows of training.

    So its loss is the one that train.py prints. Raises ValueError if the model is not a run.
    """
    if run_data is None:
        raise ValueError(
            f"{checkpoint.path} is not a run of train.py, or its config.toml cannot be read: name the text to score "
            "with --data"
        )
    dataset = load_dataset(checkpoint.path)
    share = len(dataset.val) / (len(dataset.train) + len(dataset.val))
    text = ", ".join(run_data.val_data) or f"the last {share:.1%} of {', '.join(run_data.data)}"
    print_note(f"note: scoring {text}, the run's validation text; name another text with --data")
    context = checkpoint.args.max_seq_len
    batches = dataset.val_batches(max(1, TOKENS_AT_ONCE // context), context)
    return Score("validation text", dataset.val_bytes), batches


def count_training_files(documents: Documents, directory: Path) -> int:
    """Count the files of ``documents`` that the run in the directory was trained on."""
    try:
        trained_on = set(load_dataset(directory).files)
    except ValueError:
        return 0
    return sum(os.path.realpath(path) in trained_on for path in documents.paths())


def print_json(scores: Sequence[Score]) -> None:
    """Print one line per document if there are several, and one for the total."""
    if len(scores) > 1:
        for number, score in enumerate(scores, 1):
            print(json.dumps({"document": number, "file": score.name} | score.figures()))
    whole = total(scores)
    print(json.dumps({"text": whole.name} | whole.figures()))


def print_table(score: Score) -> None:
    figures = score.figures()
    print("nats per token    perplexity  bits per byte       tokens        bytes  text")
    print(
        f"{figures['nats_per_token']:14.4f}  {figures['perplexity']:12,.3f}  {figures['bits_per_byte']:13.4f}  "
        f"{score.tokens:11,}  {score.bytes:11,}  {score.name}"
    )


if __name__ == "__main__":
    run_script(main, "evaluate.py")
