"""Sampling: filters from logits (B, V) to logits, and the draw of a token. ``options.py`` has its settings.

A token that a filter excludes gets the logit -inf. Every filter keeps at least the likeliest token, so filters can be
combined in any order; ``apply_filters`` uses the customary order. Tokens that tie are kept or excluded together.
"""

import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from .options import Sampling

EXCLUDED = float("-inf")


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Repetition penalty: make the tokens that are in the text of a row, ``seen`` (B, V), less likely.

    A positive logit is divided by the penalty, as in CTRL (arXiv:1909.05858). A negative one is multiplied by it, as in
    Hugging Face's transformers, because dividing would increase it.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature, which is above 0. The largest logit is shifted to 0 first, to prevent overflow."""
    return (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k likeliest tokens."""
    kth = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < kth, EXCLUDED)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens whose probabilities sum to p or more (nucleus sampling, arXiv:1904.09751)."""
    probs = logits.softmax(-1)
    likeliest = likeliest_first(probs, p)  # (B, 256, 2048 or V)
    before_last = (likeliest[:, :-1].cumsum(-1) < p).sum(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(probs < likeliest.gather(-1, before_last), EXCLUDED)


def likeliest_first(probs: Tensor, p: float) -> Tensor:
    """The largest probabilities, sorted: 256 or 2,048 of each row if they sum to p, else all. On a GPU always all.

    On a CPU sorting 32,000 takes 1.9 ms, finding 2,048 of them 0.33, and 256 of them 0.05 (Zen 5). Asking a GPU whether
    they are enough would wait for it.
    """
    for count in (256, 2048) if probs.device.type == "cpu" else ():
        likeliest = probs.topk(min(count, probs.shape[-1])).values
        if (likeliest.sum(-1) >= p).all():
            return likeliest
    return probs.sort(-1, descending=True).values


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens with p times the probability of the likeliest one or more (arXiv:2407.01082)."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), EXCLUDED)


def apply_filters(logits: Tensor, sampling: Sampling) -> Tensor:
    """Apply temperature, top_k, top_p and min_p in this order, as Hugging Face does."""
    logits = apply_temperature(logits, sampling.temperature)
    if sampling.top_k:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p:
        logits = keep_min_p(logits, sampling.min_p)
    return logits


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row, (B,), by inverting the cumulative distribution at ``uniform``, (B,) in [0, 1).

    This needs one random number per row; ``torch.multinomial`` draws V of them, which is slow. The cumulative sum is
    float64, because float32 loses small probabilities at its end.
    """
    cumulative = logits.softmax(-1).cumsum(-1, dtype=torch.float64)  # (B, V)
    target = uniform[:, None] * cumulative[:, -1:]  # (B, 1)
    tokens = torch.searchsorted(cumulative, target, right=True)  # (B, 1)
    return tokens[:, 0].clamp(max=logits.shape[-1] - 1)  # (B,)


def random_streams(seed: int | None, rows: Iterable[int], device: torch.device) -> Iterator[Tensor]:
    """Yield the random numbers of each draw, (B,) float64. A row's numbers do not depend on the rest of its batch.

    They are drawn on the CPU, so that they are the same on all devices, and copied to the device 64 at a time, because
    each copy waits for it.
    """
    if seed is None:
        seed = random.SystemRandom().getrandbits(63)
    streams = [torch.Generator("cpu").manual_seed(random.Random(f"{seed} {row}").getrandbits(63)) for row in rows]
    while True:
        draws = [torch.rand(64, dtype=torch.float64, generator=stream, device="cpu") for stream in streams]
        yield from torch.stack(draws, 1).to(device)  # (64, B)


SAMPLING_DEVICES = ("cpu", "cuda")  # Apple's GPUs have no float64, which the draw needs


class Drawn:
    """The result of a draw, columns of (B, 1) each. From a card they are copied to the CPU without waiting."""

    def __init__(self, columns: Sequence[Tensor]) -> None:
        self.on_cpu = columns
        self.copied: torch.cuda.Event | None = None
        device = columns[0].device
        if device.type != "cpu":
            table = torch.cat([column.float() for column in columns], 1)  # for a single copy; tokens are exact to 2^24
            self.on_cpu = table.to("cpu", non_blocking=True).split(1, 1)
            self.copied = torch.cuda.current_stream(device).record_event()

    def columns(self) -> Sequence[Tensor]:
        if self.copied is not None:
            self.copied.synchronize()
        return self.on_cpu


class Sampler:
    """Sample the next token of each row. Holds the random stream of each row, and its tokens for the penalty.

    It works where the logits are, if float64 exists there, else on the CPU.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        first_row: int = 0,
        logprobs: list[list[float]] | None = None,
    ) -> None:
        """``prompts`` are the tokens of each row so far. ``first_row`` is the number of the first random stream.

        ``logprobs`` gets a list for each draw that is read: the log-probability of the token of each row. They are the
        network's: those of temperature 1, without filters and penalty.
        """
        self.sampling = sampling
        self.logprobs = logprobs
        self.rows = range(first_row, first_row + len(prompts))
        self.prompts = [list(prompt) for prompt in prompts]
        self.streams: Iterator[Tensor] | None = None
        self.unread: deque[Drawn] = deque()
        self.seen: Tensor | None = None  # (B, V), with a penalty

    @torch.no_grad()
    def __call__(self, logits: Tensor) -> Tensor:
        """(B, V) -> the tokens (B, 1), on the device of the draw. ``read`` returns them on the CPU."""
        if logits.device.type not in SAMPLING_DEVICES:
            logits = logits.cpu()
        logits = logits.float()
        largest, tokens = self.choose(logits)  # (B, 1) each
        if self.seen is not None:
            self.seen.scatter_(1, tokens, True)
        columns = [largest, tokens]
        if self.logprobs is not None:
            columns.append(logits.log_softmax(-1).gather(-1, tokens))
        self.unread.append(Drawn(columns))
        return tokens

    def read(self) -> Tensor:
        """The tokens of the first draw that has not been read, (B, 1), on the CPU. Nothing else here waits for a card.

        Raises ValueError if a logit is NaN or +infinity, because it would silently become some token. -infinity is
        allowed, because it excludes a token, but not for all tokens of a row.
        """
        largest, tokens, *logprobs = self.unread.popleft().columns()
        if not all(math.isfinite(each) for (each,) in largest.tolist()):
            raise ValueError(
                "the logits contain NaN or infinity: either the weights do, or products overflow; try --dtype float32"
            )
        if self.logprobs is not None:
            self.logprobs.append(logprobs[0].flatten().tolist())
        return tokens.long()

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The largest logit, which is NaN if any of the row is, and the token: (B, 1) each, where the logits are."""
        sampling = self.sampling
        if sampling.repetition_penalty != 1:
            if self.seen is None:
                self.seen = seen_tokens(self.prompts, logits)
            logits = penalize(logits, self.seen, sampling.repetition_penalty)
        largest, likeliest = logits.max(-1, keepdim=True)
        if sampling.temperature == 0:
            return largest, likeliest
        if self.streams is None:
            self.streams = random_streams(sampling.seed, self.rows, logits.device)
        return largest, draw(apply_filters(logits, sampling), next(self.streams))[:, None]


def seen_tokens(texts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """Which tokens are in the text of each row: (B, V), like the logits."""
    seen = torch.zeros(logits.shape, dtype=torch.bool, device="cpu")
    for row, tokens in zip(seen, texts):
        row[list(tokens)] = True
    return seen.to(logits.device)


def read_tokens(steps: Iterator[Tensor], sampler: Sampler) -> Iterator[Tensor]:
    """The tokens of the steps of ``decode`` with this sampler, (B, 1), on the CPU.

    A card begins the next step before the tokens of a step are read, so that it does not wait for the program. So a
    text that ends early takes one step too many. The first token is read at once, because the second step may be
    compiled.
    """
    for number, tokens in enumerate(steps):
        if number == 1 and tokens.device.type != "cpu":
            continue  # from now on, each token is read one step later
        yield sampler.read()
    while sampler.unread:
        yield sampler.read()
