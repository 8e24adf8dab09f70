"""Continue prompts in batches, and stream the text of each row up to its end or a stop string."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from torch import Tensor

from ..cli import quantity
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .batches import start
from .sampling import Sampler, Sampling


@dataclass(frozen=True)
class Prompt:
    text: str
    tokens: list[int]


def text_before_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The part of a text that certainly precedes any stop string, and whether it has one.

    Characters at its end that may be the beginning of a stop string do not count. If the text has several stop strings,
    the one that ends first counts, so the result does not depend on how the text is cut into pieces.
    """
    found = [(text.index(each) + len(each), text.index(each)) for each in stop if each in text]  # (end, start)
    if found:
        return text[: min(found)[1]], True
    partial = [length for each in stop for length in range(1, len(each)) if text.endswith(each[:length])]
    return text[: len(text) - max(partial, default=0)], False


@dataclass(eq=False)
class Sample:
    """One continuation. ``finish`` is None while it runs, then ``end`` (an end token), ``stop`` or ``length``."""

    prompt: Prompt
    tokenizer: Tokenizer
    max_new_tokens: int
    stop: Sequence[str] = ()
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None

    def __post_init__(self) -> None:
        self._stream = self.tokenizer.stream(self.prompt.tokens)  # tokenizers decode the start of a text differently
        self._held = ""  # characters that may be the beginning of a stop string

    def push(self, token: int) -> None:
        """Add the row's next token. Ignored after the sample has finished, because its batch may go on."""
        if self.finish is not None:
            return
        self.tokens.append(token)
        if token in self.tokenizer.eos_ids:
            self.finish = "end"
        elif len(self.tokens) == self.max_new_tokens:
            self.finish = "length"
        text = self._held
        if self.finish != "end":
            text += self._stream.push(token)
        if self.finish:
            text += self._stream.flush()
        certain, stopped = text_before_stop(text, self.stop)
        if stopped:
            self.finish = "stop"
        elif self.finish:
            certain = text
        self.text += certain
        self._held = text[len(certain) :]


@dataclass
class Speed:
    """Tokens and seconds of prefill and of decoding.

    They are counted separately, because prefill is limited by arithmetic, and decoding by memory bandwidth. The first
    step of a batch prefills the prompts and samples one token per row. It counts as prefill.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    new_seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"prompt: {rate(self.prompt_tokens, self.prompt_seconds)}; new: {rate(self.new_tokens, self.new_seconds)}"
        )


def rate(tokens: int, seconds: float) -> str:
    return f"{quantity(tokens, 'token')}, {seconds:.2f} s, {tokens / max(seconds, 1e-9):.0f} tokens/s"


def advance(samples: Sequence[Sample], steps: Iterable[Tensor], speed: Speed) -> Iterator[None]:
    """Give each sample its token of every step, (B, 1), until all have finished. Yields after each step.

    The time of the steps is added to ``speed``, without that of the caller between them.
    """
    started = time.perf_counter()
    for step, tokens in enumerate(steps):
        seconds = time.perf_counter() - started
        if step == 0:
            speed.prompt_seconds += seconds
            speed.prompt_tokens += sum(len(sample.prompt.tokens) for sample in samples)
        else:
            speed.new_seconds += seconds
            speed.new_tokens += sum(sample.finish is None for sample in samples)
        for sample, token in zip(samples, tokens[:, 0].tolist()):
            sample.push(token)
        yield
        if all(sample.finish for sample in samples):
            return
        started = time.perf_counter()


def complete(
    network: Transformer,
    samples: Iterable[Sample],
    sampling: Sampling,
    speed: Speed,
    *,
    batch_size: int = 16,
    endless: bool = False,
) -> Iterator[Sample]:
    """Continue the samples, ``batch_size`` at a time, with a network from ``for_decoding``.

    After every step it yields the sample that is being streamed: the first one until it has finished, then the second,
    and so on. A sample that finished while it waited is yielded once. Each time a sample is yielded, its ``finish`` is
    None, except the last time. Raises ValueError if the prompts of a batch cannot share one (``start``).
    """
    remaining, done = iter(samples), 0
    while batch := list(islice(remaining, batch_size)):
        prompts = [sample.prompt.tokens for sample in batch]
        sampler = Sampler(sampling, prompts, done)
        longest = max(sample.max_new_tokens for sample in batch)
        steps = start(network, prompts, longest, sampler, endless=endless)
        waiting = list(batch)  # not finished, or finished but not yielded yet; only the first one is streamed
        for _ in advance(batch, steps, speed):
            while waiting:
                yield waiting[0]
                if waiting[0].finish is None:
                    break
                waiting.pop(0)
        done += len(batch)
