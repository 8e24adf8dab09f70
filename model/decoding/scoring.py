"""Score texts: how well a model predicts each token from those before it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter

import numpy as np
import torch
import torch.nn.functional as F

from ..cache import KVCache
from ..text.dataset import UNCOUNTED, Batch, Dataset
from ..text.sources import Documents
from ..text.tokenize import EncodedPart, encode_documents, surrounding_tokens
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer

# The most tokens of a run's validation text that are scored, because more take minutes; of a longer text, evenly spread
# passages. The loss of a token has a standard deviation of about 3 nats, so that of their mean is 0.01.
SCORED_TOKENS = 1 << 17
TOKENS_AT_ONCE = 512  # in a forward pass, because the logits of a whole window would take much memory


@dataclass
class Score:
    """The sum of nats over the predicted tokens of one text or several, and the bytes that these tokens stand for."""

    name: str
    bytes: int = 0
    tokens: int = 0
    nats: float = 0.0

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes

    def figures(self) -> dict[str, float | int | None]:
        """Without a token the means are None: a tokenizer may have none for a whole document, such as white space.

        The perplexity is cut off at exp(700), because exp(710) overflows.
        """
        has_tokens = self.tokens > 0
        return {
            "nats_per_token": self.nats_per_token if has_tokens else None,
            "perplexity": math.exp(min(self.nats_per_token, 700)) if has_tokens else None,
            "bits_per_byte": self.bits_per_byte if has_tokens else None,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


ScoredText = tuple[Score, Iterable[Batch]]  # without tokens and nats yet, and windows with the targets to score


def total(scores: Sequence[Score]) -> Score:
    return Score(
        scores[0].name if len(scores) == 1 else f"{len(scores):,} documents",
        sum(score.bytes for score in scores),
        sum(score.tokens for score in scores),
        sum(score.nats for score in scores),
    )


def document_texts(source: Documents, tokenizer: Tokenizer, context: int, stride: int) -> Iterator[ScoredText]:
    """Each document in windows, which are read while it is scored, because it may be larger than the memory.

    Its first token is predicted as in a training text: from BOS, or from the end token if documents begin without BOS.
    """
    start, end = surrounding_tokens(tokenizer)
    for file in source.files:
        encoded = encode_documents(source.read(file), tokenizer, start or end, [])
        for _, document in groupby(numbered_by_document(encoded), key=itemgetter(0)):
            score = Score(file.name)
            yield score, windows(tokens_of(document, score), context, stride)


def validation_text(dataset: Dataset, context: int, max_tokens: int | None) -> ScoredText:
    """The validation text of a run in the windows of training, all of it or about ``max_tokens`` of it."""
    batches = dataset.val_batches(max(1, TOKENS_AT_ONCE // context), context, max_tokens)
    tokens = dataset.val_count(context, max_tokens)
    size = round(dataset.val_bytes * tokens / dataset.val_tokens)
    return Score(f"validation text{dataset.part(tokens)}", size), batches


def numbered_by_document(encoded: Iterable[EncodedPart]) -> Iterator[tuple[int, EncodedPart]]:
    number = 0
    for part in encoded:
        if part.starts_document:
            number += 1
        yield number, part


def tokens_of(document: Iterable[tuple[int, EncodedPart]], score: Score) -> Iterator[int]:
    """The tokens of a document, whose bytes are added to the score when they are read."""
    for _, part in document:
        score.bytes += part.size
        yield from part.ids


def windows(tokens: Iterable[int], context: int, stride: int) -> Iterator[Batch]:
    """Windows of a document, of at most ``context`` tokens each. Each token but the first is a target once.

    A token is predicted from at least ``context - stride + 1`` tokens, or from all before it if there are fewer.
    """
    remaining = iter(tokens)
    window = list(islice(remaining, context + 1))
    scored = len(window) - 1
    while scored > 0:
        ids = np.array([window])  # (1, T + 1)
        targets = ids[:, 1:].copy()  # (1, T)
        targets[:, :-scored] = UNCOUNTED
        yield ids[:, :-1], targets
        new = list(islice(remaining, stride))
        window, scored = [*window, *new][-context - 1 :], len(new)


def score_texts(model: Transformer, texts: Iterable[ScoredText], on_scored: Callable[[int], object]) -> list[Score]:
    """Add the tokens and nats of each text to its score. After a window, ``on_scored`` gets the number of its targets.

    Raises ValueError if a loss is not finite.
    """
    scores = []
    for score, batches in texts:
        for inputs, targets in batches:
            count = int((targets != UNCOUNTED).sum())
            score.tokens += count
            score.nats += sum_of_nats(model, inputs, targets)
            on_scored(count)
        scores.append(score)
    return scores


@torch.no_grad()
def sum_of_nats(model: Transformer, inputs: np.ndarray, targets: np.ndarray) -> float:
    """The summed nats of the targets (B, T), of which some may be UNCOUNTED. Raises ValueError if it is not finite."""
    device = model.norm.weight.device
    tokens, following = (torch.from_numpy(ids).to(device) for ids in (inputs, targets))  # (B, T)
    B, T = tokens.shape
    cache = KVCache(model.args, B, T)
    nats = torch.zeros((), device=device)
    start_pos = 0
    for chunk, target in zip(tokens.split(TOKENS_AT_ONCE // B, 1), following.split(TOKENS_AT_ONCE // B, 1)):
        logits = model(chunk, start_pos, cache).float().flatten(0, 1)  # (B * length, V)
        nats += F.cross_entropy(logits, target.flatten(), reduction="sum")  # UNCOUNTED is PyTorch's ignore_index
        start_pos += chunk.shape[1]
    summed = nats.item()  # the only wait for the device
    if not math.isfinite(summed):
        raise ValueError(
            f"the loss is {summed}: the weights hold NaN or infinity, or the dtype overflows; try --dtype float32"
        )
    return summed
