"""Score documents: how well a model predicts each token from those before it."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..cache import KVCache
from ..cli import quantity
from ..text.prepare import encode_chunks, surrounding_tokens
from ..text.sources import Documents
from ..text.tokenizer import REPLACEMENT, Tokenizer
from ..transformer import Transformer

TOKENS_AT_ONCE = 512  # of all windows of a batch
Part = tuple[list[int], int]  # token ids, and how many bytes of text they stand for


class Document(NamedTuple):
    """The parts of a document, which are read while it is scored. Its first token is not predicted and has no bytes."""

    parts: Iterator[Part]
    file: str = ""


class Window(NamedTuple):
    """Adjacent tokens (T + 1) of a document, the last ``scored`` of which are predicted and counted."""

    document: int
    tokens: list[int]
    scored: int


@dataclass
class Score:
    """Sums over one document, in ``file``, or over several."""

    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0
    file: str = ""

    def figures(self) -> dict[str, float | int | None]:
        """The perplexity is None if it overflows."""
        mean = self.nats / self.tokens
        return {
            "nats_per_token": mean,
            "perplexity": math.exp(mean) if mean < 700 else None,
            "bits_per_byte": self.nats / math.log(2) / self.bytes,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


def total(scores: Sequence[Score]) -> Score:
    return Score(
        sum(score.nats for score in scores), sum(score.tokens for score in scores), sum(score.bytes for score in scores)
    )


def encoded_documents(source: Documents, tokenizer: Tokenizer) -> Iterator[Document]:
    """The documents of all files. Each must be read before the next one."""
    start, _ = surrounding_tokens(tokenizer)

    def parts(chunks: Iterator[tuple[int, str, list[int]]]) -> Iterator[Part]:
        _, text, ids = next(chunks)
        ids = start + ids
        yield ids, predicted_bytes(text, ids, tokenizer)
        for _, text, ids in chunks:
            yield ids, len(text.encode())

    for file, chunks in source.by_file():
        numbered = numbered_by_document(encode_chunks(chunks, tokenizer))
        for _, group in itertools.groupby(numbered, key=itemgetter(0)):
            yield Document(parts(group), file)


def numbered_by_document(encoded: Iterable[tuple[str, bool, list[int]]]) -> Iterator[tuple[int, str, list[int]]]:
    number = 0
    for text, starts_document, ids in encoded:
        if starts_document:
            number += 1
        yield number, text, ids


def predicted_bytes(text: str, tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """The bytes of the text without those of the first token, unless that is BOS, which stands for no text.

    Of a first token that ends inside a character, which byte-level tokenizers have, only the whole characters count.
    """
    size = len(text.encode())
    if tokens[0] == tokenizer.bos_id:
        return size
    first = tokenizer.decode(tokens[:1]).rstrip(REPLACEMENT)
    return max(1, size - len(first.encode()))  # at least 1, because a tokenizer may lengthen the text


def windows(document: int, tokens: Iterable[int], context: int, stride: int) -> Iterator[Window]:
    """Windows of a document in which each token but the first is scored once.

    A token is predicted from at least ``context - stride + 1`` tokens, or from all before it if there are fewer.
    """
    remaining = iter(tokens)
    window = list(itertools.islice(remaining, context + 1))
    if len(window) > 1:
        yield Window(document, window, len(window) - 1)
    while new := list(itertools.islice(remaining, stride)):
        window = [*window, *new][-context - 1 :]
        yield Window(document, window, len(new))


@torch.no_grad()
def score_windows(model: Transformer, batch: Sequence[Window]) -> list[float]:
    """The summed nats of each window's scored tokens.

    Windows are padded at the end; the causal mask keeps the padding from changing the scored tokens. The network runs
    on TOKENS_AT_ONCE tokens at a time, with a cache, because the logits of all tokens would take much memory.
    """
    weight = model.norm.weight
    longest = max(len(window.tokens) for window in batch)
    padded = [window.tokens + [0] * (longest - len(window.tokens)) for window in batch]
    rows = torch.tensor(padded, device=weight.device)  # (B, T + 1)
    positions = torch.arange(1, longest, device=weight.device)  # (T,), of the targets
    ends = torch.tensor([[len(window.tokens)] for window in batch], device=weight.device)  # (B, 1)
    scored = torch.tensor([[window.scored] for window in batch], device=weight.device)  # (B, 1)
    counts = (positions < ends) & (positions >= ends - scored)  # (B, T)

    cache = KVCache(model.args, len(batch), longest - 1, weight.dtype, weight.device)
    sums = torch.zeros(len(batch), device=weight.device)
    start_pos = 0
    for counted in counts.split(max(1, TOKENS_AT_ONCE // len(batch)), dim=1):  # (B, T), the next T tokens
        end = start_pos + counted.shape[1]
        logits = model(rows[:, start_pos:end], start_pos, cache)  # (B, T, V)
        targets = rows[:, start_pos + 1 : end + 1]  # (B, T)
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        sums += losses.where(counted, 0).sum(1)
        start_pos = end
    return sums.tolist()  # the only wait for the device


def score_documents(
    model: Transformer,
    documents: Iterable[Document],
    stride: int | None = None,
    batch_size: int = 8,
    on_batch: Callable[[int], object] | None = None,
) -> list[Score]:
    """The score of each document that has a token to predict.

    Windows of at most ``max_seq_len`` tokens do not cross documents.

    ``on_batch`` is called after each batch with the number of tokens scored. Raises ValueError if a loss is not finite.
    """
    context = model.args.max_seq_len
    stride = context if stride is None else stride
    if stride > context:
        raise ValueError(
            f"stride is {stride}: windows are {quantity(context, 'token')} long (max_seq_len); give at most that"
        )
    scores: list[Score] = []

    def read_tokens(document: Document, score: Score) -> Iterator[int]:
        for ids, size in document.parts:
            score.tokens += len(ids)
            score.bytes += size
            yield from ids

    def all_windows() -> Iterator[Window]:
        for number, document in enumerate(documents):
            scores.append(Score(tokens=-1, file=document.file))  # the first token is not counted
            yield from windows(number, read_tokens(document, scores[-1]), context, stride)

    queue = all_windows()
    while batch := list(itertools.islice(queue, batch_size)):
        for window, nats in zip(batch, score_windows(model, batch)):
            scores[window.document].nats += check_finite(nats)
        if on_batch:
            on_batch(sum(window.scored for window in batch))
    return [score for score in scores if score.tokens > 0]


def check_finite(nats: float) -> float:
    """Return the nats. Raises ValueError if they are not finite."""
    if not math.isfinite(nats):
        raise ValueError(
            f"the loss is {nats}: the weights hold NaN or infinity, or the dtype overflows; try --dtype float32"
        )
    return nats
