#!/usr/bin/env python3
"""Measure how well a model predicts a text, in nats per token and bits per byte: python evaluate.py MODEL"""

import startup  # noqa: F401, I001  must come before torch

import itertools
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from tqdm import tqdm

from model.cli import (
    Parser,
    add_flags,
    explain_out_of_memory,
    from_settings,
    print_note,
    quantity,
    read_flags,
    run_script,
)
from model.cli.machine import DeviceName, pick_device, pick_dtype
from model.text.readers import Chunk
from model.text.separators import recognize
from model.text.sources import Documents, open_documents
from model.text.tokenizer import Tokenizer
from model.training.config import DataArgs, Globs, TextKey
from model.training.run_text import (
    count_training_files,
    describe_validation,
    prepare_run_dataset,
    read_run_data_args,
    validation_documents,
)
from model.training.summary import format_rows
from model.transformer import Transformer
from model.weights import find_network, open_checkpoint
from model.weights.checkpoint import Checkpoint, newest_run


@dataclass(frozen=True)
class EvaluateOptions:
    """Text, model, device and dtype."""

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
        int | None, "tokens scored per window; a smaller stride gives each token more context (default: all)"
    ] = None
    batch_size: Annotated[int, "windows scored at the same time"] = 8
    network: Annotated[str | None, "the model is this subclass of Transformer: MODULE:CLASS"] = None
    tokenizer: Annotated[Path | None, "tokenizer file (default: the one beside the model)"] = None
    json: Annotated[
        bool, "print JSON lines instead of a table: one per document, one per file if there are several, the total"
    ] = False
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        "dtype of the weights; auto: as stored if the device multiplies it natively, else float32",
    ] = "auto"
    device: DeviceName = "auto"

    def __post_init__(self) -> None:
        if self.tokenizer and not self.data:
            raise ValueError("tokenizer cannot be used with the run's validation text: add --data")
        for name in ("stride", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")


Texts = Iterable[tuple[list[int], int]]  # of each document: token ids, and how many bytes of text are predicted


class Window(NamedTuple):
    """Adjacent tokens (T + 1) of a document, the last ``scored`` of which are predicted and counted."""

    document: int
    tokens: list[int]
    scored: int


@dataclass
class Score:
    """Sums over one document or several."""

    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0

    def __add__(self, other: "Score") -> "Score":
        return Score(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes)

    def figures(self) -> dict[str, float | int]:
        mean = self.nats / self.tokens
        if not math.isfinite(mean):
            raise ValueError(
                f"the loss is {mean}: the weights hold NaN or infinity, or the dtype overflows; try --dtype float32"
            )
        return {
            "nats_per_token": mean,
            "perplexity": math.exp(mean) if mean < 700 else math.inf,
            "bits_per_byte": self.nats / math.log(2) / self.bytes,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


def encoded_documents(source: Iterable[Chunk], tokenizer: Tokenizer) -> Iterator[tuple[list[int], int]]:
    """(token ids, bytes of those that are predicted) of each document that has a token to predict.

    The first token is not predicted: usually BOS. If the tokenizer adds no BOS, it is a piece of text, and its bytes
    are not counted.
    """
    end = Chunk("", starts_document=True)
    text = ""
    for chunk in itertools.chain(source, [end]):
        if chunk.starts_document and text:
            tokens = tokenizer.encode(text)
            if len(tokens) > 1:
                unpredicted = "" if tokens[0] == tokenizer.bos_id else tokenizer.decode(tokens[:1])
                yield tokens, len(text.encode()) - len(unpredicted.encode())
            text = ""
        text += chunk.text


def windows(document: int, tokens: Sequence[int], context: int, stride: int) -> Iterator[Window]:
    """Windows of a document in which each token but the first is scored once.

    A token is predicted from at least ``context - stride + 1`` tokens, or from all before it if there are fewer.
    """
    last = len(tokens) - 1
    scored_until = 0
    end = min(context, last)
    while True:
        start = max(0, end - context)
        yield Window(document, list(tokens[start : end + 1]), end - scored_until)
        if end == last:
            return
        scored_until = end
        end = min(end + stride, last)


@torch.no_grad()
def score_windows(model: Transformer, batch: Sequence[Window]) -> list[float]:
    """The summed nats of each window's scored tokens.

    Windows are padded at the end; the causal mask keeps the padding from changing the scored tokens.
    """
    device = model.tok_embeddings.weight.device
    longest = max(len(window.tokens) for window in batch)
    padded = [window.tokens + [0] * (longest - len(window.tokens)) for window in batch]
    rows = torch.tensor(padded, device=device)  # (B, T + 1)
    h = model.hidden(rows[:, :-1])  # (B, T, dim)
    sums = []
    for window, states, row in zip(batch, h, rows):
        scored = slice(len(window.tokens) - 1 - window.scored, len(window.tokens) - 1)
        nats = 0.0
        # 256 tokens at a time, so that the logits take little memory
        for hidden, targets in zip(states[scored].split(256), row[1:][scored].split(256)):
            nats += F.cross_entropy(model.logits(hidden).float(), targets, reduction="sum").item()
        sums.append(nats)
    return sums


def evaluate(
    model: Transformer,
    texts: Texts,
    stride: int | None = None,
    batch_size: int = 8,
    on_batch: Callable[[int], object] | None = None,
) -> list[Score]:
    """The score of each document. Windows do not cross documents.

    ``on_batch`` is called after each batch with the number of tokens scored.
    """
    context = model.args.max_seq_len
    stride = context if stride is None else stride
    if stride > context:
        raise ValueError(
            f"stride is {stride}: windows are {quantity(context, 'token')} long (max_seq_len); give at most that"
        )
    scores: list[Score] = []

    def all_windows() -> Iterator[Window]:
        for number, (tokens, size) in enumerate(texts):
            scores.append(Score(tokens=len(tokens) - 1, bytes=size))
            yield from windows(number, tokens, context, stride)

    queue = all_windows()
    while batch := list(itertools.islice(queue, batch_size)):
        for window, nats in zip(batch, score_windows(model, batch)):
            scores[window.document].nats += nats
        if on_batch:
            on_batch(sum(window.scored for window in batch))
    return scores


def score_table(scores: Sequence[Score]) -> str:
    total = sum(scores, Score())
    figures = total.figures()
    rows = {
        "nats per token": f"{figures['nats_per_token']:.4f}",
        "perplexity": f"{figures['perplexity']:,.3f}",
        "bits per byte": f"{figures['bits_per_byte']:.4f}",
        "text": f"{quantity(total.tokens, 'token')}, {quantity(total.bytes, 'byte')}",
    }
    if len(scores) > 1:
        means = [item.nats / item.tokens for item in scores]
        rows["documents"] = (
            f"{len(scores):,}; nats per token from {min(means):.4f} to {max(means):.4f}, "
            f"median {statistics.median(means):.4f}"
        )
    return format_rows(rows)


def file_table(files: Mapping[str, Score]) -> str:
    """A row for each file."""
    lines = [f"{'nats per token':<14}  {'bits per byte':>13}  {'tokens':>11}  file"]
    for name, item in files.items():
        figures = item.figures()
        lines.append(
            f"{figures['nats_per_token']:<14.4f}  {figures['bits_per_byte']:>13.4f}  {item.tokens:>11,}  {name}"
        )
    return "\n".join(lines) + "\n"


def encoded_files(source: Documents, tokenizer: Tokenizer, names: list[str]) -> Iterator[tuple[list[int], int]]:
    """The encoded documents of all files. For each document, the name of its file is appended to ``names``."""
    for name, chunks in source.by_file():
        for document in encoded_documents(chunks, tokenizer):
            names.append(name)
            yield document


def open_data(options: EvaluateOptions, data: DataArgs | None) -> Documents:
    """The text of --data. The separator is that of the flag, else of the run's ``data``, else recognized."""
    source = open_documents(options.data, options.text_key, None, options.glob)
    separator = options.doc_separator
    if separator is None and data:
        separator = data.doc_separator
    if separator is None:
        recognized = recognize(*source.beginnings())
        separator = recognized.separator
        if recognized.note:
            print_note(f"note: {', '.join(options.data)}: {recognized.note}")
    return source.with_separator(separator or None)


def validation_text(checkpoint: Checkpoint, data: DataArgs | None, tokenizer: Tokenizer) -> Texts:
    """The validation text of the run in the model's directory. Raises ValueError if the model is not a run."""
    if data is None:
        raise ValueError(
            f"{checkpoint.path} is not a run of train.py, or its config.toml cannot be read: name the text to score "
            "with --data"
        )
    dataset = prepare_run_dataset(checkpoint.path, data, tokenizer, checkpoint.args.max_seq_len)
    print_note(f"note: scoring {describe_validation(data)}; name another text with --data")
    return validation_documents(dataset, tokenizer)


def sum_by_file(names: Sequence[str], scores: Sequence[Score]) -> dict[str, Score]:
    files: dict[str, Score] = {}
    for name, item in zip(names, scores):
        files[name] = files.get(name, Score()) + item
    return files


def print_scores(names: Sequence[str], scores: Sequence[Score], as_json: bool) -> None:
    """Print the total, and a row per file if there are several; as JSON, also a line per document.

    ``names[i]`` is the file of document i; ``names`` is empty if the files are unknown.
    """
    files = sum_by_file(names, scores)
    if not as_json:
        if len(files) > 1:
            print(file_table(files))
        print(score_table(scores))
        return
    for number, item in enumerate(scores, 1):
        file = {"file": names[number - 1]} if names else {}
        print(json.dumps({"document": number} | file | item.figures()))
    if len(files) > 1:
        counts = Counter(names)
        for name, item in files.items():
            print(json.dumps({"file": name, "documents": counts[name]} | item.figures()))
    print(json.dumps({"documents": len(scores)} | sum(scores, Score()).figures()))


def main() -> None:
    description = "Measure how well a model predicts a text."
    parser = Parser(text_flag="--data", prog="evaluate.py", description=description)
    parser.add_argument(
        "model", nargs="?", type=Path, metavar="MODEL", help="run directory or checkpoint (default: newest run)"
    )
    add_flags(parser, EvaluateOptions)
    flags = parser.parse_args()
    options: EvaluateOptions = from_settings(EvaluateOptions, read_flags(flags, EvaluateOptions))
    path = flags.model or newest_run()
    data = read_run_data_args(path)
    source = open_data(options, data) if options.data else None
    device = pick_device(options.device)
    checkpoint = open_checkpoint(path)
    variant = find_network(options.network) if options.network else None
    tokenizer = checkpoint.tokenizer(options.tokenizer)
    names: list[str] = []
    texts: Texts
    if source is None:
        texts = validation_text(checkpoint, data, tokenizer)
    else:
        texts = encoded_files(source, tokenizer, names)
        trained_on = count_training_files(source, data) if data else 0
        if trained_on:
            print_note(
                f"note: {path} was trained on {trained_on:,} of the {quantity(len(source.files), 'file')} to score: "
                "scores on training text are better than on new text; without --data, the validation text is scored"
            )
    dtype = pick_dtype(options.dtype, device, checkpoint.dtype)
    with explain_out_of_memory("lower --batch_size, or give a smaller model", device):
        model = checkpoint.model(device, dtype, variant, int8=options.dtype == "int8")
        with tqdm(unit="tok", unit_scale=True, file=sys.stderr, delay=1, disable=None) as bar:
            scores = evaluate(model, texts, options.stride, options.batch_size, bar.update)
    if not scores:
        text = ", ".join(options.data) or "the validation text"
        raise ValueError(f"{text}: no document has a token to predict: give more text")
    print_scores(names, scores, options.json)


if __name__ == "__main__":
    run_script(main, "evaluate.py")
