#!/usr/bin/env python3
"""Measure how well a model predicts a text, in nats per token and bits per byte.

python evaluate.py                              score the newest run on its validation text
python evaluate.py runs/demo --data my.txt      on another text, or on a folder
python evaluate.py runs/demo --data my.txt --stride 64 --json
"""

import startup

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from tqdm import tqdm

from model.cli import Parser, explain_out_of_memory, parse, print_note, print_rows, quantity
from model.config import Range
from model.decoding.options import ModelOptions
from model.text.dataset import META, load_dataset
from model.text.sources import TEXT_KEY, DocSeparator, TextKey, open_documents
from model.text.tokenizer import Tokenizer, warn_of_lost_text
from model.training.metrics import read_score

# Everything that imports PyTorch is imported by the functions that use it, so that --help does not wait for it.
if TYPE_CHECKING:
    from model.decoding.examples import Example
    from model.decoding.opened_model import OpenedModel
    from model.decoding.scoring import Score, ScoredText
    from model.weights import Checkpoint

COMMON = ("data", "stride", "whole", "json", "dtype")  # flags that --help shows first


@dataclass(frozen=True)
class Options(ModelOptions):
    """Text and model."""

    data: Annotated[
        tuple[str, ...],
        "text: files, folders, globs, - for stdin, python-docs (default: the validation text of the run)",
    ] = ()
    text_key: TextKey = TEXT_KEY
    doc_separator: DocSeparator = None
    stride: Annotated[
        int | None, "tokens scored per window; a smaller stride gives each token more context (default: all)", Range(1)
    ] = None
    whole: Annotated[bool, "score the whole validation text of the run, however long it is"] = False
    json: Annotated[bool, "print the total as a line of JSON"] = False
    documents: Annotated[bool, "with --json: before the total a line for each document, with the same fields"] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.whole and self.data:
            raise ValueError("whole is for the run's validation text, and --data is scored whole: leave one out")
        if self.documents and not self.json:
            raise ValueError("--documents is for JSON: add --json")
        of_data = ("tokenizer", "stride", "doc_separator", "text_key")
        given = [name for name in of_data if getattr(self, name) != getattr(Options, name)]
        if given and not self.data:
            raise ValueError(f"{', '.join(given)} cannot be used with the run's validation text: add --data")


def main() -> None:
    options, _ = parse(Parser("--data", COMMON, prog="evaluate.py", description=__doc__), Options)

    from model.cli.machine import available_cores
    from model.decoding.opened_model import open_model
    from model.decoding.scoring import score_texts, total

    model = open_model(options)  # reads no weights yet, so that mistakes are found first
    texts = given_texts(model, options) if options.data else [validation_of_run(model.checkpoint, options.whole)]

    with available_cores(), explain_out_of_memory("give a smaller model", model.device):
        network = model.load()
        with tqdm(unit="tok", unit_scale=True, file=sys.stderr, delay=1, disable=None) as bar:
            scores = score_texts(network, texts, bar.update)
    if not any(score.tokens for score in scores):
        raise ValueError(f"{', '.join(options.data)}: there is no text to score: give more, or shorter conversations")
    print_scores(scores, total(scores), options)


def given_texts(model: "OpenedModel", options: Options) -> "Iterable[ScoredText]":
    """The texts of --data."""
    from model.decoding.chat import DEFAULT_TEMPLATE, Chat
    from model.decoding.examples import read_examples
    from model.decoding.scoring import document_texts

    checkpoint, tokenizer = model.checkpoint, model.tokenizer
    context = checkpoint.args.max_seq_len
    stride = options.stride or context
    if stride > context:
        raise ValueError(
            f"stride is {stride}: windows are {quantity(context, 'token')} long (max_seq_len); give at most that"
        )
    separator = options.doc_separator
    if separator is None and (checkpoint.path / META).is_file():
        separator = load_dataset(checkpoint.path).doc_separator
    source = open_documents(options.data, options.text_key, separator)
    if source.has_conversations():
        if options.stride or options.doc_separator:
            raise ValueError("stride and doc_separator are for texts, and the data are conversations: leave them out")
        chat = Chat(checkpoint.path, tokenizer, default=DEFAULT_TEMPLATE)
        return (
            conversation_text(where, example, tokenizer)
            for where, _, examples in read_examples(source, chat, context + 1)
            for example in examples
        )
    if separator is None and source.separator:
        print_note(f"note: documents are separated by {source.separator}; to score it as text: --doc_separator ''")
    warn_of_lost_text(tokenizer, next(source.texts(), ""))
    return document_texts(source, tokenizer, context, stride)


def conversation_text(where: str, example: "Example", tokenizer: Tokenizer) -> "ScoredText":
    """A conversation in one window, of which only the tokens that the assistant has to write are scored."""
    from model.decoding.scoring import Score

    tokens, targets = np.array([example.tokens]), np.array([example.targets])  # (1, T + 1)
    size = max(1, len(example.text(tokenizer).encode()))
    return Score(where, size), [(tokens[:, :-1], targets[:, 1:])]


def validation_of_run(checkpoint: "Checkpoint", whole: bool) -> "ScoredText":
    """The validation text of the run in the model's directory, in the windows of training.

    train.py prints the same loss at its end, because it scores the same tokens in the same way. Raises ValueError if
    the model is not a run.
    """
    from model.decoding.scoring import SCORED_TOKENS, validation_text

    path = checkpoint.path
    if not (path / META).is_file():
        raise ValueError(f"{path} is not a run of train.py: name the text to score with --data")
    dataset = load_dataset(path)
    last = read_score(path)
    part = None if whole else SCORED_TOKENS
    if last and not whole:
        part = last.max_tokens  # a short run has scored less
    text = validation_text(dataset, checkpoint.args.max_seq_len, part)
    print_note(f"note: scoring {dataset.validation} of {dataset.val_name}, the run's {text[0].name}")
    return text


def print_scores(scores: "Sequence[Score]", whole: "Score", options: Options) -> None:
    """Print the total as a table, or as a line of JSON, with ``documents`` after a line for each document."""
    if options.json:
        numbered = list(enumerate(scores, 1)) if options.documents else []
        for number, score in [*numbered, (None, whole)]:
            print(json.dumps({"document": number, "text": score.name} | score.figures()))
        return
    rows = {"text": whole.name}
    for name, value in whole.figures().items():
        rows[name.replace("_", " ")] = f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
    print_rows(rows)


if __name__ == "__main__":
    startup.run(main, "evaluate.py")
