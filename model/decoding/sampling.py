"""From logits to a token: the settings, small functions from logits (B, V) to logits, and the draw at the end.

A token that is ruled out has the logit -inf. Each function keeps at least the likeliest token, so they compose in any
order; ``apply_filters`` applies them in the customary one.
"""

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

RULED_OUT = float("-inf")
DRAWS = 1024  # for which random numbers are made at a time


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing the next token.

    Raises ValueError that lists every problem at once, each with its value and the fix.
    """

    temperature: Annotated[float, "0 always takes the likeliest token, 1 keeps the model's probabilities"] = 0.8
    top_k: Annotated[int | None, "draw among the K likeliest tokens; 0 is off"] = None
    top_p: Annotated[float | None, "draw among the likeliest tokens that together have this probability"] = None
    min_p: Annotated[float | None, "leave out tokens below this fraction of the likeliest one's probability"] = None
    repetition_penalty: Annotated[float, "above 1 makes tokens the text already has less likely; 1 is off"] = 1.0
    seed: Annotated[int | None, "the same seed gives the same text (default: a new one each time)"] = None

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.temperature < float("inf"):
            yield f"temperature is {self.temperature}: give 0 (always the likeliest token) or more"
        if self.top_k is not None and self.top_k < 0:
            yield f"top_k is {self.top_k}: give a number of tokens, or 0 for all"
        if self.top_p is not None and not 0 < self.top_p <= 1:
            yield f"top_p is {self.top_p}: give a probability above 0, up to 1"
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            yield f"min_p is {self.min_p}: give a fraction from 0 to 1"
        if not 1e-6 <= self.repetition_penalty <= 1e6:
            yield f"repetition_penalty is {self.repetition_penalty}: give a number from 1e-6 to 1e6, 1 for none"
        if self.seed is not None and not 0 <= self.seed < 2**63:
            yield f"seed is {self.seed}: give a whole number from 0 to 2**63 - 1"


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make what the text already has less likely: ``seen`` (B, V) is True there (CTRL, arXiv:1909.05858, eq. 4).

    Logits have no natural zero, so a positive one is divided and a negative one multiplied: both go down.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature, above 0. The largest logit is made 0 first, so a tiny temperature cannot overflow."""
    return (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k likeliest tokens, and whatever ties with the last of them."""
    kth = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < kth, RULED_OUT)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest likeliest tokens whose probabilities reach p, and ties (nucleus sampling, arXiv:1904.09751)."""
    probs = logits.softmax(-1)
    likeliest = probs.topk(min(256, probs.shape[-1])).values  # (B, up to 256), largest first
    if (likeliest.sum(-1) < p).any():  # seldom, and sorting all of a large vocabulary takes milliseconds
        likeliest = probs.sort(-1, descending=True).values  # (B, V)
    reached = likeliest.cumsum(-1) - likeliest >= p  # before this token already
    last = likeliest.masked_fill(reached, 1.0).amin(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(probs < last, RULED_OUT)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """The tokens with at least p times the likeliest one's probability (arXiv:2407.01082): sure models choose less."""
    probs = logits.softmax(-1)
    return logits.masked_fill(probs < p * probs.amax(-1, keepdim=True), RULED_OUT)


def apply_filters(logits: Tensor, sampling: Sampling) -> Tensor:
    """Everything but the penalty, in the order of Hugging Face and others: temperature, top_k, top_p, min_p."""
    logits = apply_temperature(logits, sampling.temperature)
    if sampling.top_k:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p:
        logits = keep_min_p(logits, sampling.min_p)
    return logits


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """One token a row, (B,): where ``uniform``, (B,) in [0, 1), falls among the summed probabilities.

    This costs one random number and a running sum; ``torch.multinomial`` draws V random numbers, which takes about
    twenty times as long for 32000 tokens. The sum is float64, for in float32 its last steps would be lost.
    """
    reached = logits.softmax(-1).cumsum(-1, dtype=torch.float64)  # (B, V)
    target = uniform[:, None] * reached[:, -1:]
    tokens = torch.searchsorted(reached, target, right=True)  # (B, 1)
    return tokens[:, 0].clamp(max=logits.shape[-1] - 1)  # (B,)


def uniforms(seed: int | None, rows: Iterable[int], device: torch.device | str = "cpu") -> Iterator[Tensor]:
    """The random numbers of each draw, (B,) in float64: a row's own, whatever other rows are in its batch.

    They are drawn in blocks, because those of an endless text would fill the memory. A generator gives the same numbers
    however they are divided into blocks.
    """
    if seed is None:
        seed = random.SystemRandom().getrandbits(63)
    streams = [torch.Generator().manual_seed(random.Random(f"{seed} {row}").getrandbits(63)) for row in rows]
    while True:
        block = [torch.rand(DRAWS, dtype=torch.float64, generator=stream) for stream in streams]
        yield from torch.stack(block).to(device).unbind(1)  # (B, DRAWS), (B,) each


def check_finite(logits: Tensor) -> None:
    """Raises ValueError for NaN and infinity, of which a sampler would make token 0 or V - 1."""
    if not logits.amax(-1).isfinite().all():  # the largest number of a row is NaN if any of them is
        raise ValueError("the logits are NaN or infinite: so are weights, or products overflow; try --dtype float32")


class Sampler:
    """Samples each row's next token. Holds each row's random stream, and the tokens that it has so far."""

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Collection[int]],
        vocab_size: int,
        first_row: int = 0,
        device: torch.device | str = "cpu",
        with_logprobs: bool = False,
    ) -> None:
        """Each row has a random stream of its own, numbered from ``first_row``; ``prompts`` are the tokens it has."""
        self.sampling = sampling
        self.device = device
        self.with_logprobs = with_logprobs
        self.logprobs: list[float] | None = None  # of the latest tokens, before temperature and filters
        rows = range(first_row, first_row + len(prompts))
        self.uniforms = uniforms(sampling.seed, rows, device)
        self.seen: Tensor | None = None
        if sampling.repetition_penalty != 1:
            self.seen = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)  # (B, V)
            for row, tokens in zip(self.seen, prompts):
                row[list(tokens)] = True

    @torch.no_grad()
    def __call__(self, logits: Tensor) -> Tensor:
        """(B, V) -> the tokens, (B, 1). Raises ValueError for logits that are not finite."""
        check_finite(logits)
        original = logits = logits.float()
        if self.seen is not None:
            logits = penalize(logits, self.seen, self.sampling.repetition_penalty)
        if self.sampling.temperature == 0:
            tokens = logits.argmax(-1, keepdim=True)  # (B, 1)
        else:
            tokens = draw(apply_filters(logits, self.sampling), next(self.uniforms))[:, None]  # (B, 1)
        if self.seen is not None:
            self.seen.scatter_(-1, tokens, True)
        if self.with_logprobs:
            self.logprobs = original.log_softmax(-1).gather(-1, tokens)[:, 0].tolist()
        return tokens
